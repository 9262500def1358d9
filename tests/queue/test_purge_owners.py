"""Purging owners: owners whose lease is gone are removed, unless a stored task names them."""

from datetime import timedelta

import psycopg
import pytest

from airflow_provider_taskq.queue import (
    LeaseLost,
    Owner,
    Result,
    Revival,
    State,
    TaskQueue,
    TaskQueueError,
    connect,
)
from tests.internals import age_leases, lapse_lease
from tests.queue.conftest import hurry, known, lapse, task_in

pytestmark = pytest.mark.promise("A purge removes ended tasks with all that is stored of them")

HOUR = timedelta(hours=1)
NOTHING = timedelta(0)


def unseen(queue: TaskQueue, owner: Owner, duration: timedelta = 2 * HOUR) -> None:
    """Makes an owner's last sign of life that old, and its lease lapsed."""
    age_leases(queue.conn, duration, owner.name)
    lapse(queue, owner, duration)


@pytest.mark.parametrize("lease", ["lapsed", "released", "expired"])
def test_owners_without_a_sign_of_life_for_that_long_are_removed(queue: TaskQueue, lease: str) -> None:
    old, young = queue.register("old"), queue.register("young")
    for owner, age in ((old, 2 * HOUR), (young, HOUR / 2)):
        if lease == "released":
            queue.release(owner)
        unseen(queue, owner, age)
    if lease == "expired":
        queue.expire()
    assert queue.purge_owners(HOUR) == 1
    with pytest.raises(LeaseLost):
        queue.heartbeat(old)
    assert queue.purge_owners(NOTHING) == 1, "the young one"


def test_a_lease_that_has_not_lapsed_is_never_touched(queue: TaskQueue) -> None:
    owner = queue.register("owner", lease=timedelta(days=7))
    age_leases(queue.conn, timedelta(days=5))
    assert queue.purge_owners(HOUR) == 0
    assert queue.purge_owners(-HOUR) == 0
    assert queue.heartbeat(owner).fence == owner.fence


def test_an_owner_that_holds_tasks_is_spared(queue: TaskQueue, owner: Owner) -> None:
    task = task_in(queue, owner, State.ACTIVE)
    unseen(queue, owner)
    assert queue.purge_owners(HOUR) == 0
    assert queue.held(owner) == [task]
    queue.expire()
    assert queue.purge_owners(HOUR) == 1


@pytest.mark.parametrize("state", [state for state in State if state not in (State.READY, State.ACTIVE)])
def test_an_owner_that_a_stored_task_names_is_kept(queue: TaskQueue, owner: Owner, state: State) -> None:
    task = task_in(queue, owner, state)
    name = known(queue, task).owner
    assert name is not None
    lapse_lease(queue.conn)
    age_leases(queue.conn, HOUR)
    queue.purge_owners(NOTHING)
    assert known(queue, task).owner == name
    queue.purge_all("work")
    assert [queue.purge_owners(NOTHING), queue.purge_owners(NOTHING)] == [1, 0]


def test_a_task_that_was_reset_names_no_owner(queue: TaskQueue, owner: Owner) -> None:
    task_in(queue, owner, State.FAILED)
    unseen(queue, owner)
    queue.revive("work", State.FAILED, Revival.RESET)
    assert queue.purge_owners(HOUR) == 1


def test_a_purged_name_may_register_again_under_a_greater_fence(queue: TaskQueue, owner: Owner) -> None:
    unseen(queue, owner)
    assert queue.purge_owners(HOUR) == 1
    again = queue.register(owner.name)
    assert (again.fence > owner.fence, again.resumed) == (True, False)


@pytest.mark.parametrize("doing", ["poll", "complete", "heartbeat", "register"])
@pytest.mark.parametrize("commits", [True, False], ids=["commits", "rolls back"])
def test_an_owner_at_work_is_skipped_and_not_waited_for(
    queue: TaskQueue, owner: Owner, session: TaskQueue, doing: str, commits: bool
) -> None:
    task = task_in(queue, owner, State.ACTIVE)
    queue.push("work", ["b"])
    if doing == "poll":
        session.poll("work", owner)  # while the lease was young
    unseen(queue, owner)
    if doing == "complete":
        session.complete(owner, {task: Result.SUCCESS})
    elif doing == "heartbeat":
        session.heartbeat(owner)
    elif doing == "register":
        session.register(owner.name)
    hurry(queue)
    assert queue.purge_owners(HOUR) == 0
    if commits:
        session.conn.commit()
    else:
        session.conn.rollback()
    assert queue.purge_owners(HOUR) == 0


def test_two_concurrent_purges_share_the_owners_and_neither_waits(queue: TaskQueue, session: TaskQueue) -> None:
    for number in range(3):
        unseen(queue, queue.register(f"{number}"))
    assert session.purge_owners(HOUR) == 3
    assert hurry(queue).purge_owners(HOUR) == 0
    session.conn.rollback()
    assert queue.purge_owners(HOUR) == 3


def test_owners_are_purged_at_read_committed_only(queue: TaskQueue, owner: Owner, dsn: str) -> None:
    unseen(queue, owner)
    with connect(dsn) as conn:
        conn.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        with pytest.raises(TaskQueueError, match=r"purge_owners\(\) needs READ COMMITTED"):
            TaskQueue(conn).purge_owners(HOUR)
