"""A payload that some clients cannot read is harmless if it is stored already: its reader gets it as such."""

import copy
import json
import math
import pickle
import sys
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from psycopg.types.json import set_json_loads

from airflow_provider_taskq.queue import (
    Decision,
    InvalidTask,
    NewTask,
    Owner,
    Result,
    State,
    Task,
    TaskQueue,
    UnreadablePayload,
    connect,
)
from airflow_provider_taskq.queue.encoding import decode_json
from tests.faults.poison import POISON
from tests.internals import damage_task
from tests.queue.hostile import ACCEPTED_JSON

pytestmark = pytest.mark.promise("A payload that no client can decode fails its own task and stops nothing else")

# Each is valid JSON for PostgreSQL, and nothing that json.loads returns as data without loss.
UNREADABLE = {
    **POISON,
    "an integer beyond a double": "1" + "0" * 309,
    "a negative integer beyond a double": json.dumps([{"a": "text"}, -(10**310)]),
    "a negative exponent form": "[-1E+309]",
    "depth of objects": '{"a":' * 5_000 + "1" + "}" * 5_000,
}
NO_JSON = ("NaN", "[Infinity]", "-Infinity", "[", "", "{'a': 1}")


@pytest.fixture(params=UNREADABLE)
def unreadable(request: pytest.FixtureRequest) -> str:
    """The text of a payload that Python cannot read."""
    return UNREADABLE[request.param]


@pytest.fixture
def poisoned(queue: TaskQueue, unreadable: str) -> TaskQueue:
    """Three READY tasks of the topic `work`, of which the second has an unreadable payload."""
    tasks = queue.push("work", [NewTask(name, {"name": name}) for name in "abc"])
    damage_task(queue.conn, tasks[1].sequence, payload=unreadable)
    return queue


def test_a_poll_gets_an_unreadable_payload_and_all_others_and_its_task_can_be_failed_with_the_reason(
    poisoned: TaskQueue, owner: Owner
) -> None:
    """All calls that read tasks have the cursor of this one."""
    first, second, third = poisoned.poll("work", owner, 10)
    assert (first.payload, third.payload) == ({"name": "a"}, {"name": "c"})
    assert isinstance(second.payload, UnreadablePayload)
    assert second.payload.reason.startswith("unreadable JSON: ")
    failure = Decision(Result.FAILURE, error=second.payload.reason)
    poisoned.complete(owner, {first: Result.SUCCESS, second: failure, third: Result.SUCCESS})
    found = poisoned.page("work")
    assert [info.state for info in found] == [State.SUCCEEDED, State.FAILED, State.SUCCEEDED]
    assert found[1].error == second.payload.reason


def test_an_unreadable_payload_can_be_browsed(poisoned: TaskQueue, unreadable: str) -> None:
    assert [line.sequence for line in poisoned.browse_tasks("work", [1, 2, 3])] == [1, 2, 3]
    texts = poisoned.task_texts("work", 2, 1_000_000)
    assert texts is not None
    assert texts.payload == unreadable


def test_an_unreadable_output_leaves_the_payload_and_other_tasks_readable(
    queue: TaskQueue, owner: Owner, unreadable: str
) -> None:
    tasks = queue.push("work", [NewTask("a", 1), NewTask("b", 2)])
    queue.complete(owner, dict.fromkeys(queue.poll("work", owner, 2), Decision(Result.SUCCESS, {"done": True})))
    damage_task(queue.conn, tasks[0].sequence, output=unreadable)
    first, second = queue.page("work")
    assert isinstance(first.output, UnreadablePayload)
    assert (first.payload, first.state, second.output) == (1, State.SUCCEEDED, {"done": True})


