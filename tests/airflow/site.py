"""One real Airflow for all end-to-end tests of a session. Payloads and the queue's password contain marks."""

import secrets
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from demo.airflow_site import AirflowSite

MARK = f"marked-payload-{secrets.token_hex(8)}"
PASSWORD = f"marked-password-{secrets.token_hex(8)}"
ROLE = f"taskq_e2e_{secrets.token_hex(4)}"


class Arguments(threading.Thread):
    """A thread that collects the arguments of all processes of this machine."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.seen: set[str] = set()
        self._ended = threading.Event()

    def run(self) -> None:
        """Collect until `end` is called."""
        while not self._ended.wait(0.5):
            for process in psutil.process_iter(["cmdline"]):
                self.seen.add(" ".join(process.info["cmdline"] or ()))

    def end(self) -> None:
        """Stop collecting."""
        self._ended.set()
        self.join()


@pytest.fixture(scope="session")
def databases(server_dsn: str, template: str) -> Iterator[tuple[str, str]]:
    """Yield the DSNs of a queue database, by a role with a marked password, and of Airflow's metadata database."""
    queue, metadata = f"{ROLE}_queue", f"{ROLE}_metadata"
    role, name, other = sql.Identifier(ROLE), sql.Identifier(queue), sql.Identifier(metadata)
    with psycopg.connect(server_dsn, autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE ROLE {} SUPERUSER LOGIN PASSWORD {}").format(role, PASSWORD))
        admin.execute(sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(name, sql.Identifier(template)))
        admin.execute(sql.SQL("CREATE DATABASE {}").format(other))
    yield (
        make_conninfo(server_dsn, dbname=queue, user=ROLE, password=PASSWORD),
        make_conninfo(server_dsn, dbname=metadata),
    )
    with psycopg.connect(server_dsn, autocommit=True) as admin:
        for database in (name, other):
            admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(database))
        admin.execute(sql.SQL("DROP ROLE {}").format(role))


@pytest.fixture(scope="session")
def arguments() -> Iterator[Arguments]:
    """Collect the arguments of all processes, from before Airflow starts."""
    collecting = Arguments()
    collecting.start()
    yield collecting
    collecting.end()


@pytest.fixture(scope="session")
def site(
    databases: tuple[str, str],
    arguments: Arguments,  # noqa: ARG001  the collection has to start first
    repository: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[AirflowSite]:
    """An Airflow with all DAGs in `dags`. It keeps the default heartbeats that matter for races."""
    from tests.airflow.conftest import connection_json  # not at the top: it imports this module

    queue, metadata = (conninfo_to_dict(dsn) for dsn in databases)
    env = {
        "AIRFLOW_CONN_TASKQ_DEFAULT": connection_json(databases[0]),
        "TASKQ_TEST_MARK": MARK,
        "PYTHONPATH": str(repository),
        "AIRFLOW__WORKERS__MIN_HEARTBEAT_INTERVAL": "5",  # Airflow's default, under which fast triggers are dangerous
        "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "3600",  # the files do not change; parsing them costs CPU
        "AIRFLOW__SCHEDULER__TRIGGER_TIMEOUT_CHECK_INTERVAL": "2",  # a gate times out at the next check
        "AIRFLOW__TRIGGERER__JOB_HEARTBEAT_SEC": "2",
        "AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "6",
    }
    metadata_dsn = "postgresql://{user}:{password}@{host}:{port}/{dbname}".format(**metadata)
    home = tmp_path_factory.mktemp("airflow")
    assert queue["password"] == PASSWORD
    with AirflowSite(home, Path(__file__).parent / "dags", env=env, metadata_dsn=metadata_dsn) as site:
        yield site


def instance(site: AirflowSite, dag_id: str, run_id: str, task_id: str) -> dict[str, Any]:
    """Return a task instance as Airflow's API shows it."""
    found: dict[str, Any] = site.get(f"dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}")
    return found


def returned(site: AirflowSite, dag_id: str, run_id: str, task_id: str) -> Any:
    """Return the return value of a task."""
    path = f"dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/xcomEntries/return_value"
    return site.get(path, stringify="false")["value"]


def xcoms(site: AirflowSite, dag_id: str, run_id: str, task_id: str) -> set[str]:
    """Return the keys of all XComs of a task."""
    found = site.get(f"dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/xcomEntries")["xcom_entries"]
    return {entry["key"] for entry in found}
