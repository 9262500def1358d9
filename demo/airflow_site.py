"""A real Airflow on this machine: the processes api-server, scheduler, dag-processor and triggerer."""

from __future__ import annotations

import base64
import datetime as dt
import json
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

from psycopg.conninfo import conninfo_to_dict

from demo.airflow_api import LOG_LINES, AirflowApi, AirflowError, until
from demo.processes import Servers, free_port, tail

__all__ = ["AirflowError", "AirflowSite"]

MIGRATE_SECONDS = 900
STARTUP_SECONDS = 900
# Then kill: a scheduler would wait for its running tasks, and a triggerer may wait ten seconds for a process that has
# ended already.
STOP_SECONDS = 5
# An api-server keeps no state, but its interpreter collects garbage for seconds after SIGTERM.
STOP_SIGNALS = MappingProxyType({"api-server": signal.SIGKILL})
# Both log servers would listen on every address of the machine; the api-server reads the files itself.
COMMANDS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "api-server": ("api-server",),
        "scheduler": ("scheduler", "--skip-serve-logs"),
        "dag-processor": ("dag-processor",),
        "triggerer": ("triggerer", "--skip-serve-logs"),
    }
)
HEARTBEATS = MappingProxyType({"scheduler": "scheduler", "triggerer": "triggerer", "dag_processor": "dag-processor"})


