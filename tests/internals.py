"""All that tests know of the private schema of the queue: a rename inside the SQL touches this file alone.

Each function arranges what no public verb arranges, as a lapse of time or a damaged row, or reads what no verb tells.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Literal

import psycopg
from psycopg import sql

from airflow_provider_taskq.queue import State, Task

SECOND = timedelta(seconds=1)

# For queries on the catalog that mean the whole installation.
SCHEMAS = ["taskq", "taskq_internal"]

# All tables but those whose rows are created with the schema.
_TABLES = (
    "taskq_internal.live",
    "taskq_internal.ended",
    "taskq_internal.task",
    "taskq_internal.dependency",
    "taskq_internal.probe",
    "taskq_internal.probe_result",
    "taskq_internal.front",
    "taskq_internal.identifier_front",
    "taskq_internal.topic",
    "taskq_internal.owner",
    "taskq.staged",
    "taskq_internal.stage",
    "taskq.staged_task",
    "taskq_internal.stream",
    "taskq_internal.lock",
    "taskq_internal.consumer_partition",
    "taskq_internal.consumer_progress",
    "taskq_internal.group_release",
    "taskq_internal.history",
    "taskq_internal.skipped_event",
    "taskq_internal.audit",
    "taskq_internal.worker",
    "taskq_internal.drain",
    "taskq_internal.retention_walk",
)
_EMPTY = ";".join(
    [
        *(f"DELETE FROM {table}" for table in _TABLES),
        "SELECT setval('taskq_internal.task_sequence', 1, false), setval('taskq_internal.fence', 1, false)",
        """UPDATE taskq_internal.upkeep SET due = DEFAULT, called = DEFAULT, ended = DEFAULT, more = DEFAULT
           WHERE called IS NOT NULL OR due < clock_timestamp() - interval '1 minute'""",
    ]
).encode()


# The whole queue


def empty_queue(conn: psycopg.Connection) -> None:
    """Deletes all rows but those of the installation, starts sequences and fences at 1, and forgets all upkeep."""
    conn.execute(_EMPTY)


def stored_rows(conn: psycopg.Connection) -> dict[str, list[str]]:
    """Every row of the tables that have rows, with its physical place: to compare before and after a call."""
    query = "SELECT format('%%s %%s', t.ctid, t) FROM {} t ORDER BY t.ctid"
    found = {table: conn.execute(query.format(table).encode(), ()).fetchall() for table in _TABLES}
    return {table: [row for (row,) in rows] for table, rows in found.items() if rows}


def stop_autovacuum(conn: psycopg.Connection) -> None:
    """Keeps autovacuum from all tables, so that no plan changes meanwhile. For a database of the test's own."""
    query = (
        "SELECT oid::regclass::text FROM pg_class WHERE relnamespace = 'taskq_internal'::regnamespace AND relkind = 'r'"
    )
    for (table,) in conn.execute(query).fetchall():
        conn.execute(f"ALTER TABLE {table} SET (autovacuum_enabled = off)".encode())


def block_verbs(conn: psycopg.Connection, *, owners_only: bool = False) -> None:
    """Makes the verbs of other sessions, or the registrations and heartbeats of owners, wait for this transaction."""
    others = "" if owners_only else ", taskq_internal.topic, taskq_internal.task, taskq_internal.live"
    conn.execute(f"LOCK TABLE taskq_internal.owner{others}".encode())


