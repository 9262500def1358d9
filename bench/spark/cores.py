"""Drains on one core and on two: decided by Spark, and by a Python function of each task."""

import os
from functools import partial
from statistics import median

from airflow_provider_taskq.spark import by_task
from airflow_provider_taskq.spark.transforms import FrameFunction
from bench.rig import Rig
from bench.spark.drains import drained, timed
from bench.spark.section import Scale
from bench.spark.sites import filled, session
from bench.spark.work import decide, decide_one


def run(rig: Rig, scale: Scale) -> None:
    """Measures one core in one session, and two in another."""
    print(f"\nSpark: drains on one core and on two of {os.cpu_count()}; the server is on the same machine", flush=True)
    kinds: dict[str, FrameFunction] = {"DataFrame": decide, "by_task": by_task(decide_one)}
    medians: dict[tuple[str, int], float] = {}
    with filled(rig, scale.flights) as site:
        for cores in (1, 2):
            with session(rig, cores) as spark:
                for kind, transform in kinds.items():
                    name, work = f"{kind}, local[{cores}]", partial(drained, transform)
                    rates = [timed(site, spark, work, scale.flights, name) for _ in range(scale.rounds)]
                    medians[kind, cores] = median(rates)
    for kind in kinds:
        one, two = medians[kind, 1], medians[kind, 2]
        print(f"  {kind:<12} one core {one:>9,.0f}/s   two {two:>9,.0f}/s   {two / one:.2f} x", flush=True)
