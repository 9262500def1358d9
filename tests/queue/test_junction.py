"""Junctions: groups of identifiers whose suspended tasks are released together, each group for itself."""

from datetime import timedelta
from functools import partial

import pytest

from airflow_provider_taskq.queue import (
    Decision,
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
from tests.queue.conftest import identifiers, image, known, states, task_in

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
    other = task_in(queue, owner, state, "b")
    suspended(queue, "a")
    assert queue.junction("work", [["a", "b"]]) == set()
    released = set() if state is State.REDUNDANT else {"a"}
    assert queue.junction("work", [["a", "b"]], Junction.ETERNAL) == released
    assert known(queue, other).state is state


# The stored tasks, then the identifiers that SINGULAR releases, then those that ETERNAL releases.
SUSPENDED, SUCCEEDED, REDUNDANT = State.SUSPENDED, State.SUCCEEDED, State.REDUNDANT
# The states of the tasks foo and of the tasks bar, then what SINGULAR releases, then what ETERNAL releases.
TABLE: list[tuple[list[State], list[State], set[str], set[str]]] = [
    ([SUCCEEDED], [SUSPENDED], set(), {"bar"}),
    ([], [SUSPENDED], set(), set()),
    ([SUSPENDED, SUSPENDED], [], set(), set()),
    ([SUSPENDED, SUSPENDED], [SUSPENDED], {"foo", "bar"}, {"foo", "bar"}),
    ([SUCCEEDED, SUCCEEDED], [SUSPENDED], set(), {"bar"}),
    ([REDUNDANT], [SUSPENDED], set(), set()),
    ([SUCCEEDED, SUSPENDED], [SUSPENDED], {"foo", "bar"}, {"foo", "bar"}),
    ([SUCCEEDED, REDUNDANT], [SUSPENDED], set(), {"bar"}),
]


def described(row: tuple[list[State], list[State], set[str], set[str]]) -> str:
    foo, bar = (" ".join(state.name for state in states) or "absent" for states in row[:2])
    return f"foo {foo}, bar {bar}"


@pytest.mark.parametrize("junction", BOTH)
@pytest.mark.parametrize("row", TABLE, ids=described)
def test_a_junction_counts_identifiers_and_not_rows(
    queue: TaskQueue, owner: Owner, row: tuple[list[State], list[State], set[str], set[str]], junction: Junction
) -> None:
    foo, bar, singular, eternal = row
    tasks = [("foo", state) for state in foo] + [("bar", state) for state in bar]
    before = [task_in(queue, owner, state, name) for name, state in tasks]
    released = singular if junction is Junction.SINGULAR else eternal
    assert queue.junction("work", [["foo", "bar"]], junction) == released
    after = [State.READY if state is State.SUSPENDED and name in released else state for name, state in tasks]
    assert [known(queue, task).state for task in before] == after


@pytest.mark.parametrize("junction", BOTH)
def test_only_tasks_of_this_topic_count_and_are_released(queue: TaskQueue, owner: Owner, junction: Junction) -> None:
    queue.create_topic("other")
    task_in(queue, owner, State.SUSPENDED, "foo", "other")
    suspended(queue, "bar")
    before = image(queue), image(queue, "other")
    assert queue.junction("work", [["foo", "bar"]], junction) == set()
    assert (image(queue), image(queue, "other")) == before
    suspended(queue, "foo")
    assert queue.junction("work", [["foo", "bar"]], junction) == {"foo", "bar"}
    assert image(queue, "other") == before[1]


GROUPS: dict[str, tuple[list[list[str]], set[str]]] = {
    "one": ([["a", "b"]], {"a", "b"}),
    "overlapping": ([["a", "b"], ["b", "c"], ["c", "missing"]], {"a", "b", "c"}),
    "one of several": ([["a", "missing"], ["b"], ["missing"], ["c", "missing"]], {"b"}),
    "none": ([], set()),
    "empty": ([[], []], set()),
    "empty and repeated": ([[], ["a", "a"]], {"a"}),
}


@pytest.mark.parametrize("junction", BOTH)
@pytest.mark.parametrize("name", GROUPS)
def test_each_group_of_a_junction_is_judged_alone_by_the_states_before_the_call(
    queue: TaskQueue, name: str, junction: Junction
) -> None:
    groups, released = GROUPS[name]
    suspended(queue, "a", "b", "c")
    assert queue.junction("work", (iter(group) for group in groups), junction) == released
    assert {identifier for identifier, state in states(queue) if state is State.READY} == released
    assert queue.junction("work", groups, junction) == set()


@pytest.mark.parametrize("junction", BOTH)
def test_a_released_task_starts_again_in_its_old_place(queue: TaskQueue, owner: Owner, junction: Junction) -> None:
    """And still waits for its time."""
    [task] = queue.push("work", [NewTask("a", {"b": 1}, "r", priority=1)])
    before = repr(known(queue, task))
    queue.poll("work", owner)
    queue.complete(owner, {task: Decision(Result.SUSPENSION, "m", "e")})
    later = NewTask("later", suspended=True, delay=timedelta(hours=1))
    queue.push("work", ["b", NewTask("c", priority=1), later])
    assert queue.junction("work", [["a", "later"]], junction) == {"a", "later"}
    assert repr(known(queue, task)) == before
    assert identifiers(queue.poll("work", owner, 4)) == ["a", "c", "b"]


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
    assert queue.purge_group_releases(timedelta(hours=1)) == 0
    assert queue.purge_group_releases(timedelta(0)) == 2
    assert queue.release_groups_once("gate", "work", [["a"]]) == [0]