def private_rights(conn: psycopg.Connection, role: str) -> list[str]:
    """The private objects on which a role has any right."""
    query = """SELECT 'schema' WHERE has_schema_privilege(%(role)s, 'taskq_internal', 'USAGE, CREATE')
        UNION ALL SELECT p.oid::regprocedure::text FROM pg_proc p
        WHERE p.pronamespace = 'taskq_internal'::regnamespace AND has_function_privilege(%(role)s, p.oid, 'EXECUTE')
        UNION ALL SELECT c.relname FROM pg_class c WHERE c.relnamespace = 'taskq_internal'::regnamespace
          AND CASE WHEN c.relkind = 'S' THEN has_sequence_privilege(%(role)s, c.oid, 'USAGE, SELECT, UPDATE')
                   WHEN c.relkind IN ('r', 'p', 'v', 'm')
                   THEN has_table_privilege(%(role)s, c.oid,
                            'SELECT, INSERT, UPDATE, DELETE, TRUNCATE, REFERENCES, TRIGGER')
                     OR has_any_column_privilege(%(role)s, c.oid, 'SELECT, INSERT, UPDATE, REFERENCES') END"""
    return [name for (name,) in conn.execute(query, {"role": role}).fetchall()]


Release = Literal["older", "other functions", "other views", "other migration", "newer functions", "newer"]
_RECORD = "SELECT taskq_internal.record_migrations(%s, %s, %s)"


def pretend_release(conn: psycopg.Connection, release: Release = "other functions") -> None:
    """Makes the installation look like one of another release. The migration of `other migration` is number 2."""
    steps = {row[0]: list(row[1:]) for row in conn.execute("SELECT number, name, checksum FROM taskq.migrations")}
    match release:
        case "older":
            del steps[max(steps)]
        case "newer":
            steps[9999] = ["9999_later", "x"]
        case "newer functions":
            steps[0][0] = "functions 9999"
        case _:
            steps[{"other functions": 0, "other views": -1}.get(release, 2)][1] = "of another release"
    conn.execute(_RECORD, (list(steps), *map(list, zip(*steps.values(), strict=True))))


# Time


def lapse_lease(conn: psycopg.Connection, owner: str | None = None, ago: timedelta = SECOND) -> None:
    """Makes the lease of an owner, or of all owners, have lapsed the given time ago."""
    conn.execute(
        "UPDATE taskq_internal.owner SET lease_until = clock_timestamp() - %(ago)s::interval"
        " WHERE %(owner)s::text IS NULL OR name = %(owner)s",
        {"ago": ago, "owner": owner},
    )


def _move_back(conn: psycopg.Connection, by: timedelta, columns: Mapping[str, Iterable[str]], chosen: str = "") -> None:
    for table, names in columns.items():
        moves = ", ".join(f"{name} = {name} - %(by)s::interval" for name in names)
        conn.execute(f"UPDATE taskq_internal.{table} SET {moves} {chosen}".encode(), {"by": by})


_TIMES_OF_FRONTS = {
    "front": ("available_at", "pushed", "gap_low_at", "gap_high_at"),
    "identifier_front": ("available_at", "claimed_at"),
}
_TIMES_OF_TASKS = {
    "task": ("created", "due"),
    "live": ("available_at",),
    "ended": ("available_at", "completed"),
}


def age_tasks(conn: psycopg.Connection, by: timedelta, sequences: Sequence[int] | None = None) -> None:
    """Lets time pass for tasks, by moving their stored times back; without sequences, for all tasks and probes."""
    if sequences is None:
        _move_back(conn, by, _TIMES_OF_TASKS | _TIMES_OF_FRONTS | {"probe_result": ("failed_at",)})
        return
    chosen = f"WHERE sequence IN ({', '.join(map(str, sequences))})"
    _move_back(conn, by, _TIMES_OF_TASKS, chosen)
    conn.execute(f"UPDATE taskq_internal.live SET late = true {chosen}".encode())  # it may be before the front now


def age_leases(conn: psycopg.Connection, by: timedelta, owner: str | None = None) -> None:
    """Lets time pass for the lease, the sign of life and the drain of an owner, or for all, also locks."""
    if owner is None:
        _move_back(conn, by, {"lock": ("locked", "at_least", "until")})
    chosen = "" if owner is None else sql.SQL("WHERE name = {}").format(owner).as_string(conn).replace("%", "%%")
    _move_back(conn, by, {"owner": ("lease_until", "seen"), "drain": ("began", "finished")}, chosen)


