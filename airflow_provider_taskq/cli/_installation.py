"""Checks of an installation: the packages, the connection, the schema, the rights of the role, and the clocks."""

import re
import shlex
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any

import psycopg
from psycopg.rows import dict_row, tuple_row

from airflow_provider_taskq import __version__
from airflow_provider_taskq.cli._distributions import CORE, FULL, installed_distributions, mixed_installation, origin
from airflow_provider_taskq.queue import HealthFinding, SchemaMismatch, Severity
from airflow_provider_taskq.queue import verify as verify_schema
from airflow_provider_taskq.queue.schema import RELEASE, functions, has_views, migrations, views

KINDS = ("producer", "consumer", "reader", "operator")
CLOCK_NOTICE, CLOCK_WARNING = 2.0, 30.0  # seconds

_STATE_OF_SCHEMA = """
SELECT n.oid IS NOT NULL AS exists, m.oid IS NOT NULL AS has_ledger, pg_get_userbyid(n.nspowner) AS owner,
    coalesce(pg_has_role(n.nspowner, 'USAGE'), false) AS owns,
    coalesce(has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(m.oid, 'SELECT'), false) AS readable
FROM (SELECT) one LEFT JOIN pg_namespace n ON n.nspname = 'taskq'
LEFT JOIN pg_class m ON m.relnamespace = n.oid AND m.relname = 'migrations'
"""
_MAY_CALL = """
SELECT r.kind, r.by_topic, bool_and(has_function_privilege(p.oid, 'EXECUTE')) AS all_of_them,
    bool_or(has_function_privilege(p.oid, 'EXECUTE')
        AND NOT EXISTS (SELECT FROM taskq.privileges o WHERE o.function = r.function
                        AND o.kind NOT IN (r.kind, 'operator'))) AS own_ones
FROM taskq.privileges r JOIN pg_proc p ON p.proname = r.function AND p.pronamespace = 'taskq'::regnamespace
GROUP BY r.kind, r.by_topic
"""
_MISSING = """
SELECT u.name FROM unnest(%s::text[]) AS u (name)
WHERE NOT EXISTS (SELECT FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
                  WHERE n.nspname || '.' || p.proname = u.name)
  AND NOT EXISTS (SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
                  WHERE n.nspname || '.' || c.relname = u.name)
ORDER BY u.name
"""
_ROW_SECURITY = """
SELECT c.oid::regclass::text FROM pg_class c
WHERE c.relnamespace = 'taskq'::regnamespace AND c.relrowsecurity AND c.relname IN ('staged', 'staged_task')
ORDER BY c.relname
"""
_CREATED = re.compile(r"^CREATE (?:FUNCTION|VIEW) (taskq\w*\.\w+)", re.MULTILINE)


def check_packages() -> Iterator[HealthFinding]:
    """Yield findings about the distributions of TaskQ and the version of psycopg."""
    found = installed_distributions()
    if problem := mixed_installation():
        keep = f"pip uninstall -y {CORE} && pip install --force-reinstall --no-deps {origin(FULL, found[FULL])}"
        yield _finding(Severity.WARNING, "packages", problem.partition(": ")[0], keep)
    for name, installed in found.items():
        if installed != __version__:
            yield _finding(
                Severity.WARNING,
                "packages",
                f"{name} {installed} is installed, but the imported package is {__version__}",
                f"pip install --force-reinstall --no-deps {origin(name, __version__)}",
            )
    needed = next((least for name in found if (least := _least_psycopg(name))), None)
    if needed and _numbers(psycopg.__version__) < _numbers(needed):
        yield _finding(
            Severity.WARNING,
            "packages",
            f"psycopg {psycopg.__version__} is older than {needed}, which TaskQ needs",
            f"pip install --upgrade 'psycopg[binary]>={needed}'",
        )
    names = (
        " and ".join(f"{name} {number}" for name, number in found.items()) or f"TaskQ {__version__} from its sources"
    )
    libpq = ".".join(map(str, divmod(psycopg.pq.version(), 10_000)))
    python = ".".join(map(str, sys.version_info[:3]))
    yield _finding(
        Severity.FINE, "packages", f"{names}, psycopg {psycopg.__version__} with libpq {libpq}, Python {python}"
    )


def unreachable(error: Exception) -> HealthFinding:
    """Return the finding about a database that cannot be reached."""
    message = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return _finding(
        Severity.CRITICAL,
        "connection",
        f"the database cannot be reached: {message}",
        "export TASKQ_DSN=postgresql://USER@HOST:5432/DATABASE",
    )


