"""Poll under a condition: which task of an identifier has the turn."""

from datetime import timedelta

import pytest

from airflow_provider_taskq.queue import (
    Condition,
    Decision,
    NewTask,
    Order,
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


@singular
def test_a_poll_under_a_condition_takes_at_most_one_task_of_an_identifier(
    queue: TaskQueue, owner: Owner, condition: Condition
) -> None:
    queue.push("work", ["a", "a", "b", "a", "b", "c"])
    assert identifiers(queue.poll("work", owner, 10, condition=condition)) == ["a", "b", "c"]
    assert queue.poll("work", owner, 10, condition=condition) == []


@pytest.mark.promise("Two tasks of one identifier never run at once, and none overtakes another")
@pytest.mark.parametrize("order", list(Order))
@singular
def test_an_active_task_keeps_the_turn_in_either_order(
    queue: TaskQueue, owner: Owner, condition: Condition, order: Order
) -> None:
    """Also under LAST_IN_FIRST_OUT, where Skatteetaten's task library hands out a second task."""
    queue.create_topic("other")
    for topic, taken_under in (("work", condition), ("other", Condition.NONE)):
        queue.push(topic, ["a", "a"])
        queue.poll(topic, owner, 1, order, taken_under)
        queue.push(topic, ["a"])
        assert queue.poll(topic, owner, 10, order, condition) == []


@pytest.mark.promise("A task that waits to be retried keeps the turn of its identifier")
@singular
def test_a_task_that_waits_to_be_retried_has_not_ended_its_turn(
    queue: TaskQueue, owner: Owner, condition: Condition
) -> None:
    queue.alter_topic("work", retrying)
    first, _second = queue.push("work", ["a", "a"])
    queue.complete(owner, {queue.poll("work", owner, condition=condition)[0]: Result.FAILURE})
    assert queue.poll("work", owner, 10, condition=condition) == []
    assert queue.ready("work", 10, condition) == 0
    pass_time(queue, timedelta(minutes=2))
    assert queue.ready("work", 10, condition) == 1
    assert queue.poll("work", owner, 10, condition=condition) == [first]


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


@pytest.mark.promise("A task that waits to be retried keeps the turn of its identifier")
@singular
def test_a_snoozed_task_has_given_up_its_turn(queue: TaskQueue, owner: Owner, condition: Condition) -> None:
    first, second = queue.push("work", ["a", "a"])
    [polled] = queue.poll("work", owner, condition=condition)
    queue.complete(owner, {polled: Decision(Result.SUSPENSION, delay=timedelta(hours=1))})
    assert queue.poll("work", owner, 10, condition=condition) == [second]
    queue.complete(owner, {second: Result.SUCCESS})
    pass_time(queue, timedelta(hours=2))
    assert queue.poll("work", owner, 10, condition=condition) == [first]


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
    task_in(queue, owner, state, "a")
    queue.push("work", ["a", "b"])
    expected = ["b"] if state in BLOCKING[condition] else ["a", "b"]
    assert queue.ready("work", 10, condition) == len(expected)
    assert identifiers(queue.poll("work", owner, 10, condition=condition)) == expected


def test_a_failure_blocks_later_and_earlier_tasks_until_it_is_reassigned(queue: TaskQueue, owner: Owner) -> None:
    """Even behind a later success."""
    [early] = queue.push("work", [NewTask("a", delay=timedelta(minutes=1))])
    failed = task_in(queue, owner, State.FAILED, "a")
    task_in(queue, owner, State.SUCCEEDED, "a")
    pass_time(queue, timedelta(minutes=2))
    queue.push("work", ["a"])
    assert queue.poll("work", owner, condition=ON_FAILURE) == []
    queue.reassign("work", Result.SUCCESS, sequences=[failed.sequence])
    assert queue.poll("work", owner, condition=ON_FAILURE) == [early]


@singular
def test_the_same_identifier_in_another_topic_blocks_nothing(
    queue: TaskQueue, owner: Owner, condition: Condition
) -> None:
    queue.create_topic("other")
    task_in(queue, owner, State.FAILED, "a", "other")
    queue.push("other", ["a"])
    queue.poll("other", owner)
    queue.push("work", ["a"])
    assert identifiers(queue.poll("work", owner, condition=condition)) == ["a"]


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
