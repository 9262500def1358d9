"""Reading: a task, the latest tasks, pages, counts and statuses."""

from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_taskq.queue import (
    Count,
    Decision,
    NewTask,
    Owner,
    Result,
    RetryPolicy,
    State,
    TaskQueue,
    TopicPolicy,
)
from tests.queue.conftest import known, lapse, task_in

pytestmark = pytest.mark.promise("Tasks, pages, counts and results are read as they are")


def test_task_returns_every_column_of_a_task(queue: TaskQueue) -> None:
    new = NewTask("a", {"x": [1]}, "ref", priority=7, delay=timedelta(hours=1), ttl=timedelta(seconds=1))
    [task] = queue.push("work", [new])
    queue.create_topic("other")
    assert queue.task("other", task.sequence) is queue.task("work", -1) is None
    info = known(queue, task)
    assert info == task
    assert (info.identifier, info.payload, info.reference, info.priority) == ("a", {"x": [1]}, "ref", 7)
    assert (info.state, info.descent, info.owner, info.attempt, info.crashes) == (State.READY, None, None, 0, 0)
    assert (info.completed, info.output, info.error, info.redelivered) == (None, None, None, False)
    assert info.available_at - info.created == timedelta(hours=1)
    assert info.created.tzinfo is not None


@pytest.mark.parametrize("state", list(State))
def test_each_state_has_its_status(queue: TaskQueue, owner: Owner, state: State) -> None:
    queue.alter_topic("work", TopicPolicy(RetryPolicy(max_attempts=1)))
    info = known(queue, task_in(queue, owner, state))
    assert info.status == {State.FAILED: "exhausted", State.ACTIVE: "running"}.get(state, state.name.lower())


def test_a_failed_task_with_attempts_left_is_failed_not_exhausted(queue: TaskQueue, owner: Owner) -> None:
    queue.alter_topic("work", TopicPolicy(RetryPolicy(max_attempts=3), max_crashes=1))
    task = task_in(queue, owner, State.ACTIVE)
    lapse(queue, owner)
    queue.expire()
    assert (known(queue, task).state, known(queue, task).status) == (State.FAILED, "failed")


# Filters with the places of tasks in the place of sequences, and the places of the tasks of the page. Of ten tasks, two
# FAILED, three are ACTIVE, and five READY; identifiers are 0 and 1 in turn, and references r, s and none.
PAGES: list[tuple[dict[str, Any], list[int]]] = [
    ({}, [*range(10)]),
    ({"after": 3, "size": 3}, [4, 5, 6]),
    ({"before": 9, "size": 2}, [8, 7]),
    ({"from_": 3}, [3, 4, 5, 6, 7, 8, 9]),
    ({"from_": 3, "to": 6, "size": 2}, [3, 4]),
    ({"from_": 3, "to": 6, "after": 4}, [5, 6]),
    ({"from_": 3, "to": 6, "before": 6}, [5, 4, 3]),
    ({"from_": 3, "identifier": "0"}, [4, 6, 8]),
    ({"identifier": "0", "reference": "r"}, [0, 6]),
    ({"state": "FAILED", "before": 9}, [1, 0]),
    ({"state": "FAILED", "from_": 1}, [1]),
    ({"state": "ACTIVE", "identifier": "0"}, [2, 4]),
    ({"state": "ACTIVE", "reference": "s", "after": 2}, [4]),
    ({"state": "READY", "identifier": "0", "reference": "r"}, [6]),
    ({"state": "READY", "identifier": "1", "before": 9}, [7, 5]),
]


@pytest.mark.parametrize(("filters", "expected"), PAGES, ids=[str(filters) for filters, _ in PAGES])
def test_a_page_has_the_tasks_of_its_filters_ascending_after_and_descending_before_a_sequence(
    queue: TaskQueue, owner: Owner, filters: dict[str, Any], expected: list[int]
) -> None:
    queue.create_topic("other")
    new = [NewTask(str(place % 2), reference=("r", "s", None)[place % 3]) for place in range(10)]
    first = queue.push("work", new)[0].sequence
    queue.push("other", new)
    queue.complete(owner, dict.fromkeys(queue.poll("work", owner, 5)[:2], Result.FAILURE))
    given: dict[str, Any] = {
        name: first + value if type(value) is int and name != "size" else value for name, value in filters.items()
    }
    found = queue.page("work", **given)
    assert [info.sequence - first for info in found] == expected


def test_the_latest_task_of_each_identifier_is_the_one_pushed_last(queue: TaskQueue) -> None:
    queue.create_topic("other")
    _, _, b, a = queue.push("work", ["a", "b", "b", "a"])
    queue.push("other", ["a", "c"])
    assert queue.latest("work", ["a", "b", "c", "a"]) == {"a": a, "b": b}


def test_reading_works_in_a_read_only_transaction(queue: TaskQueue, owner: Owner, session: TaskQueue) -> None:
    """So it locks nothing."""
    task = task_in(queue, owner, State.ACTIVE)
    session.conn.read_only = True
    assert session.held(owner) == [task]
    assert session.task("work", task.sequence) == task
    assert session.latest("work", ["a"]) == {"a": task}
    assert session.page("work") == [task]
    assert session.count("work")["work"][State.ACTIVE] == Count(1, task.sequence)
    assert session.topics() == ["work"]
    assert session.policy("work") == TopicPolicy()
    assert session.owners()[0].fence == owner.fence


def test_tasks_are_equal_by_topic_and_sequence(queue: TaskQueue, owner: Owner) -> None:
    queue.create_topic("other")
    [pushed] = queue.push("work", ["a"])
    [elsewhere] = queue.push("other", ["a"])
    [polled] = queue.poll("work", owner)
    queue.complete(owner, {polled: Decision(Result.SUCCESS, "done")})
    info = known(queue, pushed)
    assert pushed == polled == info
    assert len({pushed, polled, info}) == 1
    assert pushed != elsewhere
    assert pushed != pushed.sequence


def test_the_count_of_all_tasks_is_one_number(queue: TaskQueue, owner: Owner) -> None:
    queue.create_topic("other")
    queue.push("other", ["x"])
    pushed = queue.push("work", ["a", "b", NewTask("a", reference="r")])
    queue.complete(owner, {queue.poll("work", owner)[0]: Result.SUCCESS})
    assert queue.count_tasks("work") == 3
    assert queue.count_tasks() == 4
    assert queue.count_tasks("work", state=State.SUCCEEDED) == 1
    assert queue.count_tasks("work", state="active") == 0
    assert queue.count_tasks("work", identifier="a") == 2
    assert queue.count_tasks("work", identifier="a", recent=True) == 1
    assert queue.count_tasks("work", reference="r") == 1
    assert queue.count_tasks("work", from_=pushed[1].sequence, to=pushed[1].sequence) == 1
