"""Junctions: groups of identifiers whose suspended tasks are released together, each group for itself."""

from collections.abc import Iterator
from datetime import timedelta

import pytest

from airflow_provider_taskq.queue import (
    Decision,
    Insertion,
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
from tests.queue.conftest import hurry, identifiers, image, known, numbered, states, task_in
from tests.queue.test_sessions import pages_of

pytestmark = pytest.mark.promise("A junction releases a group as a whole, once its last identifier has arrived")

BOTH = list(Junction)
NOT_SUSPENDED = [state for state in State if state is not State.SUSPENDED]


def suspended(queue: TaskQueue, *names: str) -> list[Task]:
    """Tasks that are pushed suspended."""
    return queue.push("work", [NewTask(name, suspended=True) for name in names])


@pytest.mark.parametrize("junction", BOTH)
def test_a_group_is_released_when_all_its_identifiers_are_suspended(queue: TaskQueue, junction: Junction) -> None:
    suspended(queue, "a", "b", "c")
    assert queue.junction("work", [["a", "b"]], junction) == {"a", "b"}
    assert states(queue) == [("a", State.READY), ("b", State.READY), ("c", State.SUSPENDED)]
    assert queue.junction("work", [["a", "b"]], junction) == set()


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
TABLE: dict[str, tuple[list[tuple[str, State]], set[str], set[str]]] = {
    "foo SUCCEEDED, bar SUSPENDED": (
        [("foo", State.SUCCEEDED), ("bar", State.SUSPENDED)],
        set(),
        {"bar"},
    ),
    "foo absent": ([("bar", State.SUSPENDED)], set(), set()),
    "foo SUSPENDED twice, bar absent": ([("foo", State.SUSPENDED)] * 2, set(), set()),
    "foo SUSPENDED twice, bar SUSPENDED": (
        [("foo", State.SUSPENDED), ("foo", State.SUSPENDED), ("bar", State.SUSPENDED)],
        {"foo", "bar"},
        {"foo", "bar"},
    ),
    "foo SUCCEEDED twice, bar SUSPENDED": (
        [("foo", State.SUCCEEDED), ("foo", State.SUCCEEDED), ("bar", State.SUSPENDED)],
        set(),
        {"bar"},
    ),
    "foo REDUNDANT only, bar SUSPENDED": ([("foo", State.REDUNDANT), ("bar", State.SUSPENDED)], set(), set()),
    "foo SUSPENDED and SUCCEEDED, bar SUSPENDED": (
        [("foo", State.SUCCEEDED), ("foo", State.SUSPENDED), ("bar", State.SUSPENDED)],
        {"foo", "bar"},
        {"foo", "bar"},
    ),
    "foo REDUNDANT after SUCCEEDED, bar SUSPENDED": (
        [("foo", State.SUCCEEDED), ("foo", State.REDUNDANT), ("bar", State.SUSPENDED)],
        set(),
        {"bar"},
    ),
}


@pytest.mark.parametrize("junction", BOTH)
@pytest.mark.parametrize("row", TABLE.values(), ids=TABLE.keys())
def test_a_junction_counts_identifiers_and_not_rows(
    queue: TaskQueue,
    owner: Owner,
    row: tuple[list[tuple[str, State]], set[str], set[str]],
    junction: Junction,
) -> None:
    tasks, singular, eternal = row
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


@pytest.mark.parametrize("junction", BOTH)
def test_overlapping_groups_are_judged_by_the_states_before_the_call(queue: TaskQueue, junction: Junction) -> None:
    suspended(queue, "a", "b", "c")
    assert queue.junction("work", [["a", "b"], ["b", "c"], ["c", "missing"]], junction) == {"a", "b", "c"}
    assert [state for _, state in states(queue)] == [State.READY] * 3


@pytest.mark.parametrize("junction", BOTH)
def test_each_group_of_a_junction_is_judged_alone(queue: TaskQueue, junction: Junction) -> None:
    suspended(queue, "a", "b", "c")
    assert queue.junction("work", [["a", "missing"], ["b"], ["missing"], ["c", "missing"]], junction) == {"b"}
    assert states(queue) == [("a", State.SUSPENDED), ("b", State.READY), ("c", State.SUSPENDED)]


@pytest.mark.parametrize("junction", BOTH)
@pytest.mark.parametrize("groups", [[], [[]], [[], []]], ids=["no group", "an empty group", "two empty groups"])
def test_an_empty_group_releases_nothing(queue: TaskQueue, groups: list[list[str]], junction: Junction) -> None:
    suspended(queue, "a")
    assert queue.junction("work", groups, junction) == set()
    assert queue.junction("work", [[], ["a", "a"]], junction) == {"a"}


@pytest.mark.parametrize("junction", BOTH)
def test_without_suspended_tasks_a_junction_releases_nothing(
    queue: TaskQueue, owner: Owner, junction: Junction
) -> None:
    task_in(queue, owner, State.SUCCEEDED, "a")
    queue.push("work", ["b"])
    before = image(queue)
    assert queue.junction("work", [["a", "b"], ["a"], ["b"]], junction) == set()
    assert image(queue) == before


@pytest.mark.parametrize("junction", BOTH)
def test_a_released_task_starts_again_in_its_old_place(queue: TaskQueue, owner: Owner, junction: Junction) -> None:
    [task] = queue.push("work", [NewTask("a", {"b": 1}, "r", priority=1)])
    before = repr(known(queue, task))
    queue.poll("work", owner)
    queue.complete(owner, {task: Decision(Result.SUSPENSION, "m", "e")})
    queue.push("work", ["b", NewTask("c", priority=1)])
    queue.junction("work", [["a"]], junction)
    assert repr(known(queue, task)) == before
    assert identifiers(queue.poll("work", owner, 3)) == ["a", "c", "b"]


def test_a_released_task_still_waits_for_its_time_and_its_dependencies(queue: TaskQueue, owner: Owner) -> None:
    [first] = queue.push("work", ["first"])
    later = NewTask("later", suspended=True, delay=timedelta(hours=1))
    queue.push("work", [later, NewTask("second", suspended=True, depends_on=[("work", "first")])])
    assert queue.junction("work", [["later", "second"]]) == {"later", "second"}
    assert queue.poll("work", owner, 5) == [first]
    queue.complete(owner, {first: Result.SUCCESS})
    assert identifiers(queue.poll("work", owner, 5)) == ["second"]


def test_groups_may_come_from_generators(queue: TaskQueue) -> None:
    suspended(queue, *"abcd")

    def groups() -> Iterator[Iterator[str]]:
        yield iter("ab")
        yield iter(("c", "missing"))

    assert queue.junction("work", groups()) == {"a", "b"}
    assert queue.junction("work", [{"c"}, frozenset("d")]) == {"c", "d"}


def test_two_concurrent_junctions_neither_wait_nor_release_twice(queue: TaskQueue, session: TaskQueue) -> None:
    suspended(queue, *"abcd")
    groups = [["a", "b"], ["c", "d"]]
    assert session.junction("work", groups[:1]) == {"a", "b"}
    assert hurry(queue).junction("work", groups) == {"c", "d"}
    session.conn.commit()
    assert queue.junction("work", groups) == set()
    assert [state for _, state in states(queue)] == [State.READY] * 4


@pytest.mark.parametrize("junction", BOTH)
def test_a_group_is_released_as_a_whole_or_not_at_all(queue: TaskQueue, session: TaskQueue, junction: Junction) -> None:
    """Another call takes one of two groups, and is rolled back."""
    suspended(queue, "a", "b", "b", "c")
    assert session.junction("work", [["b"]], junction) == {"b"}
    assert hurry(queue).junction("work", [["a", "b"], ["c"]], junction) == {"c"}
    session.conn.rollback()
    assert states(queue)[:3] == [("a", State.SUSPENDED), ("b", State.SUSPENDED), ("b", State.SUSPENDED)]
    assert queue.junction("work", [["a", "b"]], junction) == {"a", "b"}


def test_a_junction_does_not_wait_for_a_push_that_replaces(queue: TaskQueue, session: TaskQueue) -> None:
    suspended(queue, "a", "b")
    session.push("work", ["a"], Insertion.REPLACE)
    assert hurry(queue).junction("work", [["a", "b"]]) == set()
    session.conn.commit()
    assert queue.junction("work", [["a", "b"]]) == set()
    assert queue.junction("work", [["a", "b"]], Junction.ETERNAL) == {"b"}


def test_an_invalid_junction_is_refused(queue: TaskQueue) -> None:
    with pytest.raises(InvalidTask, match="not the one text 'ab'"):
        queue.junction("work", ["ab"])
    with pytest.raises(UnknownTopic, match="'nowhere'"):
        queue.junction("nowhere", [["a"]])
    with pytest.raises(TaskQueueError, match="unknown junction 'SOMETIMES'"):
        queue.junction("work", [["a"]], "SOMETIMES")


@pytest.mark.slow
@pytest.mark.parametrize("junction", BOTH)
def test_one_call_releases_ten_thousand_groups(own_queue: TaskQueue, junction: Junction) -> None:
    queue, count = own_queue, 10_000
    queue.push_stream("work", (NewTask(f"{number}", suspended=True) for number in range(count)))
    queue.push_stream("work", ("hot" for _ in range(1000)))
    queue.conn.execute("SET statement_timeout = '60s'")
    groups = ([f"{number}", f"{number + 1}", "hot"][: 3 if number % 2 else 2] for number in range(count - 1))
    assert len(queue.junction("work", groups, junction)) == count  # of a SINGULAR every other group


@pytest.mark.parametrize("analysed", [False, True], ids=["never analysed", "analysed"])
@pytest.mark.parametrize("junction", BOTH)
def test_a_junction_costs_the_same_behind_any_number_of_ended_tasks(
    own_queue: TaskQueue, junction: Junction, analysed: bool
) -> None:
    queue = own_queue
    owner = queue.register("owner")
    queue.push_stream("work", numbered(10_000))
    queue.push_stream("work", ("hot" for _ in range(10_000)))
    queue.complete(owner, dict.fromkeys(queue.poll("work", owner, 20_000), Result.SUCCESS))
    suspended(queue, *"abcdef", "hot")
    queue.conn.execute("VACUUM ANALYZE" if analysed else "VACUUM")
    queue.junction("work", [["a", "hot"]], junction)  # as a first call it reads the catalogue
    assert pages_of(queue, lambda: queue.junction("work", [["b", "c"], ["d", "task-7"], ["hot", "f"]], junction)) < 400
    assert known(queue, queue.latest("work", ["c"])["c"]).state is State.READY
