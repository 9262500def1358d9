"""Gates on states and junctures in DAGs that run by `dag.test()`, in both modes that give the worker up."""

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_provider_taskq.queue import NewTask, Result, State, TaskQueue, connect
from tests.airflow.dag_runner import run_dags

pytestmark = [
    pytest.mark.slow,
    pytest.mark.promise("A gate on task states opens once all are reached, and fails at a failed state"),
    pytest.mark.promise("A juncture releases each group once under its name, also after a crash"),
]

DAGS = Path(__file__).parent / "dags" / "state_gates.py"
MODES = ("deferrable", "reschedule")
WATCHES = """
SELECT count(*) FROM pg_stat_activity WHERE application_name = 'airflow-taskq' AND datname = current_database()
AND backend_start < clock_timestamp() - interval '1 second'
"""


def until(condition: Callable[[], bool], seconds: float = 200) -> None:
    """Wait until another process has changed the queue."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


class Others(threading.Thread):
    """A thread that does the work for which the gates wait, after each gate has found itself closed."""

    def __init__(self, dsn: str, mode: str) -> None:
        super().__init__(daemon=True)
        self.dsn, self.mode = dsn, mode
        self.failure: Exception | None = None

    def run(self) -> None:
        try:
            with connect(self.dsn, autocommit=True) as connection:
                self.act(TaskQueue(connection))
        except Exception as error:  # noqa: BLE001  the test reports it
            self.failure = error

    def act(self, queue: TaskQueue) -> None:
        if self.mode == "deferrable":  # a check in a worker ends too soon to be seen
            until(lambda: queue.conn.execute(WATCHES).fetchall() != [(0,)])
        else:
            until(lambda: queue.ready(f"checks-gates_{self.mode}", 2) == 2)
        owner = queue.register("others")
        queue.complete(owner, dict.fromkeys(queue.poll(self.mode, owner, 2), Result.SUCCESS))
        until(lambda: queue.latest(self.mode, ["e"])["e"].state is State.READY)  # the juncture has released it
        queue.push(self.mode, [NewTask("d", suspended=True)])


def test_gates_wait_in_runs_of_dags(queue: TaskQueue, dsn: str, tmp_path: Path) -> None:
    all_others = [Others(dsn, mode) for mode in MODES]
    for others in all_others:
        queue.create_topic(f"checks-gates_{others.mode}")
        queue.create_topic(others.mode)
        queue.push(others.mode, ["a", "b", NewTask("c", suspended=True), NewTask("e", suspended=True)])
        others.start()
    report = run_dags(tmp_path, dsn, [DAGS], *(f"gates_{mode}" for mode in MODES))
    for others in all_others:
        others.join(10)
        assert others.failure is None
    assert report["import_errors"] == {}
    assert report["states"] == {f"gates_{mode}": "success" for mode in MODES}, report["output"][-5000:]
    for mode in MODES:
        results = {
            key: value
            for key, value in report["xcoms"].items()
            if key.startswith(f"gates_{mode}.") and key.endswith("return_value")
        }
        assert results == {
            f"gates_{mode}.state[-1].return_value": {"topic": mode, "states": {"SUCCEEDED": 2}},
            f"gates_{mode}.juncture[-1].return_value": {"topic": mode, "groups": 2},
            f"gates_{mode}.after[-1].return_value": {"topic": mode, "states": {"SUCCEEDED": 1}},
        }
        assert {task.identifier: task.state for task in queue.page(mode)} == {
            **dict.fromkeys("ab", State.SUCCEEDED),
            **dict.fromkeys("cde", State.READY),
        }
