"""Shared by all benchmarks: a new database each, real payloads, interleaved rounds, medians and ratios."""

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import cycle, islice
from pathlib import Path
from statistics import median
from urllib.parse import quote
from uuid import uuid4

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from airflow_provider_taskq.queue import NewTask, connect, install
from demo.flights import flights

ROUNDS = 3


@dataclass(frozen=True, slots=True)
class Rig:
    """A server to measure on."""

    server_dsn: str

    @contextmanager
    def database(self) -> Iterator[str]:
        """The DSN of a fresh database with the schema."""
        with self.empty_database() as dsn:
            with connect(dsn) as conn:
                install(conn)
            yield dsn

    @contextmanager
    def empty_database(self) -> Iterator[str]:
        """The DSN of a fresh database."""
        name = f"bench_{uuid4().hex[:8]}"
        with psycopg.connect(self.server_dsn, autocommit=True) as admin:
            admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
            try:
                yield make_conninfo(self.server_dsn, dbname=name)
            finally:
                admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


def url(dsn: str) -> str:
    """A DSN as a URL, which every client reads."""
    given = {"password": "", "port": 5432, **conninfo_to_dict(dsn)}
    part = {name: quote(str(value), safe="") for name, value in given.items()}
    return f"postgresql://{part['user']}:{part['password']}@{part['host']}:{part['port']}/{part['dbname']}"


@cache
def tasks(count: int) -> list[NewTask]:
    """Returns `count` tasks with the flights of 2013 as payloads, about 320 bytes each, repeated as necessary.

    They have no reference: the rows of raw SQL have none either.
    """
    return [NewTask(task.identifier, task.payload) for task in islice(cycle(flights(min(count, 100_000))), count)]


@cache
def texts(count: int) -> tuple[list[str], list[str]]:
    """The same as identifiers and JSON texts, so that raw SQL is measured without the encoding."""
    given = tasks(count)
    return [task.identifier for task in given], [json.dumps(task.payload, separators=(",", ":")) for task in given]


def seconds(work: Callable[[], object]) -> float:
    """The seconds of one call."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def server_cpu(conn: psycopg.Connection) -> float:
    """The seconds of CPU of the session's process: in nanoseconds, or in ticks where the kernel has no more."""
    process = Path(f"/proc/{conn.info.backend_pid}")
    if (process / "schedstat").exists():
        return int((process / "schedstat").read_text(encoding="ascii").split()[0]) / 1e9
    fields = (process / "stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def in_turn(works: Mapping[str, Callable[[], float]], rounds: int = ROUNDS) -> dict[str, list[float]]:
    """The figures of each work over some rounds: A B C, then C B A, so that a drift of the machine affects all."""
    figures: dict[str, list[float]] = {name: [] for name in works}
    for number in range(rounds):
        for name in list(works) if number % 2 == 0 else list(works)[::-1]:
            figures[name].append(works[name]())
    return figures


def rates(title: str, figures: Mapping[str, list[float]], limit: str) -> None:
    """Prints rates a second, each with its range and its share of the limit's median."""
    print(f"\n{title}")
    for name, values in figures.items():
        share = median(values) / median(figures[limit])
        spread = f"[{min(values):,.0f}-{max(values):,.0f}]"
        print(f"  {name:<46} {median(values):>10,.0f}/s {spread:>20} {share:>6.0%} of {limit}")
