"""Database roles with given kinds of access, for tests of the access that programs need."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo


@contextmanager
def logged_in(conn: psycopg.Connection[Any], dsn: str, *kinds: str, topics: list[str] | None = None) -> Iterator[str]:
    """Yield the DSN of a new role with these kinds of access, to some topics or to all, and drop the role at the end.

    `conn` may create roles.
    """
    name, password = f"taskq_role_{uuid4().hex[:8]}", uuid4().hex
    role = sql.Identifier(name)
    conn.execute(sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}").format(role, sql.Literal(password)))
    for kind in kinds:
        conn.execute("SELECT taskq.grant_access(%s, %s, %s)", (name, kind, topics))
    try:
        yield make_conninfo(dsn, user=name, password=password)
    finally:
        conn.execute("SELECT taskq.revoke_access(%s)", (name,))
        conn.execute(sql.SQL("DROP ROLE {}").format(role))
