"""Access: each role on each verb, function, table and view, in a schema whose owner is a plain role."""

import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from airflow_provider_taskq.queue import (
    Cursor,
    Owner,
    Result,
    State,
    TaskQueue,
    TopicPolicy,
    connect,
    install,
    uninstall,
)
from tests.internals import SCHEMAS, private_rights

pytestmark = pytest.mark.promise("A role may call the functions of its kind, and no others")

KINDS = ("producer", "consumer", "reader", "operator")
LIMITED = ("limited producer", "limited consumer", "limited reader")
ROLES = (*KINDS, *LIMITED, "owner", "none", "PUBLIC")
HEADER = "| functions | producer | consumer | reader | operator |\n|---|---|---|---|---|\n"
RIGHTS = ("SELECT", "INSERT", "UPDATE", "DELETE", "TRUNCATE", "REFERENCES", "TRIGGER")
LEASE = timedelta(minutes=5)

READ, STAGE = {"SELECT"}, {"INSERT"}
EVERY = "every_topic"
EVERYONE = {"migrations": READ, "privileges": READ}
VIEWS = {"tasks": READ, "topic_summaries": READ, "task_info": READ}
RELATIONS: dict[str, dict[str, set[str]]] = {
    "producer": {**EVERYONE, EVERY: {"INSERT", "DELETE"}, "staged_task": STAGE},
    "consumer": {**EVERYONE, EVERY: {"UPDATE"}, "staged": STAGE, "staged_task": STAGE},
    "reader": {**EVERYONE, **VIEWS, EVERY: READ},
    "operator": {
        **EVERYONE,
        **VIEWS,
        EVERY: {"SELECT", "INSERT", "UPDATE", "DELETE"},
        "staged": STAGE,
        "staged_task": STAGE,
    },
    "limited producer": {**EVERYONE, "staged_task": STAGE},
    "limited consumer": {**EVERYONE, "staged": STAGE, "staged_task": STAGE},
    "limited reader": EVERYONE,
}
"""The rights of the roles on the tables and views of the schema taskq. The owner has all, and other roles none."""

Matrix = tuple[psycopg.Connection, dict[str, str]]


UNREGISTERED = Owner("me", 1, LEASE, datetime.now(UTC), resumed=False)


def verbs(queue: TaskQueue, topic: str = "work", owner: Owner = UNREGISTERED) -> dict[str, Callable[[], object]]:
    """One call of each verb. No call changes the rows that another call needs."""
    return {
        "push": lambda: queue.push(topic, ["a"]),
        "push_stream": lambda: queue.push_stream(topic, iter(["a"])),
        "offer": lambda: queue.offer(topic, "offered"),
        "drop": lambda: queue.drop(topic, "offered"),
        "install_ticks": lambda: queue.install_ticks(topic, "daily", "hash", [(datetime.now(UTC), None)]),
        "uninstall_ticks": lambda: queue.uninstall_ticks(topic, "daily", "hash"),
        "notify": lambda: queue.notify(topic),
        "topics": queue.topics,
        "policy": lambda: queue.policy(topic),
        "register": lambda: queue.register("someone", LEASE),
        "heartbeat": lambda: queue.heartbeat(owner),
        "poll": lambda: queue.poll(topic, owner),
        "poll_batch": lambda: queue.poll_batch(topic, owner),
        "complete": lambda: queue.complete(owner, {1: Result.SUCCESS}),
        "exchange": lambda: queue.exchange(owner, {1: Result.SUCCESS}, topic),
        "claim": lambda: queue.claim(topic, owner, 1),
        "held": lambda: queue.held(owner),
        "max_claim": lambda: queue.max_claim(owner),
        "release": lambda: queue.release(owner),
        "owners": queue.owners,
        "expire": queue.expire,
        "maintain": queue.maintain,
        "lock": lambda: queue.lock("name", "me", LEASE),
        "unlock": lambda: queue.unlock("name", "me"),
        "junction": lambda: queue.junction(topic, [["a"]]),
        "release_groups_once": lambda: queue.release_groups_once("a wait", topic, [["a"]]),
        "events": lambda: queue.events(topic, None, 1),
        "progress": lambda: queue.progress("group", topic, 0),
        "advance": lambda: queue.advance("group", topic, 0, Cursor(0)),
        "ready": lambda: queue.ready(topic),
        "has_unclaimed": lambda: queue.has_unclaimed(topic),
        "task": lambda: queue.task(topic, 1),
        "page": lambda: queue.page(topic),
        "latest": lambda: queue.latest(topic, ["a"]),
        "count": lambda: queue.count(topic),
        "results": queue.results,
        "resolve": lambda: queue.resolve(datetime.now(UTC)),
        "timeline": lambda: queue.timeline(topic, 1),
        "explain": lambda: queue.explain(topic, 1),
        "health": queue.health,
        "error_groups": lambda: queue.error_groups(topic),
        "audit_trail": queue.audit_trail,
        "create_topic": lambda: queue.create_topic("other"),
        "alter_topic": lambda: queue.alter_topic(topic, TopicPolicy()),
        "pause_topic": lambda: queue.pause_topic(topic),
        "resume_topic": lambda: queue.resume_topic(topic),
        "revive": lambda: queue.revive(topic, State.FAILED),
        "reassign": lambda: queue.reassign(topic, Result.SUCCESS, state=State.FAILED),
        "change_waiting": lambda: queue.change_waiting(topic, [1], paused=True),
        "cancel": lambda: queue.cancel(topic, [1]),
        "purge": lambda: queue.purge(topic),
        "purge_all": lambda: queue.purge_all(topic),
        "purge_owners": lambda: queue.purge_owners(LEASE),
        "record_action": lambda: queue.record_action("purge", topic, "all", 1),
        "drop_topic": lambda: queue.drop_topic("other"),
    }


