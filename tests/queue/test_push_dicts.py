"""Push takes dicts of a task's fields, as the operator and the command line do."""

from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from airflow_provider_taskq.queue import InvalidTask, NewTask, TaskInput, TaskQueue
from airflow_provider_taskq.queue.task_input import to_new_task
from tests.queue.conftest import everything, identifiers

pytestmark = pytest.mark.promise("An invalid task is refused by its position, and nothing is stored")

Push = Callable[[str, Iterable[Any]], object]

EVERY_FIELD = {
    "identifier": "a",
    "payload": {"total": 12},
    "reference": "r",
    "suspended": False,
    "available_at": "2030-01-01T00:00:00+00:00",
    "ttl": 90,
    "priority": 5,
    "depends_on": [["work", "first"]],
}


def test_a_dict_has_the_fields_of_a_task(queue: TaskQueue) -> None:
    queue.push("work", ["first"])
    [task] = queue.push("work", [EVERY_FIELD])
    assert (task.identifier, task.payload, task.reference) == ("a", {"total": 12}, "r")
    found = queue.task("work", task.sequence)
    assert found is not None
    assert (found.priority, found.status) == (5, "blocked")
    assert found.available_at == datetime(2030, 1, 1, tzinfo=UTC)
    assert [one.identifier for one in queue.dependencies("work", task.sequence)] == ["first"]


def test_one_push_takes_dicts_identifiers_and_new_tasks(queue: TaskQueue) -> None:
    given: list[TaskInput] = [{"identifier": "a"}, "b", NewTask("c"), {"identifier": "d", "delay": timedelta(hours=1)}]
    assert identifiers(queue.push("work", given)) == ["a", "b", "c", "d"]
    assert queue.push_stream("work", iter(given)).count == 4
    assert [task.status for task in everything(queue)] == ["ready", "ready", "ready", "scheduled"] * 2


def test_a_field_that_is_none_has_its_default() -> None:
    names = ("payload", "reference", "suspended", "available_at", "delay", "ttl", "priority", "depends_on")
    assert to_new_task({"identifier": "a", **dict.fromkeys(names)}) == NewTask("a")


def test_durations_may_be_seconds_or_texts() -> None:
    assert to_new_task({"identifier": "a", "delay": 1.5}) == NewTask("a", delay=timedelta(seconds=1.5))
    assert to_new_task({"identifier": "a", "ttl": "90s"}) == NewTask("a", ttl=timedelta(seconds=90))


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (5, "a task is an identifier, a dict or a NewTask, not a int"),
        ({"payload": "secret-word"}, "its identifier is missing"),
        (
            {"identifier": "a", "prio": 1, "colour": "secret-word"},
            "unknown field 'prio', 'colour': a task has identifier",
        ),
        ({"identifier": 7}, "its identifier is a int, not a text"),
        ({"identifier": "a", "suspended": "no"}, "its suspended is a str, not true or false"),
        ({"identifier": "a", "priority": True}, "its priority is a bool, not an integer"),
        ({"identifier": "a", "available_at": "noon"}, "its available_at 'noon' is not a moment in ISO 8601"),
        ({"identifier": "a", "available_at": 5}, "its available_at is a int, not a datetime or a text in ISO 8601"),
        ({"identifier": "a", "available_at": "2030-01-01T00:00"}, "its available_at has no time zone"),
        ({"identifier": "a", "delay": "later"}, "invalid duration 'later': expected for example 90s"),
        ({"identifier": "a", "ttl": float("inf")}, "invalid duration inf: it is not a number of seconds"),
        ({"identifier": "a", "ttl": [90]}, "its ttl is a list, not a timedelta, a number of seconds or a text"),
        ({"identifier": "a", "depends_on": "b"}, "its depends_on is a str, not a list of pairs"),
        ({"identifier": "a", "depends_on": ["b"]}, "its depends_on is no list of pairs"),
    ],
)
@pytest.mark.parametrize("stream", [False, True], ids=["push", "stream"])
def test_a_value_that_is_no_task_is_refused_by_its_position_and_nothing_is_stored(
    queue: TaskQueue, given: Any, reason: str, stream: bool
) -> None:
    verbs: list[Push] = [queue.push, queue.push_stream]
    push = verbs[stream]
    with pytest.raises(InvalidTask, match=rf"topic 'work', task at position 1: {reason}") as refusal:
        push("work", ["fine", given])
    assert "secret-word" not in str(refusal.value)
    assert everything(queue) == []


@pytest.mark.parametrize(
    "given", [{"identifier": "a"}, NewTask("a"), "abc", b"abc"], ids=["dict", "task", "text", "bytes"]
)
def test_one_task_instead_of_a_list_is_refused(queue: TaskQueue, given: Any) -> None:
    for push in (queue.push, queue.push_stream):
        with pytest.raises(InvalidTask, match=f"tasks is one {type(given).__name__}: give a list of tasks"):
            push("work", given)
    assert everything(queue) == []
