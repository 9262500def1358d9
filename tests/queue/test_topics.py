"""Topics: created with a policy, altered, paused and dropped."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from airflow_provider_taskq.queue import (
    InvalidArgument,
    Owner,
    Result,
    RetryPolicy,
    State,
    TaskQueue,
    TaskQueueError,
    TopicPolicy,
    UnknownTopic,
)
from tests.internals import stored_rows
from tests.queue.conftest import InBackground, await_lock_wait, hurry, identifiers, states

pytestmark = pytest.mark.promise("A topic keeps its policy until it is altered")

RICH = TopicPolicy(
    RetryPolicy(
        7,
        timedelta(milliseconds=1500),
        1.25,
        timedelta(hours=30),
        timedelta(days=40, microseconds=1),
        timedelta(days=3),
        0.5,
    ),
    on_expiry="expire",
    max_crashes=5,
    max_payload_bytes=17,
    ttl=timedelta(seconds=10),
    notify=True,
    keep_succeeded=timedelta(days=7),
    keep_failed=timedelta(days=90, seconds=1),
)


def test_creating_a_topic_again_leaves_it_unchanged(queue: TaskQueue) -> None:
    queue.create_topic("orders", RICH)
    queue.pause_topic("orders")
    queue.create_topic("orders")
    assert queue.policy("orders") == RICH
    assert queue.pause_topic("orders") is False
    assert queue.policy("work") == TopicPolicy()


def test_altering_a_field_keeps_the_others(queue: TaskQueue) -> None:
    queue.alter_topic("work", RICH)
    queue.alter_topic("work", max_crashes=9)
    assert queue.policy("work") == replace(RICH, max_crashes=9)
    queue.alter_topic("work", max_attempts=8, ttl=None, on_expiry="redeliver", jitter=0, probe=True)
    retry = replace(RICH.retry, max_attempts=8, jitter=0.0, probe=True)
    altered = replace(RICH, retry=retry, max_crashes=9, ttl=None, on_expiry="redeliver")
    assert queue.policy("work") == altered
    queue.alter_topic("work", retry=RetryPolicy(max_attempts=2), max_attempts=3)
    assert queue.policy("work") == replace(altered, retry=RetryPolicy(max_attempts=3)), "all of its fields"


def test_a_topic_is_created_with_the_fields_that_are_named(queue: TaskQueue) -> None:
    """Durations may be texts and seconds."""
    day = timedelta(days=1)
    assert queue.create_topic("orders", max_attempts=5, base="2m", ttl=60, horizon=day, keep_failed="36h")
    retry = RetryPolicy(max_attempts=5, base=timedelta(minutes=2), horizon=day)
    assert queue.policy("orders") == TopicPolicy(retry, ttl=timedelta(minutes=1), keep_failed=timedelta(hours=36))


def test_fields_that_are_altered_concurrently_are_all_kept(
    queue: TaskQueue, session: TaskQueue, open_queue: Callable[[], TaskQueue], background: InBackground[None]
) -> None:
    queue.alter_topic("work", RICH)
    session.alter_topic("work", max_attempts=2)
    other = open_queue()
    waiting = background(lambda: other.alter_topic("work", max_crashes=2))
    await_lock_wait(queue.conn, other)
    session.conn.commit()
    waiting.result(60)
    other.conn.commit()
    assert queue.policy("work") == replace(RICH, retry=replace(RICH.retry, max_attempts=2), max_crashes=2)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, "either a policy, or the fields to change"),
        ({"policy": RICH, "max_attempts": 5}, "either a policy, or the fields to change"),
        ({"max_atempts": 5}, "unknown field 'max_atempts' of a policy: expected one of retry, max_attempts, base"),
        ({"max_attempts": "5"}, "max_attempts '5' .*: expected an integer"),
        ({"max_attempts": True}, "max_attempts True .*: expected an integer"),
        ({"max_attempts": 10**12}, "out of range"),
        ({"base": None}, "invalid base None: expected a duration"),
        ({"base": "later"}, "invalid duration 'later'"),
        ({"retry": {"max_attempts": 5}}, "retry is a dict, not a RetryPolicy"),
    ],
)
def test_a_change_of_an_unknown_field_is_refused(queue: TaskQueue, changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidArgument, match=reason):
        queue.alter_topic("work", **changes)
    assert queue.policy("work") == TopicPolicy()


INVALID: dict[str, Any] = {
    "max_attempts": 0,
    "factor": float("inf"),
    "jitter": 1.5,
    "base": -1,
    "on_expiry": "explode",
    "max_crashes": 0,
    "keep_succeeded": -1,
    "keep_failed": timedelta(days=3651),
}


@pytest.mark.parametrize(("field", "value"), INVALID.items(), ids=INVALID)
@pytest.mark.parametrize("verb", [TaskQueue.alter_topic, TaskQueue.create_topic], ids=["alter", "create"])
def test_an_invalid_field_of_a_policy_is_refused_by_its_name(
    queue: TaskQueue, verb: Callable[..., object], field: str, value: object
) -> None:
    topic = "work" if verb is TaskQueue.alter_topic else "orders"
    with pytest.raises(
        TaskQueueError, match=rf"{field}.*(out of its range|expected at least 0|has to be 0 or more)"
    ) as refusal:
        verb(queue, topic, **{field: value})
    assert "relation" not in str(refusal.value), "this speaks of our table, not of the caller's mistake"
    assert (queue.topics(), queue.policy("work")) == (["work"], TopicPolicy())


@pytest.mark.parametrize("changes", ["[]", "5", "null", '{"max_atempts": 5}', '{"name": "other"}', '{"topic_id": 7}'])
def test_sql_refuses_changes_that_are_no_fields_of_a_policy(queue: TaskQueue, changes: str) -> None:
    with pytest.raises(psycopg.Error) as refusal:
        queue.conn.execute("SELECT taskq.alter_topic('work', %s::jsonb)", (changes,))
    assert refusal.value.sqlstate == "TQ008"


def test_topics_have_names_in_any_script(queue: TaskQueue) -> None:
    name = "Bestellungen 'für' 注文 100 %"
    assert queue.create_topic(name)
    [task] = queue.push(name, ["a"])
    assert task.topic == name
    assert [task] == queue.poll(name, queue.register("owner"))


def test_an_unknown_topic_is_refused_by_name(queue: TaskQueue) -> None:
    for verb in (queue.page, queue.pause_topic, queue.policy, queue.ready, queue.topic_status):
        with pytest.raises(UnknownTopic, match=r"topic 'nowhere' .*create it with create_topic"):
            verb("nowhere")


@pytest.mark.promise("A paused topic takes pushes and completions, and hands out nothing")
def test_a_paused_topic_takes_pushes_and_completions_and_hands_out_nothing_until_it_is_resumed(
    queue: TaskQueue, owner: Owner
) -> None:
    queue.push("work", ["a"])
    [held] = queue.poll("work", owner)
    assert queue.pause_topic("work") is True
    assert queue.pause_topic("work") is False
    queue.push("work", ["b"])
    queue.complete(owner, {held: Result.SUCCESS})
    assert states(queue) == [("a", State.SUCCEEDED), ("b", State.READY)]
    assert (queue.poll("work", owner), queue.ready("work")) == ([], 0)
    assert queue.resume_topic("work") is True
    assert queue.resume_topic("work") is False
    assert identifiers(queue.poll("work", owner)) == ["b"]


def test_pausing_never_waits_for_running_tasks(queue: TaskQueue, owner: Owner, session: TaskQueue) -> None:
    queue.push("work", ["a", "b"])
    session.poll("work", owner)
    session.push("work", ["c"])
    assert hurry(queue).pause_topic("work")


def test_a_push_that_commits_before_the_drop_leaves_no_orphan(
    queue: TaskQueue, session: TaskQueue, open_queue: Callable[[], TaskQueue], background: InBackground[bool]
) -> None:
    dropping = open_queue()
    session.push("work", ["a"])
    dropped = background(lambda: dropping.drop_topic("work"))
    await_lock_wait(queue.conn, dropping)
    session.conn.commit()
    assert dropped.result() is True
    dropping.conn.commit()
    assert stored_rows(queue.conn) == {}


def test_a_push_on_an_old_snapshot_does_not_go_to_a_topic_dropped_since(queue: TaskQueue, session: TaskQueue) -> None:
    session.conn.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    session.topics()
    queue.drop_topic("work")
    with pytest.raises(psycopg.errors.SerializationFailure):
        session.push("work", ["a"])