def age_upkeep(conn: psycopg.Connection, by: timedelta) -> None:
    """Lets time pass for the installation, the upkeep of the past and the next one that is due, and for stages."""
    columns = {
        "upkeep": ("due", "called", "ended"),
        "retention_walk": ("due", "restarts"),
        "stage": ("opened", "closed"),
    }
    _move_back(conn, by, columns)


def make_upkeep_due(conn: psycopg.Connection, called_ago: timedelta | None = None) -> None:
    """Makes the next call of `maintain` do its work, and the last call lie the given time ago."""
    conn.execute(
        "UPDATE taskq_internal.upkeep SET due = '-infinity',"
        " called = coalesce(clock_timestamp() - %s::interval, called)",
        (called_ago,),
    )


def make_due(conn: psycopg.Connection, at: datetime | None = None, sequences: Sequence[int] | None = None) -> None:
    """Sets when waiting tasks, retries too, are due: now, unless given."""
    conn.execute(
        "UPDATE taskq_internal.live SET late = true, available_at = coalesce(%(at)s, clock_timestamp())"
        " WHERE %(all)s OR sequence = ANY (%(sequences)s)",
        {"at": at, "all": sequences is None, "sequences": list(sequences or ())},
    )


def set_created(conn: psycopg.Connection, moments: Mapping[int, datetime]) -> None:
    """Sets the times at which tasks were pushed, by sequence."""
    query = "UPDATE taskq_internal.task SET created = %s WHERE sequence = %s"
    conn.cursor().executemany(query, [(moment, sequence) for sequence, moment in moments.items()])


def overwrite_times(conn: psycopg.Connection, kind: Literal["timestamptz", "interval"], value: str) -> None:
    """Writes a value into every column of a type, as a superuser can. For a database of the test's own."""
    constraints = """SELECT format('ALTER TABLE %%s DROP CONSTRAINT %%I', conrelid::regclass, conname)
        FROM pg_constraint c JOIN pg_class t ON t.oid = c.conrelid WHERE c.contype = 'c' AND NOT t.relispartition
            AND t.relnamespace = ANY (%s::regnamespace[]) AND pg_get_constraintdef(c.oid) LIKE '%%interval%%'"""
    columns = """SELECT format('UPDATE %%s SET %%I = %%L WHERE %%2$I IS NOT NULL', t.oid::regclass, attname, %s::text)
        FROM pg_class t JOIN pg_attribute a ON a.attrelid = t.oid AND NOT a.attisdropped AND a.atttypid = %s::regtype
        WHERE t.relkind IN ('r', 'p') AND NOT t.relispartition AND t.relnamespace = ANY (%s::regnamespace[])"""
    statements = (
        conn.execute(constraints, (SCHEMAS,)).fetchall() + conn.execute(columns, (value, kind, SCHEMAS)).fetchall()
    )
    for (statement,) in statements:
        conn.execute(statement)


# Tasks


