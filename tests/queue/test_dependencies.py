"""Dependencies: a task waits until the latest task of each identifier that it names has SUCCEEDED."""

from collections.abc import Callable
from datetime import timedelta

import pytest

from airflow_provider_taskq.queue import (
    Decision,
    InvalidTask,
    NewTask,
    Owner,
    Result,
    Revival,
    State,
    TaskQueue,
)
from tests.queue.conftest import identifiers, known, pass_time, states, task_in
from tests.queue.explained import changed_rows

pytestmark = pytest.mark.promise("A task is handed out once the latest task of each dependency has SUCCEEDED")


def dependent(*names: str, identifier: str = "b", **values: object) -> NewTask:
    """A task that waits for these identifiers of the topic `work`."""
    return NewTask(identifier, depends_on=[("work", name) for name in names], **values)  # type: ignore[arg-type]


def finish(queue: TaskQueue, owner: Owner, result: Result = Result.SUCCESS) -> list[str]:
    """Polls once, ends the returned tasks, and returns their identifiers."""
    tasks = queue.poll("work", owner, 10)
    queue.complete(owner, dict.fromkeys(tasks, result))
    return identifiers(tasks)


@pytest.mark.parametrize("result", Result)
def test_a_task_is_handed_out_once_its_dependency_has_succeeded_also_by_a_reassignment(
    queue: TaskQueue, owner: Owner, result: Result
) -> None:
    first, second = queue.push("work", ["a", dependent("a")])
    assert queue.ready("work", 10) == 1
    info = known(queue, second)
    assert (info.state, info.status, info.attempt) == (State.READY, "blocked", 0)
    assert info.available_at == info.created, "its place, not the time of the next look"
    assert finish(queue, owner, result) == ["a"]
    if result is not Result.SUCCESS:
        assert finish(queue, owner) == []
        queue.reassign("work", Result.SUCCESS, sequences=[first.sequence])
    assert queue.ready("work", 10) == 1
    assert finish(queue, owner) == ["b"]
    assert known(queue, second).status == "succeeded"


def test_a_purge_spares_the_task_for_which_another_waits(queue: TaskQueue, owner: Owner) -> None:
    older, failed, waiting = queue.push("work", ["a", "a", dependent("a")])
    assert finish(queue, owner, Result.FAILURE) == ["a", "a"]
    assert queue.purge("work") == 1
    assert queue.task("work", older.sequence) is None
    assert queue.purge("work", sequences=[failed.sequence]) == 0
    assert (finish(queue, owner), known(queue, waiting).status) == ([], "blocked")
    queue.reassign("work", Result.SUCCESS, sequences=[failed.sequence])
    assert finish(queue, owner) == ["b"]
    assert queue.purge("work") == 2, "nothing waits any more"


@pytest.mark.parametrize("drop", [True, False])
def test_a_task_whose_dependency_was_removed_unfinished_waits_and_says_for_what(
    queue: TaskQueue, owner: Owner, drop: bool
) -> None:
    queue.create_topic("other")
    queue.push("other", ["a"])
    [waiting] = queue.push("work", [NewTask("b", depends_on=[("other", "a")])])
    queue.drop_topic("other") if drop else queue.purge_all("other")
    pass_time(queue, timedelta(minutes=1))
    assert (queue.ready("work"), finish(queue, owner)) == (0, [])
    place = "a topic that was dropped" if drop else "topic other"
    assert f"a of {place}, whose tasks were removed" in str(queue.explain("work", waiting.sequence))
    if not drop:
        queue.push("other", ["a"])
        queue.complete(owner, dict.fromkeys(queue.poll("other", owner), Result.SUCCESS))
        assert finish(queue, owner) == ["b"]


@pytest.mark.parametrize(
    ("depends_on", "reason"),
    [
        ([("work", "unknown")], "'unknown'"),
        ([("nowhere", "a")], "'nowhere'"),
        ([("work", "a"), ("work", "later")], "'later'"),
        ([("work", "b")], "own identifier"),
        (["work"], "pairs"),
        ([("work",)], "pairs"),
        ("work", "pairs"),
        ([("work", "a\x00")], "pairs"),
    ],
)
def test_an_invalid_dependency_is_refused_by_its_position_and_nothing_is_stored(
    queue: TaskQueue, depends_on: object, reason: str
) -> None:
    queue.push("work", ["a"])
    with pytest.raises(InvalidTask, match=r"position 1") as refusal:
        queue.push("work", ["c", NewTask("b", depends_on=depends_on), "later"])  # type: ignore[arg-type]
    assert reason in str(refusal.value)
    assert states(queue) == [("a", State.READY)]


