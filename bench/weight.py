"""Weight: server CPU and WAL of a push and a drain, by index, by table and by step.

The queue is measured as a whole, and then without one of its parts: an index is dropped, the rows of a table are not
written, or a function does nothing. The difference is the cost of the part. A queue without a part may be wrong: only
its cost is of interest. Bare statements are the limits.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from statistics import median

import psycopg

from airflow_provider_taskq.queue import Result, TaskQueue, connect
from bench import raw
from bench.drain import FINISH
from bench.peers.limits import SINGLE as BOTH_ROWS
from bench.rig import Rig, server_cpu, tasks, texts

PUSHED = 100_000
CHUNK = 10_000  # tasks of a call, as in the Python client
SINGLES = 2_000
DRAINED = {100: 30_000, 1_000: 50_000}  # batch size: tasks
PREPARED = 5  # psycopg's own default
TABLES = ("task", "live", "ended")

SINGLE, PUSH, BY_100, BY_1000 = WORKS = (
    "push, one a transaction", f"push of {PUSHED:,}", "drain by 100", "drain by 1,000",
)  # fmt: skip
PUSHES, DRAINS = (SINGLE, PUSH), (BY_100, BY_1000)
NEEDED_BY_DRAINS = (
    "live_ready",
    "live_held",
    "live_waiting",
    "live_pkey",
    "task_pkey",
)  # without one, a drain reads whole tables

ONE_TABLE = b"""CREATE TABLE raw.one (sequence bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    created timestamptz NOT NULL DEFAULT now(), identifier text NOT NULL, payload json)"""
ONE = "INSERT INTO raw.one (identifier, payload) SELECT i, p::json FROM unnest(%b::text[], %b::text[]) AS u (i, p)"
ONE_ROW = "INSERT INTO raw.one (identifier, payload) VALUES (%s, %s::json)"
WIDE_ROW = "INSERT INTO raw.wide (identifier, payload) VALUES (%s, %s::json)"


@dataclass(frozen=True, slots=True)
class Cost:
    """Server CPU in microseconds and WAL in bytes, of one task."""

    cpu: float
    wal: float


@dataclass(frozen=True, slots=True)
class Edit:
    """A change of a PL/pgSQL function: the part of its definition that the pattern matches becomes the text."""

    function: str
    arguments: int | None  # selects one of the functions with this name
    pattern: str
    text: str


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the queue, how to remove it, and the works that run without it."""

    name: str
    works: tuple[str, ...] = WORKS
    statement: str = ""
    edits: tuple[Edit, ...] = ()


@dataclass(frozen=True, slots=True)
class Subject:
    """A database with works in their order, each of which returns the number of its tasks."""

    name: str
    conn: psycopg.Connection
    works: Mapping[str, Callable[[], int]]
    tables: str  # all tables that the works fill
    costs: dict[str, list[Cost]] = field(default_factory=lambda: defaultdict(list))

    def measure(self) -> None:
        """Measures each work once. A drain finds the tables as a push and a vacuum leave them."""
        for work, run in self.works.items():
            if work in PUSHES:
                self.conn.execute(f"TRUNCATE {self.tables}".encode())
            self.conn.execute(f"VACUUM ANALYZE {self.tables}".encode())
            cpu, wal = server_cpu(self.conn), _wal(self.conn)
            count = run()
            self.costs[work].append(Cost((server_cpu(self.conn) - cpu) / count * 1e6, (_wal(self.conn) - wal) / count))
        self.conn.execute(f"TRUNCATE {self.tables}".encode())


def run(rig: Rig, rounds: int) -> None:
    """Measures the limits, the whole queue, and the queue without each part, in alternating rounds."""
    with ExitStack() as stack:
        limits = [make(stack.enter_context(_database(rig))) for make in (_one_table, _both_tables, _wide_table)]
        whole = _queue(stack.enter_context(_database(rig)), None)
        without = [_queue(stack.enter_context(_database(rig)), part) for part in (*_indexes(whole.conn), *_parts())]
        subjects = [*limits, whole, *without]
        for subject in subjects:  # a new session loads the catalog and compiles each function
            subject.works[SINGLE]()
        for number in range(rounds):
            for subject in subjects if number % 2 == 0 else subjects[::-1]:
                subject.measure()
        _print_totals(rounds, [*limits, whole])
        _print_shares(rounds, whole, without)


@contextmanager
def _database(rig: Rig) -> Iterator[psycopg.Connection]:
    with rig.database() as dsn, connect(dsn, autocommit=True, prepare_threshold=PREPARED) as conn:
        yield conn


# The limits


