"""Designs: the tables that were compared before the queue's own were chosen (docs/why/evidence/decisions.md)."""

from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median

import psycopg

from airflow_provider_taskq.queue import connect
from bench.rig import Rig, seconds, texts

FOLDER = Path(__file__).parent / "designs"
COUNT = 100_000
BATCH = 1_000
SINGLES = 500
ROUNDS = 4  # each adds to the one before: the later ones show the cost of history

ASIDE = (
    "ALTER TABLE d.task SET (toast_tuple_target = 128); ALTER TABLE d.task ALTER COLUMN payload SET STORAGE EXTERNAL;"
)
DEFAULTS = "".join(f"CREATE TABLE d.{name}_d PARTITION OF d.{name} DEFAULT;" for name in ("task", "live", "ended"))


def _script(file: str, partitioned: str = "", then: str = "") -> str:
    return (FOLDER / file).read_text().replace("PARTITIONED;", f"{partitioned};") + then


DESIGNS = {
    "wide": _script("wide.sql"),
    "wide, payload aside": _script("wide.sql", then=ASIDE),
    "split": _script("split.sql"),
    "moved": _script("moved.sql"),
    "moved, partitioned": _script("moved.sql", "PARTITION BY LIST (topic_id)", DEFAULTS),
}


def run(rig: Rig) -> None:
    """Measures push, claim and finish of each design, round after round on the same growing tables."""
    texts(COUNT)
    print(
        f"\nDesigns: {COUNT:,} tasks a round by {BATCH:,}, {SINGLES} single ones, {ROUNDS} rounds on a growing history"
    )
    with ExitStack() as stack:
        sites = {name: _site(rig, stack, script) for name, script in DESIGNS.items()}
        figures: dict[str, list[tuple[float, ...]]] = {name: [] for name in DESIGNS}
        for number in range(ROUNDS):
            for name in list(sites) if number % 2 == 0 else list(sites)[::-1]:
                figures[name].append(_round(sites[name]))
    for name, rounds in figures.items():
        push, drain, log, single = (median(column) for column in zip(*rounds, strict=True))
        each = " ".join(f"{figure[1]:,.0f}" for figure in rounds)
        print(
            f"  {name:<20} push {push:>8,.0f}/s   drain {drain:>8,.0f}/s ({each})   log {log:>6,.0f} B a task"
            f"   single {single:>6,.0f}/s"
        )


def _site(rig: Rig, stack: ExitStack, script: str) -> psycopg.Connection:
    dsn = stack.enter_context(rig.database())
    conn = stack.enter_context(connect(dsn, autocommit=True))
    conn.execute("CREATE SCHEMA d; CREATE SEQUENCE d.numbers")
    conn.execute(script.encode())
    return conn


def _round(conn: psycopg.Connection) -> tuple[float, ...]:
    """Rates of push and drain by batches, bytes of log a task, and the rate of single drains."""
    before = _log_position(conn)
    push = COUNT / seconds(partial(_push, conn, COUNT, BATCH))
    drain = COUNT / seconds(partial(_drain, conn, BATCH))
    log = (_log_position(conn) - before) / COUNT
    _push(conn, SINGLES, 1)
    return push, drain, log, SINGLES / seconds(partial(_drain, conn, 1))


def _push(conn: psycopg.Connection, count: int, size: int) -> None:
    identifiers, payloads = texts(COUNT)
    for start in range(0, count, size):
        stop = start + size
        conn.execute("SELECT d.push(%b::text[], %b::text[])", (identifiers[start:stop], payloads[start:stop]))


def _drain(conn: psycopg.Connection, size: int) -> None:
    while found := conn.execute("SELECT * FROM d.claim(%s)", (size,)).fetchall():
        outputs = ['{"delay":5}'] * len(found)
        conn.execute("SELECT d.finish(%b::bigint[], %b::text[])", ([row[0] for row in found], outputs))


def _log_position(conn: psycopg.Connection) -> int:
    row = conn.execute("SELECT pg_current_wal_lsn() - '0/0'::pg_lsn").fetchone()
    return int(row[0]) if row else 0
