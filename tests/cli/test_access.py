"""taskq access, as the owner of the schema."""

from collections.abc import Iterator
from uuid import uuid4

import pytest
from psycopg.conninfo import make_conninfo

from airflow_provider_taskq.queue import TaskQueue, connect
from tests.cli.conftest import Run

pytestmark = pytest.mark.promise("A role may call the functions of its kind, and no others")


@pytest.fixture
def role(dsn: str) -> Iterator[str]:
    """A role that may log in and has no access, and the topics orders and invoices."""
    name = f"taskq_cli_{uuid4().hex[:8]}"
    with connect(dsn, autocommit=True) as conn:
        for topic in ("orders", "invoices"):
            TaskQueue(conn).create_topic(topic)
        conn.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'secret'".encode())
        yield name
        conn.execute("SELECT taskq.revoke_access(%s)", (name,))
        conn.execute(f"DROP ROLE {name}".encode())


def test_access_grants_topics_to_a_role_and_revokes_them(
    run: Run, dsn: str, role: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("access", "list").stdout.strip() == "No role was granted access."
    output = run("access", "grant", role, "producer", "--topic", "orders").stdout
    assert f"Granted {role} access as producer to orders." in output
    listed = run("access", "list").stdout
    assert all(word in listed for word in (role, "producer", "orders"))
    with monkeypatch.context() as as_role:
        as_role.setenv("TASKQ_DSN", make_conninfo(dsn, user=role, password="secret"))
        run("push", "orders", "a")
        denied = run("push", "invoices", "a", code=1).stderr
        assert f"role {role} may not push to topic 'invoices'" in denied
        assert f"SELECT taskq.grant_access('{role}', 'producer', ARRAY['invoices'])" in denied
    assert "access as producer to orders" in run("access", "revoke", role, "producer", "--topic", "orders").stdout
    assert run("access", "list").stdout.strip() == "No role was granted access."


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("revoke", "ROLE", "--topic", "orders"), "--topic needs a kind"),
        (("grant", "ROLE", "operator", "--topic", "orders"), "cannot be limited to topics"),
        (("grant", "no such role", "reader"), "does not exist"),
    ],
)
def test_access_refuses_an_invalid_grant(run: Run, role: str, words: tuple[str, ...], reason: str) -> None:
    code = 2 if "--" in reason else 1
    assert reason in run("access", *(role if word == "ROLE" else word for word in words), code=code).stderr