def _one_table(conn: psycopg.Connection) -> Subject:
    conn.execute(raw.TABLES)
    conn.execute(ONE_TABLE)
    works = {
        SINGLE: lambda: _singles(lambda _, identifier, payload: conn.execute(ONE_ROW, (identifier, payload))),
        PUSH: lambda: _chunks(conn, lambda _, identifiers, payloads: conn.execute(ONE, (identifiers, payloads))),
    }
    return Subject("bare INSERT, one table with one index", conn, works, "raw.one")


def _both_tables(conn: psycopg.Connection) -> Subject:
    conn.execute(raw.TABLES)

    def chunk(numbers: list[int], identifiers: list[str], payloads: list[str]) -> None:
        conn.execute(raw.TASK, (numbers, identifiers, payloads))
        conn.execute(raw.LIVE, (numbers, identifiers))

    works = {
        SINGLE: lambda: _singles(lambda n, i, p: conn.execute(BOTH_ROWS, {"n": n, "i": i, "p": p})),
        PUSH: lambda: _chunks(conn, chunk),
    }
    return Subject("bare INSERT, the queue's tables and indexes", conn, works, "raw.task, raw.live")


def _wide_table(conn: psycopg.Connection) -> Subject:
    conn.execute(raw.TABLES)

    def drain(size: int) -> int:
        done = 0
        while done < DRAINED[size] and (found := conn.execute(raw.CLAIM, (size,)).fetchall()):
            conn.execute(FINISH, ([row[0] for row in found],))
            done += len(found)
        return done

    works: dict[str, Callable[[], int]] = {
        SINGLE: lambda: _singles(lambda _, identifier, payload: conn.execute(WIDE_ROW, (identifier, payload))),
        PUSH: lambda: _chunks(conn, lambda _, identifiers, payloads: conn.execute(raw.WIDE, (identifiers, payloads))),
        BY_100: partial(drain, 100),
        BY_1000: partial(drain, 1_000),
    }
    return Subject("bare INSERT and UPDATE, one table with two indexes", conn, works, "raw.wide")


def _singles(one: Callable[[int, str, str], object]) -> int:
    for number, (identifier, payload) in enumerate(zip(*(column[:SINGLES] for column in texts(PUSHED)), strict=True)):
        one(number, identifier, payload)
    return SINGLES


def _chunks(conn: psycopg.Connection, one: Callable[[list[int], list[str], list[str]], object]) -> int:
    with conn.transaction():
        for start in range(0, PUSHED, CHUNK):
            numbers = list(range(start, start + CHUNK))
            one(numbers, *(column[start : start + CHUNK] for column in texts(PUSHED)))
    return PUSHED


# The queue


def _queue(conn: psycopg.Connection, part: Part | None) -> Subject:
    """The queue without a part, or as a whole."""
    for table in TABLES:
        conn.execute(f"ALTER TABLE taskq_internal.{table}_shared SET (autovacuum_enabled = off)".encode())
    queue = TaskQueue(conn)
    queue.create_topic("bench")
    queue.push("bench", ["a"])  # stores the front
    owner = queue.register("bench", timedelta(days=1))
    if part:
        conn.execute(part.statement.encode())
        for edit in part.edits:
            _apply(conn, edit)

    def singles() -> int:
        for task in tasks(PUSHED)[:SINGLES]:
            queue.push("bench", [task])
        return SINGLES

    def drain(size: int) -> int:
        done, found = 0, queue.poll("bench", owner, size)
        while done + len(found) < DRAINED[size]:
            done += len(found)
            found = queue.exchange(owner, dict.fromkeys(found, Result.SUCCESS), "bench", size)
        queue.complete(owner, dict.fromkeys(found, Result.SUCCESS))
        return done + len(found)

    works: dict[str, Callable[[], int]] = {
        SINGLE: singles,
        PUSH: lambda: queue.push_stream("bench", iter(tasks(PUSHED))).count,
        BY_100: partial(drain, 100),
        BY_1000: partial(drain, 1_000),
    }
    if part:  # the drains take what the push has stored
        works = {work: run for work, run in works.items() if work in part.works or work in PUSHES}
    tables = ", ".join(f"taskq_internal.{table}" for table in TABLES)
    return Subject(part.name if part else "TaskQ", conn, works, tables)


def _indexes(conn: psycopg.Connection) -> Iterator[Part]:
    """The indexes of the three tables."""
    for table in TABLES:
        for index, is_constraint in conn.execute(
            "SELECT c.relname, k.oid IS NOT NULL FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid"
            " LEFT JOIN pg_constraint k ON k.conindid = i.indexrelid WHERE i.indrelid = %s::regclass"
            " ORDER BY c.relname",
            (f"taskq_internal.{table}",),
        ).fetchall():
            works = DRAINS if table == "ended" else PUSHES if index in NEEDED_BY_DRAINS else WORKS
            drop = (
                f"ALTER TABLE taskq_internal.{table} DROP CONSTRAINT "
                if is_constraint
                else "DROP INDEX taskq_internal."
            )
            yield Part(f"index {index}", works, f"{drop}{index}")


