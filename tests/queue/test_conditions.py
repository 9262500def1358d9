"""Poll under a condition: which task of an identifier has the turn."""

from collections.abc import Callable
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
    TaskQueueError,
    TopicPolicy,
)
from tests.queue.conftest import identifiers, known, lapse, pass_time, task_in

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


@singular
def test_the_next_task_of_an_identifier_is_handed_out_once_the_previous_one_has_ended(
    queue: TaskQueue, owner: Owner, condition: Condition
) -> None:
    pushed = queue.push("work", ["a", "a", "a"])
    for task in pushed:
        [polled] = queue.poll("work", owner, 10, condition=condition)
        assert polled == task
        queue.complete(owner, {polled: Result.SUCCESS})
    assert queue.poll("work", owner, 10, condition=condition) == []


@pytest.mark.promise("Two tasks of one identifier never run at once, and none overtakes another")
@pytest.mark.parametrize("order", list(Order))
@singular
def test_an_active_task_keeps_the_turn_in_either_order(
    queue: TaskQueue, owner: Owner, condition: Condition, order: Order
) -> None:
    """Also under LAST_IN_FIRST_OUT, where Skatteetaten's task library hands out a second task."""
    queue.push("work", ["a", "a"])
    queue.poll("work", owner, 1, order, condition)
    queue.push("work", ["a"])
    assert queue.poll("work", owner, 10, order, condition) == []


@singular
def test_last_in_first_out_takes_the_last_task_of_each_identifier(
    queue: TaskQueue, owner: Owner, condition: Condition
) -> None:
    tasks = queue.push("work", ["a", "b", "a", "b"])
    assert queue.poll("work", owner, 10, Order.LAST_IN_FIRST_OUT, condition) == [tasks[3], tasks[2]]


@singular
def test_priority_decides_within_an_identifier_and_among_identifiers(
    queue: TaskQueue, owner: Owner, condition: Condition
) -> None:
    tasks = queue.push("work", [NewTask("a"), NewTask("b", priority=1), NewTask("a", priority=5), NewTask("c")])
    assert queue.poll("work", owner, 10, condition=condition) == [tasks[2], tasks[1], tasks[3]]


@singular
def test_a_task_that_is_not_due_leaves_the_turn_to_the_next_of_its_identifier(
    queue: TaskQueue, owner: Owner, condition: Condition
) -> None:
    tasks = queue.push("work", [NewTask("a", delay=timedelta(hours=1), priority=9), NewTask("a")])
    assert queue.poll("work", owner, 10, condition=condition) == [tasks[1]]


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
    queue.alter_topic("work", retrying)
    low, high = queue.push("work", [NewTask("a"), NewTask("a", priority=50)])
    queue.complete(owner, dict.fromkeys(queue.poll("work", owner, 2), Result.FAILURE))  # under NONE: both
    pass_time(queue, timedelta(minutes=2))
    assert queue.poll("work", owner, 10, condition=SINGULAR) == [low], "by sequence, whatever the priority"
    queue.complete(owner, {low: Result.SUCCESS})
    assert queue.poll("work", owner, 10, condition=SINGULAR) == [high]


def test_an_attempted_task_of_low_priority_goes_before_a_fresh_one_of_high_priority(
    queue: TaskQueue, owner: Owner
) -> None:
    queue.alter_topic("work", retrying)
    [attempted] = queue.push("work", [NewTask("a", priority=-100)])
    queue.complete(owner, {queue.poll("work", owner)[0]: Result.FAILURE})
    queue.push("work", [NewTask("a", priority=100)] * 3)
    assert queue.poll("work", owner, 10, condition=SINGULAR) == []
    pass_time(queue, timedelta(minutes=2))
    assert queue.poll("work", owner, 10, condition=SINGULAR) == [attempted]


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


def test_an_old_failure_blocks_even_before_a_later_success_until_it_is_reassigned(
    queue: TaskQueue, owner: Owner
) -> None:
    failed = task_in(queue, owner, State.FAILED, "a")
    task_in(queue, owner, State.SUCCEEDED, "a")
    queue.push("work", ["a"])
    assert queue.poll("work", owner, condition=ON_FAILURE) == []
    queue.reassign("work", Result.SUCCESS, sequences=[failed.sequence])
    assert len(queue.poll("work", owner, condition=ON_FAILURE)) == 1


def test_a_later_failure_blocks_an_earlier_task(queue: TaskQueue, owner: Owner) -> None:
    [early] = queue.push("work", [NewTask("a", delay=timedelta(minutes=1))])
    task_in(queue, owner, State.FAILED, "a")
    pass_time(queue, timedelta(minutes=2))
    assert queue.poll("work", owner, condition=ON_FAILURE) == []
    assert queue.poll("work", owner, condition=SINGULAR) == [early]


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


