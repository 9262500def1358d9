"""One at a time per identifier: the cost of polls with and without a condition."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from statistics import median

from airflow_provider_taskq.queue import Condition, NewTask, Owner, Result, TaskQueue, connect
from bench.rig import Rig, in_turn, rates, seconds, tasks

SHAPES = {1: 2_000, 100: 50_000, 1_000: 100_000}  # batch size: tasks
CONDITIONS = {
    "NONE": Condition.NONE,
    "SINGULAR": Condition.SINGULAR_BY_IDENTIFIER,
    "SUSPEND_ON_FAILURE": Condition.SINGULAR_BY_IDENTIFIER_SUSPEND_ON_FAILURE,
}
PENDING = 1_000_000
SIZE = 100
REPETITIONS = 50
MOST = 2.0

DISTRIBUTIONS: dict[str, Callable[[int], str]] = {
    "all distinct": lambda number: f"id/{number}",
    "1,000 identifiers, interleaved": lambda number: f"id/{number % 1_000}",
    "1,000 identifiers, in runs": lambda number: f"id/{number * 1_000 // PENDING}",
    "one identifier": lambda _: "id",
    "one identifier, and 200 others behind": lambda number: "id" if number < PENDING - 200 else f"id/{number}",
}


def run(rig: Rig) -> None:
    """Measures draining and claiming under the conditions."""
    for size, number in SHAPES.items():
        works = {name: partial(_drain, rig, size, number, condition) for name, condition in CONDITIONS.items()}
        rates(f"Drain of {number:,} tasks by {size:,} under conditions, identifiers distinct", in_turn(works), "NONE")
    print(f"\nClaim of {SIZE} at {PENDING:,} pending, median ms over {REPETITIONS}, tasks polled; aim: <= {MOST}x NONE")
    for name in DISTRIBUTIONS:
        with _backlog(rig, name) as (queue, owner):
            _show(queue, name)
            held = queue.poll("bench", owner, 1, condition=Condition.SINGULAR_BY_IDENTIFIER)
            _show(queue, f"{name}; the first ACTIVE")
            queue.complete(owner, dict.fromkeys(held, Result.SUCCESS))


def _show(queue: TaskQueue, name: str) -> None:
    costs = {label: _claim(queue, condition) for label, condition in CONDITIONS.items()}
    shown = "   ".join(
        f"{label} {cost:7.2f} ms {cost / costs['NONE'][0]:5.2f}x ({got})" for label, (cost, got) in costs.items()
    )
    print(f"  {name:<58} {shown}", flush=True)


def _claim(queue: TaskQueue, condition: Condition) -> tuple[float, int]:
    """The median cost of a poll, and the number of its tasks, which are released after it."""
    costs, got = [], 0
    for _ in range(REPETITIONS):
        owner = queue.register("bench")
        start = time.perf_counter()
        got = len(queue.poll("bench", owner, SIZE, condition=condition))
        costs.append((time.perf_counter() - start) * 1000)
        queue.release(owner)
    return median(costs), got


@contextmanager
def _backlog(rig: Rig, distribution: str) -> Iterator[tuple[TaskQueue, Owner]]:
    """A topic with a million tasks whose identifiers have this distribution, and a second owner."""
    name = DISTRIBUTIONS[distribution]
    with rig.database() as dsn, connect(dsn, autocommit=True) as conn:
        queue = TaskQueue(conn)
        queue.create_topic("bench")
        queue.push_stream("bench", (NewTask(name(number), {"n": number}) for number in range(PENDING)))
        conn.execute("VACUUM ANALYZE")
        yield queue, queue.register("beside")


def _drain(rig: Rig, size: int, number: int, condition: Condition) -> float:
    """Tasks a second of one consumer under a condition, each task with an identifier of its own."""
    with rig.database() as dsn, connect(dsn, autocommit=True) as conn:
        queue = TaskQueue(conn)
        queue.create_topic("bench")
        given = enumerate(tasks(number))
        queue.push_stream("bench", (NewTask(f"id/{place}", task.payload) for place, task in given))
        conn.execute("VACUUM ANALYZE")
        owner = queue.register("bench")
        done = 0

        def drain() -> None:
            nonlocal done
            while found := queue.poll("bench", owner, size, condition=condition):
                queue.complete(owner, dict.fromkeys(found, Result.SUCCESS))
                done += len(found)

        elapsed = seconds(drain)
    if done != number:
        raise RuntimeError(f"{done} of {number} tasks were drained")
    return number / elapsed
