"""Waits: ten thousand in one event loop on one connection, compared with waits that send a query each."""

import asyncio
import gc
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from importlib import import_module
from statistics import quantiles
from typing import LiteralString
from weakref import WeakKeyDictionary

import psycopg

from airflow_provider_taskq.queue import NewTask, TaskQueue, connect
from airflow_provider_taskq.queue.waits import JunctureWait, ReadyWait
from airflow_provider_taskq.triggers.watcher import get_watcher
from bench.rig import Rig
from demo.airflow_site import connection_json

CONN_ID = "taskq_bench"
WAITS = 10_000
ONE_EACH = 80  # below a server's default of 100 connections
POOL = 20
AT_ONCE = 50  # triggers that a triggerer starts at once
SETTLING = 6.0
IDLE = 10.0
PUSHES = 200
LINES = (
    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND backend_type = 'client backend'"
    " AND application_name <> 'bench'"
)
STATEMENTS = "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()"


@dataclass(frozen=True, slots=True)
class Shape:
    """A number of waits on a number of topics, and the function that waits."""

    name: str
    waits: int
    topics: int
    wait: Callable[[str, str], Awaitable[object]]
    listen: bool = False
    suspended: bool = False  # whether the pushed tasks are suspended


def run(rig: Rig) -> None:
    """Measures connections, queries while idle, the time from a push to its gate, and the load of the event loop."""
    shapes = (
        Shape("one watcher", WAITS, WAITS, _watched),
        Shape("one watcher", WAITS, 100, _watched),
        Shape("one watcher, notified", WAITS, WAITS, _watched, listen=True),
        Shape("one watcher, junctures", WAITS, WAITS, _joined, suspended=True),
        Shape("a query each", ONE_EACH, ONE_EACH, _alone),
        Shape("a query each, 20 connections", WAITS, WAITS, _alone_in_turn),
    )
    print(
        f"\nWaits: {PUSHES} single pushes while all wait, then a push to every topic; seconds"
        "; the event loop's longest pause between two turns in ms, and what it worked itself meanwhile"
        f"\n  {'':<30}{'waits':>7}{'topics':>8}{'conn.':>7}{'idle q/s':>10}"
        f"{'p50':>8}{'p99':>8}{'most':>8}{'all open':>10}{'pause':>10}{'of work':>9}"
    )
    # A full garbage collection walks all of Airflow's objects for 150 ms: they are frozen, to measure the waits alone.
    import_module("airflow_provider_taskq.hooks.taskq")
    gc.collect()
    gc.freeze()
    for shape in shapes:
        with rig.database() as dsn, _airflow(dsn, listen=shape.listen):
            asyncio.run(_measured(dsn, shape))


