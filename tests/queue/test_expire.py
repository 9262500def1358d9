"""Expire: takes lapsed leases with their tasks, and no other lease."""

from datetime import timedelta

import pytest

from airflow_provider_taskq.queue import (
    LeaseLost,
    Owner,
    State,
    TaskQueue,
    TopicPolicy,
    UnknownTopic,
)
from tests.queue.conftest import (
    keeps_expired,
    known,
    lapse,
    states,
    task_in,
)

pytestmark = pytest.mark.promise("`expire()` never touches a lease that has not lapsed")


def crash(queue: TaskQueue, owner: Owner) -> int:
    lapse(queue, owner)
    return queue.expire()


def test_the_expiry_of_a_topic_takes_the_lapsed_leases_of_owners_that_hold_tasks_of_it_and_no_other(
    queue: TaskQueue, owner: Owner
) -> None:
    queue.create_topic("other")
    lapsed, idle, elsewhere = (queue.register(name) for name in ("lapsed", "idle", "elsewhere"))
    mine, theirs = task_in(queue, lapsed, State.ACTIVE, "mine"), task_in(queue, owner, State.ACTIVE, "theirs")
    [also_mine] = queue.push("other", ["also mine"])
    queue.poll("other", lapsed)
    other = task_in(queue, elsewhere, State.ACTIVE, "other", topic="other")
    for each in (lapsed, idle, elsewhere):
        lapse(queue, each)
    assert queue.expire(topic="work") == 2
    assert [known(queue, mine).state, known(queue, also_mine, "other").state] == [State.READY] * 2
    assert (queue.held(owner), queue.held(elsewhere)) == ([theirs], [other])
    with pytest.raises(UnknownTopic):
        queue.expire(topic="missing")
    assert queue.expire() == 1


def test_grace_spares_leases_that_lapsed_a_moment_ago(queue: TaskQueue, owner: Owner) -> None:
    task_in(queue, owner, State.ACTIVE)
    lapse(queue, owner, timedelta(seconds=30))
    assert queue.expire(timedelta(minutes=1)) == 0
    assert len(queue.held(owner)) == 1
    assert queue.expire(timedelta(seconds=29)) == 1


@pytest.mark.promise("A task that is reset, released or redelivered gets its old place back")
def test_expired_tasks_are_redelivered_in_their_old_place(queue: TaskQueue, owner: Owner) -> None:
    first, *_ = queue.push("work", ["a", "b", "c"])
    queue.poll("work", owner, 2)
    assert crash(queue, owner) == 2
    info = known(queue, first)
    assert (info.state, info.status, info.attempt, info.crashes) == (State.READY, "ready", 0, 1)
    assert (info.owner, info.redelivered) == (None, True)
    tasks = queue.poll("work", queue.register("next"), 3)
    redelivered = [(task.identifier, task.attempt, task.redelivered) for task in tasks]
    assert redelivered == [("a", 1, True), ("b", 1, True), ("c", 1, False)]


@pytest.mark.promise("A crash uses no attempt")
def test_the_last_permitted_crash_ends_the_task_with_the_reason(queue: TaskQueue, owner: Owner) -> None:
    task = task_in(queue, owner, State.ACTIVE)
    for crashes in (1, 2):
        crash(queue, owner)
        assert known(queue, task).crashes == crashes
        owner = queue.register("next")
        assert queue.poll("work", owner) == [task]
    assert crash(queue, owner) == 1
    info = known(queue, task)
    assert (info.state, info.crashes, info.attempt, info.owner) == (State.FAILED, 3, 0, "next")
    assert info.error
    assert "3" in info.error
    assert info.completed is not None
    assert queue.ready("work") == 0


def test_tasks_of_a_topic_that_expires_wait_as_expired(queue: TaskQueue, owner: Owner) -> None:
    queue.alter_topic("work", keeps_expired())
    task = task_in(queue, owner, State.ACTIVE)
    assert crash(queue, owner) == 1
    info = known(queue, task)
    assert (info.state, info.status, info.owner, info.completed) == (State.EXPIRED, "expired", owner.name, None)
    assert queue.poll("work", queue.register("next")) == []
    assert queue.held(owner) == []


def test_one_lease_covers_topics_of_both_kinds(queue: TaskQueue, owner: Owner) -> None:
    queue.create_topic("kept", keeps_expired(max_crashes=1))
    queue.create_topic("brittle", TopicPolicy(max_crashes=1))
    for topic in ("work", "kept", "brittle"):
        queue.push(topic, ["a"])
        queue.poll(topic, owner)
    assert crash(queue, owner) == 3
    assert [states(queue, topic)[0][1] for topic in ("work", "kept", "brittle")] == [
        State.READY,
        State.EXPIRED,
        State.FAILED,
    ]


def test_expire_takes_every_lapsed_lease_and_no_other(queue: TaskQueue) -> None:
    """Also those that hold nothing."""
    queue.push("work", [f"{number}" for number in range(4)])
    owners = [queue.register(f"owner {number}") for number in range(6)]
    for owner in owners[:4]:
        queue.poll("work", owner)
    for owner in owners[::2]:
        lapse(queue, owner)
    assert queue.expire() == 2
    assert [len(queue.held(owner)) for owner in owners] == [0, 1, 0, 1, 0, 0]
    assert [owner.name for owner in queue.owners()] == ["owner 1", "owner 3", "owner 5"]
    with pytest.raises(LeaseLost):
        queue.heartbeat(owners[4])
    assert [queue.expire(), queue.expire(-timedelta(days=1))] == [0, 0]
