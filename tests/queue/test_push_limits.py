"""Push refuses an invalid task, names its position, and stores nothing."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

from airflow_provider_taskq.queue import InvalidTask, NewTask, Owner, TaskQueue, TaskQueueError, TopicPolicy
from tests.queue.conftest import everything, known

pytestmark = pytest.mark.promise("An invalid task is refused by its position, and nothing is stored")

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)

BAD: dict[str, NewTask] = {
    "empty identifier": NewTask(""),
    "blank identifier": NewTask(" \t\n "),
    "long identifier": NewTask("x" * 501),
    "low priority": NewTask("a", priority=-101),
    "high priority": NewTask("a", priority=101),
    "priority beyond any integer": NewTask("a", priority=2**70),
    "both times": NewTask("a", available_at=NOON, delay=timedelta(seconds=1)),
    "payload NaN": NewTask("a", float("nan")),
    "payload of infinity": NewTask("a", {"x": [float("inf")]}),
    "payload of a set": NewTask("a", cast("Any", {1, 2})),
    "payload of a moment": NewTask("a", cast("Any", {"at": NOON})),
    "payload of bytes": NewTask("a", cast("Any", b"x")),
    "payload too large": NewTask("a", "x" * 262_143),
    "NUL in the identifier": NewTask("a\x00b"),
    "NUL in the reference": NewTask("a", reference="a\x00b"),
    "NUL in the payload": NewTask("a", {"x": ["a\x00b"]}),
    "NUL in a key of the payload": NewTask("a", {"a\x00b": 1}),
    "lone surrogate in the identifier": NewTask("a\ud800"),
    "lone surrogate in the reference": NewTask("a", reference="\udfff"),
    "lone surrogate in the payload": NewTask("a", {"x": "\ud83d"}),
    "lone surrogate in a key of the payload": NewTask("a", {"\udc00": None}),
}


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD.keys())
@pytest.mark.parametrize("position", [0, 3])
def test_a_task_that_breaks_a_rule_is_refused_by_its_position(queue: TaskQueue, bad: NewTask, position: int) -> None:
    tasks = [NewTask(f"good {number}") for number in range(5)]
    tasks[position] = bad
    with pytest.raises(InvalidTask, match=rf"position {position}\b") as refusal:
        queue.push("work", tasks)
    assert "work" in str(refusal.value)
    assert len(str(refusal.value).splitlines()) == 1
    assert everything(queue) == []


@pytest.mark.parametrize("bad", ["long identifier", "NUL in the payload", "lone surrogate in the identifier"])
def test_a_stream_names_the_position_beyond_its_first_call(queue: TaskQueue, bad: str) -> None:
    with pytest.raises(InvalidTask, match=r"position 10001\b"):
        queue.push_stream("work", (BAD[bad] if number == 10_001 else f"{number}" for number in range(10_005)))
    assert everything(queue) == []


def test_the_error_for_many_invalid_tasks_names_one_of_them(queue: TaskQueue) -> None:
    with pytest.raises(InvalidTask, match=r"position [134]\b"):
        queue.push("work", ["a", "x" * 501, "b", NewTask("b", "\x00"), NewTask("c", priority=500), "d"])


@pytest.mark.parametrize(
    "good",
    [
        NewTask("x" * 500),
        NewTask("\N{GRINNING FACE}" * 500),
        NewTask("a", priority=-100),
        NewTask("a", priority=100),
        NewTask("a", "x" * 262_142),
        NewTask("a", None),
        NewTask("a", False),
        NewTask("a", 0),
        NewTask("a", ""),
        NewTask("a", []),
        NewTask("a", {}),
        NewTask("a", [1, 2.5, -0.0, 10**300, True, None, {"k": ["v"]}]),
        NewTask("a", 12345678901234567890123),
        NewTask("a", {"": "\\u0000 written out", "back\\slash": "\\ud800"}),
        NewTask("a", "\N{GRINNING FACE} é \u2028 \x7f \x01"),
        NewTask("a 'quoted' \"{}\", \\ %s NULL"),
        NewTask("NULL", "NULL", "NULL"),
        NewTask("a", reference=""),
        NewTask("{a,b}", "{}", "{}"),
    ],
    ids=lambda task: f"{task.identifier[:12]}-{str(task.payload)[:12]}",
)
def test_allowed_values_come_back_as_they_were_pushed(queue: TaskQueue, owner: Owner, good: NewTask) -> None:
    [pushed] = queue.push("work", [good])
    [polled] = queue.poll("work", owner)
    for task in (pushed, polled, known(queue, pushed)):
        assert (task.identifier, task.payload, task.reference) == (good.identifier, good.payload, good.reference)
        assert type(task.payload) is type(good.payload)


@pytest.mark.parametrize(
    ("payload", "size"),
    [
        ("é", 4),
        ("\N{GRINNING FACE}", 6),
        ({"a": [1, 2]}, 11),
        ({"ä": "ö", "n": None}, 20),
        ("\n", 4),
        ('"', 4),
        (None, 0),
    ],
    ids=["two bytes", "four bytes", "compact", "object", "escape", "quote", "none"],
)
def test_a_payload_is_counted_as_utf8_bytes_of_compact_json(queue: TaskQueue, payload: Any, size: int) -> None:
    queue.create_topic("exact", TopicPolicy(max_payload_bytes=size))
    queue.push("exact", [NewTask("a", payload)])
    if size:
        queue.create_topic("less", TopicPolicy(max_payload_bytes=size - 1))
        with pytest.raises(InvalidTask, match="less"):
            queue.push("less", [NewTask("a", payload)])


def test_the_limit_is_256_kib_unless_set(queue: TaskQueue) -> None:
    queue.push("work", [NewTask("a", "é" * 131_071)])
    with pytest.raises(InvalidTask):
        queue.push("work", [NewTask("a", "é" * 131_072)])


def test_a_long_reference_is_accepted(queue: TaskQueue) -> None:
    """Identifiers, priorities and payloads have bounds. References have none."""
    [task] = queue.push("work", [NewTask("a", reference="r" * 2000)])
    assert known(queue, task).reference == "r" * 2000


def test_an_unknown_insertion_is_refused(queue: TaskQueue) -> None:
    with pytest.raises(TaskQueueError):
        queue.push("work", ["a"], cast("Any", "SIDEWAYS"))
    assert everything(queue) == []


@pytest.mark.parametrize(
    "task",
    [
        NewTask("a", delay=timedelta(days=365 * 9000)),
        NewTask("a", delay=timedelta.max),
        NewTask("a", ttl=timedelta.max),
    ],
    ids=["delay beyond the year 9999", "greatest delay", "greatest ttl"],
)
def test_a_time_out_of_range_is_refused_or_can_be_read_back(queue: TaskQueue, owner: Owner, task: NewTask) -> None:
    """A stored task must never break a page that lists it."""
    try:
        [pushed] = queue.push("work", [task])
    except InvalidTask:
        return
    assert known(queue, pushed).identifier == "a"
    assert len(everything(queue)) == 1
    if task.delay is None:
        [held] = queue.poll("work", owner)
        queue.complete(owner, {held: 0})  # type: ignore[dict-item]  # a result by its number


def test_a_task_without_a_time_zone_is_not_taken_for_utc(queue: TaskQueue) -> None:
    with pytest.raises(InvalidTask, match=r"position 0\b"):
        queue.push("work", [NewTask("a", available_at=datetime(2030, 1, 1))])  # noqa: DTZ001 - that is the point


@pytest.mark.parametrize(
    "verb",
    [
        lambda queue, name: queue.push(name, ["a"]),
        lambda queue, name: queue.create_topic(name),
        lambda queue, name: queue.register(name),
        lambda queue, name: queue.latest("work", [name]),
        lambda queue, name: queue.page("work", identifier=name),
    ],
    ids=["push", "create_topic", "register", "latest", "page"],
)
@pytest.mark.parametrize("name", ["a\x00b", "a\ud800b"], ids=["NUL", "lone surrogate"])
def test_a_name_that_postgresql_cannot_store_is_refused_in_one_line(
    queue: TaskQueue, verb: Callable[[TaskQueue, str], object], name: str
) -> None:
    try:
        assert not verb(queue, name)
    except TaskQueueError as refusal:
        assert len(str(refusal).splitlines()) == 1  # noqa: PT017 - a search may also just find nothing


def test_one_string_is_not_a_list_of_tasks(queue: TaskQueue) -> None:
    """A common mistake: push("work", "order-17") must not store eight tasks of one letter each."""
    with pytest.raises((TaskQueueError, TypeError)):
        queue.push("work", "order-17")
    assert everything(queue) == []
