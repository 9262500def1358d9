"""A real API server behind a base path, with a user of each role. The page needs no scheduler."""

import datetime as dt
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx

from demo.airflow_site import AirflowError, AirflowSite
from demo.processes import free_port

ROLES = ("viewer", "user", "op", "admin")
DAGS = Path(__file__).parent / "dags"
RUN = "manual__1"
BASE_PATH = "/airflow"

# Creates the metadata and adds the DAGs in one process, because Airflow's imports take seconds.
_PREPARE = """
from airflow.dag_processing.bundles.manager import DagBundlesManager
from airflow.utils.db import upgradedb
upgradedb()
from airflow.cli.commands.dag_command import dag_reserialize
from airflow.cli.cli_parser import get_parser
dag_reserialize(get_parser().parse_args(["dags", "reserialize"]))
"""


class PageSite(AirflowSite):
    """An Airflow for tests of the page. All users have the same password."""

    def __init__(self, home: Path, env: Mapping[str, str]) -> None:
        port = free_port()
        self.base_url = f"http://127.0.0.1:{port}{BASE_PATH}"
        users = {
            "AIRFLOW__API__BASE_URL": self.base_url,
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": ",".join(f"{role}:{role}" for role in ROLES),
        }
        super().__init__(home, DAGS, port=port, env={**users, **env})
        self._client.base_url = httpx.URL(self.base_url)  # mounted applications answer only below the base path
        self.password = self._own_secrets["password"]
        (home / "passwords.json").write_text(json.dumps(dict.fromkeys(ROLES, self.password)), encoding="utf-8")

    def start(self) -> None:
        """Creates the metadata with the DAGs, starts the API server, and waits until it answers."""
        self._prepare()
        self._launch("api-server")
        self._wait_until_answers()
        self.trigger("shop", RUN)

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

    def _wait_until_answers(self) -> None:
        self._wait_until_healthy(dt.datetime.now(dt.UTC), [])


def environment(connections: Mapping[str, str], listed: list[str], repository: Path) -> dict[str, str]:
    """Environment variables for the connections, and for the ids that the page shows."""
    settings: dict[str, Any] = {f"AIRFLOW_CONN_{name.upper()}": text for name, text in connections.items()}
    return {**settings, "AIRFLOW__TASKQ__CONN_IDS": ", ".join(listed), "PYTHONPATH": str(repository)}
