"""Leases of grouped workers: the tasks of dead programs, and runs that several threads start."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from airflow_provider_taskq.queue import State, Task, TaskQueue
from airflow_provider_taskq.worker.grouped import GroupedRun
from tests.internals import stored_rows
from tests.queue.conftest import known, lapse, states, until
from tests.worker.test_grouped import HOUR, Recorder, batches, push

pytestmark = [
    pytest.mark.promise("A grouped worker handles an identifier in order, and stops it at an error"),
    pytest.mark.promise("a worker is killed"),
]


def test_single_runs_take_back_the_tasks_of_a_dead_program(dsn: str, queue: TaskQueue) -> None:
    push(queue, 1, 2)
    dead = queue.register("dead")
    queue.poll_batch("work", dead)
    lapse(queue, dead)
    recorder = Recorder()
    run = batches(dsn, recorder)

    def handles_both() -> bool:
        run.run_once()
        return len(recorder.handled) == 2

    until(handles_both, 60)
    assert states(queue) == [("key", State.SUCCEEDED)] * 2


def test_a_run_waits_for_the_current_run_of_its_worker(
    dsn: str, queue: TaskQueue, caplog: pytest.LogCaptureFixture
) -> None:
    inside, go_on = threading.Event(), threading.Event()

    def handle(_: Task) -> None:
        inside.set()
        assert go_on.wait(60)

    tasks = push(queue, 1, identifier="a")
    run = batches(dsn, handle, pause=HOUR)
    with run, ThreadPoolExecutor() as pool:
        assert inside.wait(60)
        tasks += push(queue, 2, identifier="b")
        second = pool.submit(run.run_once)
        until(second.running)
        threading.Event().wait(0.3)  # time for a second registration of the owner, if the worker allowed it
        go_on.set()
        assert second.result(60) == GroupedRun(groups=1, succeeded=1)
    assert [(known(queue, task).status, known(queue, task).attempt) for task in tasks] == [("succeeded", 1)] * 2
    assert caplog.text == ""


def live_rows(queue: TaskQueue) -> set[str]:
    """The rows of the tasks that have not ended, with their physical places: a claim moves a row."""
    [rows] = [rows for table, rows in stored_rows(queue.conn).items() if table.endswith(".live")]
    return set(rows)


def test_a_run_with_a_size_claims_no_other_task_of_its_groups(dsn: str, queue: TaskQueue) -> None:
    push(queue, *range(50), identifier="a")
    push(queue, *range(50), identifier="b")
    before = live_rows(queue)
    recorder = Recorder()
    assert batches(dsn, recorder, size=1).run_once() == GroupedRun(groups=2, succeeded=2)
    assert recorder.handled == [0, 0]
    after = live_rows(queue)
    assert after < before
    assert len(after) == 98
