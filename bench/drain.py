"""Drain: poll and complete until a topic is empty, one at a time and in batches, by one consumer and by four."""

import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from multiprocessing.synchronize import Barrier

from airflow_provider_taskq.queue import Result, TaskQueue, connect
from bench import raw
from bench.rig import Rig, in_turn, rates, tasks, texts

SHAPES = {1: 3_000, 100: 60_000, 1_000: 100_000}  # batch size: tasks

FINISH = (
    "UPDATE raw.wide SET state = 6, completed = now()"
    " WHERE topic_id = 1 AND state = 0 AND holder = 1 AND sequence = ANY (%b::bigint[])"
)

_barriers: list[Barrier] = []  # set in each process of the pool


def run(rig: Rig) -> None:
    """Measures drains in all shapes."""
    for consumers in (1, 4):
        for size, count in SHAPES.items():
            figures = in_turn(
                {
                    "bare updates": partial(_measure, rig, bare, size, count, consumers),
                    "poll and complete": partial(_measure, rig, ours, size, count, consumers),
                }
            )
            rates(f"Drain of {count:,} tasks by {size:,}, {consumers} consumer(s)", figures, "bare updates")


def _measure(rig: Rig, drain: Callable[[str, int], int], size: int, count: int, consumers: int) -> float:
    """Tasks a second: from the first poll of any consumer to the last completion of all."""
    with rig.database() as dsn:
        _fill(dsn, count)
        if consumers == 1:
            start = time.perf_counter()
            done = [drain(dsn, size)]
        else:
            context = get_context("spawn")
            together = (context.Barrier(consumers),)
            with ProcessPoolExecutor(consumers, context, initializer=_set_barrier, initargs=together) as pool:
                list(pool.map(_wait_for_all, range(consumers)))
                start = time.perf_counter()
                done = list(pool.map(drain, [dsn] * consumers, [size] * consumers))
        elapsed = time.perf_counter() - start
    if sum(done) != count:
        raise RuntimeError(f"{sum(done)} of {count} tasks were drained")
    return count / elapsed


def _fill(dsn: str, count: int) -> None:
    """Fills both tables with the same tasks, and updates the statistics."""
    with connect(dsn, autocommit=True) as conn:
        conn.execute(raw.TABLES)
        queue = TaskQueue(conn)
        queue.create_topic("bench")
        queue.push_stream("bench", iter(tasks(count)))
        for start in range(0, count, 10_000):
            conn.execute(raw.WIDE, tuple(column[start : start + 10_000] for column in texts(count)))
        conn.execute("VACUUM ANALYZE")


def bare(dsn: str, size: int) -> int:
    """The limit: claim and finish as two updates of one table, with a fetch of the claimed rows."""
    done = 0
    with connect(dsn, autocommit=True) as conn:
        while found := conn.execute(raw.CLAIM, (size,)).fetchall():
            conn.execute(FINISH, ([row[0] for row in found],))
            done += len(found)
    return done


def ours(dsn: str, size: int) -> int:
    """The queue: the same, fenced, ordered, and as objects."""
    done = 0
    with connect(dsn, autocommit=True) as conn:
        queue = TaskQueue(conn)
        owner = queue.register(f"bench/{conn.info.backend_pid}")
        while found := queue.poll("bench", owner, size):
            queue.complete(owner, dict.fromkeys(found, Result.SUCCESS))
            done += len(found)
    return done


def _set_barrier(barrier: Barrier) -> None:
    """Gives a process of the pool the barrier that all processes share."""
    _barriers.append(barrier)


def _wait_for_all(number: int) -> int:
    """Returns when all processes of the pool run and have imported their modules, so that the clock may start."""
    _barriers[0].wait(60)
    return number
