"""Operators' changes of waiting tasks: run now, set the priority, cancel."""

from collections.abc import Callable
from datetime import timedelta

import pytest

from airflow_provider_taskq.queue import (
    InvalidState,
    InvalidTask,
    NewTask,
    Result,
    RetryPolicy,
    State,
    TaskQueue,
    TopicPolicy,
)
from tests.queue.conftest import known

pytestmark = pytest.mark.promise("A waiting task can be run now, get another priority, or be canceled")

HOUR = timedelta(hours=1)
CHANGES: dict[str, Callable[[TaskQueue, list[int]], int]] = {
    "run_now": lambda queue, sequences: queue.change_waiting("work", sequences, due="now"),
    "set_priority": lambda queue, sequences: queue.change_waiting("work", sequences, priority=7),
    "cancel": lambda queue, sequences: queue.cancel("work", sequences),
}


def polled(queue: TaskQueue, size: int = 10) -> list[str]:
    return [task.identifier for task in queue.poll("work", queue.register("worker"), size)]


def test_waiting_tasks_run_now_and_a_ready_one_keeps_its_place(queue: TaskQueue) -> None:
    """A scheduled one, a paused one and a retry. One that waits for another is due now, and still waits."""
    queue.alter_topic("work", TopicPolicy(RetryPolicy(max_attempts=2, base=HOUR)))
    owner = queue.register("worker")
    [retry] = queue.push("work", ["retry"])
    queue.complete(owner, {queue.poll("work", owner)[0]: Result.FAILURE})
    blocked = NewTask("blocked", depends_on=[("work", "retry")], delay=HOUR)
    tasks = queue.push("work", ["ready", NewTask("later", delay=HOUR), "paused", blocked, NewTask("other", delay=HOUR)])
    queue.change_waiting("work", [tasks[2].sequence], paused=True)
    waiting = [retry, *tasks[:4]]
    assert queue.change_waiting("work", [task.sequence for task in waiting], due="now") == 4
    assert sorted(polled(queue)) == ["later", "paused", "ready", "retry"]
    owner = queue.register("worker")
    assert queue.held(owner)[0] == tasks[0], "due since its push"
    queue.complete(owner, dict.fromkeys(queue.held(owner), Result.SUCCESS))
    assert polled(queue) == ["blocked"]


def test_a_higher_priority_is_polled_first_shown_and_lasts_until_the_end(queue: TaskQueue) -> None:
    first, second = queue.push("work", ["first", "second"])
    assert queue.change_waiting("work", [first.sequence, second.sequence], priority=0) == 0
    assert queue.change_waiting("work", [second.sequence], priority=9) == 1
    assert known(queue, second).priority == 9
    assert polled(queue, 1) == ["second"]
    owner = queue.register("worker")
    queue.complete(owner, {second: Result.FAILURE})
    queue.revive("work", State.FAILED)
    assert polled(queue, 1) == ["first"]
    for priority in (-101, 101):
        with pytest.raises(InvalidTask, match="between -100 and 100"), queue.conn.transaction():
            queue.change_waiting("work", [second.sequence], priority=priority)


def test_a_canceled_task_is_filtered_never_polled_and_can_be_started_again(queue: TaskQueue) -> None:
    gone, _ = queue.push("work", [NewTask("gone", delay=HOUR), "kept"])
    assert queue.cancel("work", [gone.sequence]) == 1
    reported = known(queue, gone)
    assert (reported.state, reported.attempt, reported.completed is not None) == (State.FILTERED, 0, True)
    assert polled(queue) == ["kept"]
    queue.revive("work", sequences=[gone.sequence])
    queue.change_waiting("work", [gone.sequence], due="now")
    assert [task.sequence for task in queue.poll("work", queue.register("other"), 10)] == [gone.sequence]


@pytest.mark.parametrize("change", CHANGES)
def test_tasks_that_do_not_wait_are_refused_and_nothing_is_changed(
    queue: TaskQueue, session: TaskQueue, change: str
) -> None:
    held, waiting, claimed = queue.push("work", ["held", NewTask("waiting", delay=HOUR), "claimed"])
    owner = queue.register("worker")
    queue.poll("work", owner)
    assert session.poll("work", session.register("open")) == [claimed]
    before = queue.task("work", waiting.sequence)
    for wrong, words in ((held.sequence, "ACTIVE"), (10**15, "only a READY task"), (claimed.sequence, "being claimed")):
        with pytest.raises(InvalidState, match=words), queue.conn.transaction():
            CHANGES[change](queue, [waiting.sequence, wrong])
    assert queue.task("work", waiting.sequence) == before
    queue.complete(owner, {held: Result.SUCCESS})
    assert known(queue, held).state is State.SUCCEEDED, "the decision of the worker is not lost"


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
