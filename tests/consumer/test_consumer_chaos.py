"""Consumer programs killed with -9 at random: one sets two partitions, the other three."""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from statistics import median

import psycopg
import pytest

from airflow_provider_taskq.queue import TaskQueue, connect
from tests.consumer.consumer_program import EFFECT_COLUMNS
from tests.consumer.consumers import at_end, table
from tests.queue.conftest import until

SECONDS = float(os.environ.get("TASKQ_CHAOS_SECONDS", "12"))
LONGER = 275.0  # more seconds for enough kills, if programs start slowly
LEASE = 1.5

pytestmark = [
    pytest.mark.slow,
    pytest.mark.faults,
    pytest.mark.timeout(SECONDS + LONGER + 450),
    pytest.mark.promise("Progress is committed with the rows of the handler, or not at all"),
    pytest.mark.promise("Another number of partitions leaves no gap and no duplicate"),
]
PARTITIONS = {"two": 2, "three": 3}

LOST = "SELECT sequence FROM taskq.task_info EXCEPT SELECT sequence FROM handled"
DOUBLED = "SELECT sequence FROM handled GROUP BY sequence HAVING count(*) > 1"
# Effects of an identifier or a partition have to be in the order of the log.
OVERTAKEN = """SELECT * FROM (SELECT sequence, lag(sequence) OVER (PARTITION BY {} ORDER BY nth) AS before
    FROM handled) l WHERE before > sequence"""
# Fences of a partition only grow. If two programs held it at a time, their fences would alternate.
TWO_HOLDERS = """SELECT * FROM (
    SELECT fence, lag(fence) OVER (PARTITION BY generation, partition ORDER BY nth) AS before FROM handled) l
    WHERE before > fence"""
SHARED_FENCES = "SELECT fence FROM handled GROUP BY fence HAVING count(DISTINCT (by, generation, partition)) > 1"
# All events of a generation precede those of the next one, in the log and in time.
MIXED = """SELECT * FROM (SELECT generation, min(sequence) AS first, min(nth) AS start FROM handled GROUP BY 1) a
    JOIN (SELECT generation, max(sequence) AS last, max(nth) AS over FROM handled GROUP BY 1) b
    ON b.generation < a.generation WHERE b.last > a.first OR b.over > a.start"""


class Crew:
    """Programs of tests.consumer.consumer_program, by name. The name of a session has the number of its start."""

    def __init__(self, dsn: str, folder: Path) -> None:
        self.env = {**os.environ, "TASKQ_DSN": dsn, "PYTHONPATH": str(Path.cwd())}
        self.folder = folder
        self.members: dict[str, subprocess.Popen[bytes]] = {}
        self.sessions: dict[str, str] = {}

    def start(self, name: str) -> None:
        command = [sys.executable, "-m", "tests.consumer.consumer_program", name, str(PARTITIONS[name]), str(LEASE)]
        self.sessions[name] = f"{name} {time.monotonic()}"
        env = {**self.env, "PGAPPNAME": self.sessions[name]}
        with (self.folder / f"{name}.log").open("ab") as log:
            self.members[name] = subprocess.Popen(command, env=env, stdout=log, stderr=log)

    def kill(self, name: str) -> int:
        """Kills a program, and returns its process id."""
        member = self.members[name]
        os.kill(member.pid, signal.SIGKILL)
        member.wait()
        return member.pid

    def end(self) -> None:
        """Stops all programs, and waits for their end."""
        for member in self.members.values():
            member.terminate()
        for name, member in self.members.items():
            # The program that started last may get the signal before it handles signals.
            assert member.wait(60) in (0, -signal.SIGTERM), (self.folder / f"{name}.log").read_text()

    def close(self) -> None:
        for member in self.members.values():
            if member.poll() is None:
                member.kill()
                member.wait()


@pytest.fixture
def crew(dsn: str, queue: TaskQueue, tmp_path: Path) -> Iterator[Crew]:
    table(queue, "handled", EFFECT_COLUMNS)
    with closing(Crew(dsn, tmp_path)) as started:
        yield started


