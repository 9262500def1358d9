"""Push: one call of 100,000 tasks, a stream of them, and one at a time, also with notifications."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import psycopg

from airflow_provider_taskq.queue import TaskQueue, connect
from bench import raw
from bench.rig import Rig, in_turn, rates, tasks, texts

BATCH = 100_000
SINGLES = 2_000
CLIENTS = (1, 4, 16)
CHUNK = 10_000


def run(rig: Rig) -> None:
    """Measures push."""
    with rig.database() as dsn, connect(dsn) as conn:
        conn.execute(raw.TABLES)
        queue = TaskQueue(conn)
        queue.create_topic("bench")
        conn.commit()
        rates(
            f"Push of {BATCH:,} tasks in one transaction",
            in_turn(
                {
                    "COPY into one table": _rate(conn, BATCH, lambda: _copy(conn)),
                    "INSERT ... unnest": _rate(conn, BATCH, lambda: _unnest(conn, BATCH)),
                    "push, one call": _rate(conn, BATCH, lambda: queue.push("bench", tasks(BATCH))),
                    "push_stream": _rate(conn, BATCH, lambda: queue.push_stream("bench", iter(tasks(BATCH)))),
                }
            ),
            "INSERT ... unnest",
        )
        rates(
            "Push of single tasks, each committed",
            in_turn(
                {
                    "INSERT ... unnest": _rate(conn, SINGLES, lambda: _singles(conn, lambda n: _unnest(conn, 1, n))),
                    "push": _rate(
                        conn, SINGLES, lambda: _singles(conn, lambda n: queue.push("bench", [tasks(BATCH)[n]]))
                    ),
                }
            ),
            "INSERT ... unnest",
        )
    with rig.database() as dsn:
        with connect(dsn) as conn:
            conn.execute(raw.TABLES)
        for clients in CLIENTS:
            _notifications(dsn, clients)


def _notifications(dsn: str, clients: int) -> None:
    """Single pushes by concurrent clients: no notification, one after the commit, one in the push."""
    with connect(dsn, autocommit=True) as conn, connect(dsn, autocommit=True) as listener:
        listener.execute("LISTEN taskq")
        TaskQueue(conn).create_topic("plain")
        TaskQueue(conn).create_topic("notify", notify=True)
        count = SINGLES * 2 // clients * clients

        def measured(topic: str, *, wake: bool = False) -> Callable[[], float]:
            def pushes(share: int) -> None:
                with connect(dsn, autocommit=True) as own:
                    queue = TaskQueue(own)
                    for task in tasks(share):
                        queue.push(topic, [task])
                        if wake:
                            queue.notify(topic)

            def together() -> None:
                with ThreadPoolExecutor(clients) as pool:
                    list(pool.map(pushes, [count // clients] * clients))

            return _rate(conn, count, together)

        rates(
            f"Push of single tasks, each committed, by {clients} clients",
            in_turn(
                {
                    "push": measured("plain"),
                    "push, then wake": measured("plain", wake=True),
                    "push, policy with notify": measured("notify"),
                }
            ),
            "push",
        )


def _rate(conn: psycopg.Connection, count: int, work: Callable[[], object]) -> Callable[[], float]:
    """Measures the tasks a second of a work and its commit, on emptied tables."""

    def measured() -> float:
        conn.execute("TRUNCATE raw.task, raw.live, taskq_internal.task, taskq_internal.live, taskq_internal.ended")
        conn.commit()
        texts(BATCH)
        start = time.perf_counter()
        work()
        conn.commit()
        return count / (time.perf_counter() - start)

    return measured


def _singles(conn: psycopg.Connection, one: Callable[[int], object]) -> None:
    for number in range(SINGLES):
        one(number)
        conn.commit()


def _unnest(conn: psycopg.Connection, count: int, first: int = 0) -> None:
    """The limit: the same rows into the same tables, with the same indexes, in the same chunks."""
    identifiers, payloads = texts(BATCH)
    for start in range(first, first + count, CHUNK):
        stop = min(start + CHUNK, first + count)
        numbers = list(range(start, stop))
        conn.execute(raw.TASK, (numbers, identifiers[start:stop], payloads[start:stop]))
        conn.execute(raw.LIVE, (numbers, identifiers[start:stop]))


def _copy(conn: psycopg.Connection) -> None:
    """Below the limit: only the wide rows, without the hot ones."""
    with conn.cursor().copy(
        "COPY raw.task (sequence, created, due, pushed_in, topic_id, priority, identifier, payload) FROM STDIN"
    ) as copy:
        for number, (identifier, payload) in enumerate(zip(*texts(BATCH), strict=True)):
            copy.write_row((number, "now", "now", "3", 1, 0, identifier, payload))
