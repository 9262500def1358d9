"""Several processes, with sessions ended and processes killed at random: nothing is lost or out of order."""

import random
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from airflow_provider_taskq.queue import Result, State, TaskQueue, TopicPolicy, connect
from tests.internals import lapse_lease
from tests.queue.stress import LEDGER, PUSHED, SEEN, TOPICS

pytestmark = pytest.mark.promise("Nothing is lost")

SECONDS = 8
ROLES = ["produce", "produce", "consume", "consume", "consume", "expire", "revive", "terminate", "watch"]
OVERTAKEN = """SELECT count(*) FROM (
    SELECT l.sequence, lag(l.sequence) OVER (PARTITION BY p.producer, l.identifier ORDER BY l.line) AS before
    FROM ledger l JOIN pushed p USING (topic, sequence) WHERE topic = 'single' AND NOT l.revived) o
WHERE o.sequence < o.before"""
ROOT = Path(__file__).parents[2]


@pytest.fixture
def stressed(own_dsn: str) -> Iterator[TaskQueue]:
    """A queue after a time of stress, with all remaining tasks completed."""
    seed = random.SystemRandom().randrange(10**6)
    print(f"seed {seed}")  # noqa: T201 - to repeat the run
    with connect(own_dsn, autocommit=True) as conn:
        queue = TaskQueue(conn)
        for topic in TOPICS:
            queue.create_topic(topic, TopicPolicy(max_crashes=10_000))
        for table in (LEDGER, PUSHED, SEEN):
            conn.execute(table.encode())
        _stress(own_dsn, seed)
        _drain(queue)
        yield queue


def _stress(dsn: str, seed: int) -> None:
    """Runs all roles, and kills a consumer with -9 every second. Another one replaces it."""
    processes = [_begin(dsn, role, seed + number) for number, role in enumerate(ROLES)]
    dice = random.Random(seed)  # noqa: S311 - chance, not secrets
    try:
        for second in range(SECONDS - 3):
            time.sleep(1)  # the pace of the killings
            victim = dice.choice([number for number, role in enumerate(ROLES) if role == "consume"])
            processes[victim].kill()
            processes[victim].wait()
            processes[victim] = _begin(dsn, "consume", seed + 100 + second, SECONDS - second - 2)
        for process in processes:
            process.wait(60)
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert {process.returncode for process in processes} == {0}


def _begin(dsn: str, role: str, seed: int, seconds: float = SECONDS) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "tests.queue.stress", dsn, role, str(seed), str(seconds)]
    return subprocess.Popen(command, cwd=ROOT)


def _drain(queue: TaskQueue) -> None:
    """Expires the leases of dead processes, and completes everything with a row in the ledger."""
    lapse_lease(queue.conn)
    queue.expire()
    owner = queue.register("last", timedelta(hours=1))
    for topic, condition in TOPICS.items():
        while tasks := queue.poll(topic, owner, 100, condition=condition):
            with queue.conn.transaction():
                for task in tasks:
                    queue.conn.execute(
                        "INSERT INTO ledger (topic, identifier, sequence, attempt, revived)"
                        " SELECT %s, %s, %s, %s, EXISTS (SELECT FROM ledger WHERE sequence = %s)",
                        (topic, task.identifier, task.sequence, task.attempt, task.sequence),
                    )
                queue.complete(owner, dict.fromkeys(tasks, Result.SUCCESS))


def _one(queue: TaskQueue, query: str) -> int:
    """The number that a query returns."""
    row = queue.conn.execute(query.encode()).fetchone()
    assert row is not None
    number: int = row[0]
    return number


@pytest.mark.slow
@pytest.mark.faults
@pytest.mark.timeout(180)
def test_under_stress_no_task_is_lost_repeated_or_out_of_order(stressed: TaskQueue) -> None:
    counted = stressed.count()
    pushed = _one(stressed, "SELECT count(*) FROM pushed")
    assert pushed > 200
    assert sum(count.count for states in counted.values() for count in states.values()) == pushed
    assert all(set(states) == {State.SUCCEEDED} for states in counted.values())

    # Each task as often as it was pushed or reset, and never twice without a reset between.
    assert _one(stressed, "SELECT count(DISTINCT sequence) FROM ledger") == pushed
    assert _one(stressed, "SELECT count(*) FROM ledger WHERE NOT revived") == pushed

    # In the order of their pushes, for each producer and identifier, except for tasks that were reset.
    assert _one(stressed, OVERTAKEN) == 0

    # Never two of an identifier at once; under NONE there are, or this watcher is blind.
    assert _one(stressed, "SELECT count(*) FROM seen WHERE topic = 'single'") == 0
    assert _one(stressed, "SELECT count(*) FROM seen WHERE topic = 'free'") > 0