"""The SQL functions of verbs that have another name."""
"""The verbs for limited roles that name no topic, or of which the topic is only a word."""


@pytest.fixture(scope="module")
def matrix(server_dsn: str) -> Iterator[Matrix]:
    """A superuser's connection to a schema of a plain role, and the roles by what they are."""
    tag = uuid4().hex[:8]
    names = {role: f"taskq_matrix_{role.replace(' ', '_')}_{tag}" for role in ROLES if role != "PUBLIC"}
    database = sql.Identifier(f"taskq_matrix_{tag}")
    with connect(server_dsn, autocommit=True) as server:
        for name in names.values():
            server.execute(sql.SQL("CREATE ROLE {}").format(sql.Identifier(name)))
        server.execute(sql.SQL("CREATE DATABASE {} OWNER {}").format(database, sql.Identifier(names["owner"])))
        with connect(make_conninfo(server_dsn, dbname=f"taskq_matrix_{tag}"), autocommit=True) as conn:
            conn.execute(sql.SQL("SET ROLE {}").format(sql.Identifier(names["owner"])))
            install(conn)
            for topic in ("work", "invoices"):
                TaskQueue(conn).create_topic(topic)
            for role in (*KINDS, *LIMITED):
                topics = ["work"] if role in LIMITED else None
                conn.execute("SELECT taskq.grant_access(%s, %s, %s)", (names[role], role.split()[-1], topics))
            conn.execute("RESET ROLE")
            yield conn, {**names, "PUBLIC": "public"}
        server.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(database))
        for name in names.values():
            server.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(name)))


def column(conn: psycopg.Connection, query: str, **values: object) -> list[str]:
    return [value for (value,) in conn.execute(query.encode(), values).fetchall()]


def documented(repository: Path, role: str) -> set[str]:
    """The functions that a role may call, by the table of docs/production/roles.md."""
    text = (repository / "docs" / "production" / "roles.md").read_text(encoding="utf-8")
    rows = text.split(HEADER)[1].split("\n\n")[0].splitlines()
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    if role == "owner":
        return {name for functions, *_ in cells for name in re.findall(r"`(\w+)`", functions)}
    if role in ("none", "PUBLIC"):
        return set()
    number = 1 + KINDS.index(role.rsplit(maxsplit=1)[-1])
    marks = {"yes"} if role in LIMITED else {"yes", "every topic"}
    return {name for row in cells if row[number] in marks for name in re.findall(r"`(\w+)`", row[0])}


@pytest.mark.parametrize("role", ROLES)
def test_a_role_may_call_each_function_or_not_as_the_table_says(matrix: Matrix, repository: Path, role: str) -> None:
    conn, names = matrix
    allowed = documented(repository, role)
    query = """SELECT p.oid::regprocedure::text, p.proname, has_function_privilege(%s, p.oid, 'EXECUTE')
               FROM pg_proc p WHERE p.pronamespace = 'taskq'::regnamespace"""
    found = conn.execute(query, (names[role],)).fetchall()
    assert {function: may for function, _, may in found} == {function: name in allowed for function, name, _ in found}
    assert allowed <= {name for _, name, _ in found}