def store_tasks(
    conn: psycopg.Connection,
    first: int,
    last: int,
    *,
    topic: str = "work",
    states: Sequence[State] = (State.READY,),
    attempts: Sequence[int] = (0,),
    name: str = "task-",
    names: int = 2**31,
    age: timedelta = timedelta(0),
    spread: timedelta = timedelta(0),
    error: str | None = None,
) -> None:
    """Stores tasks with these sequences at once, READY or ended. States, attempts and `names` identifiers alternate.

    The youngest was pushed, and has ended, `age` ago, and the oldest that and `spread` ago.
    """
    values = {"first": first, "last": last, "topic": topic, "name": name, "names": names, "age": age, "spread": spread}
    values |= {"states": [int(state) for state in states], "attempts": list(attempts), "error": error}
    conn.execute(
        """INSERT INTO taskq_internal.task (sequence, created, due, pushed_in, topic_id, priority, identifier, payload)
           SELECT n, moment, moment, '1', topic_id, 0, %(name)s || n %% %(names)s, '{}'
           FROM taskq_internal.topic, generate_series(%(first)s::bigint, %(last)s::bigint) AS n,
               LATERAL (SELECT now() - %(age)s - %(spread)s * ((%(last)s - n) / (%(last)s - %(first)s + 1.0)::float8)
                        AS moment) m
           WHERE name = %(topic)s""",
        values,
    )
    stored = """SELECT t.*, (%(states)s::int[])[1 + sequence %% cardinality(%(states)s::int[])] AS state,
            (%(attempts)s::int[])[1 + sequence %% cardinality(%(attempts)s::int[])] AS attempt
        FROM taskq_internal.task t WHERE sequence BETWEEN %(first)s AND %(last)s"""
    conn.execute(
        f"""INSERT INTO taskq_internal.live (sequence, available_at, topic_id, attempt, priority, identifier)
            SELECT sequence, due, topic_id, attempt, 0, identifier FROM ({stored}) s
            WHERE state = {int(State.READY)}""".encode(),
        values,
    )
    conn.execute(
        f"""INSERT INTO taskq_internal.ended (sequence, completed, available_at, topic_id, attempt, state, identifier,
                error)
            SELECT sequence, created, due, topic_id, attempt, state, identifier, %(error)s FROM ({stored}) s
            WHERE state <> {int(State.READY)}""".encode(),
        values,
    )
    set_next_sequence(conn, last + 1)


def set_next_sequence(conn: psycopg.Connection, sequence: int) -> None:
    """Makes the next pushed task have this sequence."""
    last = max(sequence - 1, 1)
    conn.execute("SELECT setval('taskq_internal.task_sequence', %s, %s)", (last, sequence > 1))


def set_attempt(conn: psycopg.Connection, sequence: int, attempt: int) -> None:
    """Sets how often a live task was tried, also of one that is held."""
    conn.execute("UPDATE taskq_internal.live SET attempt = %s WHERE sequence = %s", (attempt, sequence))


def set_ended_state(conn: psycopg.Connection, state: State, *sequences: int) -> None:
    """Gives ended tasks a state that no verb gives to a task alone: RECREATED or REDUNDANT."""
    conn.execute(
        "UPDATE taskq_internal.ended SET descent = state, state = %s WHERE sequence = ANY (%s)",
        (int(state), list(sequences)),
    )


def damage_task(
    conn: psycopg.Connection, sequence: int, *, payload: str | None = None, output: str | None = None
) -> None:
    """Stores a payload or an output that no verb takes, as a dump of another database may bring it."""
    if payload is not None:
        conn.execute("UPDATE taskq_internal.task SET payload = %s::json WHERE sequence = %s", (payload, sequence))
    if output is not None:
        conn.execute("UPDATE taskq_internal.ended SET output = %s::json WHERE sequence = %s", (output, sequence))


# What polls see


def hold_tasks(conn: psycopg.Connection, *sequences: int) -> None:
    """Locks tasks, or all of them, until the transaction ends, as a verb does that is about to change them."""
    for table in ("live", "ended"):
        conn.execute(
            f"SELECT FROM taskq_internal.{table} WHERE %s OR sequence = ANY (%s) FOR UPDATE".encode(),
            (not sequences, list(sequences)),
        )


def hold_turns(conn: psycopg.Connection) -> None:
    """Locks the turns of all identifiers until the transaction ends, as a poll by identifier does before it claims."""
    conn.execute("SELECT FROM taskq_internal.identifier_lock WHERE bucket < 65536 FOR UPDATE")


def unlocked_tasks(conn: psycopg.Connection, owner: str | None = None, *, due_only: bool = False) -> list[int]:
    """The READY tasks, or those that an owner holds, that no other transaction has locked, in the order of a poll."""
    rows = conn.execute(
        """SELECT l.sequence FROM taskq_internal.live l
           WHERE l.holder IS NOT DISTINCT FROM (SELECT owner_id FROM taskq_internal.owner WHERE name = %(owner)s)
             AND NOT (%(due_only)s AND (l.waits > 0 OR l.available_at > clock_timestamp()))
           ORDER BY l.priority DESC, l.available_at, l.sequence FOR UPDATE SKIP LOCKED""",
        {"owner": owner, "due_only": due_only},
    ).fetchall()
    return [sequence for (sequence,) in rows]