async def _measured(dsn: str, shape: Shape) -> None:
    """Prints one row."""
    loop = asyncio.get_running_loop()
    topics = [f"topic {number}" for number in range(shape.topics)]
    await asyncio.to_thread(_create, dsn, topics)
    with connect(dsn, autocommit=True, application_name="bench") as conn:
        async with _lag() as blocks:
            gates = {topic: asyncio.Event() for topic in topics}
            opened: dict[str, float] = {}
            waits = []
            for number in range(shape.waits):
                waits.append(loop.create_task(_timed(shape, dsn, topics[number % len(topics)], gates, opened)))
                if number % AT_ONCE == 0:
                    await asyncio.sleep(0)
            await asyncio.sleep(SETTLING)
            queries, lines = await asyncio.to_thread(_idle, conn)
            picked = topics[:: max(1, len(topics) // PUSHES)][: min(PUSHES, len(topics) // 2)]
            task = NewTask("task", suspended=shape.suspended)
            pushed = await asyncio.to_thread(_push_slowly, dsn, picked, task, notified=shape.listen)
            await asyncio.gather(*(gates[topic].wait() for topic in picked))
            delays = sorted(opened[topic] - pushed[topic] for topic in picked)
            began = await asyncio.to_thread(_push_rest, conn, [topic for topic in topics if topic not in pushed], task)
            await asyncio.gather(*waits)
            everything = max(opened.values()) - began
    cuts = quantiles(delays, n=100, method="inclusive")
    print(
        f"  {shape.name:<30}{shape.waits:>7,}{shape.topics:>8,}{lines:>7}{queries:>10.2f}"
        f"{cuts[49]:>8.2f}{cuts[98]:>8.2f}{delays[-1]:>8.2f}{everything:>10.2f}"
        f"{1000 * max(wall for wall, _ in blocks):>10.0f}{1000 * max(own for _, own in blocks):>9.0f}",
        flush=True,
    )


async def _timed(shape: Shape, dsn: str, topic: str, gates: dict[str, asyncio.Event], opened: dict[str, float]) -> None:
    """Waits, and notes when the last gate of a topic was opened."""
    await shape.wait(dsn, topic)
    opened[topic] = time.monotonic()
    gates[topic].set()


async def _watched(dsn: str, topic: str) -> object:  # noqa: ARG001 -- the signature of all waits
    return await get_watcher(CONN_ID).wait_for(ReadyWait(topic))


async def _joined(dsn: str, topic: str) -> object:  # noqa: ARG001 -- the signature of all waits
    return await get_watcher(CONN_ID).wait_for(JunctureWait(f"join {topic}", topic, (("task",),)))


async def _alone(dsn: str, topic: str) -> object:
    """A wait without a watcher: its own connection, and a query a second."""
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
        while not await _is_ready(connection, topic):  # noqa: ASYNC110 -- polling is measured here
            await asyncio.sleep(1)
        return True


_POOLS: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Queue[psycopg.AsyncConnection]] = WeakKeyDictionary()


async def _alone_in_turn(dsn: str, topic: str) -> object:
    """The same on a pool of connections."""
    loop = asyncio.get_running_loop()
    if loop not in _POOLS:
        _POOLS[loop] = asyncio.Queue()
        for _ in range(POOL):
            _POOLS[loop].put_nowait(await psycopg.AsyncConnection.connect(dsn, autocommit=True))
    while True:
        connection = await _POOLS[loop].get()
        try:
            if await _is_ready(connection, topic):
                return True
        finally:
            _POOLS[loop].put_nowait(connection)
        await asyncio.sleep(1)


async def _is_ready(connection: psycopg.AsyncConnection, topic: str) -> bool:
    cursor = await connection.execute("SELECT taskq.ready(%s::text, 1, 'NONE')", (topic,))
    row = await cursor.fetchone()
    return bool(row and row[0])


def _create(dsn: str, topics: Sequence[str]) -> None:
    with connect(dsn, autocommit=True, application_name="bench") as conn:
        queue = TaskQueue(conn)
        with conn.transaction():
            for topic in topics:
                queue.create_topic(topic)
        conn.execute("VACUUM ANALYZE")


def _idle(conn: psycopg.Connection) -> tuple[float, int]:
    """Queries a second without our own, and the number of connections."""
    before = _number(conn, STATEMENTS)
    time.sleep(IDLE)  # the measured time, in which nothing is pushed
    lines = _number(conn, LINES)
    time.sleep(1.5)  # a server publishes its statistics up to a second late
    return max(0, _number(conn, STATEMENTS) - before - 2) / (IDLE + 1.5), lines


def _number(conn: psycopg.Connection, query: LiteralString) -> int:
    row = conn.execute(query).fetchone()
    assert row is not None
    return int(row[0])


def _push_slowly(dsn: str, topics: Sequence[str], task: NewTask, *, notified: bool) -> dict[str, float]:
    """Pushes to one topic after the other, over ten seconds; returns when each push was committed."""
    pushed = {}
    with connect(dsn, autocommit=True, application_name="bench") as conn:
        queue = TaskQueue(conn)
        for topic in topics:
            pushed[topic] = time.monotonic()
            queue.push(topic, [task])
            if notified:
                queue.notify(topic)
            time.sleep(10 / len(topics))  # spreads the pushes over ten intervals of the watcher
    return pushed


def _push_rest(conn: psycopg.Connection, topics: Sequence[str], task: NewTask) -> float:
    """Pushes to all topics in one transaction; returns when it was committed."""
    queue = TaskQueue(conn)
    with conn.transaction():
        for topic in topics:
            queue.push(topic, [task])
    return time.monotonic()


@asynccontextmanager
async def _lag() -> AsyncIterator[list[tuple[float, float]]]:
    """Measures how long the event loop is blocked, and for how long of that it worked itself."""
    blocks = [(0.0, 0.0)]

    async def measure() -> None:
        while True:
            began, worked = time.monotonic(), time.thread_time()
            await asyncio.sleep(0.005)
            blocks.append((time.monotonic() - began - 0.005, time.thread_time() - worked))

    measuring = asyncio.create_task(measure())
    await asyncio.sleep(0)
    try:
        yield blocks
    finally:
        measuring.cancel()


@contextmanager
def _airflow(dsn: str, *, listen: bool) -> Iterator[None]:
    name = f"AIRFLOW_CONN_{CONN_ID.upper()}"
    os.environ[name] = connection_json(dsn, extra={"listen": listen})
    try:
        yield
    finally:
        del os.environ[name]
