"""Exchange: completes tasks and polls the next ones, both or neither."""

from datetime import timedelta

import pytest

from airflow_provider_taskq.queue import Condition, Decision, LeaseLost, NotHeld, Owner, Result, State, Task, TaskQueue
from tests.queue.conftest import identifiers, lapse, states

SINGULAR = Condition.SINGULAR_BY_IDENTIFIER


def test_an_exchange_completes_and_polls(queue: TaskQueue, owner: Owner) -> None:
    queue.push("work", ["a", "b", "c"])
    first = queue.exchange(owner, {}, "work", 2)
    assert identifiers(first) == ["a", "b"]
    second = queue.exchange(owner, dict.fromkeys(first, Decision(Result.SUCCESS, {"n": 1})), "work", 2)
    assert identifiers(second) == ["c"]
    assert states(queue) == [("a", State.SUCCEEDED), ("b", State.SUCCEEDED), ("c", State.ACTIVE)]
    assert queue.exchange(owner, dict.fromkeys(second, Result.FAILURE), "work") == []


def test_a_completed_task_makes_way_for_the_next_of_its_identifier(queue: TaskQueue, owner: Owner) -> None:
    pushed = queue.push("work", ["a", "a", "a"])
    done: list[Task] = []
    for _ in pushed:
        done += queue.exchange(owner, dict.fromkeys(done[-1:], Result.SUCCESS), "work", 3, condition=SINGULAR)
    assert done == pushed


def test_an_exchange_that_names_a_task_that_is_not_held_polls_nothing(queue: TaskQueue, owner: Owner) -> None:
    [task] = queue.push("work", ["a"])
    with pytest.raises(NotHeld):
        queue.exchange(owner, {task: Result.SUCCESS}, "work")
    assert states(queue) == [("a", State.READY)]


def test_an_exchange_under_a_lapsed_lease_completes_nothing_and_completing_alone_works(queue: TaskQueue) -> None:
    owner = queue.register("late", timedelta(minutes=1))
    [task] = queue.push("work", ["a"])
    queue.poll("work", owner)
    lapse(queue, owner)
    with pytest.raises(LeaseLost):
        queue.exchange(owner, {task: Result.SUCCESS}, "work")
    assert states(queue) == [("a", State.ACTIVE)]
    queue.complete(owner, {task: Result.SUCCESS})
    assert states(queue) == [("a", State.SUCCEEDED)]
