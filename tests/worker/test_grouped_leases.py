"""Leases of grouped workers: the tasks of dead programs, and runs that several threads start."""

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from airflow_provider_taskq.queue import State, Task, TaskQueue
from airflow_provider_taskq.worker.grouped import GroupedRun, GroupedWorker
from tests.internals import stored_rows
from tests.queue.conftest import known, lapse, states, until
from tests.worker.test_grouped import HOUR, Recorder, batches, push

pytestmark = [
    pytest.mark.promise("A grouped worker handles an identifier in order, and stops it at an error"),
    pytest.mark.promise("a worker is killed"),
]


def test_a_grouped_worker_takes_back_the_tasks_of_a_killed_one(dsn: str, queue: TaskQueue, repository: Path) -> None:
    tasks = push(queue, 1, 2)
    program = [sys.executable, "-m", "tests.worker.grouped_program"]
    environment = {**os.environ, "TASKQ_DSN": dsn, "PYTHONPATH": str(repository)}
    with subprocess.Popen(program, env=environment, cwd=repository, stdout=subprocess.PIPE) as killed:
        assert killed.stdout is not None
        assert killed.stdout.readline() == b"key\n"
        killed.kill()
    assert [known(queue, task).state for task in tasks] == [State.ACTIVE] * 2
    recorder = Recorder()
    with batches(dsn, recorder, lease="1s", pause="20ms"):
        until(lambda: len(recorder.handled) == 2, 60)
    assert recorder.handled == [1, 2]
    assert states(queue) == [("key", State.SUCCEEDED)] * 2


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


def test_a_handler_cannot_start_another_run_of_its_worker(dsn: str, queue: TaskQueue) -> None:
    [task] = push(queue, 1)

    def handle(_: Task) -> None:
        run.run_once()

    run: GroupedWorker = batches(dsn, handle)
    assert run.run_once() == GroupedRun(groups=1, failed=1)
    assert "a handler cannot start another run of its worker" in str(known(queue, task).error)


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


def test_a_run_with_a_size_and_a_sorter_handles_the_first_tasks_of_the_sorted_group(dsn: str, queue: TaskQueue) -> None:
    push(queue, 4, 2, 3, 1)
    recorder = Recorder()
    run = batches(dsn, recorder, size=2, sorter=lambda task: task.payload)
    for _ in range(2):
        assert run.run_once() == GroupedRun(groups=1, succeeded=2)
    assert recorder.handled == [1, 2, 3, 4]
