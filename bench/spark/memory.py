"""A long drain in rounds, and the memory of its driver, which must not grow with the number of tasks."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from pyspark.sql import SparkSession

from airflow_provider_taskq.queue import TaskQueue, connect
from airflow_provider_taskq.spark import DrainProgress, drain
from bench.rig import Rig
from bench.spark.meter import below, is_java, resident
from bench.spark.section import Scale
from bench.spark.sites import TOPIC, session
from bench.spark.work import decide

ROUND = 250_000
EVERY = 0.25
CHUNK = 50_000
LINES = 10
PAYLOAD = '{"tailnum": "N14228", "dep_delay": 2, "arr_delay": 11, "note": "%s"}' % ("x" * 100)
PUSH = (
    "SELECT cardinality(taskq.push(%s::text, 'APPEND', array_agg('id-' || n), array_agg(%s::text)))"
    " FROM generate_series(%s::bigint, %s::bigint) n"
)


@dataclass(frozen=True, slots=True)
class Sample:
    """MB at a moment: the driver's Python, its JVM, of that the heap in use, and the largest Python worker."""

    done: int
    python: float
    jvm: float
    heap: float
    worker: float


def run(rig: Rig, scale: Scale) -> None:
    """Drains this number of tasks, and prints the memory use by progress."""
    with rig.database() as dsn, session(rig) as spark:
        _fill(dsn, scale.tasks)
        print(f"\nSpark: a drain of {scale.tasks:,} tasks in rounds of {ROUND:,}, local[2], a heap of 1 GB at most; MB")
        reached = [0]

        def note(progress: DrainProgress) -> None:
            reached[0] = progress.done

        with _sampled(spark, reached) as samples:
            result = drain(spark, TOPIC, "bench", decide, dsn=dsn, rounds=None, size=ROUND, on_progress=note)
        if result.done != scale.tasks:
            raise RuntimeError(f"{result.done} of {scale.tasks} tasks are done")
    _report(samples, scale.tasks)
    print(f"  {result.done:,} in {result.seconds:.0f} s, {result.rate:,.0f} a second, {result.rounds} rounds")


def _fill(dsn: str, count: int) -> None:
    """Pushes tasks that the server generates."""
    with connect(dsn, autocommit=True) as conn:
        TaskQueue(conn).create_topic(TOPIC)
        for first in range(0, count, CHUNK):
            conn.execute(PUSH, (TOPIC, PAYLOAD, first, min(first + CHUNK, count) - 1))
        conn.execute("VACUUM ANALYZE")
        conn.execute("CHECKPOINT")


@contextmanager
def _sampled(spark: SparkSession, reached: list[int]) -> Iterator[list[Sample]]:
    samples: list[Sample] = []
    stopped = threading.Event()
    runtime = spark.sparkContext._jvm.java.lang.Runtime.getRuntime()  # type: ignore[union-attr]  # noqa: SLF001

    def look() -> None:
        while not stopped.wait(EVERY):
            pids = list(below(os.getpid()))
            java = [pid for pid in pids if is_java(pid)]
            samples.append(
                Sample(
                    reached[0],
                    resident(os.getpid()),
                    sum(map(resident, java)),
                    (runtime.totalMemory() - runtime.freeMemory()) / 2**20,
                    max((resident(pid) for pid in pids if pid not in java), default=0.0),
                )
            )

    thread = threading.Thread(target=look, name="memory", daemon=True)
    thread.start()
    try:
        yield samples
    finally:
        stopped.set()
        thread.join()


def _report(samples: list[Sample], count: int) -> None:
    """The maxima in each tenth of the tasks and overall, and the minimum of the heap, which a collection leaves."""
    print(f"  {'tasks done':>21} {'Python':>8} {'JVM':>8} {'heap':>8} {'at least':>9} {'worker':>8}")
    step = count / LINES
    for line in range(LINES):
        low, high = line * step, (line + 1) * step
        _line([each for each in samples if low <= each.done < high], f"{low:,.0f} - {high:,.0f}")
    _line(samples, "all")


def _line(seen: list[Sample], name: str) -> None:
    if seen:
        heaps = [each.heap for each in seen]
        print(
            f"  {name:>21} {max(each.python for each in seen):8.0f} {max(each.jvm for each in seen):8.0f}"
            f" {max(heaps):8.0f} {min(heaps):9.0f} {max(each.worker for each in seen):8.0f}"
        )
