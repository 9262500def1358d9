"""Connection parameters are resolved completely, and never printed; a server that does not answer is noticed."""

import pickle
import socket
import threading
import time
from datetime import timedelta
from pathlib import Path

import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from airflow_provider_taskq.queue import TaskQueue, TaskQueueError, connect
from airflow_provider_taskq.spark.connection import ConnectionInfo
from airflow_provider_taskq.spark.data_source import TaskQDataSource
from airflow_provider_taskq.spark.lease import DrainLease

pytestmark = pytest.mark.promise("the server fails over, or becomes read-only")

VARIABLES = ("TASKQ_DSN", "TASKQ_DSN_FILE", "PGHOST", "PGPORT", "PGUSER", "PGPASSWORD", "PGDATABASE", "PGPASSFILE")


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


def database(connection_info: ConnectionInfo) -> object:
    with connection_info.connect() as conn:
        return conn.info.dbname


def test_a_connection_is_resolved_by_dsn_connection_variable_and_file(
    dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = conninfo_to_dict(dsn)["dbname"]
    assert database(ConnectionInfo.resolve(dsn)) == name
    with connect(dsn) as conn:
        assert database(ConnectionInfo.resolve(conn)) == name
    (tmp_path / "dsn").write_text(dsn + "\n")
    monkeypatch.setenv("TASKQ_DSN_FILE", str(tmp_path / "dsn"))
    assert database(ConnectionInfo.resolve()) == name
    monkeypatch.delenv("TASKQ_DSN_FILE")
    monkeypatch.setenv("TASKQ_DSN", dsn)
    assert database(ConnectionInfo.resolve()) == name


def test_parameters_that_libpq_found_on_this_machine_are_resolved(
    dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = conninfo_to_dict(dsn)
    password = str(parts.get("password", ""))
    for variable, part in (("PGHOST", "host"), ("PGPORT", "port"), ("PGUSER", "user"), ("PGDATABASE", "dbname")):
        monkeypatch.setenv(variable, str(parts[part]))
    passfile = tmp_path / "pgpass"
    passfile.write_text(f"*:*:*:*:{password}\n")
    passfile.chmod(0o600)
    monkeypatch.setenv("PGPASSFILE", str(passfile))
    connection_info = ConnectionInfo.resolve()
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    passfile.unlink()
    assert database(pickle.loads(pickle.dumps(connection_info))) == parts["dbname"]  # noqa: S301
    assert "passfile" not in connection_info.conninfo


def test_a_driver_reads_the_file_of_its_dsn_again_for_each_connection(
    dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "dsn"
    file.write_text(dsn)
    monkeypatch.setenv("TASKQ_DSN_FILE", str(file))
    connection_info: ConnectionInfo = pickle.loads(pickle.dumps(ConnectionInfo.resolve()))  # noqa: S301
    file.write_text(make_conninfo(dsn, application_name="with the next token"))
    for opened in (connection_info.queue(), connection_info.executor_queue()):
        with opened as queue:
            assert queue.conn.info.get_parameters()["application_name"] == "with the next token"
    monkeypatch.delenv("TASKQ_DSN_FILE")  # an executor without the file
    assert database(connection_info) == conninfo_to_dict(dsn)["dbname"]


def test_all_hosts_of_a_dsn_reach_executors(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = conninfo_to_dict(dsn)
    several = {"host": f"localhost,{parts['host']}", "port": f"1,{parts['port']}"}
    connection_info = ConnectionInfo.resolve(make_conninfo(dsn, **several))
    resolved = conninfo_to_dict(connection_info.conninfo)
    assert {"host": resolved["host"], "port": resolved["port"]} == several
    assert "hostaddr" not in resolved
    assert resolved["target_session_attrs"] == "read-write"
    for opened in (connection_info.queue(), connection_info.executor_queue()):
        with opened as queue:
            assert queue.conn.info.dbname == parts["dbname"]
    monkeypatch.setenv("PGHOST", several["host"])
    monkeypatch.setenv("PGPORT", several["port"])
    variables = {name: value for name, value in parts.items() if name not in ("host", "port")}
    resolved = conninfo_to_dict(ConnectionInfo.resolve(make_conninfo("", **variables)).conninfo)
    assert {"host": resolved["host"], "port": resolved["port"]} == several
    name = make_conninfo(dsn, host="localhost")  # each connection resolves it again
    resolved = conninfo_to_dict(ConnectionInfo.resolve(name).conninfo)
    assert (resolved["host"], "hostaddr" in resolved) == ("localhost", False)


def test_an_executor_with_a_dsn_of_its_own_uses_it(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = ConnectionInfo("postgresql://absent@127.0.0.1:1/nowhere")
    monkeypatch.setenv("TASKQ_DSN", dsn)
    with elsewhere.executor_queue() as queue:
        assert queue.conn.info.dbname == conninfo_to_dict(dsn)["dbname"]
    strict = ConnectionInfo(elsewhere.conninfo, executors_may_override=False)
    with pytest.raises(TaskQueueError, match="cannot connect"), strict.executor_queue():
        pass


@pytest.mark.promise("Payloads and passwords are in no log, error, metric, argument, XCom or plan")
def test_the_parameters_of_a_connection_are_never_printed() -> None:
    connection_info = ConnectionInfo("postgresql://u:sesame@h/d")
    bound = TaskQDataSource.with_connection(connection_info)({})
    for shown in (repr(connection_info), str(connection_info), f"{[connection_info]}", repr(bound), repr(vars(bound))):
        assert "sesame" not in shown


@pytest.mark.promise("A worker keeps its lease while a handler runs")
@pytest.mark.slow
@pytest.mark.parametrize(
    ("ago", "accepts"),
    [(0, False), (6, False), (0, True)],
    ids=["refused", "registered 6 seconds before the answer", "accepted and never answered"],
)
def test_two_thirds_of_a_lease_without_a_heartbeat_since_its_registration_began_is_lost(
    queue: TaskQueue, ago: float, accepts: bool
) -> None:
    owner = queue.register("owner", timedelta(seconds=8))  # a heartbeat may come a third of that late on a busy machine
    lost, since = threading.Event(), time.monotonic() - ago
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1] if accepts else 1
        info = ConnectionInfo(f"postgresql://absent@127.0.0.1:{port}/nowhere")
        with DrainLease(owner, info, lost.set, since) as keeper:
            assert lost.wait(120)
            assert 5.3 < time.monotonic() - since < 8
            assert accepts or "reached the queue for 5.3 seconds of its lease of 8 seconds" in str(keeper.lost)
