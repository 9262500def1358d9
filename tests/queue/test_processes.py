"""Processes killed at random moments, and a server that restarts: nothing is lost or done twice."""

import os
import subprocess
import sys
from contextlib import ExitStack, closing
from pathlib import Path

import psycopg
import pytest

from airflow_provider_taskq.queue import Result, State, TaskQueue, TopicPolicy, connect, install
from demo.postgres import EmbeddedPostgres
from tests.queue.conftest import lapse, numbered, until
from tests.queue.consumer import TABLES

pytestmark = [
    pytest.mark.slow,
    pytest.mark.faults,
    pytest.mark.promise("Nothing is lost"),
    pytest.mark.promise("Effects in the same database happen once"),
]

LOST = "SELECT identifier FROM pushed EXCEPT SELECT identifier FROM ledger"
INVENTED = "SELECT identifier FROM ledger EXCEPT SELECT identifier FROM pushed"
DOUBLED = "SELECT sequence FROM ledger GROUP BY sequence HAVING count(*) > 1"
UNMATCHED = """SELECT sequence FROM ledger
    FULL JOIN (SELECT sequence FROM taskq.tasks WHERE state = 'SUCCEEDED') e USING (sequence)
    WHERE ledger.sequence IS NULL OR e.sequence IS NULL"""


class Crew:
    """Programs of tests.queue.consumer, by name."""

    def __init__(self, dsn: str, folder: Path) -> None:
        self.env = {**os.environ, "TASKQ_DSN": dsn, "PYTHONPATH": str(Path.cwd())}
        self.folder = folder
        self.members: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, action: str, name: str) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self.members[name] = subprocess.Popen(
                [sys.executable, "-m", "tests.queue.consumer", action, name], env=self.env, stdout=log, stderr=log
            )

    def wait(self) -> None:
        for name, member in self.members.items():
            assert member.wait(60) == 0, (self.folder / f"{name}.log").read_text()

    def close(self) -> None:
        for member in self.members.values():
            if member.poll() is None:
                member.kill()
                member.wait()


def finish(queue: TaskQueue, crew: Crew) -> None:
    """Stops all programs, and completes the tasks that killed programs held."""
    queue.conn.execute("INSERT INTO enough VALUES (true)")
    crew.wait()
    for owner in queue.owners():
        lapse(queue, owner)
    queue.expire()
    last = queue.register("last")
    while tasks := queue.poll("work", last, 500):
        with queue.conn.transaction():
            for task in tasks:
                queue.conn.execute("INSERT INTO ledger VALUES (%s, %s, 'last')", (task.sequence, task.identifier))
            queue.complete(last, dict.fromkeys(tasks, Result.SUCCESS))


def nothing_lost_nothing_doubled(queue: TaskQueue) -> int:
    """Checks that each task has one effect, and returns the number of tasks."""
    for wrong in (LOST, INVENTED, DOUBLED, UNMATCHED):
        assert queue.conn.execute(wrong.encode()).fetchall() == [], wrong
    counts = queue.count("work")["work"]
    row = queue.conn.execute("SELECT count(*) FROM pushed").fetchone()
    assert row is not None
    assert {state: count.count for state, count in counts.items()} == {State.SUCCEEDED: row[0]}
    return int(row[0])


def test_a_server_that_restarts_during_polls_loses_and_repeats_no_task(tmp_path: Path) -> None:
    with ExitStack() as stack:
        server = stack.enter_context(EmbeddedPostgres())
        with connect(server.dsn, autocommit=True) as conn:
            install(conn)
            conn.execute(TABLES.encode())
            TaskQueue(conn).create_topic("work", TopicPolicy(max_crashes=1000))
        crew = stack.enter_context(closing(Crew(server.dsn, tmp_path)))
        for number in range(3):
            crew.start("consume", f"consumer {number}")
        crew.start("produce", "producer")
        for mode in ("immediate", "fast", "immediate"):
            more_work_is_done(server.dsn)
            server.stop(mode)
            server.start()
        more_work_is_done(server.dsn)
        with connect(server.dsn, autocommit=True) as conn:
            finish(TaskQueue(conn), crew)
            assert nothing_lost_nothing_doubled(TaskQueue(conn)) > 30


def more_work_is_done(dsn: str) -> None:
    """Waits until the consumers have finished ten more tasks."""
    with connect(dsn, autocommit=True) as conn:
        done = "SELECT count(*) FROM ledger"
        [before] = conn.execute(done.encode()).fetchone() or (0,)
        until(lambda: (conn.execute(done.encode()).fetchone() or (0,))[0] >= before + 10, 60)


def test_a_poll_that_the_restart_cut_off_took_nothing() -> None:
    with EmbeddedPostgres() as server:
        with connect(server.dsn, autocommit=True) as conn:
            install(conn)
            queue = TaskQueue(conn)
            queue.create_topic("work")
            queue.push("work", numbered(10))
            owner = queue.register("me")
            held = queue.poll("work", owner, 3)
        with connect(server.dsn) as cut:
            TaskQueue(cut).poll("work", owner, 3)
            TaskQueue(cut).complete(owner, {held[0]: Result.SUCCESS})
            TaskQueue(cut).push("work", ["more"])
            server.stop("immediate")
            with pytest.raises(psycopg.OperationalError):
                cut.commit()
        server.start()
        with connect(server.dsn, autocommit=True) as conn:
            queue = TaskQueue(conn)
            assert queue.held(owner) == held
            assert queue.ready("work", 100) == 7
            queue.complete(owner, dict.fromkeys(held, Result.SUCCESS))


@pytest.mark.promise("A push of any length needs little memory in the client")
def test_a_push_of_200_000_tasks_in_one_call_adds_less_than_50_mb(own_dsn: str, own_queue: TaskQueue) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.queue.consumer", "stream", "producer"],
        env={**os.environ, "TASKQ_DSN": own_dsn, "PYTHONPATH": str(Path.cwd())},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    count, before, greatest = (int(word) for word in done.stdout.split())
    assert count == 200_000
    assert greatest - before < 50_000, f"{before} to {greatest} KiB"  # a list of the tasks alone takes more
    assert own_queue.count_tasks("work") == 200_000
    assert own_queue.ready("work", 5) == 5