def test_the_connection_keeps_its_own_way_to_load_json(queue: TaskQueue) -> None:
    conn = queue.conn
    queue.push("work", [NewTask("a", {"name": "a"})])
    before = [conn.adapters.get_loader(oid, psycopg.pq.Format.TEXT) for oid in (114, 3802)]
    queue.page("work")
    assert [conn.adapters.get_loader(oid, psycopg.pq.Format.TEXT) for oid in (114, 3802)] == before
    set_json_loads(lambda _: "mine", conn)
    assert queue.page("work")[0].payload == {"name": "a"}
    assert conn.execute("""SELECT '{"a": 1}'::json""").fetchone() == ("mine",)


def test_texts_are_decoded_in_the_encoding_of_the_connection(dsn: str, queue: TaskQueue) -> None:
    queue.push("work", [NewTask("a", {"name": "Käthe"})])
    with connect(dsn, client_encoding="LATIN1") as conn:
        assert TaskQueue(conn).page("work")[0].payload == {"name": "Käthe"}


def test_a_payload_too_deep_for_the_stack_is_unreadable_and_harms_no_other(queue: TaskQueue, owner: Owner) -> None:
    depth = 600  # which Python reads from the top of its stack only
    limit = sys.getrecursionlimit()
    tasks = queue.push("work", ["a", NewTask("b", {})])
    damage_task(queue.conn, tasks[0].sequence, payload="[" * depth + "]" * depth)

    def descend(frames: int) -> list[Task]:
        return descend(frames - 1) if frames else queue.poll("work", owner, 2)

    sys.setrecursionlimit(1_000)
    try:
        deep, flat = descend(600)
    finally:
        sys.setrecursionlimit(limit)
    assert isinstance(deep.payload, UnreadablePayload)
    assert flat.payload == {}


def test_a_lower_limit_of_digits_makes_no_other_payload_unreadable() -> None:
    before = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(640)
    try:
        assert decode_json(str(10**300)) == 10**300
        assert isinstance(decode_json("9" * 700), UnreadablePayload)
    finally:
        sys.set_int_max_str_digits(before)


@pytest.mark.parametrize("text", [*ACCEPTED_JSON.values(), "1e-400"], ids=[*ACCEPTED_JSON, "underflow"])
def test_json_that_python_can_read_is_readable(text: str) -> None:
    assert decode_json(text) == json.loads(text)


@pytest.mark.parametrize("text", [*UNREADABLE.values(), *NO_JSON], ids=[*UNREADABLE, *NO_JSON])
def test_no_reason_quotes_the_payload(text: str) -> None:
    found = decode_json(text.replace("1", "7"))
    assert isinstance(found, UnreadablePayload)
    assert not any(letter.isdigit() for letter in found.reason.partition(", at character ")[0])


USES: dict[str, Callable[[Any], object]] = {
    "an item": lambda payload: payload["total"],
    "a position": lambda payload: payload[0],
    "a loop": list,
    "a length": len,
    "a search": lambda payload: "total" in payload,
    "a method": lambda payload: payload.get("total"),
    "a condition": lambda payload: payload or {},
    "an integer": int,
    "a float": float,
    "a path of keys": lambda payload: math.sqrt(payload["a"]["b"]),
    "a copy as dict": dict,
    "arguments": lambda payload: dict(**payload),
}


@pytest.mark.parametrize("use", USES)
def test_every_use_of_an_unreadable_payload_as_data_raises_the_reason(use: str) -> None:
    with pytest.raises(InvalidTask, match=r"^the reason$"):
        USES[use](UnreadablePayload("the reason"))


def test_an_unreadable_payload_is_a_plain_value() -> None:
    payload = UnreadablePayload("the reason")
    assert pickle.loads(pickle.dumps(payload)) == copy.deepcopy(payload) == payload  # noqa: S301 - its own
    assert payload != UnreadablePayload("another")
    assert {payload: 1}[UnreadablePayload("the reason")] == 1
    assert repr(payload) == str(payload) == "UnreadablePayload(reason='the reason')"
    with pytest.raises(AttributeError):
        payload.reason = "another"  # type: ignore[misc]
