"""Values out of range are refused with a sentence, and rows with moments out of range are shown."""

import json
from typing import Any

import pytest

from airflow_provider_taskq.queue import TaskQueue
from tests.internals import store_moments, stored_rows
from tests.plugin.conftest import Client
from tests.queue.hostile import WRONG_INTEGERS, WRONG_MOMENTS, make_world

pytestmark = [
    pytest.mark.slow,
    pytest.mark.promise("A view is read-only, has a time limit, and reads a bounded number of rows"),
]

API = "/api/taskq_acts"
INTEGERS = (*WRONG_INTEGERS, str(2**63))
SIZES = (*INTEGERS, "0", "201", str(2**31))
MOMENTS = (*WRONG_MOMENTS, "2026-01-01T00:00:00")
TEXTS = ("a\x00b", "x" * 2001)

VIEWS: dict[str, tuple[str, ...]] = {
    "topics?size=": SIZES,
    "topics?search=": TEXTS,
    "topics?after=": INTEGERS,
    "topics?sort=": TEXTS,
    "search?text=": TEXTS,
    "search?text=a&size=": SIZES,
    "tasks?topic=work&size=": SIZES,
    "tasks?topic=work&after=": INTEGERS,
    "tasks?topic=work&before=": INTEGERS,
    "tasks?topic=work&since=": MOMENTS,
    "tasks?topic=work&until=": MOMENTS,
    "tasks?topic=work&identifier=": TEXTS,
    "tasks?topic=work&error=": TEXTS,
    "tasks?topic=": TEXTS,
    "task?topic=work&sequence=": INTEGERS,
    "owners?size=": SIZES,
    "owners?after=": INTEGERS,
    "owners?search=": TEXTS,
    "owner?owner=owner&size=": SIZES,
    "owner?owner=owner&after=": INTEGERS,
    "owner?owner=": TEXTS,
    "instance?dag_id=d&run_id=r&task_id=t&topic=work&last=1&first=": INTEGERS,
    "instance?dag_id=d&run_id=r&task_id=t&map_index=": ("-2", "9" * 20, "x"),
    "locks?size=": SIZES,
    "locks?after=": TEXTS,
    "ticks?topic=": TEXTS,
    "audit?size=": SIZES,
    "audit?after=": INTEGERS,
}


def push(option: str, value: str) -> str:
    """The fields of a push with one option."""
    return f'"action": "push", "topic": "work", "options": {{"identifier": "new", "{option}": {value}}}'


# The fields of actions as JSON texts, so that they can hold JSON that Python's encoder does not write.
ACTIONS = (
    *(f'"action": "expire", "options": {{"grace_seconds": {n}}}' for n in ("-1", "1e99", "NaN", "Infinity", '"x"')),
    *(
        push(each, n)
        for each in ("delay_seconds", "ttl_seconds")
        for n in ("-1", "315360001", "1e400", "NaN", "-Infinity")
    ),
    *(
        push("available_at", moment)
        for moment in ('"10000-01-01T00:00:00Z"', '"9999-12-31T23:59:59-12:00"', "1e999", "99999999999999999999")
    ),
    *(push("priority", n) for n in ("101", "1e30")),
    *(push("identifier", name) for name in ('"\\u0000"', '"\\ud800"', '""')),
    *(
        f'"action": "retry", "topic": "work", "sequences": [{n}]'
        for n in ("-1", "9223372036854775808", "1e30", "9" * 5_000)
    ),
    '"action": "purge", "topic": "work", "filter": {"since": -1e400}',
    '"action": "retry", "topic": "work", "filter": {"state": "FAILED", "since": "1e999"}',
    '"action": "retry", "topic": "work", "filter": {"state": "FAILED", "error": "\\ud800"}',
    '"action": "pause", "topic": "\\u0000"',
    '"action": "release", "options": {"owner": "\\ud800"}',
)


@pytest.mark.parametrize("view", VIEWS)
def test_a_view_refuses_values_out_of_range_with_a_sentence(client: Client, acts: TaskQueue, view: str) -> None:
    make_world(acts)
    path, _, query = view.partition("?")
    *pairs, last = (pair.split("=") for pair in query.split("&"))
    for value in VIEWS[view]:
        answer = client("viewer").get(f"{API}/{path}", params={**dict(pairs), last[0]: value})
        assert 400 <= answer.status_code < 500, f"{value!r:.50}: {answer.status_code} {answer.text}"
        assert answer.json()["error"]


@pytest.mark.parametrize("fields", ACTIONS)
def test_an_action_refuses_values_out_of_range_with_a_sentence(client: Client, acts: TaskQueue, fields: str) -> None:
    make_world(acts)
    before = stored_rows(acts.conn)
    for confirmed in ("false", "true"):
        sent = f'{{{fields}, "confirm": {confirmed}, "expected": 5}}'
        answer = client("op").post(f"{API}/actions", content=sent, headers={"Content-Type": "application/json"})
        assert 400 <= answer.status_code < 500, f"{answer.status_code} {answer.text}"
        assert answer.json()["error"]
    assert stored_rows(acts.conn) == before


@pytest.mark.parametrize("value", ["infinity", "-infinity", "294276-01-01 00:00Z"])
def test_views_show_rows_with_moments_out_of_range(client: Client, acts: TaskQueue, value: str) -> None:
    world = make_world(acts)
    store_moments(acts.conn, value)

    def get_view(path: str, **params: Any) -> dict[str, Any]:
        answer = client("viewer").get(f"{API}/{path}", params=params)
        assert answer.status_code == 200, f"{path}: {answer.text}"
        found: dict[str, Any] = json.loads(answer.text)
        return found

    shown = "0001-01-01T00:00:00+00:00" if value.startswith("-") else "9999-12-31T00:00:00+00:00"
    assert [owner["lease_until"] for owner in get_view("owners")["owners"]] == [shown]
    assert get_view("owner", owner="owner")["owner"]["seen"] == shown
    assert {task["created"] for task in get_view("tasks", topic="retries")["tasks"]} == {shown}
    assert get_view("task", topic="retries", sequence=world.held)["task"]["lease_until"] == shown
    assert [lock["until"] for lock in get_view("locks")["locks"]] == ["9999-12-31T00:00:00+00:00"]
    for path in ("topics", "consumer_groups", "ticks", "health", "audit"):
        get_view(path)
    get_view("throughput", topic="retries")
    get_view("search", text=str(world.held))
    get_view("topic", topic="retries")