def advance_fronts(conn: psycopg.Connection, topic: str = "work", backwards: bool = False) -> None:
    """Advances the fronts of a topic as far as possible. A poll does this for some priorities, at random."""
    conn.execute(
        """SELECT taskq_internal.advance_fronts(p.topic_id, -100, 100, %s, b.placed) FROM taskq_internal.topic p
           CROSS JOIN taskq_internal.front_bounds(p.topic_id) b WHERE p.name = %s""",
        (backwards, topic),
    )


def advance_identifiers(conn: psycopg.Connection, claimed: Iterable[Task], topic: str = "work") -> None:
    """Advances the fronts of the identifiers of tasks, in the transaction that has polled them.

    A poll does this at random, and only for identifiers with many tasks.
    """
    conn.execute(
        """SELECT taskq_internal.advance_identifier_fronts(p.topic_id, %s::bigint[], b.placed, b.claimed, 1)
           FROM taskq_internal.topic p CROSS JOIN taskq_internal.front_bounds(p.topic_id) b WHERE p.name = %s""",
        ([task.sequence for task in claimed], topic),
    )


def set_fronts_ahead(conn: psycopg.Connection, by: timedelta, *, claims_only: bool = False) -> None:
    """Moves all fronts, or the times of the latest claims, to where polls leave them that much later.

    So they are after the server's clock was set back.
    """
    _move_back(conn, -by, {"identifier_front": ("claimed_at",)} if claims_only else _TIMES_OF_FRONTS)


def fronts(conn: psycopg.Connection) -> list[tuple[int, datetime, int]]:
    """Priority, due time and sequence of each front, the newest last. Only the newest of a priority counts."""
    query = "SELECT priority, available_at, sequence FROM taskq_internal.front ORDER BY number"
    return conn.execute(query).fetchall()


def identifier_fronts(conn: psycopg.Connection) -> list[str]:
    """The identifier of each front of an identifier, the newest last. Those of a topic as a whole have none."""
    rows = conn.execute("SELECT identifier FROM taskq_internal.identifier_front ORDER BY number").fetchall()
    return [identifier for (identifier,) in rows]


def passed_tasks(conn: psycopg.Connection) -> list[int]:
    """The tasks that polls would miss: READY, not late, and before a front or in a gap, or ACTIVE before a front."""
    rows = conn.execute(
        """SELECT l.sequence FROM taskq_internal.live l
           LEFT JOIN LATERAL (SELECT * FROM taskq_internal.front f WHERE f.topic_id = l.topic_id
                AND f.priority = l.priority ORDER BY f.number DESC LIMIT 1) f ON true
           WHERE l.holder IS NULL AND l.waits <= 0 AND (f.number IS NULL OR NOT l.late AND (
               (l.available_at, l.sequence) < (f.available_at, f.sequence)
               OR (l.available_at, l.sequence) > (f.gap_low_at, f.gap_low_sequence)
                   AND (l.available_at, l.sequence) < (f.gap_high_at, f.gap_high_sequence)))
           UNION ALL
           SELECT l.sequence FROM taskq_internal.live l CROSS JOIN LATERAL (
               SELECT * FROM taskq_internal.identifier_front i
               WHERE i.topic_id = l.topic_id AND i.identifier = l.identifier AND i.priority = l.priority
               ORDER BY i.number DESC LIMIT 1) i
           WHERE l.holder IS NULL AND l.waits <= 0 AND NOT l.late
             AND (l.available_at, l.sequence) < (i.available_at, i.sequence)
           UNION ALL
           SELECT l.sequence FROM taskq_internal.live l CROSS JOIN LATERAL (
               SELECT * FROM taskq_internal.identifier_front i
               WHERE i.topic_id = l.topic_id AND i.identifier = l.identifier ORDER BY i.number DESC LIMIT 1) i
           WHERE l.holder IS NOT NULL AND l.polled < i.claimed_at"""
    ).fetchall()
    return [sequence for (sequence,) in rows]


