"""Junctions: groups of identifiers whose suspended tasks are released together, each group for itself."""

from datetime import timedelta
from functools import partial

import pytest

from airflow_provider_taskq.queue import (
    InvalidTask,
    Junction,
    NewTask,
    Owner,
    Result,
    State,
    Task,
    TaskQueue,
    TaskQueueError,
    UnknownTopic,
)
from tests.queue.conftest import known, states, task_in

pytestmark = pytest.mark.promise("A junction releases a group as a whole, once its last identifier has arrived")

BOTH = list(Junction)
NOT_SUSPENDED = [state for state in State if state is not State.SUSPENDED]


def suspended(queue: TaskQueue, *names: str) -> list[Task]:
    """Tasks that are pushed suspended."""
    return queue.push("work", [NewTask(name, suspended=True) for name in names])


# Of the other identifier of a group whose first is SUSPENDED.
@pytest.mark.parametrize("state", NOT_SUSPENDED)
def test_a_task_in_another_state_counts_for_eternal_unless_redundant(
    queue: TaskQueue, owner: Owner, state: State
) -> None:
    queue.create_topic("other")
    elsewhere = task_in(queue, owner, State.SUSPENDED, "b", "other")
    other = task_in(queue, owner, state, "b")
    suspended(queue, "a")
    assert queue.junction("work", [["a", "b"]]) == set()
    released = set() if state is State.REDUNDANT else {"a"}
    assert queue.junction("work", [["a", "b"]], Junction.ETERNAL) == released
    assert known(queue, other).state is state
    assert known(queue, elsewhere, "other").state is State.SUSPENDED


def test_a_junction_counts_identifiers_and_releases_all_suspended_tasks_of_whole_groups(
    queue: TaskQueue, owner: Owner
) -> None:
    task_in(queue, owner, State.SUCCEEDED, "a")
    suspended(queue, "a", "a", "b", "c")
    groups = [["a", "b"], ["b", "a", "a"], ["c", "missing"], []]
    assert queue.junction("work", (iter(group) for group in groups)) == {"a", "b"}
    assert [state for _, state in states(queue)] == [State.SUCCEEDED, *[State.READY] * 3, State.SUSPENDED]


def test_an_invalid_junction_is_refused(queue: TaskQueue) -> None:
    with pytest.raises(InvalidTask, match="not the one text 'ab'"):
        queue.junction("work", ["ab"])
    for junction in (queue.junction, partial(queue.release_groups_once, "gate")):
        with pytest.raises(UnknownTopic, match="'nowhere'"):
            junction("nowhere", [["a"]])
        with pytest.raises(TaskQueueError, match="unknown junction 'SOMETIMES'"):
            junction("work", [["a"]], "SOMETIMES")


@pytest.mark.slow
@pytest.mark.parametrize("junction", BOTH)
def test_one_call_releases_ten_thousand_groups(own_queue: TaskQueue, junction: Junction) -> None:
    queue, count = own_queue, 10_000
    queue.push_stream("work", (NewTask(f"{number}", suspended=True) for number in range(count)))
    queue.push_stream("work", ("hot" for _ in range(1000)))
    queue.conn.execute("SET statement_timeout = '60s'")
    groups = ([f"{number}", f"{number + 1}", "hot"][: 3 if number % 2 else 2] for number in range(count - 1))
    assert len(queue.junction("work", groups, junction)) == count  # of a SINGULAR every other group


@pytest.mark.promise("A juncture releases each group once under its name, also after a crash")
@pytest.mark.parametrize("junction", BOTH)
def test_a_juncture_returns_the_groups_that_it_still_waits_for(queue: TaskQueue, junction: Junction) -> None:
    """A group is known by its identifiers, in any order."""
    groups = [["a", "b"], ["c"], ["d", "e"]]
    suspended(queue, "a", "c", "d")
    assert queue.release_groups_once("gate", "work", groups, junction) == [0, 2]
    suspended(queue, "b")
    assert queue.release_groups_once("gate", "work", groups, junction) == [2]
    assert states(queue) == [("a", State.READY), ("c", State.READY), ("d", State.SUSPENDED), ("b", State.READY)]
    suspended(queue, "e")
    assert queue.release_groups_once("gate", "work", groups, junction) == []
    assert queue.release_groups_once("gate", "work", [["b", "a", "b"], ["a"]], junction) == [1]
    assert queue.release_groups_once("gate", "work", [], junction) == []


@pytest.mark.promise("A juncture releases each group once under its name, also after a crash")
def test_a_repeated_call_gets_the_same_answer_and_releases_nothing_twice(queue: TaskQueue, owner: Owner) -> None:
    """Until the record of the release is purged."""
    suspended(queue, "a")
    assert queue.release_groups_once("gate", "work", [["a"]]) == []
    queue.complete(owner, dict.fromkeys(queue.poll("work", owner), Result.SUSPENSION))
    assert queue.release_groups_once("gate", "work", [["a"]]) == []
    assert states(queue) == [("a", State.SUSPENDED)]
    assert queue.release_groups_once("another gate", "work", [["a"]]) == []
    assert states(queue) == [("a", State.READY)]
    queue.purge_owners(timedelta(hours=1))
    assert queue.release_groups_once("gate", "work", [["a"]]) == []
    queue.purge_owners(timedelta(0))
    assert queue.release_groups_once("gate", "work", [["a"]]) == [0]
