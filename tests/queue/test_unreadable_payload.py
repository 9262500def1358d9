"""A payload that some clients cannot read: refused by every push, and harmless if it is stored already."""

import asyncio
import copy
import json
import math
import pickle
import sys
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg.types.json import set_json_loads

from airflow_provider_taskq.queue import (
    Decision,
    InvalidTask,
    Json,
    NewTask,
    Owner,
    Result,
    State,
    Task,
    TaskQueue,
    UnreadablePayload,
    connect,
)
from airflow_provider_taskq.queue.encoding import decode_json, register_loaders
from tests.internals import damage_task

pytestmark = pytest.mark.promise("A payload that no client can decode fails its own task and stops nothing else")

# Each is valid JSON for PostgreSQL, and nothing that json.loads returns as data without loss.
UNREADABLE = {
    "digits": "9" * 5_000,
    "an integer beyond a double": "1" + "0" * 309,
    "a negative integer beyond a double": json.dumps([{"a": "text"}, -(10**310)]),
    "an exponent": '{"total": 1e400}',
    "a negative exponent form": "[-1E+309]",
    "depth": "[" * 5_000 + "]" * 5_000,
    "depth of objects": '{"a":' * 5_000 + "1" + "}" * 5_000,
}


def poison(queue: TaskQueue, task: Task, payload: str) -> None:
    """Stores a payload that a push refuses."""
    damage_task(queue.conn, task.sequence, payload=payload)


def poison_output(queue: TaskQueue, task: Task, output: str) -> None:
    """Stores an output that a completion refuses."""
    damage_task(queue.conn, task.sequence, output=output)


@pytest.fixture(params=list(UNREADABLE))
def unreadable(request: pytest.FixtureRequest) -> str:
    """The text of a payload that Python cannot read."""
    return UNREADABLE[request.param]


@pytest.fixture
def poisoned(queue: TaskQueue, unreadable: str) -> list[Task]:
    """Three READY tasks of the topic `work`, of which the second has an unreadable payload."""
    tasks = queue.push("work", [NewTask(name, {"name": name}) for name in "abc"])
    poison(queue, tasks[1], unreadable)
    return tasks


def is_spared(tasks: Iterable[Task]) -> None:
    """Checks that only the payload of the second poisoned task is unreadable."""
    first, second, third = (task.payload for task in sorted(tasks, key=lambda task: task.sequence))
    assert first == {"name": "a"}
    assert third == {"name": "c"}
    assert isinstance(second, UnreadablePayload)
    assert second.reason.startswith("unreadable JSON: ")


@pytest.mark.usefixtures("poisoned")
def test_a_poll_hands_out_an_unreadable_payload_and_all_others(queue: TaskQueue, owner: Owner) -> None:
    is_spared(queue.poll("work", owner, 10))
    is_spared(queue.held(owner))


@pytest.mark.usefixtures("poisoned")
def test_a_batch_has_an_unreadable_payload_and_all_others(queue: TaskQueue, owner: Owner) -> None:
    is_spared(task for group in queue.poll_batch("work", owner, 10).values() for task in group)


def test_an_exchange_completes_and_hands_out_an_unreadable_payload(
    queue: TaskQueue, owner: Owner, poisoned: list[Task]
) -> None:
    [done] = queue.poll("work", owner)
    polled = queue.exchange(owner, {done: Result.SUCCESS}, "work", 10)
    assert [task.sequence for task in polled] == [task.sequence for task in poisoned[1:]]
    is_spared([done, *polled])


def test_verbs_that_read_tasks_return_an_unreadable_payload_and_all_others(
    queue: TaskQueue, poisoned: list[Task]
) -> None:
    is_spared(queue.page("work"))
    is_spared(queue.page("work", before=poisoned[-1].sequence + 1))
    is_spared(queue.latest("work", ["a", "b", "c"]).values())
    info = queue.task("work", poisoned[1].sequence)
    assert info is not None
    assert isinstance(info.payload, UnreadablePayload)


@pytest.mark.usefixtures("poisoned")
def test_readers_of_the_log_get_an_unreadable_payload_and_all_others(queue: TaskQueue) -> None:
    is_spared(task for _, task in queue.events("work", None))
    queue.join_group("group", "work")
    partition = queue.acquire_partition("group", "work", "consumer", timedelta(minutes=5))
    assert partition is not None
    is_spared(task for _, task in queue.read_partition(partition))


def test_an_unreadable_output_leaves_the_payload_and_other_tasks_readable(
    queue: TaskQueue, owner: Owner, unreadable: str
) -> None:
    tasks = queue.push("work", [NewTask("a", 1), NewTask("b", 2)])
    queue.complete(owner, dict.fromkeys(queue.poll("work", owner, 2), Decision(Result.SUCCESS, {"done": True})))
    poison_output(queue, tasks[0], unreadable)
    first, second = queue.page("work")
    assert isinstance(first.output, UnreadablePayload)
    assert (first.payload, first.state, second.output) == (1, State.SUCCEEDED, {"done": True})


@pytest.mark.usefixtures("poisoned")
def test_a_held_task_with_an_unreadable_payload_can_be_failed_with_the_reason(queue: TaskQueue, owner: Owner) -> None:
    polled = queue.poll("work", owner, 10)
    payload: Any = polled[1].payload
    queue.complete(
        owner,
        {
            polled[0]: Result.SUCCESS,
            polled[1]: Decision(Result.FAILURE, error=payload.reason),
            polled[2]: Result.SUCCESS,
        },
    )
    assert [info.state for info in queue.page("work")] == [State.SUCCEEDED, State.FAILED, State.SUCCEEDED]
    assert queue.page("work")[1].error == payload.reason