@singular
def test_the_size_is_a_hard_bound_under_a_condition(queue: TaskQueue, owner: Owner, condition: Condition) -> None:
    queue.push("work", [f"id-{n}" for n in range(50)] * 2)
    for size in (1, 2, 7, 0):
        assert len(queue.poll("work", owner, size, condition=condition)) == size


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


def test_blocked_identifiers_hide_no_free_identifier(queue: TaskQueue, owner: Owner) -> None:
    names = [f"id-{number:04}" for number in range(2100)]
    queue.push("work", names)
    queue.complete(owner, dict.fromkeys(queue.poll("work", owner, 2100), Result.FAILURE))
    queue.push("work", names)
    [free] = queue.push("work", ["id-1500-free"])
    assert queue.ready("work", 5, ON_FAILURE) == 1
    assert queue.poll("work", owner, 5, condition=ON_FAILURE) == [free]


@singular
def test_a_retry_of_a_crashed_task_goes_before_the_next_of_its_identifier(
    queue: TaskQueue, owner: Owner, condition: Condition
) -> None:
    first, _second = queue.push("work", ["a", "a"])
    crashing = queue.register("crashing")
    assert queue.poll("work", crashing, condition=condition) == [first]
    lapse(queue, crashing)
    assert queue.poll("work", owner, condition=condition) == [], "lapsed is not gone"
    queue.expire()
    [again] = queue.poll("work", owner, 2, condition=condition)
    assert (again, again.redelivered, again.attempt) == (first, True, 1)


@singular
def test_released_tasks_are_handed_out_again_in_their_old_order(
    queue: TaskQueue, owner: Owner, condition: Condition
) -> None:
    first, _second = queue.push("work", ["a", "a"])
    other = queue.register("other")
    queue.poll("work", other, condition=condition)
    queue.release(other)
    assert queue.poll("work", owner, 2, condition=condition) == [first]


def test_a_claim_under_a_condition_takes_the_tasks_that_a_poll_would_take(queue: TaskQueue, owner: Owner) -> None:
    queue.push("work", ["a", "a", "b"])
    assert queue.claim("work", owner, 10, condition=SINGULAR) == 2
    assert identifiers(queue.held(owner)) == ["a", "b"]


@singular
def test_ready_counts_turns_and_not_tasks(queue: TaskQueue, owner: Owner, condition: Condition) -> None:
    queue.push("work", ["a", "a", "b", "b", "c"])
    assert [queue.ready("work", limit, condition) for limit in (0, 1, 2, 3, 10)] == [0, 1, 2, 3, 3]
    queue.poll("work", owner, 2, condition=condition)
    assert queue.ready("work", 10, condition) == 1
    queue.pause_topic("work")
    assert queue.ready("work", 10, condition) == 0


def test_tasks_taken_under_none_keep_their_identifiers_turn(queue: TaskQueue, owner: Owner) -> None:
    queue.push("work", ["a", "a", "a", "b"])
    queue.poll("work", owner, 2)
    assert identifiers(queue.poll("work", owner, 10, condition=SINGULAR)) == ["b"]


@pytest.mark.promise("A call that READ COMMITTED makes exact is refused above it")
@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_a_condition_above_read_committed_is_refused_with_the_reason(
    queue: TaskQueue, open_queue: Callable[[], TaskQueue], owner: Owner, level: str
) -> None:
    """With an old snapshot, the second check would not see the tasks that other polls have claimed since."""
    queue.push("work", ["a"])
    other = open_queue()
    other.conn.execute(f"SET TRANSACTION ISOLATION LEVEL {level}".encode())
    with pytest.raises(TaskQueueError, match="READ COMMITTED"):
        other.poll("work", owner, condition=SINGULAR)
    assert known(queue, queue.page("work")[0].sequence).state is State.READY


def test_a_poll_under_a_condition_sees_the_changes_of_its_own_transaction(queue: TaskQueue, session: TaskQueue) -> None:
    owner = session.register("me")
    session.push("work", ["a", "a"])
    [first] = session.poll("work", owner, 5, condition=SINGULAR)
    assert session.poll("work", owner, 5, condition=SINGULAR) == []
    session.complete(owner, {first: Result.SUCCESS})
    assert len(session.poll("work", owner, 5, condition=SINGULAR)) == 1
    session.conn.rollback()
    assert queue.count("work") == {"work": {}}
