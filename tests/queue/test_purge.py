"""Purge: removes tasks with everything that is stored of them, without waiting."""

from collections.abc import Callable

import pytest

from airflow_provider_taskq.queue import (
    NewTask,
    NotHeld,
    Owner,
    Result,
    Revival,
    State,
    TaskQueue,
    TaskQueueError,
    UnknownTopic,
)
from tests.internals import stored_rows
from tests.queue.conftest import (
    InBackground,
    await_lock_wait,
    everything,
    hurry,
    image,
    known,
    numbered,
    states,
    task_in,
)
from tests.queue.test_revive import failed
from tests.queue.test_sessions import pages_of

pytestmark = pytest.mark.promise("A purge removes ended tasks with all that is stored of them")

SPARED = [State.ACTIVE, State.READY, State.EXPIRED]


def one_of_each(queue: TaskQueue, owner: Owner) -> dict[State, int]:
    """Makes a task in every state, each with its own identifier; returns the sequences by state."""
    made = [*(state for state in State if state is not State.READY), State.READY]
    return {state: task_in(queue, owner, state, state.name).sequence for state in made}


def test_without_a_state_active_ready_and_expired_tasks_are_spared(queue: TaskQueue, owner: Owner) -> None:
    one_of_each(queue, owner)
    assert queue.purge("work") == 6
    assert {info.state for info in everything(queue)} == set(SPARED)
    assert queue.purge("work") == 0


@pytest.mark.parametrize("state", list(State))
def test_a_purge_by_state_removes_tasks_of_this_state_only(queue: TaskQueue, owner: Owner, state: State) -> None:
    one_of_each(queue, owner)
    assert queue.purge("work", state=state) == 1
    assert {info.state for info in everything(queue)} == set(State) - {state}


@pytest.mark.parametrize("state", [None, *State])
def test_a_purge_of_a_range_includes_both_ends(queue: TaskQueue, owner: Owner, state: State | None) -> None:
    kind = State.SUCCEEDED if state is None else state
    at = [task_in(queue, owner, kind, name).sequence for name in "abcd"] if kind is not State.READY else []
    at = at or [task.sequence for task in queue.push("work", [*"abcd"])]
    assert queue.purge("work", at[3], at[2], state) == 0
    assert queue.purge("work", at[1], at[2], state) == 2
    assert [info.identifier for info in everything(queue)] == ["a", "d"]
    assert queue.purge("work", at[3], state=state) == 1
    assert queue.purge("work", to=at[0], state=state) == 1
    assert everything(queue) == []


@pytest.mark.parametrize("state", [None, State.READY, State.FAILED])
def test_a_purge_with_a_size_removes_that_many_of_the_lowest_sequences(
    queue: TaskQueue, owner: Owner, state: State | None
) -> None:
    tasks = queue.push("work", [*"abcde"]) if state is State.READY else failed(queue, owner, *"abcde")
    assert queue.purge("work", state=state, size=0) == 0
    assert queue.purge("work", state=state, size=2) == 2
    assert queue.purge("work", tasks[3].sequence, state=state, size=1) == 1
    assert [info.identifier for info in everything(queue)] == ["c", "e"]
    assert queue.purge("work", state=state, size=9) == 2


def test_nothing_is_left_of_a_purged_task(queue: TaskQueue) -> None:
    before = stored_rows(queue.conn).keys()
    queue.push("work", ["first"])
    queue.push("work", [NewTask("a", depends_on=[("work", "first")]), NewTask("b", {"c": 1}, "r", suspended=True)])
    assert queue.purge("work", state=State.READY) + queue.purge("work") == 3
    assert stored_rows(queue.conn).keys() == before


def test_only_the_topics_own_tasks_are_purged(queue: TaskQueue, owner: Owner) -> None:
    queue.create_topic("other")
    one_of_each(queue, owner)
    task_in(queue, owner, State.SUCCEEDED, "SUCCEEDED", "other")
    before = image(queue, "other")
    queue.purge("work")
    queue.purge_all("work")
    assert (states(queue), image(queue, "other")) == ([], before)


def test_purge_all_removes_every_task_held_ones_too(queue: TaskQueue, owner: Owner) -> None:
    one_of_each(queue, owner)
    assert queue.purge_all("work") == len(State)
    assert queue.held(owner) == []
    assert queue.purge_all("work") == 0
    assert queue.heartbeat(owner).fence == owner.fence


def test_a_task_purged_while_it_is_held_is_not_held(queue: TaskQueue, owner: Owner) -> None:
    task = task_in(queue, owner, State.ACTIVE)
    queue.purge("work", state=State.ACTIVE)
    with pytest.raises(NotHeld, match=str(task.sequence)):
        queue.complete(owner, {task: Result.SUCCESS})


