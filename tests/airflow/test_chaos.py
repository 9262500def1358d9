"""Kills each of Airflow's processes with -9, while 24 gates wait and 6 claims are held."""

import psutil
import pytest

from airflow_provider_taskq.queue import State, TaskQueue
from demo.airflow_api import until
from demo.airflow_site import COMMANDS
from tests.airflow.chaos_site import Installation
from tests.airflow.dags.chaos import CHECKING, CLAIMING, HOLDING

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

ENDS = 600  # seconds until a step fails; on a machine of its own a step takes a tenth of that
WORKERS_KILLED = 2


def test_every_gate_opens_and_every_task_is_completed_once_although_each_process_is_killed(
    airflow: Installation,
) -> None:
    airflow.site.wait_dags("gates", "held")
    with airflow.queue() as queue:
        prepare(queue)
        held = airflow.site.trigger("held", "held")
        airflow.wait_count("held", held, "hold", "success", HOLDING, ENDS)
        holders = owners(queue, "held")
        assert len(set(holders)) == HOLDING
        gates = airflow.site.trigger("gates", "gates")
        airflow.wait_count("gates", gates, "check", "deferred", CHECKING, ENDS)
        airflow.wait_count("gates", gates, "claim", "deferred", CLAIMING, ENDS)
        airflow.wait_count("held", held, "go", "deferred", 1, ENDS)

        for process in COMMANDS:
            airflow.site.kill(process)
            airflow.site.restart(process)
        assert airflow.states("gates", gates, "check") == {"deferred": CHECKING}
        assert airflow.states("gates", gates, "claim") == {"deferred": CLAIMING}
        assert owners(queue, "held") == holders

        for topic in ("go", *(f"check-{n}" for n in range(CHECKING)), *(f"claim-{n}" for n in range(CLAIMING))):
            queue.push(topic, [f"{topic}/task"])
        kill_workers(airflow, WORKERS_KILLED)
        airflow.site.kill("scheduler")  # and its workers again, whatever they are doing
        airflow.site.restart("scheduler")
        for dag_id, run in (("held", held), ("gates", gates)):
            assert airflow.site.wait_run(dag_id, run, {"success"}, ENDS) == "success"
        assert airflow.states("gates", gates, "check") == {"success": CHECKING}
        assert airflow.states("gates", gates, "claim") == {"success": CLAIMING}
        each_task_was_completed_once(queue)


def each_task_was_completed_once(queue: TaskQueue) -> None:
    """Assert it by the states in the queue, and by the ledger that the completing transactions wrote."""
    for topic in ("held", *(f"claim-{number}" for number in range(CLAIMING))):
        tasks = queue.page(topic)
        assert [(task.state, task.attempt, task.redelivered) for task in tasks] == (
            [(State.SUCCEEDED, 1, False)] * (HOLDING if topic == "held" else 1)
        )
    ledger = [row[0] for row in queue.conn.execute("SELECT identifier FROM ledger").fetchall()]
    claimed = [f"claim-{number}/task" for number in range(CLAIMING)]
    assert sorted(ledger) == sorted([*(f"held-{number}" for number in range(HOLDING)), *claimed])
    assert {task.state for number in range(CHECKING) for task in queue.page(f"check-{number}")} == {State.READY}


def prepare(queue: TaskQueue) -> None:
    """Create the topics, the tasks to hold, and the ledger."""
    queue.conn.execute("CREATE TABLE ledger (identifier text, owner text, try integer)")
    topics = ("held", "go", *(f"check-{n}" for n in range(CHECKING)), *(f"claim-{n}" for n in range(CLAIMING)))
    for topic in topics:
        queue.create_topic(topic)
    queue.push("held", [f"held-{number}" for number in range(HOLDING)])


def owners(queue: TaskQueue, topic: str) -> list[str]:
    """Return the owners of a topic's held tasks, in order."""
    return [str(task.owner) for task in queue.page(topic) if task.state is State.ACTIVE]


def kill_workers(airflow: Installation, count: int) -> None:
    """Kill this many workers (-9) while each of them runs a task, without a signal to the task."""
    killed: set[int] = set()

    def enough() -> bool | None:
        for worker in airflow.workers():
            if worker.pid not in killed and len(killed) < count and killed_at_work(worker):
                killed.add(worker.pid)
        return True if len(killed) >= count else None

    until(enough, ENDS, lambda: f"only {len(killed)} workers were seen at work", pause=0.05)


def killed_at_work(worker: psutil.Process) -> bool:
    """Kill a worker (-9), unless its task has ended meanwhile: then it may hold the lock of the executor's pipe."""
    try:
        worker.suspend()
        still = (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE)
        until(lambda: worker.status() in still or None, ENDS, lambda: f"worker {worker.pid} goes on", pause=0.01)
        if worker.children():
            worker.kill()
            return True
        worker.resume()
    except psutil.NoSuchProcess:
        pass
    return False