# Programs, pages, consumers and releases


_INTERRUPTED = {
    "push": "BEFORE INSERT ON taskq_internal.task",
    "claim": "BEFORE UPDATE ON taskq_internal.live",
    "end": "BEFORE INSERT ON taskq_internal.ended",
    "removal": "BEFORE DELETE ON taskq_internal.task",
}


@contextmanager
def interrupted(
    conn: psycopg.Connection, step: Literal["push", "claim", "end", "removal"], body: str
) -> Iterator[None]:
    """Runs statements of PL/pgSQL before each task that is pushed, claimed, ended or removed: NEW or OLD is its row.

    The trigger stays until the database is emptied: to drop it locks tables in another order than a call in flight.
    """
    function = (
        f"CREATE OR REPLACE FUNCTION public.before_{step}() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN {} RETURN coalesce(NEW, OLD); END $$;"
    )
    conn.execute(
        f"{function.format(body)} CREATE OR REPLACE TRIGGER before_{step} {_INTERRUPTED[step]} FOR EACH ROW"
        f" EXECUTE FUNCTION public.before_{step}()".encode()
    )
    try:
        yield
    finally:
        conn.execute(function.format("").encode())


Change = Literal[
    "decisions ignore fences",
    "health judges young transactions",
    "polls by identifier stop between their two checks",
    "readers of the log stop after their check for open pushes",
]
_STOP = "pg_advisory_xact_lock(nullif(current_setting('tests.stop', true), '')::bigint)"
_CHANGES: dict[Change, tuple[str, str, str]] = {
    "decisions ignore fences": ("require_lease", " AND fence = p_fence", ""),
    "health judges young transactions": ("health_of_transactions", "60, 600, 3600", "-1, -1, 3600"),
    "polls by identifier stop between their two checks": (
        "claim_identifiers",
        "DECLARE\n",
        f"DECLARE v_stop text := {_STOP}::text;\n",
    ),
    "readers of the log stop after their check for open pushes": (
        "log_horizon",
        "RETURN v_next;",
        f"PERFORM {_STOP}; RETURN v_next;",
    ),
}


def plant_change(conn: psycopg.Connection, change: Change) -> None:
    """Changes what the functions do: an error that a test has to find, or a patience that a test cannot wait for.

    A session stops until it gets the advisory lock whose number is its setting `tests.stop`, and goes on without one.
    """
    function, old, new = _CHANGES[change]
    [(body,)] = conn.execute("SELECT pg_get_functiondef(%s::regproc)", (f"taskq_internal.{function}",)).fetchall()
    assert old in body
    conn.execute(body.replace(old, new).encode())


def undecided_tasks(conn: psycopg.Connection, topic: str, owner: str) -> list[int]:
    """The tasks of the topic that owners whose name is LIKE `owner` hold and that no open transaction decides on."""
    held = conn.execute(
        "SELECT sequence FROM taskq_internal.live WHERE (topic_id, sequence) IN ("
        " SELECT v.topic_id, v.sequence FROM taskq.tasks v"
        " WHERE v.topic = %s AND v.state = 'ACTIVE' AND v.holder LIKE %s) FOR UPDATE SKIP LOCKED",
        (topic, owner),
    )
    return [sequence for (sequence,) in held.fetchall()]


def ttls(conn: psycopg.Connection) -> list[timedelta | None]:
    """The times to live of all tasks, in order of sequence."""
    return [ttl for (ttl,) in conn.execute("SELECT ttl FROM taskq_internal.task ORDER BY sequence").fetchall()]


