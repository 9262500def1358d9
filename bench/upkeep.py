"""Upkeep: the cost of a claim over minutes of churn and growing history, while long transactions delay vacuum."""

import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from statistics import median, quantiles

import psycopg

from airflow_provider_taskq.queue import Result, TaskQueue, connect
from bench.rig import Rig, tasks

PHASES = {"alone": 120, "4 readers, 1 idle": 300, "alone again": 120}  # seconds
EVERY = 30
SIZE = 100
BACKLOG = 2_000
KEPT = 200_000

SIZES = """SELECT s.n_dead_tup, pg_relation_size('taskq_internal.live_shared'),
    pg_indexes_size('taskq_internal.live_shared'),
    pg_total_relation_size('taskq_internal.task_shared') + pg_total_relation_size('taskq_internal.ended_shared')
    FROM pg_stat_user_tables s WHERE s.relid = 'taskq_internal.live_shared'::regclass"""


@dataclass(frozen=True, slots=True)
class Sample:
    """The hot table at a moment: dead rows, bytes of its heap and indexes, and bytes of the history."""

    at: float
    phase: str
    dead: int
    heap: int
    indexes: int
    history: int


def run(rig: Rig) -> None:
    """Two consumers push, poll and complete a hundred tasks at a time, and purge the oldest ended ones."""
    with rig.database() as dsn, ProcessPoolExecutor(2, get_context("spawn")) as pool:
        with connect(dsn, autocommit=True) as conn:
            TaskQueue(conn).create_topic("bench")
            TaskQueue(conn).push_stream("bench", iter(tasks(BACKLOG)))
        until = time.time() + sum(PHASES.values())
        workers = [pool.submit(churn, dsn, f"consumer {number}", until) for number in range(2)]
        samples = list(_samples(dsn))
        polls = sorted(poll for worker in workers for poll in worker.result())
    _report(samples, polls)


def churn(dsn: str, name: str, until: float) -> list[tuple[float, float]]:
    """Works until a moment; returns when each poll began, and its seconds."""
    polls: list[tuple[float, float]] = []
    with connect(dsn, autocommit=True) as conn:
        queue = TaskQueue(conn)
        owner = queue.register(name)
        while time.time() < until:
            start = time.time()
            found = queue.poll("bench", owner, SIZE)
            polls.append((start, time.time() - start))
            queue.complete(owner, dict.fromkeys(found, Result.SUCCESS))
            queue.push("bench", tasks(SIZE))
            if len(polls) % 100 == 0:
                queue.heartbeat(owner)
                _purge(queue)
    return polls


def _purge(queue: TaskQueue) -> None:
    """Purges the history but for the last KEPT tasks."""
    row = queue.conn.execute("SELECT max(sequence) FROM taskq_internal.task WHERE topic_id = 1").fetchone()
    assert row is not None
    queue.purge("bench", to=row[0] - KEPT)


def _samples(dsn: str) -> Iterator[Sample]:
    """Yields a sample every five seconds of each phase."""
    with connect(dsn, autocommit=True) as conn:
        for phase, length in PHASES.items():
            with _readers(dsn, 4 if "readers" in phase else 0):
                until = time.time() + length
                while time.time() < until:
                    time.sleep(min(5, max(0.0, until - time.time())))  # the interval between two samples
                    row = conn.execute(SIZES.encode()).fetchone()
                    assert row is not None
                    yield Sample(time.time(), phase, *row)


@contextmanager
def _readers(dsn: str, count: int) -> Iterator[None]:
    """Opens `count` REPEATABLE READ transactions, and one that wrote and is idle."""
    with ExitStack() as stack:
        for number in range(count + 1 if count else 0):
            conn = stack.enter_context(psycopg.connect(dsn))
            conn.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ if number else None
            conn.execute("SELECT count(*) FROM taskq_internal.live" if number else "CREATE TEMP TABLE idle AS SELECT 1")
        yield


def _report(samples: list[Sample], polls: list[tuple[float, float]]) -> None:
    print(f"\nUpkeep: 2 consumers, {SIZE} at a time, a backlog of {BACKLOG:,}, {KEPT:,} ended tasks kept")
    start = samples[0].at - 5
    for begin in range(0, sum(PHASES.values()), EVERY):
        took = [1000 * cost for at, cost in polls if begin <= at - start < begin + EVERY]
        seen = [sample for sample in samples if begin <= sample.at - start < begin + EVERY]
        if took and seen:
            last = seen[-1]
            poll = f"poll {median(took):6.2f} ms, p99 {quantiles(took, n=100)[98]:7.2f}"
            sizes = (
                f"{last.heap / 2**20:6.1f} MB + {last.indexes / 2**20:6.1f} MB, history {last.history / 2**20:6.1f} MB"
            )
            speed = f"{len(took) * SIZE / EVERY:>7,.0f} tasks/s"
            dead = f"{max(one.dead for one in seen):>9,} dead"
            print(f"  {begin:>5} s {last.phase:<18} {speed}   {poll}   live {dead} {sizes}")
