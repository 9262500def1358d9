"""The schema in the database: numbered migrations, functions and views, recorded with checksums."""

import hashlib
import logging
import re
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any

import psycopg
from psycopg import sql
from psycopg.rows import tuple_row

from airflow_provider_taskq.queue.connection import all_or_nothing, open_cursor
from airflow_provider_taskq.queue.errors import INSTALL, NewerSchema, SchemaMismatch, TaskQueueError
from airflow_provider_taskq.queue.models import HistoryKind, LockKind, Result, State, Waits

logger = logging.getLogger(__name__)

OLDEST_SERVER = 140_000
LOCK = f"SELECT pg_advisory_xact_lock({LockKind.INSTALL << 48})"  # serializes installers
FLOORS = ("base", "order", "wait", "change", "claim", "stage", "report", "api")  # the lowest first
_FUNCTIONS = 0  # the number in the record of migrations of all function files together
_VIEWS = -1  # the number of the readable views, or of the choice to leave them out
PATIENCE = 60.0  # seconds for the transactions that use the schema, if the session has no lock_timeout
TURN = 0.5  # seconds at most of a wait for one lock; less than PostgreSQL's deadlock_timeout
RELEASE = 1  # raised by every release that changes a function, so that an older package leaves it alone

_CONSTANT = re.compile(r"(?<![:\w]):([A-Z][A-Z_]+)\b")
_CONSTANTS = {
    **{state.name: state.value for state in State},
    **{result.name: result.value for result in Result},
    **{f"WAITS_{waits.name}": waits.value for waits in Waits},
    **{f"HISTORY_{kind.name}": kind.value for kind in HistoryKind},
    **{f"LOCK_{kind.name}": kind.value for kind in LockKind},
    "FIRST_OWN_TOPIC": 1_000_000_000,  # the least number of a topic with its own tables
    "MAX_TASKS": 500_000_000,  # that one call looks for: more than it could return, and four times it is an int
    "RESULT_TO_STATE": State.FAILED - Result.FAILURE,  # the state in which a result ends a task, minus the result
    "NOT_STORED": 0,  # in the place of a state: a task that a push with DELETE does not store
}

# Functions and views depend on each other. Each round drops what it can, until a round drops nothing.
_DROP_FUNCTIONS = """DO $$ DECLARE
    thing text; reason text; reasons text[]; kept text[];
    things text[] := ARRAY(
        SELECT format('function %s', oid::regprocedure) FROM pg_proc
        WHERE pronamespace IN ('taskq'::regnamespace, 'taskq_internal'::regnamespace)
        UNION ALL SELECT format('view %s', oid::regclass) FROM pg_class
        WHERE relnamespace IN ('taskq'::regnamespace, 'taskq_internal'::regnamespace) AND relkind = 'v');
BEGIN
    LOOP
        kept := '{}';
        reasons := '{}';
        FOREACH thing IN ARRAY things LOOP
            BEGIN
                EXECUTE format('DROP %s', thing);
            EXCEPTION WHEN dependent_objects_still_exist THEN
                GET STACKED DIAGNOSTICS reason = PG_EXCEPTION_DETAIL;
                reasons := reasons || string_to_array(reason, E'\n');
                kept := kept || thing;
            END;
        END LOOP;
        EXIT WHEN cardinality(kept) = 0;
        IF cardinality(kept) = cardinality(things) THEN
            SELECT string_agg(DISTINCT r, E'\n') INTO reason FROM unnest(reasons) AS r
            WHERE split_part(r, ' depends on ', 1) <> ALL (kept);
            RAISE dependent_objects_still_exist USING DETAIL = reason;
        END IF;
        things := kept;
    END LOOP;
END $$"""

# Objects of the schema taskq without a comment. Every public object of TaskQ has one. A role named taskq creates its
# own objects there, because search_path begins with "$user".
_FOREIGN = """
SELECT kind, name FROM (
    SELECT CASE c.relkind WHEN 'v' THEN 'view' WHEN 'm' THEN 'materialized view' WHEN 'S' THEN 'sequence'
                          ELSE 'table' END AS kind,
           format('%I.%I', 'taskq', c.relname) AS name
    FROM pg_class c
    WHERE c.relnamespace = to_regnamespace('taskq') AND c.relkind IN ('r', 'p', 'f', 'v', 'm', 'S')
      AND obj_description(c.oid, 'pg_class') IS NULL
    UNION ALL SELECT 'function', format('%I.%I', 'taskq', p.proname) FROM pg_proc p
    WHERE p.pronamespace = to_regnamespace('taskq') AND obj_description(p.oid, 'pg_proc') IS NULL) f
ORDER BY kind, name
"""


