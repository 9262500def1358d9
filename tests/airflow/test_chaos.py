"""Kills each of Airflow's processes, and the queue's server, with -9, while 24 gates wait and 6 claims are held."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psutil
import psycopg
import pytest

from airflow_provider_taskq.queue import State, TaskQueue, connect
from demo.airflow_api import until
from demo.airflow_site import COMMANDS
from tests.airflow.chaos_site import Installation
from tests.airflow.dags.chaos import CHECKING, CLAIMING, HOLDING
from tests.chaos.faults import END

pytestmark = [
    pytest.mark.slow,
    pytest.mark.chaos,
    pytest.mark.timeout(1800),
    pytest.mark.promise("the triggerer is killed while gates wait"),
    pytest.mark.promise("PostgreSQL restarts"),
]

ENDS = 600  # seconds until a step fails; on a machine of its own a step takes a tenth of that
WORKERS_KILLED = 2
CRASHES = 3


def test_every_gate_opens_and_every_task_is_completed_once_although_processes_and_the_queues_server_are_killed(
    airflow: Installation,
) -> None:
    server, site = airflow.own_server, airflow.site
    site.wait_dags("gates", "held")
    with connect(server.dsn, autocommit=True) as conn:
        prepare(TaskQueue(conn))
    held = site.trigger("held", "held")
    airflow.wait_count("held", held, "hold", "success", HOLDING, ENDS)
    with connect(server.dsn, autocommit=True) as conn:
        holders = owners(TaskQueue(conn), "held")
    assert len(set(holders)) == HOLDING
    gates = site.trigger("gates", "gates")
    waiting = (("gates", gates, "check", CHECKING), ("gates", gates, "claim", CLAIMING), ("held", held, "go", 1))
    for dag_id, run, task_id, count in waiting:
        airflow.wait_count(dag_id, run, task_id, "deferred", count, ENDS)

    for process in COMMANDS:
        site.kill(process)
        site.restart(process)
    for _ in range(CRASHES):
        server.kill()
        server.start()
        with psycopg.connect(server.dsn, autocommit=True) as session:
            until_watched(session)
    for dag_id, run, task_id, count in waiting:
        assert airflow.states(dag_id, run, task_id) == {"deferred": count}
        assert airflow.tries(dag_id, run, task_id) == {1: count}
    with connect(server.dsn, autocommit=True) as conn:
        assert owners(TaskQueue(conn), "held") == holders
        open_gates(TaskQueue(conn))

    kill_workers(airflow, WORKERS_KILLED)
    site.kill("scheduler")  # and its workers again, whatever they are doing
    site.restart("scheduler")
    with ended_sessions(server.dsn):
        server.kill()
        server.start()
        for dag_id, run in (("held", held), ("gates", gates)):
            assert site.wait_run(dag_id, run, {"success"}, ENDS) == "success"
    with connect(server.dsn, autocommit=True) as conn:
        each_task_was_completed_once(TaskQueue(conn))


def until_watched(conn: psycopg.Connection) -> None:
    """Wait until the triggerer is connected to the server again."""
    others = (
        b"SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        b" AND backend_type = 'client backend'"
    )
    until(lambda: conn.execute(others).fetchone() != (0,) or None, ENDS, lambda: "no gate is watched")


@contextmanager
def ended_sessions(dsn: str) -> Iterator[None]:
    """End the sessions on a server's queue, one after the other, until the block ends. At least one is ended."""
    stopped, ended = threading.Event(), 0

    def end() -> None:
        nonlocal ended
        while not stopped.wait(0.2):  # the pace of the fault
            with suppress(psycopg.OperationalError), psycopg.connect(dsn, autocommit=True) as conn:
                ended += conn.execute(END, (1,)).rowcount

    thread = threading.Thread(target=end)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()
    assert ended


def open_gates(queue: TaskQueue) -> None:
    """Push a task for each gate that waits."""
    for topic in ("go", *(f"check-{n}" for n in range(CHECKING)), *(f"claim-{n}" for n in range(CLAIMING))):
        queue.push(topic, [f"{topic}/task"])


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
