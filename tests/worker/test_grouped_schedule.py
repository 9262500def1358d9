"""Schedules of grouped workers: pauses, initial delays, cleanups and the cluster lock."""

import time
from datetime import timedelta

import pytest

from airflow_provider_taskq.queue import Decision, Result, State, Task, TaskQueue
from airflow_provider_taskq.worker.grouped import GroupedRun
from tests.queue.conftest import known, pass_time, until
from tests.worker.test_grouped import HOUR, Recorder, batches, push

pytestmark = pytest.mark.promise("A grouped worker handles an identifier in order, and stops it at an error")

SHORT = timedelta(milliseconds=20)
A_CENTURY = timedelta(days=36_500)


def expired(queue: TaskQueue, identifier: str) -> Task:
    """A task that failed for good, past its time to live."""
    [task] = push(queue, -1, identifier=identifier, ttl=HOUR)
    pass_time(queue, 2 * HOUR)
    owner = queue.register("someone")
    with queue.conn.transaction():  # a cleanup at work removes the task after it, not between
        queue.complete(owner, {queue.poll("work", owner)[0]: Decision(Result.FAILURE, error="bad")})
        assert known(queue, task).state is State.FAILED
    return task


def is_removed(queue: TaskQueue, task: Task) -> bool:
    return queue.task("work", task.sequence) is None


def test_with_size_one_the_next_task_of_an_identifier_waits_for_the_pause(dsn: str, queue: TaskQueue) -> None:
    """Also after a run that took the full number of groups."""
    for identifier in ("a", "b"):
        push(queue, 1, 2, 3, identifier=identifier)
    called: dict[str, list[float]] = {"a": [], "b": []}
    run = batches(dsn, lambda task: called[task.identifier].append(time.monotonic()), size=1, groups=2, pause=0.5)
    with run:
        until(lambda: queue.count_tasks("work", state="SUCCEEDED") == 6)
    for first, second, third in called.values():
        assert (second - first >= 0.5, third - second >= 0.5) == (True, True)


def test_after_a_run_with_the_full_number_of_groups_the_next_run_starts_at_once(dsn: str, queue: TaskQueue) -> None:
    for identifier in ("a", "b", "c"):
        push(queue, 1, 2, identifier=identifier)
    with batches(dsn, Recorder(), groups=1, pause=HOUR):
        until(lambda: queue.count_tasks("work", state="SUCCEEDED") == 6)


def test_the_first_cleanup_does_not_depend_on_the_uptime_of_the_machine(dsn: str, queue: TaskQueue) -> None:
    task = expired(queue, "old")
    with batches(dsn, Recorder(), pause=HOUR, cleanup=A_CENTURY):
        until(lambda: is_removed(queue, task))


def test_the_first_run_waits_for_the_initial_delay_and_the_cleanup_does_not(dsn: str, queue: TaskQueue) -> None:
    first = expired(queue, "old")
    recorder = Recorder()
    with batches(dsn, recorder, pause=SHORT, initial_delay=HOUR, cleanup=SHORT):
        until(lambda: is_removed(queue, first))
        second = expired(queue, "older")
        push(queue, 1)
        until(lambda: is_removed(queue, second))
    assert recorder.handled == []


def test_the_cleanup_waits_for_its_initial_delay_and_runs_do_not(dsn: str, queue: TaskQueue) -> None:
    task = expired(queue, "old")
    recorder = Recorder()
    with batches(dsn, recorder, pause=SHORT, cleanup=SHORT, cleanup_initial_delay=HOUR):
        for number in (1, 2, 3):
            push(queue, number)
            until(lambda number=number: number in recorder.handled)  # type: ignore[misc]
    assert not is_removed(queue, task)


def test_a_program_without_the_cluster_lock_skips_its_run(dsn: str, queue: TaskQueue) -> None:
    push(queue, 1)
    recorder = Recorder()
    run = batches(dsn, recorder, cluster_lock=HOUR)
    assert queue.lock("batches work", "another program", HOUR) is True
    assert run.run_once() == GroupedRun()
    assert recorder.handled == []
    queue.unlock("batches work", "another program")
    assert run.run_once() == GroupedRun(groups=1, succeeded=1)


def test_the_cluster_lock_is_held_during_a_run_and_released_after_it(dsn: str, queue: TaskQueue) -> None:
    push(queue, 1)
    other = batches(dsn, Recorder(), cluster_lock=HOUR)
    tallies: list[GroupedRun] = []
    assert batches(dsn, lambda _task: tallies.append(other.run_once()), cluster_lock=HOUR).run_once().succeeded == 1
    push(queue, 2, identifier="other")
    tallies.append(other.run_once())
    assert tallies == [GroupedRun(), GroupedRun(groups=1, succeeded=1)]


def test_without_a_cluster_lock_programs_handle_different_groups_at_once(dsn: str, queue: TaskQueue) -> None:
    push(queue, 1, identifier="a")
    push(queue, 2, identifier="b")
    tallies: list[GroupedRun] = []
    first = batches(dsn, lambda _task: tallies.append(batches(dsn, Recorder()).run_once()), groups=1)
    assert first.run_once().succeeded == 1
    assert tallies == [GroupedRun(groups=1, succeeded=1)]
