"""Complete drains, compared with the same work written by hand."""

import time
from collections.abc import Callable
from functools import partial
from statistics import median

from pyspark.sql import SparkSession

from airflow_provider_taskq.queue import connect
from airflow_provider_taskq.spark import drain
from airflow_provider_taskq.spark.transforms import FrameFunction
from bench.rig import Rig, in_turn
from bench.spark import by_hand
from bench.spark.meter import cpu
from bench.spark.section import Scale
from bench.spark.sites import DRIVER, TOPIC, Site, filled, session
from bench.spark.work import decide

Work = Callable[[SparkSession, str], int]


def run(rig: Rig, scale: Scale) -> None:
    """All flights from ready to done, by the queue and by hand, in turn on copies of the same database."""
    print(f"\nSpark: {scale.flights:,} flights from ready to done in local[2], the JVM is up", flush=True)
    if not DRIVER.exists():
        print(f"  {by_hand.ABSENT}")
    with filled(rig, scale.flights) as site, session(rig) as spark:
        works: dict[str, Work] = {"drain": partial(drained, decide)}
        if DRIVER.exists():
            works["by hand: JDBC, executemany"] = by_hand.drained
            works["by hand, no index on state"] = by_hand.drained_without_index
            works["by hand, and claimed before"] = by_hand.claimed_and_drained
        for name, work in works.items():
            timed(site, spark, work, scale.flights, f"{name}, to warm up")
        measured = {name: partial(timed, site, spark, work, scale.flights, name) for name, work in works.items()}
        figures = in_turn(measured, scale.rounds)
    ours = median(figures["drain"])
    for name, values in figures.items():
        spread = f"[{min(values):,.0f}-{max(values):,.0f}]"
        theirs = median(values)
        print(f"  {name:<30} {theirs:>10,.0f}/s {spread:>20}   drain is {ours / theirs:.1f} x as fast", flush=True)


def drained(transform: FrameFunction, spark: SparkSession, dsn: str) -> int:
    """Drains the topic; returns how many tasks are done."""
    result = drain(spark, TOPIC, "bench", transform, dsn=dsn)
    with connect(dsn) as conn:
        done = int(conn.execute("SELECT count(*) FROM taskq_internal.ended").fetchall()[0][0])
    if done != result.done:
        raise RuntimeError(f"{done} tasks are done, and the drain says {result.done}")
    return done


def timed(site: Site, spark: SparkSession, work: Work, count: int, name: str) -> float:
    """Rows a second of one kind of work on its own copy of the data, printed with its CPU time."""
    with site.copy() as dsn:
        before, start = cpu(site.server_pid), time.perf_counter()
        done = work(spark, dsn)
        seconds = time.perf_counter() - start
        spent = cpu(site.server_pid).since(before)
    if done != count:
        raise RuntimeError(f"{name}: {done} of {count} are done")
    print(f"    {name:<40} {seconds:6.2f} s {count / seconds:>10,.0f}/s   {spent}", flush=True)
    return count / seconds
