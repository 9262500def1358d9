import logging
from typing import Any

import psycopg
import pytest
from airflow.providers.postgres.hooks import postgres as airflow_postgres
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from airflow_provider_taskq.hooks import TaskQConnectionError, TaskQHook
from airflow_provider_taskq.queue import TaskQueue, UnknownTopic
from demo.postgres import EmbeddedPostgres
from tests.airflow.conftest import LINES, Connect
from tests.internals import pretend_release

pytestmark = pytest.mark.promise("Hooks, operators and `airflow taskq` find the connections of Airflow")

TIMEOUTS = {
    "connect_timeout": "10",
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "tcp_user_timeout": "60000",
}


def parameters(connection: psycopg.Connection) -> dict[str, str]:
    """Return the parameters with which a connection was opened."""
    given = {option.keyword.decode(): option.val for option in connection.pgconn.info}
    return {name: (given[name] or b"").decode() for name in (*TIMEOUTS, "target_session_attrs")}


def test_every_connection_detects_a_vanished_server(connect_airflow: Connect) -> None:
    given = {**TIMEOUTS, "target_session_attrs": "any"}
    said = {**given, "connect_timeout": "20", "tcp_user_timeout": "5000", "target_session_attrs": "read-write"}
    default = connect_airflow()
    extra = {"connect_timeout": 20, "tcp_user_timeout": 5000, "options": "-c IntervalStyle=iso_8601"}
    own = connect_airflow("own", **extra, target_session_attrs="read-write")
    for conn_id, expected in ((default, given), (own, said)):
        with TaskQHook(conn_id).get_conn() as connection:
            assert parameters(connection) == expected
            assert connection.info.parameter_status("IntervalStyle") == "postgres"
            assert connection.prepare_threshold is None, "it works behind a pooler"
            assert connection.info.parameter_status("application_name") == "airflow-taskq"


@pytest.mark.parametrize("psycopg3", [True, False])
def test_accepts_a_postgres_connection_of_other_hooks(
    connect_airflow: Connect, monkeypatch: pytest.MonkeyPatch, psycopg3: bool
) -> None:
    monkeypatch.setattr(airflow_postgres, "USE_PSYCOPG3", psycopg3)
    extra = {"cursor": "realdictcursor", "placeholder": "%s", "sslmode": "", "application_name": "etl", "dialect": None}
    conn_id = connect_airflow("warehouse", conn_type="postgres", **extra)
    with TaskQHook(taskq_conn_id=conn_id).get_conn() as connection:
        assert isinstance(connection, psycopg.Connection), "also where PostgresHook opens psycopg2, as on Airflow 3.1"
        assert connection.info.parameter_status("application_name") == "etl"
        assert connection.execute("SELECT 1, 2").fetchone() == (1, 2)


def test_gets_cloud_tokens_from_postgres_hook(connect_airflow: Connect, dsn: str) -> None:
    class CloudHook(TaskQHook):
        def get_iam_token(self, conn: Any) -> tuple[str, str, int]:
            parts = conninfo_to_dict(dsn)
            return conn.login, str(parts["password"]), conn.port

    conn_id = connect_airflow("cloud", dsn=make_conninfo(dsn, password="stale"), iam=True)
    with CloudHook(conn_id).get_conn() as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)


def _create_and_fail(hook: TaskQHook) -> None:
    with hook.transaction() as queue:
        queue.create_topic("undone")
        queue.ready("nowhere")


def test_a_transaction_commits_or_is_rolled_back_and_always_closes(
    airflow_connection: str, conn: psycopg.Connection
) -> None:
    hook = TaskQHook(airflow_connection)
    with hook.transaction() as queue:
        queue.create_topic("kept")
    with pytest.raises(UnknownTopic):
        _create_and_fail(hook)
    assert TaskQueue(conn).topics() == ["kept"]
    while conn.execute(LINES).fetchall():  # the session ends a moment after the connection
        pass


def test_sql_is_not_logged(airflow_connection: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        TaskQHook(airflow_connection).run("SELECT %s", parameters=("marked payload",))
    assert "marked payload" not in caplog.text


def test_the_connection_test_names_the_database_or_the_command_that_installs_the_schema(
    connect_airflow: Connect, dsn: str, empty_dsn: str
) -> None:
    database = conninfo_to_dict(dsn)["dbname"]
    hook = TaskQHook(connect_airflow())
    assert hook.test_connection() == (True, f"The queue in database '{database}' is ready.")
    assert repr(hook) == "TaskQHook(taskq_conn_id='taskq_default')", "nothing else of the connection"
    passed, message = TaskQHook(connect_airflow(dsn=empty_dsn)).test_connection()
    assert not passed
    assert "taskq install" in message


@pytest.mark.own_database
def test_the_connection_test_reports_a_newer_schema(airflow_connection: str, conn: psycopg.Connection) -> None:
    pretend_release(conn, "newer")
    passed, message = TaskQHook(airflow_connection).test_connection()
    assert (passed, "new" in message) == (False, True)


def test_the_error_of_a_failed_connection_is_one_line_without_the_password(
    connect_airflow: Connect, own_server: EmbeddedPostgres
) -> None:
    password = str(conninfo_to_dict(own_server.dsn)["password"])
    for changes, said in (
        ({"port": "1"}, "refused"),
        ({"password": f"{password}-stale"}, "password authentication failed"),
        ({"dbname": "nowhere"}, "does not exist"),
        ({"host": "no-such-host.invalid"}, "no-such-host.invalid"),
        ({"host": "db..example"}, "invalid host name"),
    ):
        hook = TaskQHook(connect_airflow(dsn=make_conninfo(own_server.dsn, **changes)))
        with pytest.raises(TaskQConnectionError) as raised:
            hook.get_conn()
        message = str(raised.value)
        assert message.startswith("Airflow connection 'taskq_default' cannot connect to its database: ")
        assert said in message
        assert "\n" not in message
        assert password not in message
        reason = message.partition("cannot connect to its database: ")[2]
        assert hook.test_connection() == (False, f"The database cannot be reached: {reason}")
        assert hook.get_conn_id() not in reason


def test_an_unknown_option_is_named(connect_airflow: Connect) -> None:
    with pytest.raises(TaskQConnectionError, match='invalid connection option "colour"'):
        TaskQHook(connect_airflow(colour="blue")).get_conn()
