"""Expire during registration, completion and heartbeat, step by step: the first commit decides."""

from collections.abc import Callable

import pytest

from airflow_provider_taskq.queue import LeaseLost, Owner, Result, State, TaskQueue
from tests.queue.conftest import InBackground, await_lock_wait, hurry, known, lapse, task_in


@pytest.mark.parametrize("first", ["register", "expire"])
def test_a_registration_during_an_expiry_takes_over_all_tasks_or_none(
    queue: TaskQueue,
    owner: Owner,
    session: TaskQueue,
    open_queue: Callable[[], TaskQueue],
    background: InBackground[object],
    first: str,
) -> None:
    queue.push("work", ["a", "b", "c"])
    queue.poll("work", owner, 3)
    lapse(queue, owner)
    if first == "register":
        successor = session.register(owner.name)
        assert queue.expire() == 0
        session.conn.commit()
        assert len(queue.held(successor)) == 3
        return
    registering = open_queue()
    assert session.expire() == 3
    registered = background(lambda: registering.register(owner.name))
    await_lock_wait(queue.conn, registering)
    session.conn.commit()
    successor_after = registered.result()
    assert isinstance(successor_after, Owner)
    registering.conn.commit()
    assert successor_after.resumed is False
    assert queue.held(successor_after) == []
    assert queue.ready("work", 5) == 3


@pytest.mark.parametrize("commits", [True, False], ids=["commits", "rolls back"])
def test_a_completion_during_an_expiry_succeeds_only_if_the_expiry_is_rolled_back(
    queue: TaskQueue,
    owner: Owner,
    session: TaskQueue,
    open_queue: Callable[[], TaskQueue],
    background: InBackground[None],
    commits: bool,
) -> None:
    task = task_in(queue, owner, State.ACTIVE)
    lapse(queue, owner)
    completing = open_queue()
    session.expire()
    completed = background(lambda: completing.complete(owner, {task: Result.SUCCESS}))
    await_lock_wait(queue.conn, completing)
    if commits:
        session.conn.commit()
        with pytest.raises(LeaseLost):
            completed.result()
        assert known(queue, task).state is State.READY
    else:
        session.conn.rollback()
        completed.result()
        completing.conn.commit()
        assert known(queue, task).state is State.SUCCEEDED


@pytest.mark.parametrize("commits", [True, False], ids=["commits", "rolls back"])
def test_an_expiry_leaves_alone_a_task_that_is_being_completed(
    queue: TaskQueue, owner: Owner, session: TaskQueue, commits: bool
) -> None:
    task = task_in(queue, owner, State.ACTIVE)
    lapse(queue, owner)
    session.complete(owner, {task: Result.SUCCESS})
    assert hurry(queue).expire() == 0
    if commits:
        session.conn.commit()
        assert queue.expire() == 0
        assert known(queue, task).state is State.SUCCEEDED
    else:
        session.conn.rollback()
        assert queue.expire() == 1
        assert known(queue, task).state is State.READY


@pytest.mark.parametrize("commits", [True, False], ids=["commits", "rolls back"])
def test_a_heartbeat_during_an_expiry_waits_and_gets_its_outcome(
    queue: TaskQueue,
    owner: Owner,
    session: TaskQueue,
    open_queue: Callable[[], TaskQueue],
    background: InBackground[Owner],
    commits: bool,
) -> None:
    lapse(queue, owner)
    beating = open_queue()
    session.expire()
    renewed = background(lambda: beating.heartbeat(owner))
    await_lock_wait(queue.conn, beating)
    if commits:
        session.conn.commit()
        with pytest.raises(LeaseLost):
            renewed.result()
    else:
        session.conn.rollback()
        assert renewed.result().fence == owner.fence


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
