"""Actions of operators on single tasks of groups, and the release of single tasks."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from airflow_provider_taskq.queue import (
    Decision,
    InvalidState,
    InvalidTask,
    NewTask,
    NotHeld,
    Owner,
    Result,
    RetryPolicy,
    State,
    TaskQueue,
)
from airflow_provider_taskq.queue.reports import Explanation
from airflow_provider_taskq.worker.grouped import GroupedRun
from tests.queue.conftest import identifiers, known, pass_time, until
from tests.worker.test_grouped import HOUR, Recorder, batches, push, retrying

pytestmark = pytest.mark.promise("A waiting task can be run now, get another priority, or be canceled")


def test_a_paused_task_is_not_handed_out_until_it_is_resumed_in_its_old_place(queue: TaskQueue, owner: Owner) -> None:
    a, b = queue.push("work", ["a", "b"])
    assert queue.pause_task("work", a.sequence) is True
    assert queue.pause_task("work", a.sequence) is False
    assert known(queue, a).status == "paused"
    assert queue.explain("work", a.sequence) == Explanation("it is paused until it is resumed", False)
    why = queue.conn.execute("SELECT why FROM taskq.tasks WHERE sequence = %s", (a.sequence,)).fetchone()
    assert why == ("paused until it is resumed",)
    assert queue.count("work")["work"][State.READY].count == 2
    assert queue.ready("work", 10) == 1
    assert queue.resume_task("work", a.sequence) is True
    assert queue.resume_task("work", a.sequence) is False
    assert queue.poll("work", owner, 2) == [a, b]


def test_a_paused_retry_holds_its_group_back_and_is_due_at_once_when_it_is_resumed(
    dsn: str, queue: TaskQueue, owner: Owner
) -> None:
    queue.alter_topic("work", retrying)
    [task] = push(queue, 1)
    queue.complete(owner, {queue.poll("work", owner)[0]: Result.FAILURE})
    queue.pause_task("work", task.sequence)
    push(queue, 2)
    pass_time(queue, HOUR)
    recorder = Recorder()
    assert batches(dsn, recorder).run_once() == GroupedRun()
    queue.set_due("work", task.sequence, datetime.now(UTC) + HOUR)
    assert known(queue, task).status == "retrying"
    queue.pause_task("work", task.sequence)
    queue.resume_task("work", task.sequence)
    batches(dsn, recorder).run_once()
    assert recorder.handled == [1, 2]


def test_a_paused_task_that_waits_for_another_stays_paused_when_that_has_ended(queue: TaskQueue, owner: Owner) -> None:
    queue.create_topic("other")
    queue.push("other", ["x"])
    [task] = queue.push("work", [NewTask("a", depends_on=[("other", "x")])])
    queue.ready("work")
    assert queue.pause_task("work", task.sequence)
    assert known(queue, task).status == "paused"
    queue.complete(owner, {queue.poll("other", owner)[0]: Result.SUCCESS})
    assert queue.poll("work", owner) == []
    assert known(queue, task).status == "paused"
    assert queue.resume_task("work", task.sequence)
    until(lambda: queue.poll("work", owner) == [task])


def test_the_due_time_of_a_task_can_be_set_and_reset(queue: TaskQueue, owner: Owner) -> None:
    a, b = queue.push("work", ["a", "b"])
    moment = datetime(2100, 1, 1, tzinfo=UTC)
    queue.set_due("work", a.sequence, moment)
    assert (known(queue, a).status, known(queue, a).available_at) == ("scheduled", moment)
    assert queue.poll("work", owner, 2) == [b]
    queue.set_due("work", a.sequence, None)
    assert queue.poll("work", owner) == [a]


def test_the_attempts_of_a_task_can_be_set_within_the_limit_of_its_policy(queue: TaskQueue, owner: Owner) -> None:
    queue.alter_topic("work", retrying)
    [task] = push(queue, 1)
    queue.set_attempts("work", task.sequence, 2)
    [last] = queue.poll("work", owner)
    assert last.attempt == 3
    queue.complete(owner, {last: Result.FAILURE})
    assert known(queue, task).status == "exhausted"
    [other] = push(queue, 2, identifier="b")
    for attempts in (3, -1):
        with pytest.raises(InvalidTask, match="0 to 2"):
            queue.set_attempts("work", other.sequence, attempts)


@pytest.mark.parametrize("state", ["held", "ended", "unknown", "being claimed"])
def test_only_a_waiting_task_can_be_changed(
    queue: TaskQueue, owner: Owner, open_queue: Callable[[], TaskQueue], state: str
) -> None:
    [task] = queue.push("work", ["a"])
    if state == "being claimed":
        open_queue().poll("work", queue.register("other"))
    elif state != "unknown":
        queue.poll("work", owner)
    if state == "ended":
        queue.complete(owner, {task: Result.SUCCESS})
    sequence = 999 if state == "unknown" else task.sequence
    for change in (queue.pause_task, queue.resume_task):
        with pytest.raises(InvalidState, match="only a READY task"):
            change("work", sequence)
    with pytest.raises(InvalidState):
        queue.set_due("work", sequence, None)
    with pytest.raises(InvalidState):
        queue.set_attempts("work", sequence, 0)


def test_only_errors_past_their_time_to_live_are_removed(queue: TaskQueue, owner: Owner) -> None:
    queue.alter_topic("work", retrying)
    names = ["retrying", "failed", "without ttl", "young", "without error"]
    lives = [HOUR, HOUR, None, 10 * HOUR, HOUR]
    tasks = queue.push("work", [NewTask(name, ttl=ttl) for name, ttl in zip(names, lives, strict=True)])
    pass_time(queue, 2 * HOUR)
    for task in queue.poll("work", owner, 4):
        queue.complete(owner, {task: Decision(Result.FAILURE, error="bad")})
    queue.set_attempts("work", tasks[1].sequence, 2)
    queue.set_due("work", tasks[1].sequence, None)
    queue.complete(owner, {queue.poll("work", owner)[0]: Decision(Result.FAILURE, error="bad")})
    assert known(queue, tasks[1]).state is State.FAILED
    assert queue.purge_past_ttl("work") == 1
    assert [info.identifier for info in queue.page("work")] == ["retrying", *names[2:]]


def test_a_task_with_retries_before_its_expiry_is_not_removed(queue: TaskQueue, owner: Owner) -> None:
    """The worked example of camunda-bpm-correlate with a cleanup every minute: the last retry is due after ten."""
    minute = timedelta(minutes=1)
    queue.alter_topic("work", retry=RetryPolicy.correlation(max_backoff=10 * minute), ttl=10)
    [task] = queue.push("work", ["a"])
    for minutes in range(1, 11):
        pass_time(queue, minute)
        if tasks := queue.poll("work", owner):
            queue.complete(owner, {tasks[0]: Decision(Result.FAILURE, error="bad")})
        assert known(queue, task).status == "retrying"
        assert queue.purge_past_ttl("work") == (1 if minutes == 10 else 0)
    assert queue.page("work") == []


def test_an_owner_releases_some_of_its_tasks_and_keeps_the_others(queue: TaskQueue, owner: Owner) -> None:
    tasks = queue.push("work", ["a", "b", "c"])
    queue.poll("work", owner, 3)
    assert queue.release_tasks(owner, [tasks[0], tasks[1].sequence]) == 2
    assert queue.held(owner) == [tasks[2]]
    assert identifiers(queue.poll("work", owner, 1)) == ["a"]
    with pytest.raises(NotHeld, match=str(tasks[1].sequence)):
        queue.release_tasks(owner, [tasks[0], tasks[1]])
    assert len(queue.held(owner)) == 2
