"""Upgrades: how long a program waits while the next release changes the schema of five million tasks."""

import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from functools import partial
from multiprocessing import get_context
from statistics import median

import psycopg

from airflow_provider_taskq.queue import Result, TaskQueue, connect
from bench.rig import Rig, seconds, tasks
from tests.faults.releases import install_next_release

WAITING, ENDED = 2_500_000, 2_500_000
SIZE = 10
QUIET = 20.0  # seconds of work before and after each change
# What the rule for migrations forbids, for comparison.
AGAINST_THE_RULE = {
    "an index on the waiting tasks": "CREATE INDEX ON taskq_internal.live (topic_id, sequence, attempt)",
    "a column that rewrites the ended tasks": "ALTER TABLE taskq_internal.ended ADD COLUMN r float DEFAULT random()",
}


def run(rig: Rig) -> None:
    """One process pushes, polls and completes ten tasks at a time. Meanwhile the schema changes."""
    with rig.database() as dsn, ProcessPoolExecutor(1, get_context("spawn")) as pool:
        _fill(dsn)
        changes: dict[str, Callable[[], object]] = {"no change": lambda: None}
        changes["upgrade by the rule: columns, a table, all functions"] = partial(install_next_release, dsn)
        changes |= {name: partial(_execute, dsn, statement) for name, statement in AGAINST_THE_RULE.items()}
        print(f"\nUpgrades: {WAITING:,} waiting and {ENDED:,} ended tasks, {SIZE} at a time")
        for name, change in changes.items():
            working = pool.submit(work, dsn)
            time.sleep(QUIET)  # the length of the phase
            began = time.time()
            took = seconds(change)
            ended = time.time()
            time.sleep(QUIET)  # the length of the phase
            _execute(dsn, "CREATE TABLE public.enough ()")
            rounds = working.result()
            _execute(dsn, "DROP TABLE public.enough")
            meanwhile = [cost for at, cost in rounds if at + cost >= began and at <= ended + 1]
            usual = [cost for at, cost in rounds if at + cost < began]
            print(
                f"  {name:<60} took {took:6.2f} s; a round {1000 * median(usual):.1f} ms, the longest before"
                f" {1000 * max(usual):.0f} ms, meanwhile {1000 * max(meanwhile):.0f} ms"
            )


def work(dsn: str) -> list[tuple[float, float]]:
    """Push, poll and complete until the table `enough` is there; return when each round began, and its seconds."""
    rounds: list[tuple[float, float]] = []
    with closing(connect(dsn, autocommit=True)) as conn:
        queue = TaskQueue(conn)
        owner = queue.register("worker")
        while (row := conn.execute("SELECT to_regclass('public.enough')").fetchone()) == (None,):
            began = time.time()
            queue.push("bench", tasks(SIZE))
            queue.complete(owner, dict.fromkeys(queue.poll("bench", owner, SIZE), Result.SUCCESS))
            queue.heartbeat(owner)
            rounds.append((began, time.time() - began))
        assert row is not None
    return rounds


def _fill(dsn: str) -> None:
    with closing(connect(dsn, autocommit=True)) as conn:
        queue = TaskQueue(conn)
        queue.create_topic("bench")
        given = tasks(100_000)
        for _ in range((WAITING + ENDED) // len(given)):
            queue.push_stream("bench", iter(given))
        owner = queue.register("filler")
        for _ in range(ENDED // 10_000):
            queue.complete(owner, dict.fromkeys(queue.poll("bench", owner, 10_000), Result.SUCCESS))
            queue.heartbeat(owner)
        queue.release(owner)
        conn.execute("VACUUM ANALYZE")


def _execute(dsn: str, statement: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute(statement.encode())
