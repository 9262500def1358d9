"""Transactions of several verbs, and sessions that drop and create the topics of these verbs."""

import random
import time
from collections import Counter
from collections.abc import Callable
from datetime import timedelta

import psycopg

from airflow_provider_taskq.queue import (
    Condition,
    Cursor,
    Insertion,
    Result,
    RetryPolicy,
    Revival,
    State,
    TaskQueue,
    TaskQueueError,
    TopicPolicy,
    connect,
)

TOPICS = ("alpha", "beta")
# Without a probe, whose row two transactions that complete tasks of two topics may lock in different orders.
POLICY = TopicPolicy(RetryPolicy(max_attempts=3, base=timedelta(0)))
NOTHING: Counter[str] = Counter()
Step = Callable[[TaskQueue, random.Random, str], object]


def _push(queue: TaskQueue, dice: random.Random, _name: str) -> None:
    queue.push(dice.choice(TOPICS), [f"id-{dice.randrange(6)}" for _ in range(3)], dice.choice(list(Insertion)))


def _work(queue: TaskQueue, dice: random.Random, name: str) -> None:
    owner = queue.register(f"{name} {dice.random()}", timedelta(milliseconds=200))
    condition = dice.choice([Condition.NONE, Condition.SINGULAR_BY_IDENTIFIER])
    tasks = queue.poll(dice.choice(TOPICS), owner, 3, condition=condition)
    if dice.random() < 0.8:
        queue.complete(owner, {task: dice.choice(list(Result)) for task in tasks})


def _read(queue: TaskQueue, dice: random.Random, name: str) -> None:
    topic, group = dice.choice(TOPICS), f"group of {name}"
    queue.events(topic, None, 10)
    queue.advance(group, topic, 0, Cursor(dice.randrange(100)))
    queue.join_group(group, topic, 1, None)
    queue.acquire_partition(group, topic, name, timedelta(milliseconds=200))
    queue.renew_partitions(group, topic, name)


STEPS: tuple[Step, ...] = (
    _push,
    _push,
    _work,
    _work,
    _read,
    lambda queue, _dice, _name: queue.expire(),
    lambda queue, _dice, _name: queue.maintain(),
    lambda queue, dice, _name: queue.revive(dice.choice(TOPICS), State.FAILED, dice.choice(list(Revival)), size=2),
    lambda queue, dice, _name: queue.purge(dice.choice(TOPICS), size=5),
    lambda queue, dice, _name: queue.junction(dice.choice(TOPICS), [["id-1"], ["id-2", "id-3"]]),
    lambda queue, dice, name: queue.release_groups_once(name, dice.choice(TOPICS), [["id-1"]]),
    # A row of its own for each worker: two transactions that note two topics in different orders lock the same rows.
    lambda queue, dice, name: queue.record_handling_times(dice.choice(TOPICS), [10.0 ** -int(name[-1])]),
)


def work(dsn: str, name: str, seed: int, seconds: float) -> Counter[str]:
    """Runs transactions of two to five verbs until the time is up, and counts their outcomes."""
    dice, ends = random.Random(seed), Counter[str]()  # noqa: S311 - chance, not secrets
    deadline = time.monotonic() + seconds
    with connect(dsn) as conn:
        queue = TaskQueue(conn)
        while time.monotonic() < deadline:
            try:
                for step in dice.choices(STEPS, k=dice.randrange(2, 6)):
                    step(queue, dice, name)
                    time.sleep(dice.random() * 0.01)  # so that transactions overlap
                conn.commit()
                ends["committed"] += 1
            except (TaskQueueError, psycopg.Error) as error:
                conn.rollback()
                ends[type(error).__name__] += 1
    return ends


def drop(dsn: str, seed: int, seconds: float, *, alone: bool) -> Counter[str]:
    """Drops and creates topics until the time is up, and counts the outcomes. `alone`: in autocommit."""
    dice, ends = random.Random(seed), Counter[str]()  # noqa: S311 - chance, not secrets
    deadline = time.monotonic() + seconds
    with connect(dsn, autocommit=alone) as conn:
        queue = TaskQueue(conn)
        while time.monotonic() < deadline:
            try:
                for topic in dice.sample(TOPICS, k=1 if alone else 2):
                    ends[f"dropped {queue.drop_topic(topic)}"] += 1
                    queue.create_topic(topic, POLICY)
                if not alone:
                    conn.commit()
            except (TaskQueueError, psycopg.Error) as error:
                if not alone:
                    conn.rollback()
                ends[f"{type(error).__name__}"] += 1
            time.sleep(dice.random() * 0.1)  # so that the topics get some tasks
    return ends