def check_server(conn: psycopg.Connection[Any]) -> Iterator[HealthFinding]:
    """Yield a finding with the server and the role of a connection."""
    info = conn.info
    number = info.parameter_status("server_version") or str(info.server_version)
    where = f"{info.host or 'a local socket'}, database {info.dbname}"
    yield _finding(Severity.FINE, "connection", f"PostgreSQL {number} at {where}, as role {info.user}")


def check_clock(conn: psycopg.Connection[Any]) -> Iterator[HealthFinding]:
    """Yield a finding about the difference between the clocks of this machine and of the server."""
    measured = []
    for _ in range(3):  # the shortest answer has the smallest error
        before, began = time.time(), time.monotonic()
        row = _row(conn, "SELECT extract(epoch FROM clock_timestamp())::float8")
        took = time.monotonic() - began
        measured.append((took, row[0] - before - took / 2))
    took, ahead = min(measured)
    seconds = abs(ahead)
    way = "ahead of" if ahead < 0 else "behind"
    severity = Severity.WARNING if seconds >= CLOCK_WARNING else Severity.NOTICE
    if seconds < CLOCK_NOTICE:
        yield _finding(
            Severity.FINE, "clock", f"the clocks of this machine and of the server differ by {seconds:.1f} s"
        )
        return
    yield _finding(
        severity,
        "clock",
        f"the clock of this machine is {seconds:.1f} s {way} the server's: due times that a program computes are wrong"
        " by this time",
        "timedatectl set-ntp true  # on this machine, or on the server's",
        round(seconds),
    )


def check_schema(conn: psycopg.Connection[Any]) -> Iterator[HealthFinding]:
    """Yield findings about the schema: whether it is installed, matches this release, and is complete.

    The check needs no rights on the schema.
    """
    state = _schema_state(conn)
    if not state["exists"] or (state["owns"] and not state["has_ledger"]):
        yield _finding(Severity.CRITICAL, "schema", "the schema taskq is missing in this database", "taskq install")
        return
    if not state["readable"]:
        role = conn.info.user
        yield _finding(
            Severity.CRITICAL,
            "grants",
            f"role {role} may not use the schema taskq; {state['owner']} owns it and grants access",
            f"taskq access grant {shlex.quote(role)} consumer",
        )
        return
    try:
        verify_schema(conn)
    except SchemaMismatch as error:
        detail = str(error).rpartition(";")[0] or str(error).rpartition(":")[0]
        yield _finding(Severity.CRITICAL, "schema", detail, _upgrade_command(conn))
        return
    missing = _missing_objects(conn)
    with_views = has_views(conn)
    if missing:
        first, second = ("--no-views", "--views") if with_views else ("--views", "--no-views")
        yield _finding(
            Severity.CRITICAL,
            "schema",
            f"the schema taskq lacks {_some(missing)}, which it had after its installation",
            f"taskq install {first} && taskq install {second}",
            len(missing),
        )
    elif not with_views:
        yield _finding(
            Severity.NOTICE,
            "schema",
            f"the schema taskq matches this release (step {migrations()[-1].number}); the readable views are left out",
            "taskq install --views",
        )
    else:
        detail = f"the schema taskq matches this release (step {migrations()[-1].number}), with the readable views"
        yield _finding(Severity.FINE, "schema", detail)


def check_row_security(conn: psycopg.Connection[Any]) -> Iterator[HealthFinding]:
    """Yield a finding for each table for staging with row level security, which PostgreSQL's COPY refuses."""
    with conn.cursor(row_factory=tuple_row) as cursor:
        found = [name for (name,) in cursor.execute(_ROW_SECURITY).fetchall()]
    for name in found:
        yield _finding(
            Severity.CRITICAL,
            "row security",
            f"row level security is on for {name}, so that Spark cannot stage rows there",
            f"ALTER TABLE {name} DISABLE ROW LEVEL SECURITY",
        )
    if not found:
        yield _finding(
            Severity.FINE, "row security", "row level security is off for the tables into which Spark writes"
        )


