"""Polls under a condition, where one task of an identifier has the turn, and polls of whole groups."""

from datetime import timedelta

import pytest

from airflow_provider_taskq.queue import (
    Condition,
    NewTask,
    Owner,
    Result,
    RetryPolicy,
    State,
    TaskQueue,
    TopicPolicy,
)
from tests.queue.conftest import identifiers, pass_time, task_in

pytestmark = pytest.mark.promise("Each condition is blocked by tasks in its states, and by no others")

SINGULAR = Condition.SINGULAR_BY_IDENTIFIER
ON_FAILURE = Condition.SINGULAR_BY_IDENTIFIER_SUSPEND_ON_FAILURE
UNTIL_SUCCESS = Condition.SINGULAR_BY_IDENTIFIER_SUSPEND_UNTIL_SUCCESS
SINGULARS = [SINGULAR, ON_FAILURE, UNTIL_SUCCESS]

singular = pytest.mark.parametrize("condition", SINGULARS)
retrying = TopicPolicy(retry=RetryPolicy(max_attempts=5, base=timedelta(minutes=1)))


@pytest.mark.promise("A task that waits to be retried keeps the turn of its identifier")
def test_of_several_attempted_tasks_the_lowest_sequence_has_the_turn(queue: TaskQueue, owner: Owner) -> None:
    """Whatever the priority, also before a fresh task."""
    queue.alter_topic("work", retrying)
    low, high = queue.push("work", [NewTask("a", priority=-100), NewTask("a", priority=50)])
    queue.complete(owner, dict.fromkeys(queue.poll("work", owner, 2), Result.FAILURE))  # under NONE: both
    [fresh] = queue.push("work", [NewTask("a", priority=100)])
    assert queue.poll("work", owner, 10, condition=SINGULAR) == []
    pass_time(queue, timedelta(minutes=2))
    for turn in (low, high, fresh):
        assert queue.poll("work", owner, 10, condition=SINGULAR) == [turn]
        queue.complete(owner, {turn: Result.SUCCESS})


BLOCKING = {
    SINGULAR: set[State](),
    ON_FAILURE: {State.EXPIRED, State.FAILED},
    UNTIL_SUCCESS: {State.EXPIRED, State.FAILED, State.SUSPENDED},
}


@pytest.mark.parametrize("state", [state for state in State if state >= State.EXPIRED], ids=lambda state: state.name)
@singular
def test_an_identifier_is_left_out_while_one_of_its_tasks_is_in_a_blocking_state(
    queue: TaskQueue, owner: Owner, condition: Condition, state: State
) -> None:
    queue.create_topic("other")
    task_in(queue, owner, state, "b", "other")
    task_in(queue, owner, state, "a")
    queue.push("work", ["a", "b"])
    expected = ["b"] if state in BLOCKING[condition] else ["a", "b"]
    assert queue.ready("work", 10, condition) == len(expected)
    assert identifiers(queue.poll("work", owner, 10, condition=condition)) == expected


@pytest.mark.promise("Many blocked identifiers, or many tasks of one, hide no free identifier")
@pytest.mark.parametrize("behind", [5, 1100], ids=["few identifiers", "more than one hop sees"])
@pytest.mark.parametrize("hot", ["a", "zzz"], ids=["hot first", "hot last"])
@singular
def test_many_tasks_of_one_identifier_hide_no_identifier_behind_them(
    queue: TaskQueue, owner: Owner, condition: Condition, behind: int, hot: str
) -> None:
    queue.push("work", [hot] * 2500)
    tasks = queue.push("work", [f"id-{number:04}" for number in range(behind)])
    assert queue.ready("work", 5000, condition) == behind + 1
    polled = queue.poll("work", owner, behind, condition=condition)
    assert len(polled) == behind
    assert polled[0].identifier == hot
    assert {*polled[1:], *queue.poll("work", owner, behind, condition=condition)} == set(tasks)
    assert queue.poll("work", owner, 10, condition=condition) == [], "the hot identifier is held"


def test_the_polled_order_is_kept_behind_many_tasks_of_one_identifier_for_up_to_a_thousand_identifiers(
    queue: TaskQueue, owner: Owner
) -> None:
    hot = queue.push("work", ["hot"] * 1500)
    tasks = queue.push("work", ["d", "b", NewTask("c", priority=1), "a"])
    assert queue.poll("work", owner, 4, condition=SINGULAR) == [tasks[2], hot[0], tasks[0], tasks[1]]


@pytest.mark.promise("A batch by identifier has all due tasks of its group, and goes to one owner")
def test_a_batch_is_all_due_tasks_of_an_identifier_in_order(queue: TaskQueue, owner: Owner) -> None:
    tasks = queue.push("work", ["b", "a", NewTask("b", priority=1), "b", NewTask("b", delay=timedelta(hours=1)), "c"])
    assert queue.poll_batch("work", owner) == {"b": [tasks[2], tasks[0], tasks[3]]}
    assert [task.attempt for task in queue.held(owner)] == [1, 1, 1]
    assert list(queue.poll_batch("work", owner, 5).items()) == [("a", [tasks[1]]), ("c", [tasks[5]])]
    assert queue.poll_batch("work", owner) == {}


@pytest.mark.promise("A batch by identifier has all due tasks of its group, and goes to one owner")
def test_a_retry_that_is_not_due_or_a_failed_task_holds_its_group_back_and_no_task_overtakes_a_retry(
    queue: TaskQueue, owner: Owner
) -> None:
    queue.alter_topic("work", retrying)
    tasks = queue.push("work", ["a"] * 3)
    queue.complete(owner, dict.fromkeys(queue.poll("work", owner, 2), Result.FAILURE))
    [urgent] = queue.push("work", [NewTask("a", priority=1)])
    assert queue.poll_batch("work", owner) == {}
    pass_time(queue, timedelta(minutes=2))
    assert queue.poll_batch("work", owner, size=1) == {"a": tasks[:1]}
    queue.alter_topic("work", TopicPolicy())
    queue.complete(owner, {tasks[0]: Result.FAILURE})
    assert queue.poll_batch("work", owner) == {}
    queue.revive("work", sequences=[tasks[0].sequence])
    assert queue.poll_batch("work", owner) == {"a": [tasks[1], urgent, tasks[0], tasks[2]]}
