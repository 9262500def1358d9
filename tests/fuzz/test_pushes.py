"""Hostile tasks: a push or an offer stores what it was given, or raises an error of the queue and stores nothing."""

import json
from collections.abc import Mapping
from typing import Any

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_taskq.queue import (
    Insertion,
    NewTask,
    TaskInfo,
    TaskQueue,
    TaskQueueError,
)
from airflow_provider_taskq.queue.encoding import json_text
from airflow_provider_taskq.queue.task_input import TASK_FIELDS
from tests.fuzz.inputs import ANYTHING, DURATIONS, FUZZ, MOMENTS, PAYLOADS, TEXTS, WHOLE
from tests.fuzz.outcomes import StoredState, attempt, limited_time
from tests.queue.hostile import ACCEPTED_JSON, REFUSED_JSON

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(3600),
    pytest.mark.promise("Any input is stored as it is, or refused with an error of the queue"),
    pytest.mark.promise("A payload comes back as it was pushed, or is refused"),
]

TOPICS = st.one_of(st.just("work"), TEXTS)
FIELDS = {
    "identifier": TEXTS,
    "payload": PAYLOADS,
    "reference": TEXTS,
    "suspended": st.booleans(),
    "available_at": MOMENTS,
    "delay": DURATIONS,
    "ttl": DURATIONS,
    "priority": WHOLE,
    "depends_on": st.lists(st.tuples(TEXTS, TEXTS), max_size=3),
}
# Few fields at once: with many, one of them is nearly always wrong.
SOME = st.lists(st.sampled_from(sorted(set(FIELDS) - {"identifier"})), max_size=2, unique=True)


def fields_of(strategies: dict[str, st.SearchStrategy[Any]]) -> st.SearchStrategy[dict[str, Any]]:
    """An identifier, often a valid one, and some other fields of a task."""
    identifier = st.one_of(st.just("a"), strategies["identifier"])
    return SOME.flatmap(
        lambda names: st.fixed_dictionaries({"identifier": identifier, **{name: strategies[name] for name in names}})
    )


# A NewTask has values of its types. A dict comes from a file, a request or a command line, and has any value.
TASKS = st.one_of(
    fields_of(FIELDS).map(lambda fields: NewTask(**fields)),
    fields_of({name: st.one_of(strategy, ANYTHING) for name, strategy in FIELDS.items()}),
)


def check_stored(found: TaskInfo | None, fields: Mapping[str, Any]) -> None:
    """The stored task has the identifier, the payload, the reference and the priority that were given."""
    assert found is not None
    assert found.identifier == fields["identifier"]
    assert found.reference == fields.get("reference")
    assert found.priority == (fields.get("priority") or 0)
    assert repr(found.payload) == repr(fields.get("payload"))


def store(queue: TaskQueue, topic: str, task: NewTask | dict[str, Any], how: Insertion | str) -> list[int]:
    """Push a task with an insertion, or offer it. Return the sequences of what was stored."""
    if isinstance(how, Insertion):
        return [task.sequence for task in queue.push(topic, [task], how)]
    [offered] = queue.offer_many(topic, [task], if_exists=how)
    return [] if offered.outcome == "IGNORED" else [offered.sequence]


@FUZZ
@given(topic=TOPICS, task=TASKS, how=st.sampled_from([*Insertion, "update", "ignore"]))
def test_a_push_or_an_offer_stores_the_task_or_raises_an_error_of_the_queue_and_stores_nothing(
    bounded: TaskQueue, state: StoredState, topic: str, task: NewTask | dict[str, Any], how: Insertion | str
) -> None:
    fields = task if isinstance(task, dict) else {name: getattr(task, name) for name in TASK_FIELDS}
    stored = attempt(lambda: store(bounded, topic, task, how))
    if isinstance(stored, TaskQueueError) or not stored:
        state.check_unchanged()
        return
    check_stored(bounded.task("work", stored[0]), fields)
    assert bounded.topics() == ["work"]
    state.remember()


TEXTS_OF_JSON = st.one_of(
    TEXTS,
    st.sampled_from([*(text for text, _ in REFUSED_JSON.values()), *ACCEPTED_JSON.values()]),
    st.sampled_from(["1e-400", "[1,]", "{'a':1}", "\ufeff1", "nul"]),
    PAYLOADS.filter(lambda value: is_json(value)).map(json.dumps),
)
# Errors of a caller: of the queue (TQ), of a value (22), of a constraint (23), of a size (54).
EXPECTED = ("TQ000", "TQ001", "TQ002", "TQ003", "TQ008", "22", "23", "54")
STORED = """
    SELECT identifier, reference, priority, payload::text = %s FROM taskq.task_info WHERE sequence = %s
"""


def is_json(value: object) -> bool:
    """Whether Python can write the value as JSON."""
    try:
        json.dumps(value)
    except (TypeError, ValueError, RecursionError):
        return False
    return True


@FUZZ
@given(
    topic=st.one_of(st.just("work"), TEXTS),
    identifier=TEXTS,
    payload=TEXTS_OF_JSON,
    reference=st.one_of(st.none(), TEXTS),
    priority=st.one_of(st.integers(-100, 100), WHOLE),
)
def test_a_push_in_sql_stores_the_payload_or_raises_an_error_with_a_code_and_stores_nothing(
    bounded: TaskQueue,
    state: StoredState,
    topic: str,
    identifier: str,
    payload: str,
    reference: str | None,
    priority: int,
) -> None:
    try:
        with limited_time():
            row = bounded.conn.execute(
                "SELECT taskq.push(%s::text, %s::text, %s::json::text, %s::text, priority => %s::int)",
                (topic, identifier, payload, reference, priority),
            ).fetchone()
    except UnicodeEncodeError:
        return  # psycopg has sent nothing
    except psycopg.Error as error:
        code = error.sqlstate or "22000"  # without a code, psycopg has refused the value itself
        assert code.startswith(EXPECTED), f"{code}: {error}"
        state.check_unchanged()
        return
    assert row is not None
    found = bounded.conn.execute(STORED.encode(), (payload, row[0])).fetchone()
    assert found == (identifier, reference, priority, True)
    assert bounded.topics() == ["work"]
    state.remember()


@FUZZ
@given(PAYLOADS.filter(lambda value: is_json(value)))
def test_sql_takes_what_python_takes(queue: TaskQueue, payload: Any) -> None:
    queue.alter_topic("work", max_payload_bytes=1_000_000)
    try:
        text = json_text(payload)
    except ValueError:
        return
    if text is not None and "\\u0000" not in text:
        queue.conn.execute("SELECT taskq.push('work', 'a', %s)", (text,))