def test_an_unreadable_payload_can_be_browsed(queue: TaskQueue, poisoned: list[Task], unreadable: str) -> None:
    sequences = [task.sequence for task in poisoned]
    assert [line.sequence for line in queue.browse_tasks("work", sequences)] == sequences
    texts = queue.task_texts("work", sequences[1], 1_000_000)
    assert texts is not None
    assert texts.payload == unreadable


@pytest.mark.usefixtures("poisoned")
def test_the_connection_keeps_its_own_way_to_load_json(queue: TaskQueue, owner: Owner) -> None:
    conn = queue.conn
    before = [conn.adapters.get_loader(oid, psycopg.pq.Format.TEXT) for oid in (114, 3802)]
    queue.poll("work", owner, 10)
    assert [conn.adapters.get_loader(oid, psycopg.pq.Format.TEXT) for oid in (114, 3802)] == before
    set_json_loads(lambda _: "mine", conn)
    is_spared(queue.page("work"))
    assert conn.execute("""SELECT '{"a": 1}'::json""").fetchone() == ("mine",)


def test_texts_are_decoded_in_the_encoding_of_the_connection(dsn: str, queue: TaskQueue) -> None:
    queue.push("work", [NewTask("a", {"name": "Käthe"})])
    with connect(dsn, client_encoding="LATIN1") as conn:
        assert TaskQueue(conn).page("work")[0].payload == {"name": "Käthe"}


@pytest.mark.usefixtures("poisoned")
def test_a_cursor_of_an_asynchronous_connection_decodes_tolerantly(dsn: str) -> None:
    async def fetched() -> list[Any]:
        async with await psycopg.AsyncConnection.connect(dsn) as conn, conn.cursor() as cursor:
            register_loaders(cursor)
            await cursor.execute("SELECT payload FROM taskq.task_info ORDER BY sequence")
            return await cursor.fetchall()

    is_spared(Task(n, "work", "", payload, None, 0, False) for n, (payload,) in enumerate(asyncio.run(fetched())))


def test_a_payload_too_deep_for_the_stack_is_unreadable_and_harms_no_other(queue: TaskQueue, owner: Owner) -> None:
    depth = 600  # which Python reads from the top of its stack only
    limit = sys.getrecursionlimit()
    tasks = queue.push("work", ["a", "b"])
    poison(queue, tasks[0], "[" * depth + "]" * depth)
    poison(queue, tasks[1], "{}")

    def descend(frames: int) -> list[Task]:
        return descend(frames - 1) if frames else queue.poll("work", owner, 2)

    sys.setrecursionlimit(1_000)
    try:
        deep, flat = descend(600)
    finally:
        sys.setrecursionlimit(limit)
    assert isinstance(deep.payload, UnreadablePayload)
    assert flat.payload == {}


def test_a_lower_limit_of_digits_makes_no_other_payload_unreadable(queue: TaskQueue, owner: Owner) -> None:
    before = sys.get_int_max_str_digits()
    tasks = queue.push("work", [NewTask("a", 10**300), NewTask("b", 2)])
    poison(queue, tasks[1], "9" * 700)
    sys.set_int_max_str_digits(640)
    try:
        first, second = queue.poll("work", owner, 2)
    finally:
        sys.set_int_max_str_digits(before)
    assert first.payload == 10**300
    assert isinstance(second.payload, UnreadablePayload)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1.7976931348623157e308", sys.float_info.max),
        (str(int(sys.float_info.max)), int(sys.float_info.max)),
        (json.dumps("9" * 5_000), "9" * 5_000),
        (json.dumps({"1e400": ["1e400", "[" * 2_000]}), {"1e400": ["1e400", "[" * 2_000]}),
        ("0." + "3" * 5_000, 1 / 3),
        ("1e-400", 0.0),
        ("0e400", 0.0),
        ("[" * 200 + "]" * 200, None),
    ],
)
def test_json_that_python_can_read_is_readable(text: str, value: Json) -> None:
    found = decode_json(text)
    assert not isinstance(found, UnreadablePayload)
    assert found == value or value is None


@pytest.mark.parametrize("text", ["NaN", "[Infinity]", "-Infinity", "[", "", "{'a': 1}"])
def test_text_that_is_not_json_is_unreadable(text: str) -> None:
    assert isinstance(decode_json(text), UnreadablePayload)


def test_no_reason_quotes_the_payload(unreadable: str) -> None:
    found = decode_json(unreadable.replace("1", "7"))
    assert isinstance(found, UnreadablePayload)
    assert not any(letter.isdigit() for letter in found.reason)


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


@pytest.mark.parametrize("use", list(USES))
def test_every_use_of_an_unreadable_payload_as_data_raises_the_reason(use: str) -> None:
    with pytest.raises(InvalidTask, match=r"^the reason$"):
        USES[use](UnreadablePayload("the reason"))


def test_an_unreadable_payload_is_a_plain_value() -> None:
    payload = UnreadablePayload("the reason")
    assert pickle.loads(pickle.dumps(payload)) == payload  # noqa: S301 - its own
    assert copy.deepcopy(payload) == copy.copy(payload) == payload
    assert payload != UnreadablePayload("another")
    assert {payload: 1}[UnreadablePayload("the reason")] == 1
    assert repr(payload) == str(payload) == "UnreadablePayload(reason='the reason')"
    with pytest.raises(AttributeError):
        payload.reason = "another"  # type: ignore[misc]


def test_an_unreadable_payload_cannot_be_pushed_again(queue: TaskQueue) -> None:
    payload: Any = UnreadablePayload("the reason")
    with pytest.raises(InvalidTask, match=r"position 1: its payload is not JSON: .*UnreadablePayload"):
        queue.push("work", ["a", NewTask("b", payload)])
