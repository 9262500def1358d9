"""Revive during other open transactions, and its cost."""

from collections.abc import Callable

import pytest

from airflow_provider_taskq.queue import (
    InvalidState,
    NewTask,
    Owner,
    Result,
    Revival,
    State,
    TaskQueue,
)
from tests.queue.conftest import InBackground, await_lock_wait, hurry, known, numbered, states, task_in
from tests.queue.test_revive import failed
from tests.queue.test_sessions import pages_of


def test_two_concurrent_revivals_by_state_share_the_tasks_and_neither_waits(
    queue: TaskQueue, owner: Owner, session: TaskQueue
) -> None:
    at = [task.sequence for task in failed(queue, owner, *"abcde")]
    assert list(session.revive("work", State.FAILED, size=2)) == at[:2]
    assert list(hurry(queue).revive("work", State.FAILED, Revival.APPEND, size=2)) == at[2:4]
    session.conn.rollback()
    assert list(queue.revive("work", State.FAILED)) == [*at[:2], at[4]]


@pytest.mark.parametrize("revival", list(Revival))
def test_a_poll_does_not_wait_for_a_revival_and_finds_its_task_once_it_commits(
    queue: TaskQueue, owner: Owner, session: TaskQueue, revival: Revival
) -> None:
    task = task_in(queue, owner, State.FAILED)
    [new] = session.revive("work", State.FAILED, revival).values()
    assert hurry(queue).poll("work", owner) == []
    session.conn.commit()
    assert [polled.sequence for polled in queue.poll("work", owner)] == [new]
    assert (new == task.sequence) is (revival is Revival.RESET)


@pytest.mark.parametrize("revival", [Revival.SUPERSEDE, Revival.REPLACE])
def test_a_revival_does_not_wait_for_a_poll_whose_task_stays_active(
    queue: TaskQueue, owner: Owner, session: TaskQueue, revival: Revival
) -> None:
    task_in(queue, owner, State.FAILED)
    [ready] = queue.push("work", ["a"])
    session.poll("work", owner)
    hurry(queue).revive("work", State.FAILED, revival)
    session.conn.commit()
    assert known(queue, ready).state is State.ACTIVE
    assert [state for _, state in states(queue)] == [State.RECREATED, State.ACTIVE, State.READY]


def test_a_revival_of_a_task_that_another_session_revives_waits_and_is_refused(
    queue: TaskQueue,
    owner: Owner,
    session: TaskQueue,
    open_queue: Callable[[], TaskQueue],
    background: InBackground[dict[int, int]],
) -> None:
    first, second = failed(queue, owner, "a", "b")
    session.revive("work", sequences=[first.sequence])
    other = open_queue()
    revived = background(lambda: other.revive("work", sequences=[second.sequence, first.sequence]))
    await_lock_wait(queue.conn, other)
    session.conn.commit()
    with pytest.raises(InvalidState, match=rf"{first.sequence} \(READY\)"):
        revived.result()


def test_two_revivals_of_the_same_tasks_in_opposite_order_never_deadlock(
    queue: TaskQueue,
    owner: Owner,
    session: TaskQueue,
    open_queue: Callable[[], TaskQueue],
    background: InBackground[dict[int, int]],
) -> None:
    at = [task.sequence for task in failed(queue, owner, *"abcdef")]
    other = open_queue()
    session.lock_tasks("work", at[:1], [State.FAILED])
    revived = background(lambda: other.revive("work", sequences=at[::-1]))
    await_lock_wait(queue.conn, other)
    session.revive("work", sequences=at)
    session.conn.rollback()
    assert list(revived.result()) == at


def test_dropping_the_topic_waits_for_a_reset_and_removes_its_tasks(
    queue: TaskQueue,
    owner: Owner,
    session: TaskQueue,
    open_queue: Callable[[], TaskQueue],
    background: InBackground[bool],
) -> None:
    failed(queue, owner, "a")
    session.revive("work", State.FAILED)
    dropping = open_queue()
    dropped = background(lambda: dropping.drop_topic("work"))
    await_lock_wait(queue.conn, dropping)
    session.conn.commit()
    assert dropped.result() is True
    dropping.conn.commit()
    assert queue.conn.execute("SELECT FROM taskq.task_info").rowcount == 0


def test_a_task_that_depends_on_another_waits_for_it_again_after_a_reset(queue: TaskQueue, owner: Owner) -> None:
    [first] = queue.push("work", ["first"])
    [second] = queue.push("work", [NewTask("second", depends_on=[("work", "first")], suspended=True)])
    queue.revive("work", State.SUSPENDED)
    assert queue.poll("work", owner, 5) == [first]
    assert known(queue, second).available_at == known(queue, second).created
    queue.complete(owner, {first: Result.SUCCESS})
    assert queue.poll("work", owner, 5) == [second]


@pytest.mark.parametrize("revival", [Revival.APPEND, Revival.SUPERSEDE, Revival.REPLACE])
def test_a_copy_has_the_dependencies_of_the_old_task(queue: TaskQueue, owner: Owner, revival: Revival) -> None:
    [first] = queue.push("work", ["first"])
    queue.push("work", [NewTask("second", depends_on=[("work", "first")], suspended=True)])
    [new] = queue.revive("work", State.SUSPENDED, revival).values()
    assert queue.poll("work", owner, 5) == [first]
    queue.complete(owner, {first: Result.SUCCESS})
    assert [task.sequence for task in queue.poll("work", owner, 5)] == [new]


@pytest.mark.slow
@pytest.mark.parametrize("revival", list(Revival))
@pytest.mark.parametrize("hot", [True, False], ids=["of one identifier", "each of its own"])
def test_one_call_revives_ten_thousand_tasks(own_queue: TaskQueue, revival: Revival, hot: bool) -> None:
    queue, count = own_queue, 10_000
    owner = queue.register("owner")
    queue.push_stream("work", (NewTask("hot") for _ in range(count)) if hot else numbered(count))
    while tasks := queue.poll("work", owner, 20_000):
        queue.complete(owner, dict.fromkeys(tasks, Result.SUSPENSION))
    queue.conn.execute("SET statement_timeout = '60s'")
    assert len(queue.revive("work", State.SUSPENDED, revival)) == count
    kept = 1 if hot and revival in (Revival.SUPERSEDE, Revival.REPLACE) else count
    assert queue.ready("work", count) == kept


@pytest.mark.parametrize("analysed", [False, True], ids=["never analysed", "analysed"])
@pytest.mark.parametrize("revival", list(Revival))
def test_a_revival_costs_the_same_behind_any_number_of_ended_tasks(
    own_queue: TaskQueue, revival: Revival, analysed: bool
) -> None:
    queue = own_queue
    owner = queue.register("owner")
    queue.push_stream("work", numbered(20_000))
    queue.complete(owner, dict.fromkeys(queue.poll("work", owner, 20_000), Result.SUCCESS))
    tasks = failed(queue, owner, *(f"failed {number}" for number in range(20)))
    queue.conn.execute("VACUUM ANALYZE" if analysed else "VACUUM")
    queue.revive("work", State.FAILED, revival, size=1)  # as a first call it reads the catalogue
    assert pages_of(queue, lambda: queue.revive("work", State.FAILED, revival, size=5)) < 400
    named = [task.sequence for task in tasks[10:15]]
    assert pages_of(queue, lambda: queue.revive("work", revival=revival, sequences=named)) < 400
    assert queue.count("work", state=State.FAILED)["work"][State.FAILED].count == 9
