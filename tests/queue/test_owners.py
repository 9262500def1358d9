"""Owners: a name with a lease and a fence that only grows; takeover, heartbeat, release."""

from collections.abc import Callable
from datetime import timedelta

import pytest

from airflow_provider_taskq.queue import LeaseLost, Owner, Result, TaskQueue, TaskQueueError, connect
from tests.queue.conftest import InBackground, await_lock_wait, identifiers, lapse, states

pytestmark = pytest.mark.promise("Every registration gets a greater fence")

MINUTE = timedelta(minutes=1)


def test_a_registered_owner_has_the_requested_lease(queue: TaskQueue) -> None:
    owner = queue.register("me", timedelta(days=3, seconds=1, microseconds=5))
    row = queue.conn.execute("SELECT clock_timestamp()").fetchone()
    assert row is not None
    assert owner.name == "me"
    assert owner.lease == timedelta(days=3, seconds=1, microseconds=5)
    assert timedelta(0) <= row[0] + owner.lease - owner.lease_until < MINUTE
    assert owner.resumed is False


def test_a_registration_that_waited_for_another_gets_the_greater_fence(
    queue: TaskQueue, session: TaskQueue, open_queue: Callable[[], TaskQueue], background: InBackground[Owner]
) -> None:
    queue.register("me")
    first = session.register("me")
    waiting = open_queue()
    second = background(lambda: waiting.register("me"))
    await_lock_wait(queue.conn, waiting)
    third = session.register("me")
    session.conn.commit()
    assert second.result().fence > third.fence > first.fence


@pytest.mark.parametrize("again", [False, True], ids=["register", "take over"])
def test_a_registration_waits_for_an_open_transaction_of_the_name_only_for_a_while(
    own_queue: TaskQueue, own_dsn: str, again: bool
) -> None:
    queue = own_queue
    owner = queue.register("me")
    bounded = "SELECT count(*) FROM pg_proc WHERE proname = 'register' AND proconfig @> %s"
    assert queue.conn.execute(bounded, (["lock_timeout=1min"],)).fetchone() == (1,)
    queue.conn.execute("ALTER FUNCTION taskq.register SET lock_timeout = '10ms'")
    queue.push("work", ["a"])
    with connect(own_dsn) as idle:
        TaskQueue(idle).poll("work", owner)
        with pytest.raises(TaskQueueError, match="owner 'me' cannot be registered: a transaction that has used"):
            queue.take_over("me", owner.fence) if again else queue.register("me")
    assert queue.register("me").resumed


@pytest.mark.parametrize("lease", [timedelta(0), timedelta(seconds=-1)], ids=["none", "negative"])
def test_a_lease_needs_a_positive_length(queue: TaskQueue, lease: timedelta) -> None:
    with pytest.raises(TaskQueueError):
        queue.register("me", lease)
    assert queue.owners() == []


@pytest.mark.promise("Nothing is decided twice")
@pytest.mark.parametrize(
    "verb",
    [
        lambda queue, owner, _task: queue.heartbeat(owner),
        lambda queue, owner, _task: queue.poll("work", owner),
        lambda queue, owner, task: queue.complete(owner, {task: Result.SUCCESS}),
    ],
    ids=["heartbeat", "poll", "complete"],
)
@pytest.mark.parametrize("ended", ["registered again", "taken over", "released", "expired"])
def test_an_owner_whose_lease_is_gone_is_locked_out(
    queue: TaskQueue, owner: Owner, ended: str, verb: Callable[[TaskQueue, Owner, object], object]
) -> None:
    queue.push("work", ["a", "b"])
    [task] = queue.poll("work", owner)
    if ended == "registered again":
        assert queue.register(owner.name).fence > owner.fence
    elif ended == "taken over":  # and completed by the successor
        queue.complete(queue.register(owner.name), {task: Result.FILTER})
    elif ended == "released":
        queue.release(owner)
    else:
        lapse(queue, owner)
        queue.expire()
    before = states(queue)
    with pytest.raises(LeaseLost, match=rf"'{owner.name}'.*{owner.fence}") as refusal:
        verb(queue, owner, task)
    assert len(str(refusal.value).splitlines()) == 1
    assert queue.held(owner) == []
    assert queue.release(owner) == 0
    assert states(queue) == before


def test_a_heartbeat_extends_the_lease_by_its_length_and_renews_a_lapsed_one(queue: TaskQueue) -> None:
    owner = queue.register("me", MINUTE)
    lapse(queue, owner, -timedelta(seconds=10))
    renewed = queue.heartbeat(owner)
    assert renewed.fence == owner.fence
    assert renewed.lease == MINUTE
    assert renewed.lease_until >= owner.lease_until
    lapse(queue, owner)
    assert queue.owners() == []
    assert queue.heartbeat(owner).fence == owner.fence
    assert (queue.expire(), len(queue.owners())) == (0, 1)


def test_an_owner_can_be_rebuilt_from_its_name_and_fence(queue: TaskQueue, owner: Owner) -> None:
    queue.push("work", ["a"])
    rebuilt = Owner(owner.name, owner.fence, timedelta(0), owner.lease_until, False)
    [task] = queue.poll("work", rebuilt)
    queue.complete(rebuilt, {task: Result.SUCCESS})
    assert queue.heartbeat(rebuilt).lease_until >= owner.lease_until


def test_held_returns_the_tasks_in_polled_order_by_topic(queue: TaskQueue, owner: Owner) -> None:
    queue.create_topic("other")
    queue.push("work", ["a", "b"])
    queue.push("other", ["x", "y"])
    queue.poll("work", owner)
    [other] = queue.poll("other", owner)
    assert queue.poll("other", queue.register("another")) != []
    queue.poll("work", owner)
    assert identifiers(queue.held(owner, "work")) == ["a", "b"]
    assert queue.held(owner, "other") == [other]
    assert set(identifiers(queue.held(owner))) == {"a", "b", "x"}
    assert all(task.attempt == 1 for task in queue.held(owner))