@dataclass(frozen=True, slots=True)
class SchemaStep:
    """A numbered migration, all functions together, or the readable views."""

    number: int
    name: str
    script: str

    @property
    def checksum(self) -> str:
        """The SHA-256 of the script, as the record of migrations has it."""
        return hashlib.sha256(self.script.encode()).hexdigest()


@cache
def migrations() -> tuple[SchemaStep, ...]:
    """Return the numbered migrations of this package in order. A later release only adds migrations."""
    return tuple(
        SchemaStep(int(file.name[:4]), file.name.removesuffix(".sql"), _read(file)) for file in _sql_files("migrations")
    )


@cache
def functions() -> SchemaStep:
    """Return the functions of this package as one script. If one function changes, `install` replaces all of them."""
    return SchemaStep(_FUNCTIONS, f"functions {RELEASE}", _scripts(*FLOORS))


@cache
def views() -> SchemaStep:
    """Return the readable views of this package as one script. No function of `functions()` depends on them."""
    return SchemaStep(_VIEWS, "views", _scripts("views"))


NO_VIEWS = SchemaStep(_VIEWS, "no views", "")


def _scripts(*folders: str) -> str:
    return "\n".join(_read(file) for folder in folders for file in _sql_files(folder))


def _read(file: Traversable) -> str:
    """Read an SQL file, and replace constants such as `:SUCCEEDED` by their values."""
    # Constants as SQL functions would cost each session a parse for each use.
    return _CONSTANT.sub(lambda found: str(_CONSTANTS[found[1]]), file.read_text(encoding="utf-8"))


def _sql_files(folder: str) -> Iterator[Traversable]:
    found = files("airflow_provider_taskq.queue").joinpath("sql", folder).iterdir()
    yield from sorted((file for file in found if file.name.endswith(".sql")), key=lambda file: file.name)


def install(conn: psycopg.Connection[Any], *, views: bool | None = None) -> None:
    """Create or upgrade the schema `taskq` in the caller's transaction. Several sessions may install at once.

    If another role owns the schema, the call acts as this role, so that it owns all objects.

    The upgrade waits for transactions that use what it changes, for a minute or the session's `lock_timeout`. Calls of
    others queue behind an upgrade that waits. So it waits for the lock of each table, view or function for at most half
    a second. If a lock takes longer, the upgrade gives all its locks back, and tries again a second later.

    :param views: whether the schema has the readable views `tasks` and `topic_summaries`.
        None keeps the recorded choice; a new schema has them.
    :raises SchemaMismatch: if the schema in the database is newer than this package, or was installed by another text.
    :raises TaskQueueError: if other objects in the database depend on functions or views to replace, or the server is
        older than PostgreSQL 14, or the schema belongs to a role that the caller may not act as, or a transaction that
        uses the schema does not end in time. The message names its session, or the prepared transaction.
    """
    if conn.info.parameter_status("server_encoding") == "SQL_ASCII":
        raise TaskQueueError(
            "the database has the encoding SQL_ASCII, in which PostgreSQL knows no characters: create a database with"
            " ENCODING 'UTF8'"
        )
    if conn.info.server_version < OLDEST_SERVER:
        raise TaskQueueError(f"PostgreSQL 14 or newer is needed; this server is {conn.info.server_version // 10_000}")
    with all_or_nothing(conn), _acting_as_owner(conn):
        conn.execute(LOCK)
        installed = _read_checksums(conn)
        _check_migrations(installed)
        _check_release(conn)
        new = [step for step in migrations() if step.number not in installed]
        wanted = _views_to_install(installed, views)
        if new or installed.get(_FUNCTIONS) != functions().checksum or installed.get(_VIEWS) != wanted.checksum:
            _in_turns(conn, partial(_upgrade, conn, new, wanted))


def _upgrade(conn: psycopg.Connection[Any], new: Collection[SchemaStep], wanted: SchemaStep) -> None:
    for step in new:
        conn.execute(step.script.encode())
    _replace_functions(conn, wanted)


