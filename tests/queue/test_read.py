"""Reading: a task, the latest tasks, pages, counts and statuses."""

from datetime import timedelta

import pytest

from airflow_provider_taskq.queue import (
    Count,
    Decision,
    Insertion,
    NewTask,
    Owner,
    Result,
    State,
    TaskQueue,
    TopicPolicy,
)
from tests.queue.conftest import hurry, identifiers, known, task_in

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


def test_reading_never_waits_and_sees_committed_tasks(queue: TaskQueue, owner: Owner, session: TaskQueue) -> None:
    [task] = queue.push("work", ["a"])
    [held] = session.poll("work", owner)
    session.complete(owner, {held: Result.SUCCESS})
    session.push("work", ["a"], Insertion.REPLACE)
    hurry(queue)
    assert identifiers(list(queue.page("work"))) == ["a"]
    assert known(queue, task).state is State.READY
    assert queue.latest("work", ["a"])["a"].state is State.READY
    assert queue.count("work")["work"] == {State.READY: Count(1, task.sequence)}


def test_reading_works_in_a_read_only_transaction(queue: TaskQueue, owner: Owner, session: TaskQueue) -> None:
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