@pytest.fixture
def stop_producing(dsn: str, queue: TaskQueue) -> Iterator[Callable[[], None]]:
    """Pushes events of a few identifiers, in interleaved transactions of two sessions, until the result is called."""
    enough = threading.Event()

    def produce() -> None:
        numbers = random.Random(1)  # noqa: S311
        with connect(dsn) as one, connect(dsn) as two:
            while not enough.wait(0.02):
                for conn in (one, two):
                    TaskQueue(conn).push("work", [f"id-{numbers.randrange(12)}" for _ in range(3)])
                two.commit()
                one.commit()

    def stop() -> None:
        enough.set()
        thread.join()

    assert queue.topics() == ["work"]
    thread = threading.Thread(target=produce)
    thread.start()
    yield stop
    stop()


def held_by(queue: TaskQueue, pid: int) -> set[tuple[int, int, int]]:
    """The partitions that a process holds: generation, partition, fence."""
    named = f" {pid} "
    return {
        (r.generation, r.partition, r.fence or 0) for r in queue.partition_states() if r.member and named in r.member
    }


def take_over(queue: TaskQueue, held: set[tuple[int, int, int]]) -> float:
    """Seconds until other programs hold the partitions of a dead process, or its generation has ended."""
    has_started = time.monotonic()
    fences = {fence for _, _, fence in held}
    until(lambda: not fences & {consumer.fence for consumer in queue.partition_states()}, 30)
    return time.monotonic() - has_started


def is_up(queue: TaskQueue, session: str) -> bool:
    """Whether a program is connected."""
    found = queue.conn.execute("SELECT FROM pg_stat_activity WHERE application_name = %s", (session,))
    return found.rowcount > 0


def handled(queue: TaskQueue) -> tuple[int, int, int]:
    """The number of handled events, the number of fences, and the last generation."""
    row = queue.conn.execute("SELECT count(*), count(DISTINCT fence), max(generation) FROM handled").fetchone()
    assert row is not None
    return row[0], row[1], row[2]


def is_enough(queue: TaskQueue, took: list[float]) -> bool:
    """Whether enough events, fences and generations have passed."""
    events, fences, generations = handled(queue)
    return events > 200 and fences > 5 and generations > 2 and bool(took)


def kill_some(queue: TaskQueue, crew: Crew) -> list[float]:
    """Kills programs at random. Returns the seconds of each takeover by a program that was running."""
    chance = random.Random(3)  # noqa: S311 - which process dies next is no secret
    took: list[float] = []
    has_started = time.monotonic()
    while time.monotonic() < has_started + SECONDS or not is_enough(queue, took):
        assert time.monotonic() < has_started + SECONDS + LONGER, (handled(queue), took)
        name, other = chance.sample(list(PARTITIONS), 2)
        with_other = chance.random() < 0.7
        if with_other:
            until(partial(is_up, queue, crew.sessions[other]), 60)
        time.sleep(chance.uniform(0.1, 1.5))  # the test is about kills at random moments
        held = held_by(queue, crew.kill(name))
        if held and with_other:
            took.append(take_over(queue, held))
        crew.start(name)
    return took


def wrong(conn: psycopg.Connection, query: str) -> list[object]:
    return list(conn.execute(query.encode()).fetchall())


def test_every_event_is_handled_once_and_in_order_although_consumers_are_killed_and_repartitioned(
    queue: TaskQueue, crew: Crew, stop_producing: Callable[[], None]
) -> None:
    for name in PARTITIONS:
        crew.start(name)
    until(lambda: queue.conn.execute("SELECT FROM handled LIMIT 100").rowcount == 100, 60)
    took = kill_some(queue, crew)
    stop_producing()
    until(lambda: at_end(queue), 180)
    crew.end()
    queries = [LOST, DOUBLED, OVERTAKEN.format("identifier"), OVERTAKEN.format("generation, partition")]
    for query in [*queries, TWO_HOLDERS, SHARED_FENCES, MIXED]:
        assert wrong(queue.conn, query) == [], query
    events, fences, generations = handled(queue)
    sys.stdout.write(f"{events} events, {fences} fences, {generations} generations, taken over after {sorted(took)}\n")
    assert is_enough(queue, took)
    assert median(took) < LEASE + 2, "the lease, and some seconds for a busy machine"