@pytest.mark.parametrize("role", ROLES)
def test_only_granted_roles_may_use_the_schema_and_only_the_owner_the_internal_one(matrix: Matrix, role: str) -> None:
    conn, names = matrix
    query = "SELECT has_schema_privilege(%s, 'taskq', 'USAGE'), has_schema_privilege(%s, 'taskq', 'CREATE')"
    rights = conn.execute(query, (names[role], names[role])).fetchone()
    assert rights == (role not in ("none", "PUBLIC"), role == "owner")
    found = private_rights(conn, names[role])
    assert (len(found) > 200) == (role == "owner")
    assert role == "owner" or found == []


@pytest.mark.parametrize("role", ROLES)
def test_a_role_has_each_right_on_each_table_and_view_or_not(matrix: Matrix, role: str) -> None:
    conn, names = matrix
    query = """SELECT c.relname, r.name, has_table_privilege(%s, c.oid, r.name)
               FROM pg_class c CROSS JOIN unnest(%s::text[]) AS r (name)
               WHERE c.relnamespace = 'taskq'::regnamespace AND c.relkind NOT IN ('i', 'I', 't')"""
    found = conn.execute(query, (names[role], list(RIGHTS))).fetchall()
    allowed = RELATIONS.get(role, {})
    assert {(name, right): may for name, right, may in found} == {
        (name, right): role == "owner" or right in allowed.get(name, set()) for name, right, _ in found
    }
    assert set(allowed) <= {name for name, _, _ in found}


@pytest.mark.parametrize("role", ROLES)
def test_no_role_has_rights_on_single_columns(matrix: Matrix, role: str) -> None:
    conn, names = matrix
    found = column(
        conn,
        """SELECT format('%%s.%%s %%s', c.relname, a.attname, r.name) FROM pg_class c
           JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
           CROSS JOIN unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'REFERENCES']) AS r (name)
           WHERE c.relnamespace = 'taskq'::regnamespace AND c.relkind IN ('r', 'v')
             AND has_column_privilege(%(role)s, c.oid, a.attnum, r.name)
             AND NOT has_table_privilege(%(role)s, c.oid, r.name) ORDER BY 1""",
        role=names[role],
    )
    assert found == []


@pytest.mark.parametrize("role", ["reader", "operator"])
@pytest.mark.parametrize("source", VIEWS)
def test_a_reader_reads_each_view_without_a_right_on_a_table(matrix: Matrix, role: str, source: str) -> None:
    conn, names = matrix
    queue = TaskQueue(conn)
    with conn.transaction(force_rollback=True):
        queue.push("work", ["a"])
        conn.execute(sql.SQL("SET LOCAL ROLE {}").format(sql.Identifier(names[role])))
        found = conn.execute(f"SELECT topic FROM taskq.{source} WHERE topic = 'work'".encode()).fetchall()
        assert found == [("work",)]


def test_every_public_function_and_no_other_runs_as_the_owner_with_a_pinned_search_path(matrix: Matrix) -> None:
    conn, names = matrix
    query = """SELECT p.oid::regprocedure::text FROM pg_proc p WHERE p.pronamespace = ANY (%(schemas)s::regnamespace[])
               AND CASE WHEN p.pronamespace <> 'taskq'::regnamespace THEN p.prosecdef
                   ELSE NOT (p.prosecdef AND p.proowner = %(owner)s::regrole
                             AND 'search_path=pg_catalog, pg_temp' = ANY (coalesce(p.proconfig, '{}'))) END"""
    assert column(conn, query, owner=names["owner"], schemas=SCHEMAS) == []


@pytest.mark.parametrize("kind", KINDS)
def test_access_can_be_revoked(matrix: Matrix, kind: str) -> None:
    conn, names = matrix
    role = names[kind]
    with conn.transaction(force_rollback=True):
        conn.execute("SELECT taskq.revoke_access(%s)", (role,))
        assert conn.execute("SELECT has_schema_privilege(%s, 'taskq', 'USAGE')", (role,)).fetchone() == (False,)
        callable_functions = """SELECT p.proname FROM pg_proc p WHERE p.pronamespace = 'taskq'::regnamespace
                                AND has_function_privilege(%(role)s, p.oid, 'EXECUTE')"""
        assert column(conn, callable_functions, role=role) == []


def test_a_schema_with_grants_can_be_uninstalled(matrix: Matrix) -> None:
    conn, _ = matrix
    with conn.transaction(force_rollback=True):
        uninstall(conn)
        assert conn.execute("SELECT to_regnamespace('taskq')").fetchone() == (None,)
