"""A client of Airflow's REST API, for the demonstration and the tests."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

import httpx

ANSWER_SECONDS = 60
LOG_LINES = 40  # of a failed task, in an error
T = TypeVar("T")


class AirflowError(RuntimeError):
    """Airflow answered with an error, which the text quotes, or not in time."""


def until(ready: Callable[[], T | None], timeout: float, late: Callable[[], str], pause: float = 0.5) -> T:
    """Return the first answer of `ready` that is not None.

    Raises AirflowError(late()) after `timeout` seconds.
    """
    deadline = time.monotonic() + timeout
    while True:
        answer = ready()
        if answer is not None:
            return answer
        if time.monotonic() > deadline:
            raise AirflowError(f"{late()} (after {timeout:g} s)")
        time.sleep(pause)  # Airflow's API sends no event when an answer changes


class AirflowApi:
    """A client of one Airflow, logged in by name and password."""

    def __init__(self, url: str, username: str, password: str) -> None:
        self.url = url
        self.username = username
        self.password = password
        single = httpx.Limits(max_keepalive_connections=0)  # nothing stays open, so nothing has to be closed
        self._client = httpx.Client(base_url=url, timeout=ANSWER_SECONDS, trust_env=False, limits=single)

    def get(self, path: str, **query: str | int) -> Any:
        """Send a GET request to a path below /api/v2."""
        return self._json("GET", path, query=query)

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """Send a POST request with a body to a path below /api/v2."""
        return self._json("POST", path, body)

    def patch(self, path: str, body: Mapping[str, Any]) -> Any:
        """Send a PATCH request with a body to a path below /api/v2."""
        return self._json("PATCH", path, body)

    def delete(self, path: str) -> None:
        """Send a DELETE request to a path below /api/v2."""
        self._json("DELETE", path)

    def health(self) -> dict[str, Any]:
        """Return the answer of /monitor/health: the health of each component."""
        answer: dict[str, Any] = self.get("monitor/health")
        return answer

    def trigger(self, dag_id: str, run_id: str | None = None, conf: Mapping[str, Any] | None = None) -> str:
        """Start a run of a DAG; return its run id."""
        body = {"dag_run_id": run_id, "logical_date": None, "conf": dict(conf or {})}
        return str(self.post(f"dags/{dag_id}/dagRuns", body)["dag_run_id"])

    def run_state(self, dag_id: str, run_id: str) -> str:
        """Return the state of a run: queued, running, success or failed."""
        return str(self.get(f"dags/{dag_id}/dagRuns/{run_id}")["state"])

    def task_states(self, dag_id: str, run_id: str) -> dict[str, str]:
        """Return the state of each task of a run; an instance of a mapped task is named `name[index]`.

        A task that Airflow has not scheduled yet has no state. It is returned as `queued`.
        """
        found = self.get(f"dags/{dag_id}/dagRuns/{run_id}/taskInstances", limit=100)["task_instances"]
        return {_name(each): each["state"] or "queued" for each in found}

    def wait_run(self, dag_id: str, run_id: str, states: Collection[str], timeout: float) -> str:
        """Wait until a run is in one of the states; return that state.

        Fail at once if it ends in another. The error then quotes the end of the log of each failed task.
        """
        return self._wait(
            f"run {run_id} of {dag_id}",
            lambda: self.run_state(dag_id, run_id),
            states,
            timeout,
            {"success", "failed"},
            lambda: self._failed_logs(dag_id, run_id),
        )

    def wait_task(self, dag_id: str, run_id: str, task_id: str, states: Collection[str], timeout: float) -> str:
        """Wait until a task is in one of the states; return that state.

        Fail at once if it ends in another. The error then quotes the end of the log of each failed task.
        """
        return self._wait(
            f"task {task_id} of {dag_id}",
            lambda: self.task_states(dag_id, run_id).get(task_id, "none"),
            states,
            timeout,
            {"success", "failed", "skipped", "upstream_failed", "removed"},
            lambda: self._failed_logs(dag_id, run_id),
        )

    def wait_dags(self, *dag_ids: str, timeout: float = 120) -> None:
        """Wait until Airflow knows all these DAGs; fail at once if a DAG file cannot be imported."""

        def known() -> bool | None:
            missing = [dag_id for dag_id in dag_ids if not self._known(dag_id)]
            errors = self.get("importErrors")["import_errors"] if missing else []
            if errors:
                raise AirflowError("\n".join(f"{each['filename']}:\n{each['stack_trace']}" for each in errors))
            return None if missing else True

        until(known, timeout, lambda: f"Airflow has not found {' and '.join(dag_ids)}")

    def _failed_logs(self, dag_id: str, run_id: str) -> str:
        found = self.get(f"dags/{dag_id}/dagRuns/{run_id}/taskInstances", limit=100)["task_instances"]
        failed = [task for task in found if task["state"] == "failed"]
        return "".join(f"\n\nThe log of {_name(task)} ends with:\n{self._log_end(task)}" for task in failed)

    def _log_end(self, task: Mapping[str, Any]) -> str:
        path = f"dags/{task['dag_id']}/dagRuns/{task['dag_run_id']}/taskInstances/{task['task_id']}/logs"
        lines = self.get(f"{path}/{task['try_number']}", map_index=task["map_index"])["content"]
        return "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines[-LOG_LINES:])

    def _wait(
        self,
        what: str,
        state: Callable[[], str],
        states: Collection[str],
        timeout: float,
        ended: Collection[str],
        details: Callable[[], str] = str,
    ) -> str:
        seen: list[str] = [""]

        def reached() -> str | None:
            seen[0] = state()
            if seen[0] in ended and seen[0] not in states:
                raise AirflowError(f"{what} ended as {seen[0]}, not as {' or '.join(sorted(states))}{details()}")
            return seen[0] if seen[0] in states else None

        return until(reached, timeout, lambda: f"{what} is {seen[0]}, not {' or '.join(sorted(states))}")

    def _known(self, dag_id: str) -> bool:
        found = self._request("GET", f"dags/{dag_id}")
        return found.status_code == httpx.codes.OK and not found.json()["is_stale"]

    def _json(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        query: Mapping[str, str | int] | None = None,
    ) -> Any:
        answer = self._request(method, path, body, query)
        if answer.is_error:
            raise AirflowError(f"{method} {path}: {answer.status_code} {answer.text[:2000]}")
        return answer.json() if answer.content else None

    def _request(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        query: Mapping[str, str | int] | None = None,
    ) -> httpx.Response:
        """Send a request. If Airflow does not accept the token, log in and send the request again."""
        url = f"/api/v2/{path.lstrip('/')}"
        try:
            answer = self._client.request(method, url, json=body, params=query)
            if answer.status_code == httpx.codes.UNAUTHORIZED:
                self._log_in()
                answer = self._client.request(method, url, json=body, params=query)
        except httpx.HTTPError as error:
            raise AirflowError(f"{method} {path}: {type(error).__name__} {error}") from error
        return answer

    def _log_in(self) -> None:
        answer = self._client.post("/auth/token", json={"username": self.username, "password": self.password})
        if answer.is_error:
            raise AirflowError(
                f"Airflow refused the login of {self.username}: {answer.status_code} {answer.text[:500]}"
            )
        self._client.headers["Authorization"] = f"Bearer {answer.json()['access_token']}"


def _name(task: Mapping[str, Any]) -> str:
    index = int(task.get("map_index", -1))
    return str(task["task_id"]) if index < 0 else f"{task['task_id']}[{index}]"
