"""The matrix of access: each role on each function, table and view, in a schema whose owner is a plain role."""

import re
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from airflow_provider_taskq.queue import TaskQueue, connect, install
from tests.internals import SCHEMAS, private_rights

pytestmark = pytest.mark.promise("A role may call the functions of its kind, and no others")

KINDS = ("producer", "consumer", "reader", "operator")
LIMITED = ("limited producer", "limited consumer", "limited reader")
ROLES = (*KINDS, *LIMITED, "owner", "none", "PUBLIC")
HEADER = "| functions | producer | consumer | reader | operator |\n|---|---|---|---|---|\n"
RIGHTS = ("SELECT", "INSERT", "UPDATE", "DELETE", "TRUNCATE", "REFERENCES", "TRIGGER")

READ, STAGE = {"SELECT"}, {"INSERT"}
EVERY = "every_topic"
EVERYONE = {"migrations": READ, "privileges": READ}
VIEWS = {"tasks": READ, "topic_summaries": READ, "task_info": READ}
RELATIONS: dict[str, dict[str, set[str]]] = {
    "producer": {**EVERYONE, EVERY: {"INSERT", "DELETE"}, "staged_task": STAGE},
    "consumer": {**EVERYONE, EVERY: {"UPDATE"}, "staged": STAGE, "staged_junction": STAGE},
    "reader": {**EVERYONE, **VIEWS, EVERY: READ},
    "operator": {
        **EVERYONE,
        **VIEWS,
        EVERY: {"SELECT", "INSERT", "UPDATE", "DELETE"},
        "staged": STAGE,
        "staged_junction": STAGE,
        "staged_task": STAGE,
    },
    "limited producer": {**EVERYONE, "staged_task": STAGE},
    "limited consumer": {**EVERYONE, "staged": STAGE, "staged_junction": STAGE},
    "limited reader": EVERYONE,
}
"""The rights of the roles on the tables and views of the schema taskq. The owner has all, and other roles none."""

Matrix = tuple[psycopg.Connection, dict[str, str]]


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
            TaskQueue(conn).create_topic("orders")
            for role in (*KINDS, *LIMITED):
                topics = ["orders"] if role in LIMITED else None
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
def test_only_the_owner_has_a_right_in_the_internal_schema(matrix: Matrix, role: str) -> None:
    conn, names = matrix
    found = private_rights(conn, names[role])
    assert (len(found) > 300) == (role == "owner")
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
def test_a_role_has_rights_on_single_columns_only_where_consumers_continue_decisions(matrix: Matrix, role: str) -> None:
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
    columns = ("attempt", "parent", "part", "place", "stage", "suspended")
    assert found == ([f"staged_task.{name} INSERT" for name in columns] if role.endswith("consumer") else [])


@pytest.mark.parametrize("role", ROLES)
def test_only_granted_roles_may_use_the_schema_and_only_the_owner_may_create_in_it(matrix: Matrix, role: str) -> None:
    conn, names = matrix
    query = "SELECT has_schema_privilege(%s, 'taskq', 'USAGE'), has_schema_privilege(%s, 'taskq', 'CREATE')"
    found = conn.execute(query, (names[role], names[role])).fetchone()
    assert found == (role not in ("none", "PUBLIC"), role == "owner")


def test_every_public_function_runs_as_the_owner_with_a_pinned_search_path(matrix: Matrix) -> None:
    conn, names = matrix
    query = """SELECT p.oid::regprocedure::text FROM pg_proc p WHERE p.pronamespace = 'taskq'::regnamespace
               AND NOT (p.prosecdef AND 'search_path=pg_catalog, pg_temp' = ANY (p.proconfig)
                        AND p.proowner = %(owner)s::regrole)"""
    assert column(conn, query, owner=names["owner"]) == []


def test_no_other_function_runs_with_rights_of_the_owner(matrix: Matrix) -> None:
    conn, _ = matrix
    query = """SELECT p.oid::regprocedure::text FROM pg_proc p
               WHERE p.pronamespace = ANY (%(others)s::regnamespace[]) AND p.prosecdef"""
    assert column(conn, query, others=SCHEMAS[1:]) == []
