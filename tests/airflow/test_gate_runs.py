"""Gates on states and junctures in DAGs that run by `dag.test()`, in both modes that give the worker up."""

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_provider_taskq.queue import NewTask, Result, State, TaskQueue, connect
from tests.airflow.dag_runner import run_dags

pytestmark = [pytest.mark.slow]

DAGS = Path(__file__).parent / "dags" / "state_gates.py"
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
            until(lambda: queue.ready("checks", 2) == 2)
        owner = queue.register("others")
        queue.complete(owner, dict.fromkeys(queue.poll(self.mode, owner, 2), Result.SUCCESS))
        until(lambda: queue.latest(self.mode, ["e"])["e"].state is State.READY)  # the juncture has released it
        queue.push(self.mode, [NewTask("d", suspended=True)])


@pytest.mark.parametrize("mode", ["deferrable", "reschedule"])
def test_gates_wait_in_a_run_of_a_dag(queue: TaskQueue, dsn: str, tmp_path: Path, mode: str) -> None:
    queue.create_topic("checks")
    queue.create_topic(mode)
    queue.push(mode, ["a", "b", NewTask("c", suspended=True), NewTask("e", suspended=True)])
    others = Others(dsn, mode)
    others.start()
    report = run_dags(tmp_path, dsn, DAGS, f"gates_{mode}")
    others.join(10)
    assert others.failure is None
    assert report["import_errors"] == {}
    assert report["states"] == {f"gates_{mode}": "success"}, report["output"][-5000:]
    results = {key: value for key, value in report["xcoms"].items() if key.endswith("return_value")}
    assert results == {
        f"gates_{mode}.state[-1].return_value": {"topic": mode, "states": {"SUCCEEDED": 2}},
        f"gates_{mode}.juncture[-1].return_value": {"topic": mode, "groups": 2},
        f"gates_{mode}.after[-1].return_value": {"topic": mode, "states": {"SUCCEEDED": 1}},
    }
    assert {task.identifier: task.state for task in queue.page(mode)} == {
        **dict.fromkeys("ab", State.SUCCEEDED),
        **dict.fromkeys("cde", State.READY),
    }
