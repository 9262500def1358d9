"""Operators' changes of waiting tasks: run now, set the priority, cancel."""

from collections.abc import Callable
from datetime import timedelta

import pytest

from airflow_provider_taskq.queue import (
    Condition,
    Decision,
    InvalidState,
    InvalidTask,
    NewTask,
    Result,
    RetryPolicy,
    State,
    TaskQueue,
    TopicPolicy,
)

pytestmark = pytest.mark.promise("A waiting task can be run now, get another priority, or be canceled")

HOUR = timedelta(hours=1)
CHANGES: dict[str, Callable[[TaskQueue, list[int]], int]] = {
    "run_now": lambda queue, sequences: queue.run_now("work", sequences),
    "set_priority": lambda queue, sequences: queue.set_priority("work", sequences, 7),
    "cancel": lambda queue, sequences: queue.cancel("work", sequences),
}


def polled(queue: TaskQueue, size: int = 10) -> list[str]:
    return [task.identifier for task in queue.poll("work", queue.register("worker"), size)]


def test_a_scheduled_and_a_paused_task_run_now_and_a_ready_one_keeps_its_place(queue: TaskQueue) -> None:
    ready, later, paused, _ = queue.push(
        "work", ["ready", NewTask("later", delay=HOUR), "paused", NewTask("other", delay=HOUR)]
    )
    queue.pause_task("work", paused.sequence)
    assert queue.run_now("work", [later.sequence, ready.sequence, paused.sequence]) == 2
    assert polled(queue) == ["ready", "later", "paused"]


def test_a_retry_runs_now(queue: TaskQueue) -> None:
    queue.alter_topic("work", TopicPolicy(RetryPolicy(max_attempts=2, base=HOUR)))
    (task,) = queue.push("work", ["a"])
    owner = queue.register("worker")
    queue.complete(owner, {queue.poll("work", owner)[0]: Result.FAILURE})
    assert polled(queue) == []
    assert queue.run_now("work", [task.sequence]) == 1
    assert polled(queue) == ["a"]


def test_a_task_that_waits_for_another_is_due_now_and_still_waits(queue: TaskQueue) -> None:
    queue.push("work", ["first"])
    (second,) = queue.push("work", [NewTask("second", depends_on=[("work", "first")], delay=HOUR)])
    assert queue.run_now("work", [second.sequence]) == 1
    assert polled(queue) == ["first"]
    owner = queue.register("worker")
    queue.complete(owner, dict.fromkeys(queue.held(owner), Result.SUCCESS))
    assert polled(queue) == ["second"]


def test_a_higher_priority_is_polled_first_shown_and_lasts_until_the_end(queue: TaskQueue) -> None:
    first, second = queue.push("work", ["first", "second"])
    assert queue.set_priority("work", [first.sequence, second.sequence], 0) == 0
    assert queue.set_priority("work", [second.sequence], 9) == 1
    reported = queue.task("work", second.sequence)
    assert reported is not None
    assert reported.priority == 9
    assert polled(queue, 1) == ["second"]
    owner = queue.register("worker")
    queue.complete(owner, {second: Result.FAILURE})
    queue.revive("work", State.FAILED)
    assert polled(queue, 1) == ["first"]
    for priority in (-101, 101):
        with pytest.raises(InvalidTask, match="between -100 and 100"), queue.conn.transaction():
            queue.set_priority("work", [second.sequence], priority)


def test_a_canceled_task_is_filtered_never_polled_and_can_be_started_again(queue: TaskQueue) -> None:
    gone, _ = queue.push("work", [NewTask("gone", delay=HOUR), "kept"])
    assert queue.cancel("work", [gone.sequence]) == 1
    reported = queue.task("work", gone.sequence)
    assert reported is not None
    assert (reported.state, reported.attempt, reported.completed is not None) == (State.FILTERED, 0, True)
    assert polled(queue) == ["kept"]
    queue.revive("work", sequences=[gone.sequence])
    queue.run_now("work", [gone.sequence])
    assert [task.sequence for task in queue.poll("work", queue.register("other"), 10)] == [gone.sequence]


def test_the_next_of_an_identifier_takes_the_place_of_a_canceled_one(queue: TaskQueue) -> None:
    first, _ = queue.push("work", [NewTask("a", delay=HOUR), "b"])
    queue.push("work", ["a"])
    queue.cancel("work", [first.sequence])
    owner = queue.register("worker")
    found = queue.poll("work", owner, 10, condition=Condition.SINGULAR_BY_IDENTIFIER)
    assert sorted(task.identifier for task in found) == ["a", "b"]


@pytest.mark.parametrize("change", CHANGES)
def test_tasks_that_do_not_wait_are_refused_and_nothing_is_changed(queue: TaskQueue, change: str) -> None:
    held, waiting = queue.push("work", ["held", NewTask("waiting", delay=HOUR)])
    queue.poll("work", queue.register("worker"))
    before = queue.task("work", waiting.sequence)
    for wrong, words in ((held.sequence, "ACTIVE"), (10**15, "only a READY task")):
        with pytest.raises(InvalidState, match=words), queue.conn.transaction():
            CHANGES[change](queue, [waiting.sequence, wrong])
    assert queue.task("work", waiting.sequence) == before


@pytest.mark.parametrize("change", CHANGES)
def test_a_task_that_another_transaction_is_polling_is_refused_at_once(
    queue: TaskQueue, session: TaskQueue, change: str
) -> None:
    (task,) = queue.push("work", ["a"])
    assert session.poll("work", session.register("worker")) == [task]
    with pytest.raises(InvalidState, match="being claimed"), queue.conn.transaction():
        CHANGES[change](queue, [task.sequence])


@pytest.mark.parametrize(
    ("change", "what"), [("run_now", "due set"), ("set_priority", "priority set"), ("cancel", "canceled")]
)
def test_the_history_names_the_person_that_changed_a_task(queue: TaskQueue, change: str, what: str) -> None:
    (task,) = queue.push("work", [NewTask("a", delay=HOUR)])
    with queue.conn.transaction():
        queue.set_actor("ann")
        CHANGES[change](queue, [task.sequence])
    events = [event for event in queue.timeline("work", task.sequence) if event.what == what]
    assert [(event.actor, event.other) for event in events] == [("ann", 7 if change == "set_priority" else None)]


def test_the_decision_of_a_worker_is_not_lost_to_a_cancellation(queue: TaskQueue) -> None:
    (task,) = queue.push("work", ["a"])
    owner = queue.register("worker")
    queue.poll("work", owner)
    with pytest.raises(InvalidState), queue.conn.transaction():
        queue.cancel("work", [task.sequence])
    queue.complete(owner, {task: Decision(Result.SUCCESS)})
    reported = queue.task("work", task.sequence)
    assert reported is not None
    assert reported.state is State.SUCCEEDED
