"""One real Airflow for all tests of a session: the page needs its api-server only, DAGs need all its processes.

Payloads and the queue's password contain marks.
"""

import datetime as dt
import json
import secrets
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import psutil
import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from airflow_provider_taskq.queue import TaskQueue, connect
from demo.airflow_site import COMMANDS, AirflowError, AirflowSite, connection_json
from demo.processes import free_port
from tests.plugin import databases

MARK = f"marked-payload-{secrets.token_hex(8)}"
PASSWORD = f"marked-password-{secrets.token_hex(8)}"
ROLES = ("viewer", "user", "op", "admin")
RUN = "manual__1"
BASE_PATH = "/airflow"
HERE = Path(__file__).parent
DAG_FILES = (
    *(HERE / "dags" / f"{name}.py" for name in ("gates", "gate_logs", "state_gates", "events")),
    *(HERE.parent / "plugin" / "dags" / f"{name}.py" for name in ("shop", "partner")),
    HERE.parents[1] / "example_dags" / "taskq_events.py",
)
# The topics of the event-driven DAGs, whose triggers run as soon as a triggerer does.
EVENT_TOPICS = (*("orders", "invoices", "signups"),)
SETTINGS = {
    "AIRFLOW__WORKERS__MIN_HEARTBEAT_INTERVAL": "5",  # Airflow's default, under which fast triggers are dangerous
    "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "3600",  # the files do not change; parsing them costs CPU
    "AIRFLOW__SCHEDULER__TRIGGER_TIMEOUT_CHECK_INTERVAL": "2",  # a gate times out at the next check
    "AIRFLOW__TRIGGERER__JOB_HEARTBEAT_SEC": "2",
    "AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "6",
}

# Creates the metadata and adds the DAGs in one process, because Airflow's imports take seconds.
_PREPARE = """
from airflow.dag_processing.bundles.manager import DagBundlesManager
from airflow.utils.db import upgradedb
upgradedb()
from airflow.cli.commands.dag_command import dag_reserialize
from airflow.cli.cli_parser import get_parser
dag_reserialize(get_parser().parse_args(["dags", "reserialize"]))
"""


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


class SharedAirflow(AirflowSite):
    """An Airflow behind a base path, with a user of each role. All users have the same password."""

    def __init__(self, home: Path, dags: Path, env: Mapping[str, str], metadata_dsn: str) -> None:
        port = free_port()
        self.base_url = f"http://127.0.0.1:{port}{BASE_PATH}"
        self.metadata_dsn = metadata_dsn
        settings = {
            "AIRFLOW__API__BASE_URL": self.base_url,
            "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{self.base_url}/execution/",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": ",".join(f"{role}:{role}" for role in ROLES),
            **SETTINGS,
        }
        super().__init__(home, dags, port=port, env={**settings, **env}, metadata_dsn=url_of(metadata_dsn))
        self._client.base_url = httpx.URL(self.base_url)  # mounted applications answer only below the base path
        self.password = self._own_secrets["password"]
        (home / "passwords.json").write_text(json.dumps(dict.fromkeys(ROLES, self.password)), encoding="utf-8")

    def start(self) -> None:
        """Creates the metadata with the DAGs, starts the api-server, and waits until it answers."""
        self._prepare()
        self._launch("api-server")
        self._wait_until_healthy(dt.datetime.now(dt.UTC), [])

    def start_others(self) -> None:
        """Starts the other processes, and waits until they are healthy."""
        began, others = dt.datetime.now(dt.UTC), [name for name in COMMANDS if name not in self.pids]
        for name in others:
            self._launch(name)
        self._wait_until_healthy(began, others)

    def token(self, role: str) -> str:
        """The value of the cookie `_token` of a user of the role after the login."""
        login = {"username": role, "password": self.password}
        answer = httpx.post(f"{self.base_url}/auth/token", json=login, trust_env=False, timeout=60)
        return str(answer.raise_for_status().json()["access_token"])

    def _prepare(self) -> None:
        log = self._log("prepare")
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as output:
            command = [sys.executable, "-c", _PREPARE]
            done = subprocess.run(
                command, env=self._env, cwd=self.home, stdout=output, stderr=output, timeout=300, check=False
            )
        if done.returncode:
            raise AirflowError(f"Airflow's metadata could not be created:\n{log.read_text(errors='replace')[-3000:]}")


def url_of(dsn: str) -> str:
    """Return a DSN as the URL that SQLAlchemy reads."""
    parts = {"password": "", "port": 5432, **conninfo_to_dict(dsn)}
    return "postgresql://{user}:{password}@{host}:{port}/{dbname}".format(**parts)


def share(config: pytest.Config) -> None:
    """Make these fixtures, and those of the page's databases, known once for all folders whose tests use Airflow."""
    for module in (sys.modules[__name__], databases):
        if not config.pluginmanager.is_registered(module):
            config.pluginmanager.register(module)


@pytest.fixture(scope="session")
def arguments() -> Iterator[Arguments]:
    """Collect the arguments of all processes, from before Airflow starts."""
    collecting = Arguments()
    collecting.start()
    yield collecting
    collecting.end()


@pytest.fixture(scope="session")
def queue_dsn(server_dsn: str, make_database: Callable[..., str]) -> Iterator[str]:
    """The DSN of the queue behind `taskq_default`, by a role with a marked password."""
    dsn, role = make_database("site_queue"), f"taskq_site_{secrets.token_hex(4)}"
    with psycopg.connect(server_dsn, autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE ROLE {} SUPERUSER LOGIN PASSWORD {}").format(sql.Identifier(role), PASSWORD))
        yield make_conninfo(dsn, user=role, password=PASSWORD)
        admin.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(role)))


@pytest.fixture(scope="session")
def page_site(
    queue_dsn: str,
    page_connections: Mapping[str, str],
    arguments: Arguments,  # noqa: ARG001  the collection has to start first
    make_database: Callable[..., str],
    repository: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[SharedAirflow]:
    """The api-server, with its users and connections, and a run of the DAG `shop`, which is paused."""
    folder = tmp_path_factory.mktemp("dags")
    for file in DAG_FILES:
        shutil.copy(file, folder)
    listed = [name for name in page_connections if name != "taskq_hidden"]
    connections = {"taskq_default": connection_json(queue_dsn), **page_connections}
    env: dict[str, Any] = {f"AIRFLOW_CONN_{name.upper()}": text for name, text in connections.items()}
    env |= {"AIRFLOW__TASKQ__CONN_IDS": ", ".join(listed), "TASKQ_TEST_MARK": MARK, "PYTHONPATH": str(repository)}
    metadata = make_database("site_metadata", schema=False)
    with SharedAirflow(tmp_path_factory.mktemp("airflow"), folder, env, metadata) as site:
        site.trigger("shop", RUN)
        yield site


@pytest.fixture(scope="session")
def site(page_site: SharedAirflow, queue_dsn: str) -> SharedAirflow:
    """The same Airflow with all its processes. It keeps the default heartbeats that matter for races."""
    with connect(queue_dsn, autocommit=True) as connection:
        for topic in EVENT_TOPICS:
            TaskQueue(connection).create_topic(topic)
    page_site.start_others()
    return page_site


@pytest.fixture(scope="session")
def site_queue(queue_dsn: str) -> Iterator[TaskQueue]:
    """The queue behind `taskq_default` of the site."""
    with connect(queue_dsn, autocommit=True) as connection:
        yield TaskQueue(connection)


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
