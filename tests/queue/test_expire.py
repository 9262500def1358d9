"""Expire: takes lapsed leases with their tasks, and no other lease."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from airflow_provider_taskq.queue import (
    LeaseLost,
    NewTask,
    Owner,
    Result,
    State,
    Task,
    TaskQueue,
    TaskQueueError,
    TopicPolicy,
    UnknownTopic,
)
from tests.queue.conftest import (
    InBackground,
    hurry,
    identifiers,
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


def test_a_lease_that_has_not_lapsed_is_never_touched(queue: TaskQueue, owner: Owner) -> None:
    task = task_in(queue, owner, State.ACTIVE)
    assert queue.expire() == 0
    assert queue.held(owner) == [task]
    queue.complete(owner, {task: Result.SUCCESS})


@pytest.mark.parametrize("grace", [-timedelta(minutes=10), -timedelta(days=1)])
def test_a_negative_grace_takes_no_lease_that_has_not_lapsed(queue: TaskQueue, grace: timedelta) -> None:
    owner = queue.register("short", timedelta(minutes=5))
    task = task_in(queue, owner, State.ACTIVE)
    queue.heartbeat(owner)
    try:
        queue.expire(grace)
    except (TaskQueueError, ValueError):
        return
    assert queue.held(owner) == [task]


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
    queue.push("work", ["a", "b", "c"])
    queue.poll("work", owner, 2)
    assert crash(queue, owner) == 2
    tasks = queue.poll("work", queue.register("next"), 3)
    assert [(task.identifier, task.attempt, task.redelivered) for task in tasks] == [
        ("a", 1, True),
        ("b", 1, True),
        ("c", 1, False),
    ]


def test_a_redelivered_task_reads_as_ready_again(queue: TaskQueue, owner: Owner) -> None:
    task = task_in(queue, owner, State.ACTIVE)
    crash(queue, owner)
    info = known(queue, task)
    assert (info.state, info.status, info.attempt, info.crashes, info.owner, info.redelivered) == (
        *(State.READY, "ready", 0, 1, None, True),
    )


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


@pytest.mark.promise("A crash uses no attempt")
def test_the_number_of_crashes_is_the_topics(queue: TaskQueue, owner: Owner) -> None:
    queue.alter_topic("work", TopicPolicy(max_crashes=1))
    task = task_in(queue, owner, State.ACTIVE)
    crash(queue, owner)
    assert known(queue, task).state is State.FAILED


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
    queue.push("work", [f"{number}" for number in range(6)])
    owners = [queue.register(f"owner {number}") for number in range(6)]
    for owner in owners:
        queue.poll("work", owner)
    for owner in owners[::2]:
        lapse(queue, owner)
    assert queue.expire() == 3
    assert [len(queue.held(owner)) for owner in owners] == [0, 1, 0, 1, 0, 1]
    assert [owner.name for owner in queue.owners()] == ["owner 1", "owner 3", "owner 5"]


def test_expire_also_ends_lapsed_leases_that_hold_nothing(queue: TaskQueue, owner: Owner) -> None:
    assert crash(queue, owner) == 0
    with pytest.raises(LeaseLost):
        queue.heartbeat(owner)


def test_a_second_expire_takes_nothing(queue: TaskQueue, owner: Owner) -> None:
    task_in(queue, owner, State.ACTIVE)
    assert crash(queue, owner) == 1
    assert queue.expire() == 0
    assert states(queue) == [("a", State.READY)]


def test_a_released_or_finished_task_is_not_counted_as_a_crash(queue: TaskQueue, owner: Owner) -> None:
    queue.push("work", ["a", "b"])
    first, _ = queue.poll("work", owner, 2)
    queue.complete(owner, {first: Result.SUCCESS})
    queue.release(owner)
    assert crash(queue, owner) == 0
    assert [info.crashes for info in queue.page("work")] == [0, 0]


def test_redelivery_keeps_a_scheduled_place(queue: TaskQueue, owner: Owner) -> None:
    moment = datetime(2020, 5, 5, tzinfo=UTC)
    queue.push("work", ["a", NewTask("b", available_at=moment, priority=0)])
    [task] = queue.poll("work", owner)
    crash(queue, owner)
    assert known(queue, task).available_at == moment
    assert identifiers(queue.poll("work", queue.register("next"), 2)) == ["b", "a"]


@pytest.mark.parametrize(
    "work",
    [
        lambda session, owner, _task: session.poll("work", owner),
        lambda session, owner, task: session.complete(owner, {task: Result.SUCCESS}),
        lambda session, owner, _task: session.heartbeat(owner),
        lambda session, owner, _task: session.register(owner.name),
        lambda session, owner, _task: session.release(owner),
        lambda session, _owner, _task: session.expire(),
    ],
    ids=["poll", "complete", "heartbeat", "register", "release", "expire"],
)
def test_expire_skips_an_owner_whose_work_is_in_flight(
    queue: TaskQueue, owner: Owner, session: TaskQueue, work: Callable[[TaskQueue, Owner, Task], object]
) -> None:
    queue.push("work", ["b"])
    [task] = queue.poll("work", owner)
    queue.push("work", ["c"])
    bystander = queue.register("bystander")
    [other] = queue.poll("work", bystander)
    queue.release(bystander)
    bystander = queue.register("bystander")
    assert queue.poll("work", bystander) == [other]
    work(session, owner, task)
    lapse(queue, bystander)
    assert hurry(queue).expire() == 1, "the bystander's, without waiting for the other"
    assert known(queue, task).state is State.ACTIVE


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_leases_end_at_read_committed_only(queue: TaskQueue, owner: Owner, session: TaskQueue, level: str) -> None:
    """On an older snapshot, tasks that were polled since would stay held under a lease that is gone."""
    queue.push("work", ["a"])
    session.conn.execute(f"SET TRANSACTION ISOLATION LEVEL {level}".encode())
    session.topics()
    queue.poll("work", owner)
    with pytest.raises(TaskQueueError, match="READ COMMITTED"), session.conn.transaction():
        session.expire()
    with pytest.raises(TaskQueueError, match="READ COMMITTED"), session.conn.transaction():
        session.release(owner)
    session.conn.rollback()
    assert queue.release(owner) == 1


def test_concurrent_expiries_count_one_crash_for_each_task(
    queue: TaskQueue, open_queue: Callable[[], TaskQueue], background: InBackground[int]
) -> None:
    queue.push("work", [f"{number}" for number in range(40)])
    for number in range(20):
        owner = queue.register(f"owner {number}")
        queue.poll("work", owner, 2)
        lapse(queue, owner)

    def expiring(session: TaskQueue) -> int:
        taken = session.expire()
        session.conn.commit()
        return taken

    runs = [background(lambda session=session: expiring(session)) for session in [open_queue() for _ in range(6)]]  # type: ignore[misc]
    assert sum(run.result() for run in runs) == 40
    assert {info.crashes for info in queue.page("work")} == {1}
    assert queue.ready("work", 100) == 40