# The locks of a prepared transaction have no pid. They share a virtual transaction with the lock on its number.
_USER = """
SELECT l.pid, p.gid FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid
LEFT JOIN (pg_locks n JOIN pg_prepared_xacts p ON n.transactionid = p.transaction AND n.pid IS NULL)
    ON l.pid IS NULL AND n.virtualtransaction = l.virtualtransaction
LEFT JOIN pg_class c ON c.oid = l.relation
LEFT JOIN pg_proc f ON f.oid = l.objid AND l.classid = 'pg_proc'::regclass
WHERE l.granted AND l.pid IS DISTINCT FROM pg_backend_pid() AND (a.pid IS NOT NULL OR p.gid IS NOT NULL)
  AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
  AND coalesce(c.relnamespace, f.pronamespace) IN (to_regnamespace('taskq'), to_regnamespace('taskq_internal'))
ORDER BY coalesce(a.xact_start, p.prepared) LIMIT 1
"""
_LOCK_TIMEOUT = "SELECT current_setting('lock_timeout'), extract(epoch FROM current_setting('lock_timeout')::interval)"


def _in_turns(conn: psycopg.Connection[Any], change: Callable[[], None]) -> None:
    """Make a change that needs locks which open transactions may hold.

    All later calls queue behind a session that waits for such a lock. So the change waits for each lock for at most
    half a second. If a lock takes longer, the change releases all its locks, and starts again a second later.
    """
    with open_cursor(conn, tuple_row) as cursor:
        [(before, given)] = cursor.execute(_LOCK_TIMEOUT).fetchall()
    patience = float(given) or PATIENCE
    deadline = time.monotonic() + patience
    while True:
        try:
            with conn.transaction():
                open_cursor(conn, tuple_row).execute(
                    "SELECT set_config('lock_timeout', %s, true)", (f"{min(patience, TURN)}s",)
                )
                change()
                open_cursor(conn, tuple_row).execute("SELECT set_config('lock_timeout', %s, true)", (before,))
        except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected) as error:
            if time.monotonic() >= deadline:
                raise _in_use(conn, patience) from error
            time.sleep(2 * TURN)  # no event reports that the calls that have queued are done
        else:
            return


def _in_use(conn: psycopg.Connection[Any], patience: float) -> TaskQueueError:
    with open_cursor(conn, tuple_row) as cursor:
        found = cursor.execute(_USER.encode()).fetchone()
    if found is None:
        user = "it has ended by now"
    elif found[1] is None:
        user = f"session {found[0]} is one of them"
    else:
        user = f"prepared transaction {found[1]!r} is one of them, and ends by COMMIT PREPARED or ROLLBACK PREPARED"
    return TaskQueueError(
        f"the schema taskq cannot be upgraded: a transaction has used it for longer than {patience:g} s; {user}. Run"
        " this again when it has ended, or with a longer lock_timeout"
    )


def _views_to_install(installed: dict[int, str], chosen: bool | None) -> SchemaStep:
    """Return the views if the caller or the recorded choice wants them. A new schema has the views by default."""
    if chosen is None:
        chosen = installed.get(_VIEWS) != NO_VIEWS.checksum
    return views() if chosen else NO_VIEWS


def has_views(conn: psycopg.Connection[Any]) -> bool:
    """Return whether the schema in the database has the readable views."""
    return _read_checksums(conn).get(_VIEWS, NO_VIEWS.checksum) != NO_VIEWS.checksum


def uninstall(conn: psycopg.Connection[Any]) -> None:
    """Drop the schemas `taskq` and `taskq_internal` with everything in them, in the caller's transaction.

    :raises TaskQueueError: if the schema `taskq` has an object that TaskQ did not create.
    """
    _require_no_foreign_objects(conn, "uninstalled", ("table", "view", "materialized view", "sequence", "function"))
    conn.execute("DROP SCHEMA IF EXISTS taskq, taskq_internal CASCADE")