def test_dependencies_work_across_the_calls_of_one_long_push(queue: TaskQueue, owner: Owner) -> None:
    tasks: list[NewTask | str] = [NewTask("a", priority=1), *(f"id-{number}" for number in range(10_050))]
    with pytest.raises(InvalidTask, match=r"position 10051"):
        queue.push("work", [*tasks, dependent("unknown")])
    queue.push_stream("work", [*tasks, dependent("a", priority=100)])
    assert identifiers(queue.poll("work", owner)) == ["a"]
    queue.complete(owner, {queue.held(owner)[0]: Result.SUCCESS})
    assert identifiers(queue.poll("work", owner)) == ["b"]


@pytest.mark.promise("A success that is open during the push of its dependent is found by a later poll")
@pytest.mark.parametrize("others", [0, 2000], ids=["polls that find nothing", "polls that always find a task"])
def test_the_next_check_finds_a_dependent_that_was_pushed_during_the_success_of_its_dependency(
    queue: TaskQueue, owner: Owner, open_queue: Callable[[], TaskQueue], others: int
) -> None:
    """Both transactions are open at once. The push sees no success, and the end sees no task to promote."""
    task = task_in(queue, owner, State.ACTIVE)
    ending, pushing = open_queue(), open_queue()
    pushing.push("work", [dependent("a")])
    ending.complete(owner, {task: Result.SUCCESS})
    pushing.conn.commit()
    assert queue.poll("work", owner) == []
    ending.conn.commit()
    assert queue.ready("work") == 1
    if others:
        queue.push("work", [NewTask(f"other-{number}") for number in range(others)])
        assert len(queue.poll("work", owner, 1000)) == 1000  # so large a poll always advances fronts
    assert identifiers(queue.poll("work", owner)) == ["b"]


def test_a_poll_writes_nothing_about_tasks_that_still_wait(queue: TaskQueue, owner: Owner) -> None:
    queue.push("work", [NewTask("a", delay=timedelta(hours=1)), *[dependent("a") for _ in range(250)]])
    pass_time(queue, timedelta(minutes=20))
    assert changed_rows(queue.conn, lambda: queue.poll("work", owner, 10)) == 0


@pytest.mark.parametrize("returned", ["waiting", "released", "snoozed"])
@pytest.mark.parametrize("newer", ["pushed", "reset", "copied"])
def test_a_task_waits_for_a_newer_task_of_its_dependency(
    queue: TaskQueue, owner: Owner, newer: str, returned: str
) -> None:
    task_in(queue, owner, State.SUCCEEDED, "a")
    [waiting] = queue.push("work", [dependent("a")])
    if returned != "waiting":
        assert queue.poll("work", owner) == [waiting]
    if newer == "pushed":
        queue.push("work", ["a"])
    else:
        queue.revive("work", State.SUCCEEDED, Revival.RESET if newer == "reset" else Revival.APPEND)
    if returned == "released":
        queue.release(owner)
        owner = queue.register("owner")
    elif returned == "snoozed":
        queue.complete(owner, {waiting: Decision(Result.SUSPENSION, delay=timedelta())})
    assert known(queue, waiting).status == "blocked"
    assert [finish(queue, owner), finish(queue, owner)] == [["a"], ["b"]]


def test_a_task_that_has_to_wait_again_gives_its_place_in_its_group_to_the_next(queue: TaskQueue, owner: Owner) -> None:
    task_in(queue, owner, State.SUCCEEDED, "a")
    first, _, third = queue.push("work", [NewTask("b", priority=1), dependent("a"), "b"])
    queue.push("work", [NewTask("a", delay=timedelta(hours=1))])
    assert queue.poll_batch("work", owner, 1, 2) == {"b": [first, third]}


def test_a_group_is_handed_out_with_all_its_tasks_whose_dependency_succeeded(queue: TaskQueue, owner: Owner) -> None:
    queue.push("work", ["a", *[dependent("a") for _ in range(250)]])
    assert finish(queue, owner) == ["a"]
    assert [len(group) for group in queue.poll_batch("work", owner, 1).values()] == [250]
