"""Claimed tasks after Airflow retried, cleared, failed, moved, killed or deleted the task instance that claimed."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib.util import find_spec

import psutil
import pytest

from airflow_provider_taskq.queue import LeaseLost, Result, State, TaskQueue
from demo.airflow_api import until
from tests.airflow.chaos_run import SECONDS, Run, Work
from tests.airflow.chaos_site import Installation

pytestmark = [
    pytest.mark.slow,
    pytest.mark.faults,
    pytest.mark.timeout(900),
    pytest.mark.promise("an Airflow task with a claim is retried or cleared"),
]


RECONNECTS = pytest.mark.skipif(
    find_spec("airflow.sdk.bases.resumablejobmixin") is None, reason="Airflow reconnects to drivers from 3.3 on"
)


@pytest.fixture(autouse=True, scope="module")
def tables(airflow: Installation) -> None:
    """Create the tables in which the task `work` records its tries, and `submit` its drivers."""
    with airflow.queue() as queue:
        queue.conn.execute(
            "CREATE TABLE worked (run_id text, try integer, tasks text[], pid integer, worker integer,"
            " at timestamptz DEFAULT clock_timestamp());"
            "CREATE TABLE jobs (job serial, topic text, submitter integer, state text DEFAULT 'RUNNING')"
        )
    airflow.site.wait_dags("claims")


@pytest.fixture
def queue(airflow: Installation) -> Iterator[TaskQueue]:
    with airflow.queue() as queue:
        yield queue


@pytest.mark.parametrize(
    ("run_id", "first_try", "interrupt"),
    [
        ("failed", "fails", lambda _: None),
        ("killed", "runs", lambda work: os.kill(work.pid, signal.SIGKILL)),
        # Airflow does not see the process of the task, which survives its worker and cannot report any more.
        ("orphaned", "runs", lambda work: os.kill(work.worker, signal.SIGKILL)),
    ],
    ids=["fails", "its process is killed", "its worker is killed"],
)
def test_work_that_fails_or_is_killed_is_retried_with_the_same_tasks(
    airflow: Installation, queue: TaskQueue, run_id: str, first_try: str, interrupt: Callable[[Work], None]
) -> None:
    run = Run(airflow, queue, run_id, first_try=first_try)
    first = run.worked()[0]
    interrupt(first)
    try:
        run.worked(2)
        run.succeeds()
    finally:
        with suppress(psutil.NoSuchProcess):
            psutil.Process(first.pid).kill()
    assert [(work.try_number, work.tasks) for work in run.works()] == [(1, ["a", "b"]), (2, ["a", "b"])]
    run.completed_once()


def test_a_cleared_gate_finds_the_same_tasks_and_claims_no_more(airflow: Installation, queue: TaskQueue) -> None:
    run = Run(airflow, queue, "cleared", first_try="runs")
    run.worked()
    before = queue.owner(run.owner)
    run.clear("gate")
    _, second = run.worked(2)
    run.succeeds()
    after = queue.owner(run.owner)
    assert second.tasks == ["a", "b"]
    assert before is not None
    assert after is not None
    assert run.returned("gate") == {"topic": "cleared", "owner": run.owner, "fence": after.fence, "claimed": 2}
    assert after.fence > before.fence  # a process that still runs under the first fence is locked out
    run.completed_once()


def test_a_cleared_task_finds_the_tasks_that_it_held_when_it_was_marked_failed(
    airflow: Installation, queue: TaskQueue
) -> None:
    run = Run(airflow, queue, "marked", first_try="runs")
    run.worked()
    run.mark_failed("work")
    assert airflow.site.wait_run("claims", run.id, {"failed"}, SECONDS) == "failed"
    run.held_by_it()
    assert queue.expire() == 0
    run.clear("work")
    _, second = run.worked(2)
    run.succeeds()
    assert second.tasks == ["a", "b"]
    run.completed_once()


@pytest.mark.parametrize("way", ["lapsed", "released"])
def test_tasks_of_a_failed_run_go_to_others_after_its_lease_expired_or_was_released(
    airflow: Installation, queue: TaskQueue, way: str
) -> None:
    run = Run(airflow, queue, way, first_try="runs")
    run.worked()
    run.mark_failed("work")
    airflow.site.wait_run("claims", run.id, {"failed"}, SECONDS)
    owner = queue.owner(run.owner)
    assert owner is not None
    assert (run.lapse() if way == "lapsed" else queue.release(owner)) == 2
    crashes = 1 if way == "lapsed" else 0
    assert run.tasks() == [("a", "READY", 0, crashes), ("b", "READY", 0, crashes), ("c", "READY", 0, 0)]
    heir = f"heir-{way}"
    airflow.site.trigger("claims", heir, {**run.conf, "first_try": "succeeds"})
    assert airflow.site.wait_run("claims", heir, {"success"}, SECONDS) == "success"
    done = [("a", "SUCCEEDED", 1, crashes), ("b", "SUCCEEDED", 1, crashes), ("c", "READY", 0, 0)]
    if way == "lapsed":
        done[1] = ("b", "READY", 0, 1)  # the claim takes a alone: of two tasks that were held in a crash, one caused it
    assert run.tasks() == done
    assert {task.owner for task in queue.page(run.id) if task.state is State.SUCCEEDED} == {f"claims/{heir}/gate/-1"}


def test_a_gate_that_claims_outlives_its_triggerer_and_claims_once(airflow: Installation, queue: TaskQueue) -> None:
    run = Run(airflow, queue, "moved", first_try="succeeds", ready=False)
    airflow.site.wait_task("claims", run.id, "gate", {"deferred"}, SECONDS)
    airflow.site.kill("triggerer")
    run.push()
    airflow.site.restart("triggerer")
    run.succeeds()
    assert run.returned("gate")["claimed"] == 2
    run.completed_once()


def test_clearing_the_tasks_after_a_completion_completes_nothing_twice(airflow: Installation, queue: TaskQueue) -> None:
    run = Run(airflow, queue, "again", first_try="succeeds")
    run.succeeds()
    assert run.returned("complete")["completed"] == 2
    run.clear("work")
    run.worked(2)
    run.succeeds()
    assert [work.tasks for work in run.works()] == [["a", "b"], []]
    assert run.returned("complete")["completed"] == 0
    run.completed_once()


def test_a_gate_cleared_after_the_completion_claims_the_remaining_tasks(
    airflow: Installation, queue: TaskQueue
) -> None:
    run = Run(airflow, queue, "remaining", first_try="succeeds")
    run.succeeds()
    run.clear("gate")
    run.worked(2)
    run.succeeds()
    assert [work.tasks for work in run.works()] == [["a", "b"], ["c"]]
    assert run.tasks() == [(name, "SUCCEEDED", 1, 0) for name in "abc"]


def test_a_run_with_the_id_of_a_deleted_run_finds_its_tasks(airflow: Installation, queue: TaskQueue) -> None:
    run = Run(airflow, queue, "deleted", first_try="runs")
    run.worked()
    run.mark_failed("work")
    airflow.site.wait_run("claims", run.id, {"failed"}, SECONDS)
    airflow.site.delete(f"dags/claims/dagRuns/{run.id}")
    run.held_by_it()
    run.conf["first_try"] = "succeeds"
    run.begin()
    _, second = run.worked(2)
    run.succeeds()
    assert second.tasks == ["a", "b"]
    run.completed_once()


class Durable(Run):
    """A run whose task `submit` submits a driver, as Spark runs one apart from its submitter on YARN and Kubernetes."""

    dag_id = "durable"

    def submitters(self, count: int) -> list[int]:
        """Wait until this many drivers were submitted, and return the processes that did it."""

        def submitted() -> list[int] | None:
            rows = self.queue.conn.execute("SELECT submitter FROM jobs WHERE topic = %s ORDER BY job", (self.id,))
            return found if len(found := [row[0] for row in rows.fetchall()]) == count else None

        return until(submitted, SECONDS, lambda: str(self.site.task_states(self.dag_id, self.id)))

    def tried(self, task_id: str, state: str) -> None:
        """Wait until the second try of a task has a state."""

        def reached() -> bool | None:
            tries = self.airflow.tries(self.dag_id, self.id, task_id)
            return bool(tries[2] and self.airflow.states(self.dag_id, self.id, task_id)[state]) or None

        until(reached, SECONDS, lambda: str(self.site.task_states(self.dag_id, self.id)))

    def end_driver(self, state: str) -> None:
        """End the driver that runs."""
        self.queue.conn.execute("UPDATE jobs SET state = %s WHERE topic = %s AND state = 'RUNNING'", (state, self.id))


class NotDurable(Durable):
    """A run in which every try submits a driver of its own."""

    dag_id = "not_durable"


@RECONNECTS
def test_a_retry_reconnects_to_the_driver_that_still_holds_the_tasks(airflow: Installation, queue: TaskQueue) -> None:
    run = Durable(airflow, queue, "reconnected")
    (submitter,) = run.submitters(1)
    driver = queue.take_over(run.owner, run.returned("gate")["fence"])
    os.kill(submitter, signal.SIGKILL)
    run.tried("submit", "running")
    queue.complete(driver, dict.fromkeys(queue.held(driver), Result.SUCCESS))
    run.end_driver("FINISHED")
    run.succeeds()
    assert run.submitters(1) == [submitter]
    run.completed_once()


@RECONNECTS
def test_a_gate_that_is_cleared_locks_out_the_driver_and_the_next_one_has_the_same_tasks(
    airflow: Installation, queue: TaskQueue
) -> None:
    run = Durable(airflow, queue, "locked-out")
    run.submitters(1)
    driver = queue.take_over(run.owner, run.returned("gate")["fence"])
    held = queue.held(driver)
    run.clear("gate")
    run.tried("submit", "running")
    with pytest.raises(LeaseLost):
        queue.complete(driver, dict.fromkeys(held, Result.SUCCESS))
    run.end_driver("FAILED")
    run.submitters(2)
    assert queue.held(queue.take_over(run.owner, run.returned("gate")["fence"])) == held
    run.end_driver("FINISHED")
    run.succeeds()
    run.completed_once()


@RECONNECTS
@pytest.mark.parametrize(("kind", "drivers"), [(Durable, 1), (NotDurable, 2)], ids=["durable", "not durable"])
def test_a_durable_run_cleared_after_its_end_completes_the_tasks_that_its_gate_claimed_again(
    airflow: Installation, queue: TaskQueue, kind: type[Durable], drivers: int
) -> None:
    """Airflow completes the tasks instead of the driver. If it is not durable, a driver works on the new ones too."""
    run = kind(airflow, queue, f"cleared-{kind.dag_id}")
    run.submitters(1)
    run.end_driver("FINISHED")
    run.succeeds()
    run.completed_once()
    run.clear("gate")
    run.submitters(drivers)
    run.end_driver("FINISHED")
    run.tried("complete", "success")
    run.succeeds()
    assert run.tasks() == [(name, "SUCCEEDED", 1, 0) for name in "abc"]
    run.submitters(drivers)
