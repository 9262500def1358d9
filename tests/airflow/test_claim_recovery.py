"""Claimed tasks after Airflow retried, cleared, failed, moved, killed or deleted the task instance that claimed."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress

import psutil
import pytest

from airflow_provider_taskq.queue import TaskQueue
from tests.airflow.chaos_run import SECONDS, Run, Work
from tests.airflow.chaos_site import Installation

pytestmark = [
    pytest.mark.slow,
    pytest.mark.faults,
    pytest.mark.timeout(900),
    pytest.mark.promise("an Airflow task with a claim is retried or cleared"),
]


@pytest.fixture(autouse=True, scope="module")
def table(airflow: Installation) -> None:
    """Create the table in which the task `work` records its tries."""
    with airflow.queue() as queue:
        queue.conn.execute(
            "CREATE TABLE worked (run_id text, try integer, tasks text[], pid integer, worker integer,"
            " at timestamptz DEFAULT clock_timestamp())"
        )
    airflow.site.wait_dags("claims")


@pytest.fixture
def queue(airflow: Installation) -> Iterator[TaskQueue]:
    with airflow.queue() as queue:
        yield queue


def kill_nothing(_: Work) -> None:
    """The first try fails by itself."""


def kill_process(work: Work) -> None:
    """Kill the process of the task, as a machine without memory does."""
    os.kill(work.pid, signal.SIGKILL)


def kill_worker(work: Work) -> None:
    """Kill the worker. Airflow does not see the process of the task, which survives it and cannot report any more."""
    os.kill(work.worker, signal.SIGKILL)


@pytest.mark.parametrize(
    ("run_id", "first_try", "interrupt"),
    [("failed", "fails", kill_nothing), ("killed", "runs", kill_process), ("orphaned", "runs", kill_worker)],
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
    assert run.tasks() == [("a", "SUCCEEDED", 1, crashes), ("b", "SUCCEEDED", 1, crashes), ("c", "READY", 0, 0)]
    assert {task.owner for task in queue.page(run.id)[:2]} == {f"claims/{heir}/gate/-1"}


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
