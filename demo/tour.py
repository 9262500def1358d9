"""The tour of the demonstration: a queue, a real Airflow, a gate that waits, a push, and Spark."""

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from airflow_provider_taskq.queue import Count, State, TaskQueue, TaskQueueError, connect, install
from demo import report
from demo.airflow_site import AirflowError, AirflowSite, connection_json
from demo.flights import REFERENCE, TOPIC

DAGS = Path(__file__).parents[1] / "example_dags"
PATIENCE_SECONDS = 1800
ENDED = {"success", "failed", "skipped", "upstream_failed"}


class Tour:
    """Runs the demo's two DAGs on a running Airflow and a database, and prints what happens."""

    def __init__(self, site: AirflowSite, dsn: str, limit: int | None, say: Callable[[str], None]) -> None:
        self._site = site
        self._dsn = dsn
        self._limit = limit
        self._say = say
        self._started = time.monotonic()
        self._last = ""

    def run(self) -> None:
        """Start the gate, wait until it is deferred, push, follow the drain, and report."""
        self._site.wait_dags("flights_push", "flights_drain")
        self._note("starting the gate: nothing has been pushed yet")
        drain = self._site.trigger("flights_drain")
        self._site.wait_task("flights_drain", drain, "gate", {"deferred"}, PATIENCE_SECONDS)
        self._note("the gate is deferred: it waits in the triggerer, without a worker slot; now the push")
        push = self._site.trigger("flights_push", conf={"flights": self._limit})
        self._follow("flights_push", push)
        self._follow("flights_drain", drain)
        self._report(push, drain)

    def _follow(self, dag_id: str, run_id: str) -> None:
        """Print changes until the run has ended. Raises AirflowError unless the run has succeeded."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while (state := self._site.run_state(dag_id, run_id)) not in ENDED:
            self._note_progress(dag_id, run_id)
            if time.monotonic() > deadline:
                raise AirflowError(f"the run of {dag_id} did not end within {PATIENCE_SECONDS} seconds")
            time.sleep(1)  # often enough for a terminal
        self._note_progress(dag_id, run_id)
        if state != "success":
            raise AirflowError(f"the run of {dag_id} ended as {state}; its logs: {self._site.home / 'logs'}")

    def _note_progress(self, dag_id: str, run_id: str) -> None:
        tasks = "  ".join(f"{name} {state}" for name, state in self._site.task_states(dag_id, run_id).items())
        counts = "  ".join(f"{state.name} {count.count:,}" for state, count in sorted(self._counts().items()))
        line = f"{tasks}  |  {counts or 'no task yet'}"
        if line != self._last:
            self._note(line)
            self._last = line

    def _note(self, line: str) -> None:
        self._say(f"[{time.monotonic() - self._started:6.1f} s] {line}")

    def _counts(self) -> Mapping[State, Count]:
        with connect(self._dsn) as conn:
            return TaskQueue(conn).count(TOPIC)[TOPIC]

    def _report(self, push_run: str, drain_run: str) -> None:
        push = self._task("flights_push", push_run, "push")
        gate = self._task("flights_drain", drain_run, "gate")
        drain = self._task("flights_drain", drain_run, "drain")
        counts = self._counts()
        tasks = sum(count.count for count in counts.values())
        opened = (_moment(gate["end_date"]) - _moment(push["end_date"])).total_seconds()
        waited = (_moment(gate["end_date"]) - _moment(gate["start_date"])).total_seconds()
        self._say(f"\nTasks by state\n{report.states(counts)}")
        self._say(f"\nSpeed\n{report.speeds(tasks, push['duration'], waited, max(opened, 0), drain['duration'])}")
        with connect(self._dsn) as conn:
            queue = TaskQueue(conn)
            examples = [page[0] for state in report.STATES if (page := queue.page(TOPIC, state=state, size=1))]
        histories = "\n".join(map(report.history, examples))
        self._say(f"\nThree tasks, and their history\n{histories}")
        self._say(f"\nAirflow's page: {self._site.url}/dags/flights_drain/runs/{drain_run}")

    def _task(self, dag_id: str, run_id: str, task_id: str) -> dict[str, Any]:
        found: dict[str, Any] = self._site.get(f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}")
        return found


def prepare(dsn: str) -> None:
    """Install the schema and an empty topic for the flights.

    Refuse to empty a topic that has tasks of other programs.
    """
    with connect(dsn) as conn:
        install(conn)
        queue = TaskQueue(conn)
        if TOPIC in queue.topics():
            if any(task.reference != REFERENCE for task in queue.page(TOPIC, size=1000)):
                raise TaskQueueError(f"the topic {TOPIC} in that database holds tasks that are not the demo's")
            queue.drop_topic(TOPIC)
        queue.create_topic(TOPIC)


def environment(dsn: str) -> dict[str, str]:
    """Return the environment of Airflow and Spark: the connections, and the queue's DSN for the driver."""
    return {
        "AIRFLOW_CONN_TASKQ_DEFAULT": connection_json(dsn),
        "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps({"conn_type": "spark", "host": "local[2]"}),
        "TASKQ_DSN": dsn,
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_HOME": _spark_home(),  # spark-submit's own search for it fails if a path has a space
        "SPARK_LOCAL_IP": "127.0.0.1",  # Spark's ports and its UI stay on this machine
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }


def _spark_home() -> str:
    """Return the folder of the installed pyspark without importing pyspark."""
    spec = find_spec("pyspark")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError("the package pyspark is missing: run `make setup`")
    return str(spec.submodule_search_locations[0])


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text)