def verify(conn: psycopg.Connection[Any]) -> None:
    """Check that the schema in the database is the one of this package.

    :raises SchemaMismatch: if the schema is missing, older or newer. The message has the command to run.
    """
    with open_cursor(conn, tuple_row) as cursor:
        row = cursor.execute("SELECT to_regclass('taskq.migrations') IS NOT NULL").fetchone()
    if row is None or not row[0]:
        raise SchemaMismatch(f"the schema taskq is missing in this database: run {INSTALL}")
    installed = _read_checksums(conn)
    _check_migrations(installed)
    _check_release(conn)
    missing = [step.name for step in migrations() if step.number not in installed]
    replaced = (functions(), _views_to_install(installed, None))
    if missing or any(installed.get(step.number) != step.checksum for step in replaced):
        wants = f"lacks {', '.join(missing)}" if missing else "has other functions or views than this package"
        raise SchemaMismatch(f"the schema taskq in this database is older: it {wants}; run {INSTALL}")


def verify_for_work(conn: psycopg.Connection[Any]) -> None:
    """Check at the start of a program that it can work with the schema in the database.

    A newer schema is only logged. Otherwise a program that restarts during an upgrade would not come back.

    :raises SchemaMismatch: if the schema is missing or older. The message has the command to run.
    """
    try:
        verify(conn)
    except NewerSchema as newer:
        logger.warning("%s", newer)


def _require_no_foreign_objects(conn: psycopg.Connection[Any], done: str, kinds: Collection[str]) -> None:
    """Raise TaskQueueError if the schema taskq has objects of these kinds that TaskQ did not create."""
    with open_cursor(conn, tuple_row) as cursor:
        found = [f"{kind} {name}" for kind, name in cursor.execute(_FOREIGN).fetchall() if kind in kinds]
    if found:
        more = f" and {len(found) - 3} more" if len(found) > 3 else ""
        raise TaskQueueError(
            f"the schema taskq cannot be {done}: it has objects that TaskQ did not create, and that would be dropped:"
            f" {', '.join(found[:3])}{more}. Move them with ALTER ... SET SCHEMA public. A role named taskq creates"
            " its objects there: run ALTER ROLE taskq SET search_path = public"
        )


_OWNERS = """
SELECT n.nspname, pg_get_userbyid(n.nspowner), pg_get_userbyid(n.nspowner) = current_user,
       pg_has_role(n.nspowner, 'MEMBER') AND NOT (SELECT r.rolsuper FROM pg_roles r WHERE r.rolname = current_user),
       EXISTS (SELECT FROM pg_class c JOIN pg_namespace i ON i.oid = c.relnamespace
               WHERE i.nspname = 'taskq' AND c.relname = 'migrations')
FROM pg_namespace n WHERE n.nspname IN ('taskq', 'taskq_internal') ORDER BY n.nspname
"""


@contextmanager
def _acting_as_owner(conn: psycopg.Connection[Any]) -> Iterator[None]:
    """Create the schemas, and act as their owner in the block.

    Functions with SECURITY DEFINER run with the rights of their owner, which otherwise would be the installing role.
    """
    with open_cursor(conn, tuple_row) as cursor:
        before = cursor.execute("SELECT current_setting('role')").fetchone()
    _set_owner(conn)
    while not _create_schemas(conn):
        _set_owner(conn)  # another installer has created them at the same time
    yield
    open_cursor(conn, tuple_row).execute("SELECT set_config('role', %s, true)", before)


def _set_owner(conn: psycopg.Connection[Any]) -> None:
    """Set the role that owns the schemas, if they exist.

    At the first installation, only schemas of the caller are used: a role that may create schemas could otherwise own
    the queue of a superuser. A superuser is a member of each role, so this does not count.
    """
    with open_cursor(conn, tuple_row) as cursor:
        found = cursor.execute(_OWNERS.encode()).fetchall()
    for name, owner, is_owner, is_member, has_ledger in found:
        if not (is_owner or is_member or has_ledger):
            raise TaskQueueError(
                f"the schema {name} belongs to role {owner}, and TaskQ is not installed in it: install as that role,"
                " or drop the schema"
            )
        if owner != found[0][1]:
            raise TaskQueueError(
                f"the schemas taskq and taskq_internal belong to different roles, {found[0][1]} and {owner}: let one"
                " role own both with ALTER SCHEMA ... OWNER TO"
            )
    if found and not found[0][2]:
        owner = found[0][1]
        try:
            conn.execute(sql.SQL("SET LOCAL ROLE {}").format(sql.Identifier(owner)))
        except psycopg.errors.InsufficientPrivilege as error:
            raise TaskQueueError(
                f"the schema taskq belongs to role {owner}: run this as that role, or as one of its members"
            ) from error


