"""Purge: removes tasks with all that is stored of them, and owners whose lease is gone. Races are in purge.spec."""

from datetime import timedelta

import pytest

from airflow_provider_taskq.queue import (
    NewTask,
    Owner,
    Result,
    State,
    TaskQueue,
    TaskQueueError,
    UnknownTopic,
)
from tests.internals import age_leases, lapse_lease, stored_rows
from tests.queue.conftest import everything, known, lapse, numbered, task_in
from tests.queue.test_revive import failed

pytestmark = pytest.mark.promise("A purge removes ended tasks with all that is stored of them")


def test_a_purge_spares_active_ready_and_expired_tasks_unless_it_names_their_state(
    queue: TaskQueue, owner: Owner
) -> None:
    for state in [*(state for state in State if state is not State.READY), State.READY]:
        task_in(queue, owner, state, state.name)
    assert queue.purge("work") == 6
    assert {info.state for info in everything(queue)} == {State.ACTIVE, State.READY, State.EXPIRED}
    assert [queue.purge("work", state=state) for state in State] == [1, 1, 1, 0, 0, 0, 0, 0, 0]


@pytest.mark.parametrize("state", [None, State.READY, State.FAILED])
def test_a_purge_of_a_range_includes_both_ends_and_takes_the_lowest_sequences_first(
    queue: TaskQueue, owner: Owner, state: State | None
) -> None:
    tasks = queue.push("work", [*"abcdef"]) if state is State.READY else failed(queue, owner, *"abcdef")
    at = [task.sequence for task in tasks]
    assert queue.purge("work", at[3], at[2], state) == 0
    assert queue.purge("work", at[1], at[2], state) == 2
    assert queue.purge("work", state=state, size=0) == 0
    assert queue.purge("work", at[3], state=state, size=1) == 1
    assert [info.identifier for info in everything(queue)] == ["a", "e", "f"]
    assert queue.purge("work", at[5], state=state) == 1
    assert queue.purge("work", to=at[0], state=state) == 1
    assert queue.purge("work", state=state, size=9) == 1


def test_nothing_is_left_of_a_purged_task(queue: TaskQueue) -> None:
    before = stored_rows(queue.conn).keys()
    queue.push("work", ["first"])
    queue.push("work", [NewTask("a", depends_on=[("work", "first")]), NewTask("b", {"c": 1}, "r", suspended=True)])
    assert queue.purge("work", state=State.READY) + queue.purge("work") == 2, "a task waited for the first"
    assert queue.purge("work", state=State.READY) == 1
    assert stored_rows(queue.conn).keys() == before


def test_an_unknown_topic_or_state_is_refused(queue: TaskQueue) -> None:
    for verb in (queue.purge, queue.purge_all, queue.count_tasks):
        with pytest.raises(UnknownTopic, match="'nowhere'"):
            verb("nowhere")
    with pytest.raises(TaskQueueError, match="unknown state 9"):
        queue.purge("work", state=9)  # type: ignore[arg-type]


@pytest.mark.slow
def test_one_call_purges_ten_thousand_tasks(own_queue: TaskQueue) -> None:
    queue, count = own_queue, 12_000
    owner = queue.register("owner")
    queue.push_stream("work", numbered(count))
    while tasks := queue.poll("work", owner, 20_000):
        queue.complete(owner, dict.fromkeys(tasks, Result.FAILURE))
    queue.conn.execute("SET statement_timeout = '60s'")
    assert queue.purge("work", state=State.FAILED, size=count - 1) == count - 1
    assert [info.identifier for info in everything(queue)] == [f"task-{count - 1}"]


# Owners


HOUR = timedelta(hours=1)
NOTHING = timedelta(0)


def unseen(queue: TaskQueue, owner: Owner, duration: timedelta = 2 * HOUR) -> None:
    """Makes an owner's last sign of life that old, and its lease lapsed."""
    age_leases(queue.conn, duration, owner.name)
    lapse(queue, owner, duration)


@pytest.mark.promise("`expire()` never touches a lease that has not lapsed")
def test_a_lease_that_has_not_lapsed_is_never_touched(queue: TaskQueue) -> None:
    owner = queue.register("owner", lease=timedelta(days=7))
    age_leases(queue.conn, timedelta(days=5))
    assert queue.purge_owners(HOUR) == 0
    assert queue.purge_owners(0) == 0
    assert queue.heartbeat(owner).fence == owner.fence


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
