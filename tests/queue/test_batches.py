"""Batches by identifier: whole groups, and the tasks that keep a group back."""

from datetime import timedelta

import pytest

from airflow_provider_taskq.queue import (
    LeaseLost,
    NewTask,
    Owner,
    Result,
    RetryPolicy,
    State,
    TaskQueue,
    TopicPolicy,
    UnknownTopic,
)
from tests.queue.conftest import lapse, pass_time, states, task_in

pytestmark = pytest.mark.promise("A batch by identifier has all due tasks of its group, and goes to one owner")

retrying = TopicPolicy(retry=RetryPolicy(max_attempts=2, base=timedelta(minutes=1)))


def sizes(queue: TaskQueue, owner: Owner, identifiers: int = 10, size: int = -1) -> dict[str, int]:
    """The identifiers that a poll of batches returns, in order, with the number of their tasks."""
    return {name: len(group) for name, group in queue.poll_batch("work", owner, identifiers, size).items()}


def test_a_batch_is_all_due_tasks_of_an_identifier_in_order(queue: TaskQueue, owner: Owner) -> None:
    tasks = queue.push("work", ["a", "b", NewTask("a", priority=1), "a", NewTask("a", delay=timedelta(hours=1))])
    assert queue.poll_batch("work", owner) == {"a": [tasks[2], tasks[0], tasks[3]]}
    assert [task.attempt for task in queue.held(owner)] == [1, 1, 1]
    assert queue.poll_batch("work", owner) == {"b": [tasks[1]]}
    assert queue.poll_batch("work", owner) == {}


def test_a_poll_returns_the_requested_number_of_identifiers_in_the_order_of_their_first_tasks(
    queue: TaskQueue, owner: Owner
) -> None:
    queue.push("work", ["c", "a", "c", "b", "d"])
    assert list(sizes(queue, owner, 3).items()) == [("c", 2), ("a", 1), ("b", 1)]


@pytest.mark.parametrize(("size", "handed_out"), [(-1, 3), (1, 1), (2, 2), (5, 3), (0, 0)])
def test_the_size_bounds_the_tasks_of_each_group(queue: TaskQueue, owner: Owner, size: int, handed_out: int) -> None:
    queue.push("work", ["a"] * 3)
    assert sizes(queue, owner, size=size) == ({"a": handed_out} if handed_out else {})


def test_a_group_with_an_active_task_waits_for_it(queue: TaskQueue, owner: Owner) -> None:
    queue.push("work", ["a", "a", "b"])
    queue.poll("work", owner)
    assert sizes(queue, owner) == {"b": 1}


def test_a_group_with_a_retry_that_is_not_due_is_handed_out_whole_once_it_is_due(
    queue: TaskQueue, owner: Owner
) -> None:
    queue.alter_topic("work", retrying)
    queue.push("work", ["a"])
    [[task]] = queue.poll_batch("work", owner).values()
    queue.complete(owner, {task: Result.FAILURE})
    queue.push("work", ["a", "b"])
    assert sizes(queue, owner) == {"b": 1}
    pass_time(queue, timedelta(minutes=2))
    assert sizes(queue, owner) == {"a": 2}


def test_no_task_of_a_group_overtakes_its_retries(queue: TaskQueue, owner: Owner) -> None:
    queue.alter_topic("work", retrying)
    tasks = queue.push("work", ["a"] * 3)
    queue.complete(owner, dict.fromkeys(queue.poll("work", owner, 2), Result.FAILURE))
    queue.push("work", [NewTask("a", priority=1)])
    pass_time(queue, timedelta(minutes=2))
    assert queue.poll_batch("work", owner, size=2) == {"a": tasks[:2]}
    queue.release(owner)
    [group] = queue.poll_batch("work", queue.register(owner.name)).values()
    assert [task.attempt for task in group] == [2, 2, 1, 1]
    assert group[:2] == tasks[:2]


def test_a_group_with_a_failed_task_is_held_back_until_the_task_is_revived(queue: TaskQueue, owner: Owner) -> None:
    failed = task_in(queue, owner, State.FAILED, "a")
    queue.push("work", ["a"])
    assert sizes(queue, owner) == {}
    queue.revive("work", sequences=[failed.sequence])
    assert sizes(queue, owner) == {"a": 2}


@pytest.mark.parametrize(
    "state", [State.SUSPENDED, State.FILTERED, State.SUCCEEDED, State.REDUNDANT], ids=lambda state: state.name
)
def test_tasks_that_ended_in_other_states_hold_no_group_back(queue: TaskQueue, owner: Owner, state: State) -> None:
    task_in(queue, owner, state, "a")
    queue.push("work", ["a"])
    assert sizes(queue, owner) == {"a": 1}


def test_a_long_group_in_front_hides_no_other(queue: TaskQueue, owner: Owner) -> None:
    queue.push("work", ["a"] * 1500)
    queue.push("work", [f"id-{number}" for number in range(40)])
    queue.poll("work", owner)
    assert len(sizes(queue, owner, 50)) == 40


def test_a_paused_topic_hands_out_no_batch_and_a_lapsed_owner_gets_none(queue: TaskQueue, owner: Owner) -> None:
    queue.push("work", ["a"])
    queue.pause_topic("work")
    assert sizes(queue, owner) == {}
    queue.resume_topic("work")
    lapse(queue, owner)
    with pytest.raises(LeaseLost):
        queue.poll_batch("work", owner)
    with pytest.raises(UnknownTopic):
        queue.poll_batch("nowhere", owner)
    assert states(queue) == [("a", State.READY)]
