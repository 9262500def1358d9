"""Displacing pushes: server CPU of a task under SUPERSEDE, REPLACE and DELETE, as a multiple of APPEND."""

from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product
from statistics import median
from uuid import uuid4

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from airflow_provider_taskq.queue import Insertion, TaskQueue, connect
from bench.rig import Rig, in_turn, server_cpu

REPEATING = 1_000  # identifiers of a push that repeats them
TABLES = ("task", "live", "ended")

# The identifiers of a push: new to the topic, or a thousand of them again and again, or those of its waiting tasks.
IDENTIFIERS: dict[str, Callable[[int], str]] = {
    "new": lambda number: f"new {number}",
    "repeating": lambda number: f"new {number % REPEATING}",
    "waiting": lambda number: f"waiting {number}",
}


def add_arguments(parser: ArgumentParser) -> None:
    """Adds the options of the section `displacing`."""
    parser.add_argument("--pushed", type=int, nargs="+", default=[10_000, 100_000, 300_000], help="tasks of a push")
    parser.add_argument("--stored", type=int, nargs="+", default=[0, 100_000, 1_000_000], help="tasks of the topic")


def run(rig: Rig, options: Namespace) -> None:
    """Measures each insertion into copies of the same topic."""
    print("\nDisplacing pushes, in one transaction: µs of server CPU a task, and multiples of APPEND")
    for stored, analyzed in product(options.stored, (False, True)):
        with _topic(rig, stored, analyzed=analyzed) as template:
            print(f"topic of {stored:,} tasks, {'analyzed' if analyzed else 'never analyzed'}", flush=True)
            for kind, count, calls in product(IDENTIFIERS, options.pushed, ("one call", "calls of 10,000")):
                if stored or kind != "waiting":
                    _compare(rig, template, kind, count, calls, options.rounds)


def _compare(rig: Rig, template: str, kind: str, count: int, calls: str, rounds: int) -> None:
    identifiers = [IDENTIFIERS[kind](number) for number in range(count)]
    push = _in_one_call if calls == "one call" else _in_calls

    def measured(insertion: Insertion) -> Callable[[], float]:
        return lambda: _cpu(rig, template, lambda queue: push(queue, identifiers, insertion)) / count * 1e6

    figures = in_turn({insertion.name: measured(insertion) for insertion in Insertion}, rounds)
    append = median(figures[Insertion.APPEND.name])
    multiples = "  ".join(
        f"{name} {median(values) / append:>5.2f}" for name, values in figures.items() if name != "APPEND"
    )
    print(f"  {count:>7,} {kind:<9} identifiers, {calls:<15}  APPEND {append:>5.1f} µs  {multiples}", flush=True)


def _in_one_call(queue: TaskQueue, identifiers: list[str], insertion: Insertion) -> None:
    queue.conn.execute("SELECT cardinality(taskq.push('bench', %s, %b::text[]))", (insertion.name, identifiers))


def _in_calls(queue: TaskQueue, identifiers: list[str], insertion: Insertion) -> None:
    queue.push_stream("bench", identifiers, insertion)


def _cpu(rig: Rig, template: str, work: Callable[[TaskQueue], None]) -> float:
    """The seconds of CPU that the server's process spends on one push into a copy of the topic."""
    with _copy(rig, template) as dsn, connect(dsn) as conn:
        queue = TaskQueue(conn)
        queue.push("warm", ["a", "b"], Insertion.REPLACE)
        before = server_cpu(conn)
        work(queue)
        return server_cpu(conn) - before


@contextmanager
def _topic(rig: Rig, stored: int, *, analyzed: bool) -> Iterator[str]:
    """The name of a database with the topic, whose statistics stay as they are."""
    with rig.database() as dsn:
        with connect(dsn, autocommit=True) as conn:
            for table in TABLES:
                conn.execute(f"ALTER TABLE taskq_internal.{table}_shared SET (autovacuum_enabled = off)".encode())
            queue = TaskQueue(conn)
            queue.create_topic("bench")
            queue.create_topic("warm")
            queue.push_stream("bench", map(IDENTIFIERS["waiting"], range(stored)))
            conn.execute("VACUUM ANALYZE" if analyzed else "CHECKPOINT")
        yield str(conninfo_to_dict(dsn)["dbname"])


@contextmanager
def _copy(rig: Rig, template: str) -> Iterator[str]:
    name = f"bench_{uuid4().hex[:8]}"
    with psycopg.connect(rig.server_dsn, autocommit=True) as admin:
        admin.execute(
            sql.SQL("CREATE DATABASE {} TEMPLATE {} STRATEGY FILE_COPY").format(
                sql.Identifier(name), sql.Identifier(template)
            )
        )
        try:
            yield make_conninfo(rig.server_dsn, dbname=name)
        finally:
            admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))