class AirflowSite(AirflowApi):
    """Runs Airflow in a home folder, and is a client of it.

    The home keeps metadata and logs, so that the same Airflow can be started again. `env` has the connections and
    settings of this Airflow, which ignores the caller's own Airflow and Spark settings. The processes end with this
    program, even if it is killed (see `processes.Servers`).
    """

    def __init__(
        self,
        home: Path,
        dags_folder: Path,
        *,
        port: int | None = None,
        env: Mapping[str, str] = MappingProxyType({}),
        metadata_dsn: str | None = None,
    ) -> None:
        self.home = home.absolute()
        self._own_secrets = self._keep_secrets()
        port = port or free_port()
        super().__init__(f"http://127.0.0.1:{port}", "admin", self._own_secrets["password"])
        self._servers = Servers()
        self._env = {**_foreign_environment(), **self._settings(port, dags_folder.absolute(), metadata_dsn), **env}

    def __enter__(self) -> Self:
        """Start Airflow."""
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Stop Airflow."""
        self.stop()

    @property
    def pids(self) -> Mapping[str, int]:
        """The pid of each running component."""
        return self._servers.pids

    def start(self) -> None:
        """Migrate the metadata database, start the components that do not run, and wait until they are healthy."""
        self._migrate()
        began = dt.datetime.now(dt.UTC)
        started = [name for name in COMMANDS if name not in self.pids]
        for name in started:
            self._launch(name)
        self._wait_until_healthy(began, started)

    def stop(self) -> None:
        """End all components at once, with all processes that they started."""
        self._servers.stop(*self.pids, patience=STOP_SECONDS)
        self._servers.close()

    def kill(self, name: str) -> None:
        """Send SIGKILL to a component and all processes that it started, tasks included."""
        self._servers.kill(name)

    def restart(self, name: str) -> None:
        """Stop a component unless it is dead already, start it, and wait until it is healthy."""
        if name in self.pids:
            self._servers.stop(name, patience=STOP_SECONDS)
        began = dt.datetime.now(dt.UTC)
        self._launch(name)
        self._wait_until_healthy(began, [name])

    def log_text(self) -> str:
        """Return the logs of all components and tasks."""
        logs = sorted(path for path in (self.home / "logs").rglob("*") if path.is_file())
        return "\n".join(f"==> {path} <==\n{path.read_text(encoding='utf-8', errors='replace')}" for path in logs)

    def _failed_logs(self, dag_id: str, run_id: str) -> str:
        """Also quote the scheduler, which may have failed a task for a reason of its own."""
        scheduler = self._log("scheduler").read_text(encoding="utf-8", errors="replace").splitlines()
        errors = [line for line in scheduler if run_id in line and "error" in line.lower()]
        quoted = "\n\nThe scheduler's errors:\n" + "\n".join(errors[-LOG_LINES:]) if errors else ""
        return super()._failed_logs(dag_id, run_id) + quoted

    def _log(self, name: str) -> Path:
        return self.home / "logs" / f"{name}.log"

    def _launch(self, name: str) -> None:
        command = [_executable(), *COMMANDS[name]]
        stop_signal = STOP_SIGNALS.get(name, signal.SIGTERM)
        self._servers.start(name, command, log=self._log(name), env=self._env, cwd=self.home, stop_signal=stop_signal)

    def _migrate(self) -> None:
        self._log("migrate").parent.mkdir(exist_ok=True)
        command = [_executable(), "db", "migrate"]
        with self._log("migrate").open("wb") as log:
            done = subprocess.run(
                command,
                env=self._env,
                cwd=self.home,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                timeout=MIGRATE_SECONDS,
                check=False,
            )
        if done.returncode:
            raise AirflowError(f"airflow db migrate failed:\n{tail(self._log('migrate'), 40)}")

    def _wait_until_healthy(self, since: dt.datetime, names: list[str]) -> None:
        last: list[str] = ["no answer"]

        def healthy() -> bool | None:
            self._raise_if_dead()
            try:
                health = self.health()
            except AirflowError as error:
                last[0] = str(error)
                return None
            last[0] = json.dumps(health)
            return True if all(_fresh(health, key, since) for key, of in HEARTBEATS.items() if of in names) else None

        until(healthy, STARTUP_SECONDS, lambda: f"Airflow is not healthy: {last[0]}\n{self._tails()}")

    def _raise_if_dead(self) -> None:
        for name in self.pids:
            code = self._servers.exit_code(name)
            if code is not None:
                raise AirflowError(f"airflow {name} ended with {code}:\n{tail(self._log(name), 40)}")

    def _tails(self) -> str:
        return "\n".join(f"==> {name} <==\n{tail(self._log(name), 10)}" for name in self.pids)

    def _keep_secrets(self) -> dict[str, str]:
        """Return the keys and the password of this home, and create them at the first call.

        The stored metadata is encrypted with the keys.
        """
        self.home.mkdir(parents=True, exist_ok=True)
        path = self.home / "secrets.json"
        if not path.exists():
            made = {
                "fernet": base64.urlsafe_b64encode(secrets.token_bytes(32)).decode(),
                "jwt": secrets.token_hex(64),
                "api": secrets.token_hex(32),
                "password": secrets.token_urlsafe(12),
            }
            _write_private(path, made)
            _write_private(self.home / "passwords.json", {"admin": made["password"]})
        kept: dict[str, str] = json.loads(path.read_text(encoding="utf-8"))
        return kept

    def _settings(self, port: int, dags_folder: Path, metadata_dsn: str | None) -> dict[str, str]:
        url = f"http://127.0.0.1:{port}"
        options: dict[str, Any] = {
            "CORE__LOAD_EXAMPLES": False,
            "CORE__DAGS_FOLDER": dags_folder,
            "CORE__DAGS_ARE_PAUSED_AT_CREATION": False,
            "CORE__PARALLELISM": 4,
            "CORE__FERNET_KEY": self._own_secrets["fernet"],
            "CORE__EXECUTION_API_SERVER_URL": f"{url}/execution/",
            "CORE__SIMPLE_AUTH_MANAGER_USERS": "admin:admin",
            "CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": self.home / "passwords.json",
            "API__HOST": "127.0.0.1",
            "API__PORT": port,
            "API__BASE_URL": url,
            "API__WORKERS": 1,
            "API__SECRET_KEY": self._own_secrets["api"],
            "API_AUTH__JWT_SECRET": self._own_secrets["jwt"],
            "DATABASE__SQL_ALCHEMY_CONN": _metadata(self.home, metadata_dsn),
            "LOGGING__BASE_LOG_FOLDER": self.home / "logs",
            "DAG_PROCESSOR__REFRESH_INTERVAL": 5,
            "DAG_PROCESSOR__BUNDLE_REFRESH_CHECK_INTERVAL": 1,
            "SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": 0.5,
            "WORKERS__MIN_HEARTBEAT_INTERVAL": 1,
            "USAGE_DATA_COLLECTION__ENABLED": False,
        }
        return {"AIRFLOW_HOME": str(self.home)} | {f"AIRFLOW__{key}": str(value) for key, value in options.items()}


def connection_json(dsn: str, **fields: object) -> str:
    """Return an Airflow connection of the type taskq to a database.

    The text is a value for AIRFLOW_CONN_..., with further fields.
    """
    parts = conninfo_to_dict(dsn)
    names = {"host": "host", "login": "user", "password": "password", "schema": "dbname"}
    found = {name: parts.get(part) for name, part in names.items()}
    return json.dumps({"conn_type": "taskq", **found, "port": int(parts.get("port") or 5432), **fields})


def _executable() -> str:
    path = Path(sys.executable).with_name("airflow")
    if not path.exists():
        raise AirflowError(f"{path} does not exist: run `make setup`, or pip install apache-airflow")
    return str(path)


def _foreign_environment() -> dict[str, str]:
    """Return the caller's environment without settings of another Airflow or Spark.

    The folder of this Python is the first on the PATH.
    """
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("AIRFLOW_", "PYSPARK_")) and name != "SPARK_HOME"
    }
    path = kept.get("PATH", os.defpath)
    return {**kept, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{path}", "PYTHONUNBUFFERED": "1"}


def _metadata(home: Path, dsn: str | None) -> str:
    if dsn is None:
        return f"sqlite:///{home / 'airflow.db'}"
    return f"postgresql+psycopg2://{dsn.partition('://')[2]}"


def _write_private(path: Path, content: Mapping[str, str]) -> None:
    path.touch(mode=0o600)
    path.write_text(json.dumps(content), encoding="utf-8")


def _fresh(health: Mapping[str, Any], key: str, since: dt.datetime) -> bool:
    """Return whether a component is healthy by a heartbeat since `since`.

    An earlier heartbeat may be one of the process before it.
    """
    state = health.get(key) or {}
    beat = state.get(f"latest_{key}_heartbeat")
    return state.get("status") == "healthy" and beat is not None and dt.datetime.fromisoformat(beat) >= since
