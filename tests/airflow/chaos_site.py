"""A real Airflow for tests that kill its processes or a queue's server, with short heartbeats and own databases."""

import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, LiteralString

import psutil
import psycopg
import pytest

from airflow_provider_taskq.queue import TaskQueue, connect, install
from demo.airflow_api import until
from demo.airflow_site import AirflowSite, connection_json
from demo.postgres import EmbeddedPostgres
from tests.airflow.site import url_of

DAGS = Path(__file__).parent / "dags"
DAG_FILES = ("chaos.py", "claims.py")
# Airflow detects a dead process after seconds instead of minutes, and parses the DAG files once, because they do not
# change. All other settings are its defaults.
IMPATIENT = MappingProxyType(
    {
        "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "3600",
        "AIRFLOW__SCHEDULER__JOB_HEARTBEAT_SEC": "2",
        "AIRFLOW__SCHEDULER__SCHEDULER_HEARTBEAT_SEC": "1",
        "AIRFLOW__SCHEDULER__SCHEDULER_HEALTH_CHECK_THRESHOLD": "20",
        "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "5",
        "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_SEC": "2",
        "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "30",
        "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "2",
        "AIRFLOW__TRIGGERER__JOB_HEARTBEAT_SEC": "2",
        "AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "10",
    }
)


@dataclass(frozen=True)
class Installation:
    """An Airflow and its databases. The connection `taskq_own_server` leads to a server that a test may kill."""

    site: AirflowSite
    queue_dsn: str
    metadata_dsn: str
    own_server: EmbeddedPostgres

    @contextmanager
    def queue(self) -> Iterator[TaskQueue]:
        """Yield the queue in autocommit mode."""
        with connect(self.queue_dsn, autocommit=True) as connection:
            yield TaskQueue(connection)

    def states(self, dag_id: str, run_id: str, task_id: str) -> Counter[str]:
        """Count the instances of a task by state. Reads the metadata, so it also works without an api-server."""
        rows = self._metadata(
            "SELECT coalesce(state, 'none') FROM task_instance WHERE dag_id = %s AND run_id = %s AND task_id = %s",
            (dag_id, run_id, task_id),
        )
        return Counter(state for (state,) in rows)

    def tries(self, dag_id: str, run_id: str, task_id: str) -> Counter[int]:
        """Count the instances of a task by try number."""
        rows = self._metadata(
            "SELECT try_number FROM task_instance WHERE dag_id = %s AND run_id = %s AND task_id = %s",
            (dag_id, run_id, task_id),
        )
        return Counter(number for (number,) in rows)

    def wait_count(self, dag_id: str, run_id: str, task_id: str, state: str, count: int, timeout: float) -> None:
        """Wait until this many instances of a task are in a state."""
        until(
            lambda: True if self.states(dag_id, run_id, task_id)[state] == count else None,
            timeout,
            lambda: f"{dag_id}.{task_id}: {dict(self.states(dag_id, run_id, task_id))}, not {count} {state}",
        )

    def workers(self) -> list[psutil.Process]:
        """Return the processes of LocalExecutor that run a task now.

        Idle ones are left out: one of them holds the lock of the executor's pipe, and would never release it if it were
        killed.
        """
        scheduler = psutil.Process(self.site.pids["scheduler"])
        return [each for each in scheduler.children() if "LocalExecutor" in _title(each) and _children(each)]

    def _metadata(self, query: LiteralString, arguments: tuple[str, ...] = ()) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.metadata_dsn) as metadata:
            return metadata.execute(query, arguments).fetchall()


@pytest.fixture(scope="session")
def airflow(
    make_database: Callable[..., str], repository: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Installation]:
    """Start one Airflow for all tests that kill processes; its home and its databases have nothing else."""
    home = tmp_path_factory.mktemp("chaos")
    folder = home / "dags"
    folder.mkdir()
    for dag_file in DAG_FILES:
        shutil.copy(DAGS / dag_file, folder)
    queue, metadata = make_database("chaos_queue"), make_database("chaos_metadata", schema=False)
    settings = {
        "AIRFLOW_CONN_TASKQ_DEFAULT": connection_json(queue),
        "PYTHONPATH": str(repository),
        "TASKQ_DSN": queue,
        **IMPATIENT,
    }
    with EmbeddedPostgres() as own_server:
        with connect(own_server.dsn) as conn:
            install(conn)
        settings["AIRFLOW_CONN_TASKQ_OWN_SERVER"] = connection_json(own_server.dsn)
        with AirflowSite(home, folder, env=settings, metadata_dsn=url_of(metadata)) as site:
            yield Installation(site, queue, metadata, own_server)


def _title(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return ""


def _children(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.children()
    except psutil.NoSuchProcess:
        return []
