"""The processes of the stress test: each runs one kind of call until its time is up, and may be killed.

Every completion writes a row into the table `ledger` in the same transaction. So a row is there if, and only if, its
completion was committed.
"""

import random
import sys
import time
from collections.abc import Callable
from datetime import timedelta

import psycopg

from airflow_provider_taskq.queue import (
    Condition,
    NewTask,
    NotHeld,
    Owner,
    Result,
    State,
    TaskQueue,
)
from tests.internals import lapse_lease

LEDGER = """CREATE TABLE ledger (
    line bigint GENERATED ALWAYS AS IDENTITY, topic text, identifier text, sequence bigint, attempt int, revived boolean
)"""
PUSHED = "CREATE TABLE pushed (topic text, sequence bigint, producer text)"
SEEN = "CREATE TABLE seen (topic text, identifier text, active int)"
TOPICS = {"single": Condition.SINGULAR_BY_IDENTIFIER, "free": Condition.NONE}
Step = Callable[[TaskQueue, random.Random, str], None]


def produce(queue: TaskQueue, dice: random.Random, name: str) -> None:
    """Pushes a few tasks of a few identifiers, commits late, and sometimes rolls back."""
    topic = dice.choice(list(TOPICS))
    tasks = queue.push(topic, [NewTask(f"id-{dice.randrange(8)}", {"n": 1}) for _ in range(dice.randrange(1, 6))])
    sequences = [task.sequence for task in tasks]
    queue.conn.execute("INSERT INTO pushed SELECT %s, unnest(%s::bigint[]), %s", (topic, sequences, name))
    time.sleep(dice.random() * 0.02)  # the rest of its transaction
    if dice.random() < 0.1:
        queue.conn.rollback()
        return
    queue.conn.commit()


def consume(queue: TaskQueue, dice: random.Random, name: str) -> None:
    """Polls, and completes with a row in the ledger. Sometimes rolls back, releases, or lets its lease lapse."""
    owner = queue.register(name, timedelta(seconds=1))
    queue.conn.commit()
    for _ in range(20):
        topic = dice.choice(list(TOPICS))
        tasks = queue.poll(topic, owner, dice.choice([1, 2, 5, 50]), condition=TOPICS[topic])
        if dice.random() < 0.1:
            queue.conn.rollback()
            continue
        queue.conn.commit()
        if dice.random() < 0.05:
            _lapse(queue, owner)  # and completes all the same: the first commit decides
        for task in tasks:
            queue.conn.execute(
                "INSERT INTO ledger (topic, identifier, sequence, attempt, revived) SELECT %s, %s, %s, %s,"
                " EXISTS (SELECT FROM ledger WHERE sequence = %s)",
                (topic, task.identifier, task.sequence, task.attempt, task.sequence),
            )
        queue.complete(owner, dict.fromkeys(tasks, Result.SUCCESS))
        if dice.random() < 0.05:
            queue.conn.rollback()
            queue.release(owner)
            queue.conn.commit()
            return
        queue.conn.commit()


def _lapse(queue: TaskQueue, owner: Owner) -> None:
    """Makes the lease lapse as if a second had passed without a heartbeat."""
    lapse_lease(queue.conn, owner.name)
    queue.conn.commit()


def expire(queue: TaskQueue, _dice: random.Random, _name: str) -> None:
    """Expires lapsed leases."""
    queue.expire()
    queue.conn.commit()


def revive(queue: TaskQueue, dice: random.Random, _name: str) -> None:
    """Resets an ended task, so that it is done once more."""
    queue.revive(dice.choice(list(TOPICS)), State.SUCCEEDED, size=1, from_=dice.randrange(100))
    queue.conn.commit()


def terminate(queue: TaskQueue, _dice: random.Random, _name: str) -> None:
    """Ends a session of another process at a random moment."""
    queue.conn.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
        " AND application_name LIKE 'stress %' AND pid <> pg_backend_pid() ORDER BY random() LIMIT 1"
    )
    queue.conn.commit()
    time.sleep(0.3)  # the pace of this process's work


def watch(queue: TaskQueue, _dice: random.Random, _name: str) -> None:
    """Records the identifiers that have several ACTIVE tasks at once."""
    queue.conn.execute(
        "INSERT INTO seen SELECT topic, identifier, count(*) FROM taskq.tasks"
        " WHERE state = 'ACTIVE' GROUP BY 1, 2 HAVING count(*) > 1"
    )
    queue.conn.commit()


STEPS: dict[str, Step] = {step.__name__: step for step in (produce, consume, expire, revive, terminate, watch)}


def main(dsn: str, role: str, seed: int, seconds: float) -> None:
    """Repeats a step until the time is up. Starts again after its session was ended or its lease was lost."""
    dice = random.Random(seed)  # noqa: S311 - chance, not secrets
    deadline = time.monotonic() + seconds
    prefix = "stress" if role in ("produce", "consume") else "steady"
    while time.monotonic() < deadline:
        try:
            with psycopg.connect(dsn, application_name=f"{prefix} {role}", prepare_threshold=None) as conn:
                queue = TaskQueue(conn)
                while time.monotonic() < deadline:
                    _once(queue, STEPS[role], dice, f"{role} {seed}")
        except psycopg.OperationalError:
            continue


def _once(queue: TaskQueue, step: Step, dice: random.Random, name: str) -> None:
    """Runs one step, and rolls it back if the lease was lost."""
    try:
        step(queue, dice, name)
    except NotHeld:  # LeaseLost is one
        queue.conn.rollback()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4]))