def _parts() -> Iterator[Part]:
    """The writes and the steps that a function could do without, if nothing depended on them."""
    for table in ("task", "live"):
        insert = rf"INSERT INTO taskq_internal\.{table} .*?;"
        pushes = ("taskq.push", 10), ("taskq_internal.store_tasks", None)
        edits = tuple(Edit(function, arguments, insert, "") for function, arguments in pushes)
        yield Part(f"rows of {table}, with its indexes", PUSHES, edits=edits)
    yield Part("announcement of a push", PUSHES, edits=(_does("announce_push", "RETURN 0;"),))
    yield Part("checks of tasks", (PUSH,), edits=(_does("check_tasks"),))
    yield Part("front of a push", (PUSH,), edits=(_does("front_time", "RETURN p_now;"),))
    rows = Edit("taskq_internal.end_tasks", None, r", moved AS \(.*RETURNING sequence\)(.*)m\.seq(.*)moved m",
                r"\1g.seq\2gone g")  # fmt: skip
    yield Part("rows of ended, with its indexes", DRAINS, edits=(rows,))
    yield Part("checks of decisions", DRAINS, edits=(_does("check_decisions"),))
    waiting = (_does("promote_waiting", "RETURN false;"),)
    yield Part("looks for waiting tasks", DRAINS, edits=waiting)
    yield Part("advance of the front", DRAINS, edits=(_does("advance_fronts_at_random", "RETURN false;"),))


def _does(function: str, statement: str = "") -> Edit:
    body = r"(?<=AS \$function\$).*(?=\$function\$)"
    return Edit(f"taskq_internal.{function}", None, body, f"BEGIN {statement} END")


def _apply(conn: psycopg.Connection, edit: Edit) -> None:
    row = conn.execute(
        "SELECT pg_get_functiondef(p.oid) FROM pg_proc p WHERE p.pronamespace::regnamespace || '.' || p.proname = %s"
        " AND p.pronargs = coalesce(%s, p.pronargs) AND p.prosrc LIKE %s LIMIT 1",
        (edit.function, edit.arguments, "%BEGIN%"),
    ).fetchone()
    changed, count = re.subn(edit.pattern, edit.text, row[0] if row else "", count=1, flags=re.DOTALL)
    if not count:
        raise RuntimeError(f"{edit.function} has changed: {edit.pattern} matches nothing")
    conn.execute(changed.encode())


def _wal(conn: psycopg.Connection) -> int:
    """The bytes of WAL that the session has written or, before PostgreSQL 18, that all sessions have written."""
    if conn.info.server_version >= 180000:
        conn.execute("SELECT pg_stat_force_next_flush()")
        statement = b"SELECT wal_bytes::bigint FROM pg_stat_get_backend_wal(pg_backend_pid())"
    else:
        statement = b"SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint"
    row: tuple[int] | None = conn.execute(statement).fetchone()
    return row[0] if row else 0


# The tables


def _print_totals(rounds: int, subjects: list[Subject]) -> None:
    print(f"\nServer CPU in µs and WAL in bytes of a task: medians [ranges] of {rounds} rounds\n")
    _print_head()
    for subject in subjects:
        cells = []
        for work in WORKS:
            costs = subject.costs.get(work, [])
            cpu = [cost.cpu for cost in costs]
            cells.append(_cell(median(cpu), cpu, [cost.wal for cost in costs]) if cpu else "-")
        print(f"| {subject.name} | " + " | ".join(cells) + " |", flush=True)


def _print_shares(rounds: int, whole: Subject, without: list[Subject]) -> None:
    """The CPU is the difference of the lowest figures: what else runs on the machine can only add to a figure."""
    print(f"\nWhat a task costs less without a part of TaskQ: the difference of the lowest CPU of {rounds} rounds")
    print("[range of the differences of a round], and the median difference of WAL\n")
    _print_head()
    for subject in without:
        cells = []
        for work in WORKS:
            pairs = list(zip(whole.costs[work], subject.costs.get(work, []), strict=False))
            if not pairs:
                cells.append("-")
                continue
            lowest = min(a.cpu for a, _ in pairs) - min(b.cpu for _, b in pairs)
            cells.append(_cell(lowest, [a.cpu - b.cpu for a, b in pairs], [a.wal - b.wal for a, b in pairs]))
        print(f"| {subject.name} | " + " | ".join(cells) + " |", flush=True)


def _print_head() -> None:
    print("| | " + " | ".join(WORKS) + " |\n|---" + "|--:" * len(WORKS) + "|")


def _cell(shown: float, cpu: list[float], wal: list[float]) -> str:
    return f"{shown:.1f} [{min(cpu):.1f} to {max(cpu):.1f}], {round(median(wal)):,} B"
