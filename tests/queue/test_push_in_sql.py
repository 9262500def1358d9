"""taskq.push for one task: the short form for producers in any language."""

from datetime import UTC, datetime, timedelta

import pytest
from psycopg.types.json import Json, Jsonb

from airflow_provider_taskq.queue import InvalidTask, State, TaskInfo, TaskQueue, UnknownTopic
from airflow_provider_taskq.queue.errors import translate_errors

pytestmark = pytest.mark.promise("A program in any language calls the same functions")

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)


def push(queue: TaskQueue, call: str, *arguments: object) -> TaskInfo:
    """Calls taskq.push, and returns the stored task."""
    row = queue.conn.execute(f"SELECT taskq.push({call})".encode(), arguments).fetchone()
    assert row is not None
    task = queue.task("work", row[0])
    assert task is not None
    return task


@pytest.mark.parametrize(
    ("call", "arguments", "payload"),
    [
        ("""'work', 'a', '{"total": 12}'""", (), {"total": 12}),
        ("'work', 'a'", (), None),
        ("'work', 'a', NULL", (), None),
        ("%s, %s, %s", ("work", "a", "[1]"), [1]),
        ("%s, %s, payload => %s", ("work", "a", None), None),
        ("'work', 'a', %s", (Jsonb({"total": 12}),), {"total": 12}),
    ],
    ids=["literals", "no payload", "NULL", "untyped", "by name", "jsonb"],
)
def test_the_short_form_stores_a_task_and_returns_its_sequence(
    queue: TaskQueue, call: str, arguments: tuple[object, ...], payload: object
) -> None:
    task = push(queue, call, *arguments)
    assert (task.identifier, task.payload, task.state, task.priority) == ("a", payload, State.READY, 0)


BY_NAMES = """SELECT taskq.push_task(topic => b.topic, identifier => b.identifier, payload => b.payload)
    FROM json_to_record(%s::json) AS b (topic text, identifier text, payload json)"""
OVERLOADED = """SELECT proname::text FROM pg_proc WHERE pronamespace = 'taskq'::regnamespace
    GROUP BY proname HAVING count(*) > 1 ORDER BY 1"""


def test_a_client_that_knows_only_the_names_of_arguments_finds_one_function(queue: TaskQueue) -> None:
    """As PostgREST calls a function, with the members of a JSON body."""
    assert queue.conn.execute(OVERLOADED).fetchall() == [("push",)]
    queue.conn.execute(BY_NAMES, (Json({"topic": "work", "identifier": "a", "payload": {"b": 1, "a": [1.50]}}),))
    [task] = queue.page("work")
    assert (task.identifier, task.payload) == ("a", {"b": 1, "a": [1.5]})


def test_all_other_arguments_go_by_name(queue: TaskQueue) -> None:
    task = push(
        queue,
        "'work', 'a', reference => 'r', priority => 7, available_at => %s, ttl => '1 hour', suspended => true",
        NOON,
    )
    assert (task.reference, task.priority, task.state) == ("r", 7, State.SUSPENDED)
    assert task.available_at == NOON
    later = push(queue, "'work', 'a', delay => '1 hour', insertion => 'REPLACE'")
    assert queue.page("work", state="REDUNDANT") == [task]
    assert timedelta(minutes=59) < later.available_at - later.created <= timedelta(hours=1)


def test_one_statement_writes_a_row_and_pushes_its_task(queue: TaskQueue) -> None:
    queue.conn.execute("CREATE TEMP TABLE orders (id int GENERATED ALWAYS AS IDENTITY, total int)")
    row = queue.conn.execute(
        "WITH placed AS (INSERT INTO orders (total) VALUES (12) RETURNING id, total)"
        " SELECT taskq.push('work', 'order-' || id, to_jsonb(placed)) FROM placed"
    ).fetchone()
    assert row is not None
    task = queue.task("work", row[0])
    assert task is not None
    assert (task.identifier, task.payload) == ("order-1", {"id": 1, "total": 12})


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        ("'other', 'a'", UnknownTopic, "other"),
        ("'work', ' '", InvalidTask, "its identifier is blank"),
        ("'work', NULL", InvalidTask, "its identifier is blank"),
        ("'work', 'a', '{'", InvalidTask, "json"),
        ("'work', 'a', priority => 101", InvalidTask, "its priority 101 is outside -100..100"),
        ("'work', 'a', delay => '1 s', available_at => now()", InvalidTask, "both available_at and delay"),
        ("'work', 'a', insertion => 'PREPEND'", InvalidTask, "PREPEND"),
        ("'work', 'a', insertion => NULL", InvalidTask, "APPEND, SUPERSEDE, REPLACE, DELETE"),
    ],
)
def test_a_task_that_breaks_a_rule_is_refused(
    queue: TaskQueue, call: str, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message), translate_errors():
        queue.conn.execute(f"SELECT taskq.push({call})".encode())
    assert queue.page("work") == []