def check_grants(conn: psycopg.Connection[Any], needs: Sequence[str]) -> Iterator[HealthFinding]:
    """Yield findings about the kinds of access that the role of a connection has.

    :param needs: the kinds that the role must have.
    """
    role = conn.info.user
    if _schema_state(conn)["owns"]:
        yield _finding(Severity.FINE, "grants", f"role {role} owns the schema taskq, and may do everything")
        return
    kinds: dict[str, str] = {}
    partial: list[str] = []
    with conn.cursor(row_factory=dict_row) as cursor:
        rows = {(row["kind"], row["by_topic"]): row for row in cursor.execute(_MAY_CALL.encode()).fetchall()}
    for kind in KINDS:
        limited, rest = rows.get((kind, True)), rows.get((kind, False))
        if all(row["all_of_them"] for row in (limited, rest) if row):
            kinds[kind] = kind
        elif limited and limited["all_of_them"]:
            kinds[kind] = f"{kind} of some topics"
        elif kind != "operator" and any(row["own_ones"] for row in (limited, rest) if row):
            partial.append(kind)
    for kind in dict.fromkeys([*needs, *partial]):
        if kind in kinds:
            continue
        lacks = "lacks rights" if kind in partial else "has no access"
        yield _finding(
            Severity.CRITICAL if kind in needs else Severity.WARNING,
            "grants",
            f"role {role} {lacks} as {kind}",
            f"taskq access grant {shlex.quote(role)} {kind}",
        )
    may = ", ".join(kinds.values())
    if may:
        yield _finding(Severity.FINE, "grants", f"role {role} has access as {may}")
    elif not needs and not partial:
        yield _finding(
            Severity.WARNING,
            "grants",
            f"role {role} may read the schema's version, and has no other access",
            f"taskq access grant {shlex.quote(role)} consumer",
        )


def may_call_health(conn: psycopg.Connection[Any]) -> bool:
    """Return whether the role of a connection may call `taskq.health`."""
    return bool(_row(conn, "SELECT has_function_privilege('taskq.health(interval)', 'EXECUTE')")[0])


def health_not_allowed(conn: psycopg.Connection[Any]) -> HealthFinding:
    """Return the finding about a role that may not read the health of the queue."""
    role = conn.info.user
    return _finding(
        Severity.NOTICE,
        "grants",
        f"role {role} may not call taskq.health, so the database was not checked",
        f"taskq access grant {shlex.quote(role)} reader",
    )


def health_failed(error: Exception) -> HealthFinding:
    """Return the finding about health checks that ended with an error."""
    message = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return _finding(Severity.CRITICAL, "checks", f"the database was not checked: {message}", "taskq health")


def _finding(
    severity: Severity, subject: str, detail: str, remedy: str | None = None, value: int | None = None
) -> HealthFinding:
    return HealthFinding(severity, subject, detail, value, None, remedy=remedy)


def _row(conn: psycopg.Connection[Any], query: str) -> tuple[Any, ...]:
    with conn.cursor(row_factory=tuple_row) as cursor:
        row = cursor.execute(query.encode()).fetchone()
    assert row is not None  # noqa: S101  each query has one row
    return row


def _schema_state(conn: psycopg.Connection[Any]) -> dict[str, Any]:
    with conn.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(_STATE_OF_SCHEMA.encode()).fetchone() or {}


def _upgrade_command(conn: psycopg.Connection[Any]) -> str:
    """Return the command that brings schema and package to the same release."""
    with conn.cursor(row_factory=tuple_row) as cursor:
        ledger = cursor.execute("SELECT number, name, checksum FROM taskq.migrations").fetchall()
    known = {step.number: step.checksum for step in migrations()}
    release = next((int(name.partition(" ")[2] or 0) for number, name, _ in ledger if number == 0), 0)
    other = any(number > 0 and known.get(number) != checksum for number, _, checksum in ledger)
    if not other and release <= RELEASE:
        return "taskq upgrade"
    name = next(iter(installed_distributions()), None)
    if name is None:
        return f"git -C {shlex.quote(str(Path(__file__).parent))} pull  # TaskQ runs from its sources there"
    arguments = origin(name)
    return f"pip install --upgrade {arguments}" + ("  # after an update of that folder" if "file:" in arguments else "")


def _missing_objects(conn: psycopg.Connection[Any]) -> list[str]:
    """Return the functions and views of this release that the database does not have."""
    named = _CREATED.findall(functions().script)
    if has_views(conn):
        named += _CREATED.findall(views().script)
    with conn.cursor(row_factory=tuple_row) as cursor:
        return [name for (name,) in cursor.execute(_MISSING.encode(), (list(dict.fromkeys(named)),)).fetchall()]


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


def _least_psycopg(distribution: str) -> str | None:
    """Return the oldest version of psycopg that a distribution allows; None if it is unknown."""
    try:
        found: Iterable[str] = requires(distribution) or ()
        version("psycopg")
    except PackageNotFoundError:
        return None
    matches = (re.match(r"psycopg(?:\[[^\]]*\])?\s*>=\s*([\d.]+)", each) for each in found)
    return next((match[1] for match in matches if match), None)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", text)[:3])