def space_ends(conn: psycopg.Connection, ago: str = "'0'", ran: str = "'0'", waited: str = "'0'") -> None:
    """Spreads the ends of ended tasks over the past, each after an attempt that waited and ran.

    All three are SQL expressions of intervals over a task's `sequence` and `state`.
    """
    conn.execute(
        "UPDATE taskq_internal.ended e SET completed = n.completed, available_at = n.completed - n.ran - n.waited,"
        " polled = CASE WHEN polled IS NOT NULL THEN n.completed - n.ran END FROM ("
        f"SELECT sequence, completed - ({ago})::interval AS completed, ({ran})::interval AS ran,"
        f" ({waited})::interval AS waited FROM taskq_internal.ended OFFSET 0) n"
        " WHERE n.sequence = e.sequence AND e.completed IS NOT NULL".encode()
    )


def store_moments(conn: psycopg.Connection, value: str) -> None:
    """Stores a moment, which may be out of range, for all owners, tasks, locks, groups and audited actions."""
    for statement in (
        "owner SET lease_until = %(value)s, seen = %(value)s",
        "task SET created = %(value)s, due = %(value)s",
        "live SET late = true, available_at = %(value)s",
        "ended SET available_at = %(value)s, completed = %(value)s",
        "lock SET until = 'infinity', locked = %(value)s",
        "consumer_progress SET advanced = %(value)s",
        "audit SET happened = %(value)s",
    ):
        conn.execute(f"UPDATE taskq_internal.{statement}".encode(), {"value": value})


_MILLION = """
INSERT INTO taskq_internal.task (sequence, created, due, pushed_in, topic_id, priority, identifier, reference, payload)
SELECT n, clock_timestamp() - (1000000 - n) * interval '0.1 s', clock_timestamp() - (1000000 - n) * interval '0.1 s',
       '3', (SELECT topic_id FROM taskq_internal.topic WHERE name = 'work'), 0, 'task-' || n % 300000,
       'batch-' || n / 1000, '{"number": 1}'
FROM generate_series(1, 1000000) n;
INSERT INTO taskq_internal.ended
    (sequence, completed, available_at, holder, topic_id, attempt, state, identifier, error)
SELECT n, clock_timestamp() - (1000000 - n) * interval '0.1 second', clock_timestamp(), 1 + n % 20,
       (SELECT topic_id FROM taskq_internal.topic WHERE name = 'work'), 1, CASE WHEN n % 7 = 0 THEN 3 ELSE 6 END,
       'task-' || n % 300000, CASE WHEN n % 7 = 0 THEN 'error number ' || n END
FROM generate_series(1, 700000) n;
INSERT INTO taskq_internal.live (sequence, available_at, holder, topic_id, attempt, priority, identifier, error)
SELECT n, clock_timestamp() + CASE WHEN n % 3 = 0 THEN interval '-1 hour' ELSE interval '1 day' END,
       CASE WHEN n % 30 = 0 THEN 1 + n / 30 % 20 END, (SELECT topic_id FROM taskq_internal.topic WHERE name = 'work'),
       CASE WHEN n % 3 = 1 OR n % 30 = 0 THEN 1 ELSE 0 END, 0, 'task-' || n % 300000,
       CASE WHEN n % 3 = 1 THEN 'tried again' END
FROM generate_series(700001, 1000000) n;
SELECT setval('taskq_internal.task_sequence', 1000000);
VACUUM ANALYZE taskq_internal.task, taskq_internal.ended, taskq_internal.live"""


def store_million_tasks(conn: psycopg.Connection) -> None:
    """Stores 700,000 ended tasks and 300,000 live ones in the topic `work` in seconds. Its owners are the first 20."""
    for statement in _MILLION.split(";\n"):
        conn.execute(statement.encode())


def stream_batches(conn: psycopg.Connection) -> list[int]:
    """The last committed batch of each stream."""
    return [batch for (batch,) in conn.execute("SELECT batch FROM taskq_internal.stream ORDER BY name").fetchall()]