def _create_schemas(conn: psycopg.Connection[Any]) -> bool:
    """Create the schemas unless they exist.

    Return False if another installer has created them at the same time.
    """
    with open_cursor(conn, tuple_row) as cursor:
        found = cursor.execute(_OWNERS.encode()).fetchall()
    try:
        with conn.transaction():
            # In one order, whatever seed of hashes a process has: else two installers may end in a deadlock.
            for name in sorted({"taskq", "taskq_internal"}.difference(name for name, *_ in found)):
                conn.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(name)))
    except (psycopg.errors.UniqueViolation, psycopg.errors.DuplicateSchema):
        return False
    return True


def _read_checksums(conn: psycopg.Connection[Any]) -> dict[int, str]:
    """Return the checksums of the installed steps by number."""
    return {number: checksum for number, _, checksum in _read_record(conn)}


def _read_record(conn: psycopg.Connection[Any]) -> list[tuple[int, str, str]]:
    """Return number, name and checksum of the installed steps."""
    with open_cursor(conn, tuple_row) as cursor:
        if cursor.execute("SELECT to_regclass('taskq.migrations')").fetchall() == [(None,)]:
            return []
        return cursor.execute("SELECT number, name, checksum FROM taskq.migrations").fetchall()


def finishing(wanted: SchemaStep) -> str:
    """Return the statement that ends an installation with the `wanted` views, once the functions are there."""
    steps = [*migrations(), functions(), wanted]
    numbers = ", ".join(str(step.number) for step in steps)
    texts = (
        ", ".join(f"'{text}'" for text in column) for column in zip(*((s.name, s.checksum) for s in steps), strict=True)
    )
    record = ", ".join(f"ARRAY[{column}]" for column in (numbers, *texts))
    return (
        f"SELECT taskq_internal.record_migrations({record}), taskq_internal.set_planner_settings(),"
        " taskq_internal.secure_schema(), taskq_internal.create_rows()"
    )


def _check_migrations(installed: dict[int, str]) -> None:
    # The migrations of the database have to be a part of those of this package, with the same text.
    known = {step.number: step for step in migrations()}
    newest = max(installed, default=_FUNCTIONS)
    if newest > max(known):
        raise NewerSchema(
            f"the schema taskq in this database is newer (step {newest}) than this package (step {max(known)}):"
            " upgrade the package"
        )
    changed = [known[n].name for n, checksum in installed.items() if n in known and known[n].checksum != checksum]
    if changed:
        raise SchemaMismatch(
            f"the schema taskq in this database was made by another text of {', '.join(sorted(changed))}:"
            " it needs the release of the package that installed it"
        )


def _check_release(conn: psycopg.Connection[Any]) -> None:
    # Functions of a later release would be replaced by older ones.
    names = [name for number, name, _ in _read_record(conn) if number == _FUNCTIONS]
    release = int(names[0].partition(" ")[2] or 0) if names else 0
    if release > RELEASE:
        raise NewerSchema(
            f"the schema taskq in this database is newer (functions of release {release}) than this package"
            f" ({RELEASE}): upgrade the package"
        )


def _replace_functions(conn: psycopg.Connection[Any], wanted: SchemaStep) -> None:
    """Drop every function and view of the schema, and create those of this package with the `wanted` views.

    If an object outside the schema depends on one of them, raise an error that names the object, and change nothing.
    """
    _require_no_foreign_objects(conn, "upgraded", ("view", "function"))
    with open_cursor(conn, tuple_row) as cursor:
        before = cursor.execute("SELECT current_setting('check_function_bodies')").fetchone()
    try:
        conn.execute(_DROP_FUNCTIONS.encode())
    except psycopg.errors.DependentObjectsStillExist as error:
        raise TaskQueueError(f"the schema taskq cannot be upgraded: {error.diag.message_detail}") from error
    conn.execute("SET LOCAL check_function_bodies = off")  # they call each other, across files
    conn.execute(functions().script.encode())
    conn.execute(wanted.script.encode())
    open_cursor(conn, tuple_row).execute("SELECT set_config('check_function_bodies', %s, true)", before)
    conn.execute(finishing(wanted).encode())