@pytest.mark.parametrize("purge", ["ACTIVE", "all"])
@pytest.mark.parametrize("commits", [True, False], ids=["commits", "rolls back"])
def test_a_purge_skips_a_task_that_is_being_completed(
    queue: TaskQueue, owner: Owner, session: TaskQueue, purge: str, commits: bool
) -> None:
    completing, other = queue.push("work", ["a", "b"])
    queue.poll("work", owner, 2)
    session.complete(owner, {completing: Result.SUCCESS})
    hurry(queue)
    assert (queue.purge_all("work") if purge == "all" else queue.purge("work", state=State.ACTIVE)) == 1
    assert queue.task("work", other.sequence) is None
    if commits:
        session.conn.commit()
    else:
        session.conn.rollback()
    assert known(queue, completing).state is (State.SUCCEEDED if commits else State.ACTIVE)


@pytest.mark.parametrize("commits", [True, False], ids=["commits", "rolls back"])
def test_a_completion_during_a_purge_succeeds_only_if_the_purge_is_rolled_back(
    queue: TaskQueue,
    owner: Owner,
    session: TaskQueue,
    open_queue: Callable[[], TaskQueue],
    background: InBackground[None],
    commits: bool,
) -> None:
    task = task_in(queue, owner, State.ACTIVE)
    session.purge("work", state=State.ACTIVE)
    completing = open_queue()
    completed = background(lambda: completing.complete(owner, {task: Result.SUCCESS}))
    await_lock_wait(queue.conn, completing)
    if commits:
        session.conn.commit()
        with pytest.raises(NotHeld):
            completed.result()
        assert queue.task("work", task.sequence) is None
    else:
        session.conn.rollback()
        completed.result()
        completing.conn.commit()
        assert known(queue, task).state is State.SUCCEEDED


def test_two_concurrent_purges_share_the_tasks_and_neither_waits(
    queue: TaskQueue, owner: Owner, session: TaskQueue
) -> None:
    failed(queue, owner, *"abcde")
    assert session.purge("work", size=2) == 2
    assert hurry(queue).purge("work") == 3
    session.conn.commit()
    assert queue.count_tasks("work") == 0


@pytest.mark.parametrize("revival", list(Revival))
def test_a_purge_skips_a_task_that_is_being_revived(
    queue: TaskQueue, owner: Owner, session: TaskQueue, revival: Revival
) -> None:
    failed(queue, owner, "a", "b")
    session.revive("work", State.FAILED, revival, size=1)
    assert hurry(queue).purge("work") == 1
    session.conn.commit()
    assert queue.count_tasks("work") == (1 if revival is Revival.RESET else 2)


def test_a_poll_does_not_wait_for_a_purge_and_does_not_see_its_tasks(
    queue: TaskQueue, owner: Owner, session: TaskQueue
) -> None:
    first, second = queue.push("work", ["a", "b"])
    session.purge("work", state=State.READY, size=1)
    assert hurry(queue).poll("work", owner, 5) == [second]
    session.conn.rollback()
    assert queue.poll("work", owner, 5) == [first]


def test_a_dependent_may_run_once_its_dependency_is_purged(queue: TaskQueue, owner: Owner) -> None:
    task_in(queue, owner, State.FAILED)
    [dependent] = queue.push("work", [NewTask("dependent", depends_on=[("work", "a")])])
    assert queue.poll("work", owner) == []
    assert queue.purge("work") == 1
    assert queue.poll("work", owner) == [dependent]


def test_an_unknown_topic_or_state_is_refused(queue: TaskQueue) -> None:
    for verb in (queue.purge, queue.purge_all):
        with pytest.raises(UnknownTopic, match="'nowhere'"):
            verb("nowhere")
    with pytest.raises(TaskQueueError, match="unknown state 9"):
        queue.purge("work", state=9)  # type: ignore[arg-type]


@pytest.mark.parametrize("state", [None, State.FAILED, State.READY])
def test_a_purge_of_few_tasks_costs_the_same_in_a_topic_of_any_size(own_queue: TaskQueue, state: State | None) -> None:
    queue = own_queue
    owner = queue.register("owner")
    queue.push_stream("work", numbered(20_000))
    queue.complete(owner, dict.fromkeys(queue.poll("work", owner, 20_000), Result.SUCCESS))
    failed(queue, owner, *(f"failed {number}" for number in range(10)))
    queue.push("work", (f"ready {number}" for number in range(10)))
    queue.conn.execute("VACUUM")
    queue.purge("work", state=state, size=1)  # as a first call it reads the catalogue
    assert pages_of(queue, lambda: queue.purge("work", state=state, size=5)) < 400
    assert len(everything(queue)) == 20_014


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