# What no database has, whatever was open at the moment of its copy.
_CONTRADICTIONS = {
    "a task without its place among the live or the ended tasks": """SELECT sequence FROM taskq_internal.task t
        WHERE NOT EXISTS (SELECT FROM taskq_internal.live l WHERE l.sequence = t.sequence)
          AND NOT EXISTS (SELECT FROM taskq_internal.ended e WHERE e.sequence = t.sequence)""",
    "a place without its task": """SELECT sequence FROM (
        SELECT sequence FROM taskq_internal.live UNION ALL SELECT sequence FROM taskq_internal.ended) p
        WHERE NOT EXISTS (SELECT FROM taskq_internal.task t WHERE t.sequence = p.sequence)""",
    "a task in two places": """SELECT sequence FROM taskq_internal.live
        INTERSECT SELECT sequence FROM taskq_internal.ended""",
    "a sequence that will be drawn again": """SELECT max(sequence) FROM taskq_internal.task
        HAVING max(sequence) > (SELECT last_value FROM taskq_internal.task_sequence)""",
    "a fence that will be drawn again": """SELECT max(fence) FROM taskq_internal.owner
        HAVING max(fence) > (SELECT last_value FROM taskq_internal.fence)""",
}


def contradictions(conn: psycopg.Connection) -> list[tuple[str, int]]:
    """Stored rows that contradict others: what is wrong, and the number of the task or the fence."""
    return [
        (what, number)
        for what, query in _CONTRADICTIONS.items()
        for (number,) in conn.execute(query.encode()).fetchall()
    ]


# Migrations of a next release. By the rule of docs/production/upgrades.md one adds, and neither scans nor rewrites a
# table that has a row for each task.
ADDING_MIGRATION = """ALTER TABLE taskq_internal.task ADD COLUMN of_next_release int NOT NULL DEFAULT 0;
ALTER TABLE taskq_internal.live ADD COLUMN of_next_release int NOT NULL DEFAULT 0;
ALTER TABLE taskq_internal.ended ADD COLUMN of_next_release int NOT NULL DEFAULT 0;
ALTER TABLE taskq_internal.topic ADD COLUMN of_next_release int NOT NULL DEFAULT 0;
ALTER TABLE taskq_internal.owner ADD COLUMN of_next_release int NOT NULL DEFAULT 0;
CREATE TABLE taskq_internal.of_next_release (topic_id int PRIMARY KEY, value int NOT NULL);
"""
INDEXING_MIGRATION = "CREATE INDEX live_attempt ON taskq_internal.live (topic_id, attempt)"
REWRITING_MIGRATION = "ALTER TABLE taskq_internal.ended ADD COLUMN r float DEFAULT random()"


def scans_and_files(conn: psycopg.Connection) -> dict[str, tuple[int, int]]:
    """How often each table with a row for each task was scanned, and its file, which a rewrite changes."""
    rows = conn.execute(
        "SELECT relname::text, seq_scan, pg_relation_filenode(relid) FROM pg_stat_user_tables"
        " WHERE relid IN ('taskq_internal.task_shared'::regclass, 'taskq_internal.live_shared'::regclass,"
        " 'taskq_internal.ended_shared'::regclass)"
    ).fetchall()
    return {name.removesuffix("_shared"): (scanned, file) for name, scanned, file in rows}


def build_index_ahead(conn: psycopg.Connection) -> None:
    """Builds the index of INDEXING_MIGRATION on each table of live tasks, as docs/production/upgrades.md says."""
    leaves = "SELECT relid::regclass::text FROM pg_partition_tree('taskq_internal.live') WHERE isleaf ORDER BY 1"
    for number, (table,) in enumerate(conn.execute(leaves).fetchall(), 1):
        build = f"CREATE INDEX CONCURRENTLY IF NOT EXISTS live_attempt_{number} ON {table} (topic_id, attempt)"
        conn.execute(build.encode())
