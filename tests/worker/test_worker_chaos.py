"""Two worker processes under load, killed with -9 at random: nothing lost, effects once, order kept.

It runs for TASKQ_CHAOS_SECONDS seconds, by default 15.
"""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from airflow_provider_taskq.queue import NewTask, State, TaskQueue, TopicPolicy, connect
from tests.queue.conftest import until
from tests.worker.chaos_worker import LEASE

pytestmark = [
    pytest.mark.slow,
    pytest.mark.faults,
    pytest.mark.timeout(600),
    pytest.mark.promise("a worker is killed"),
    pytest.mark.promise("Effects in the same database happen once"),
]

SECONDS = float(os.environ.get("TASKQ_CHAOS_SECONDS", "15"))
IDENTIFIERS = 40
BACKLOG = 400
DOUBLED = "SELECT sequence FROM effect GROUP BY sequence HAVING count(*) > 1"
UNMATCHED = """SELECT sequence FROM effect
    FULL JOIN (SELECT sequence FROM taskq.tasks WHERE topic = 'work' AND state = 'SUCCEEDED') e USING (sequence)
    WHERE effect.sequence IS NULL OR e.sequence IS NULL"""
OVERTAKEN = """SELECT identifier FROM (
        SELECT identifier, number, lag(number) OVER (PARTITION BY identifier ORDER BY place) AS before FROM effect) e
    WHERE number <> coalesce(before, -1) + 1"""
FOLLOWERS = """SELECT name FROM (SELECT identifier || ' ' || number AS name FROM effect WHERE number % 10 = 0) e
    FULL JOIN (SELECT identifier AS name FROM taskq.task_info WHERE topic = 'after') f USING (name)
    WHERE e.name IS NULL OR f.name IS NULL"""


class Crew:
    """Worker processes."""

    def __init__(self, dsn: str, folder: Path) -> None:
        self.env = {**os.environ, "TASKQ_DSN": dsn, "PYTHONPATH": str(Path.cwd())}
        self.log = folder / "workers.log"
        self.members: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        with self.log.open("ab") as log:
            command = [sys.executable, "-m", "tests.worker.chaos_worker"]
            self.members.append(subprocess.Popen(command, env=self.env, stdout=log, stderr=log))

    def replace(self, number: int) -> None:
        """Kills one worker, and starts another."""
        self.members[number].kill()
        self.members.pop(number).wait()
        self.start()

    def suspend(self, number: int) -> None:
        """Suspends one worker for longer than its lease, as a busy machine may, and continues it."""
        self.members[number].send_signal(signal.SIGSTOP)
        time.sleep(LEASE.total_seconds() * 1.5)  # the test needs this much time to pass
        self.members[number].send_signal(signal.SIGCONT)

    def close(self) -> None:
        for member in self.members:
            if member.poll() is None:
                member.kill()
                member.wait()


@pytest.fixture
def load(queue: TaskQueue, effects: Callable[[], list[str]], dsn: str, tmp_path: Path) -> Iterator[Crew]:
    """The workers, and an empty table of effects."""
    assert effects() == []
    queue.alter_topic("work", TopicPolicy(max_crashes=1000))
    queue.create_topic("after")
    with closing(Crew(dsn, tmp_path)) as crew:
        yield crew


def test_workers_killed_at_random_lose_no_task_repeat_none_and_keep_the_order(
    queue: TaskQueue, load: Crew, dsn: str
) -> None:
    chance = random.Random(7)  # noqa: S311 -- random kills, the same in each run
    load.start()
    load.start()
    pushed = kills = suspensions = 0
    end = time.monotonic() + SECONDS
    next_kill = time.monotonic() + 2
    with connect(dsn) as pusher:
        while time.monotonic() < end:
            pushed += _push(pusher, pushed)
            if time.monotonic() > next_kill:
                if kills % 5 == 4 and suspensions * 5 < kills:
                    load.suspend(chance.randrange(2))
                    suspensions += 1
                else:
                    load.replace(chance.randrange(2))
                    kills += 1
                next_kill = time.monotonic() + chance.uniform(0.5, 2.5)
            time.sleep(0.01)  # the rate of the load
    until(lambda: _done(queue) == pushed, 60)
    until(lambda: len(_at_work(queue, load)) == 2, 30)  # so that the suspended program holds a task
    for member in load.members:
        member.terminate()
    assert [member.wait(30) for member in load.members] == [0, 0], load.log.read_text()
    for wrong in (DOUBLED, UNMATCHED, OVERTAKEN, FOLLOWERS):
        assert queue.conn.execute(wrong.encode()).fetchall() == [], wrong
    assert _at_work(queue, load) == set(), "a worker that stops releases its leases"
    crashes = queue.conn.execute("SELECT coalesce(sum(crashes), 0) FROM taskq.task_info").fetchone()
    sys.stdout.write(f"\n{pushed} tasks, {kills} kills, {suspensions} suspensions, {crashes} deliveries interrupted\n")
    assert pushed > 100
    assert kills >= SECONDS / 6


def _push(pusher: psycopg.Connection, pushed: int) -> int:
    """Pushes the next numbers of all identifiers, unless enough tasks wait."""
    queue = TaskQueue(pusher)
    number = 0
    if queue.ready("work", BACKLOG) < BACKLOG // 2:
        next_number = pushed // IDENTIFIERS
        number = len(queue.push("work", [NewTask(f"key {key}", next_number) for key in range(IDENTIFIERS)]))
    pusher.commit()
    return number


def _at_work(queue: TaskQueue, crew: Crew) -> set[int]:
    """The workers whose owners hold leases. The lease of a killed worker may last a little longer."""
    names = [owner.name for owner in queue.owners()]
    return {member.pid for member in crew.members if any(f"-{member.pid}-" in name for name in names)}


def _done(queue: TaskQueue) -> int:
    counted = queue.count("work", state=State.SUCCEEDED)["work"]
    return counted[State.SUCCEEDED].count if counted else 0
