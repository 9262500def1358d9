"""Hostile tasks: a push or an offer stores what it was given, or raises an error of the queue and stores nothing."""

import math
from typing import Any

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_taskq.queue import Insertion, NewTask, TaskQueue, TaskQueueError
from airflow_provider_taskq.queue.task_input import TASK_FIELDS
from tests.fuzz.inputs import ANYTHING, DURATIONS, FUZZ, MOMENTS, PAYLOADS, TEXTS, WHOLE, nested

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

TOPICS = st.one_of(st.just("work"), TEXTS)
STORED = "SELECT count(*), max(sequence) FROM taskq_internal.task"
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


def stored(queue: TaskQueue) -> Any:
    """What the table of tasks has."""
    return queue.conn.execute(STORED.encode()).fetchone()


def is_same(one: Any, other: Any) -> bool:
    """Whether a payload came back as it was given. JSON has one kind of number and only texts as keys."""
    if isinstance(one, float) and isinstance(other, int | float):
        return math.isclose(one, other, rel_tol=0, abs_tol=0)
    return bool(one == other)


@FUZZ
@given(topic=TOPICS, task=TASKS, insertion=st.sampled_from(Insertion))
def test_a_push_stores_the_task_or_raises_an_error_of_the_queue_and_stores_nothing(
    bounded: TaskQueue, topic: str, task: NewTask | dict[str, Any], insertion: Insertion
) -> None:
    before = stored(bounded)
    fields = task if isinstance(task, dict) else {name: getattr(task, name) for name in TASK_FIELDS}
    try:
        [pushed] = bounded.push(topic, [task], insertion)
    except TaskQueueError as error:
        assert str(error)
        assert stored(bounded) == before
    else:
        assert bounded.topics() == ["work"]
        assert is_same(fields.get("payload"), pushed.payload)
        found = bounded.task("work", pushed.sequence)
        assert found is not None
        assert (found.identifier, found.reference) == (fields["identifier"], fields.get("reference"))
        assert is_same(fields.get("payload"), found.payload)


@FUZZ
@given(
    topic=TOPICS,
    identifier=TEXTS,
    payload=PAYLOADS,
    options=st.fixed_dictionaries(
        {},
        optional={
            "if_exists": st.sampled_from(["update", "ignore"]),
            "reference": FIELDS["reference"],
            "available_at": FIELDS["available_at"],
            "delay": FIELDS["delay"],
            "ttl": FIELDS["ttl"],
            "priority": FIELDS["priority"],
        },
    ),
)
def test_an_offer_stores_the_task_or_raises_an_error_of_the_queue_and_stores_nothing(
    bounded: TaskQueue, topic: str, identifier: str, payload: Any, options: dict[str, Any]
) -> None:
    before = stored(bounded)
    try:
        offered = bounded.offer(topic, identifier, payload, **options)
    except TaskQueueError as error:
        assert str(error)
        assert stored(bounded) == before
    else:
        assert bounded.topics() == ["work"]
        found = bounded.task("work", offered.sequence)
        assert found is not None
        assert found.identifier == identifier


TEXTS_OF_JSON = st.one_of(
    TEXTS,
    st.integers(1, 20_000).map(nested),
    st.integers(1, 2_000).map(lambda depth: nested(depth, '{"a":', "}")),
    st.integers(300, 5_000).map(lambda digits: "9" * digits),
    st.sampled_from(["1e309", "-1e309", "1e-400", '"\\u0000"', '"\\ud800"', "[1,]", "{'a':1}", "\ufeff1", "nul"]),
)
# Errors of a caller: of the queue (TQ), of a value (22), of a constraint (23), of a size (54).
EXPECTED = ("TQ", "22", "23", "54")


@FUZZ
@given(topic=st.one_of(st.just("work"), TEXTS), identifier=TEXTS, payload=TEXTS_OF_JSON)
def test_a_push_in_sql_stores_the_payload_or_raises_an_error_with_a_code_and_stores_nothing(
    bounded: TaskQueue, topic: str, identifier: str, payload: str
) -> None:
    before = stored(bounded)
    try:
        row = bounded.conn.execute(
            "SELECT taskq.push(%s::text, %s::text, %s::json)", (topic, identifier, payload)
        ).fetchone()
    except UnicodeEncodeError:
        return  # psycopg has sent nothing
    except psycopg.Error as error:
        code = error.sqlstate or "22000"  # without a code, psycopg has refused the value itself
        assert code.startswith(EXPECTED), f"{code}: {error}"
        assert stored(bounded) == before
    else:
        assert bounded.topics() == ["work"]
        assert row is not None
        found = bounded.task("work", row[0])
        assert found is not None
        assert found.identifier == identifier
