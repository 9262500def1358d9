"""A real api-server with the FAB auth manager, from the installed wheel: run by `make test-matrix`."""

import datetime as dt
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import httpx
import pytest

from airflow_provider_taskq.queue import TaskQueue, connect
from demo.airflow_site import AirflowError, AirflowSite
from tests.airflow.conftest import connection_json

ROLES = ("Viewer", "User", "Op", "Admin")
PASSWORD = "sesame"

# `airflow users create` for each role, in one process, as Airflow's imports take seconds.
_CREATE_USERS = """
import sys
from airflow.cli.cli_parser import get_parser
for role in sys.argv[2:]:
    user = ["--username", role, "--role", role, "--password", sys.argv[1], "--email", role + "@example.org"]
    given = get_parser().parse_args(["users", "create", *user, "--firstname", role, "--lastname", role])
    given.func(given)
"""

Client = Callable[[str | None], httpx.Client]


class FabSite(AirflowSite):
    """An api-server with a user of each of FAB's roles, created with Airflow's own commands."""

    def __init__(self, home: Path, env: Mapping[str, str]) -> None:
        manager = "airflow.providers.fab.auth_manager.fab_auth_manager.FabAuthManager"
        dags = home / "dags"
        dags.mkdir(parents=True)
        super().__init__(home, dags, env={"AIRFLOW__CORE__AUTH_MANAGER": manager, **env})
        self.username, self.password = "Admin", PASSWORD

    def start(self) -> None:
        """Migrate the metadata, create the users, start the api-server, and wait until it answers."""
        self._migrate()
        self._run([sys.executable, "-c", _CREATE_USERS, PASSWORD, *ROLES])
        self._launch("api-server")
        self._wait_until_healthy(dt.datetime.now(dt.UTC), [])

    def airflow(self, *words: str) -> str:
        """Run an `airflow` command on this Airflow, and return its output."""
        return self._run([str(Path(sys.executable).with_name("airflow")), *words])

    def token(self, username: str) -> str:
        """Log a user in, and return the token."""
        login = {"username": username, "password": PASSWORD}
        answer = httpx.post(f"{self.url}/auth/token", json=login, trust_env=False, timeout=60)
        return str(answer.raise_for_status().json()["access_token"])

    def _run(self, command: list[str]) -> str:
        done = subprocess.run(
            command, env=self._env, cwd=self.home, capture_output=True, text=True, timeout=300, check=False
        )
        if done.returncode:
            raise AirflowError(f"{' '.join(command)} failed:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
        return done.stdout


@pytest.fixture(scope="session")
def fab_dsn(make_database: Callable[..., str]) -> str:
    """Return the DSN of a database with the schema, for the whole session."""
    return make_database("fab")


@pytest.fixture(scope="session")
def fab_site(fab_dsn: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FabSite]:
    """Yield the api-server, with a connection `taskq_default` to the queue."""
    env = {"AIRFLOW_CONN_TASKQ_DEFAULT": connection_json(fab_dsn, connect_timeout=30)}
    with FabSite(tmp_path_factory.mktemp("fab") / "home", env) as site:
        yield site


@pytest.fixture
def work(fab_dsn: str) -> Iterator[TaskQueue]:
    """Yield the queue with a topic `work`."""
    with connect(fab_dsn, autocommit=True) as conn:
        queue = TaskQueue(conn)
        queue.create_topic("work")
        yield queue


@pytest.fixture(scope="session")
def client(fab_site: FabSite) -> Iterator[Client]:
    """Return a client with the token of a role's user; None is a client without a token."""
    clients = {
        role: httpx.Client(
            base_url=fab_site.url,
            headers={} if role is None else {"Authorization": f"Bearer {fab_site.token(role)}"},
            trust_env=False,
            timeout=60,
        )
        for role in (None, *ROLES)
    }
    yield clients.__getitem__
    for each in clients.values():
        each.close()
