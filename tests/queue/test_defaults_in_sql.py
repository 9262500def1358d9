"""The SQL functions for a psql prompt have the defaults of the Python methods."""

from datetime import timedelta

import pytest

from airflow_provider_taskq.queue import Result, TaskQueue, TopicPolicy
from tests.internals import lapse_lease

pytestmark = pytest.mark.promise("A program in any language calls the same functions")


def value(queue: TaskQueue, call: str) -> object:
    """The single value of a call."""
    row = queue.conn.execute(f"SELECT {call}".encode()).fetchone()
    assert row is not None
    return row[0]


def test_a_topic_without_a_policy_has_the_default_policy(queue: TaskQueue) -> None:
    assert value(queue, "taskq.create_topic('plain')") is True
    assert queue.policy("plain") == TopicPolicy()


def test_fields_of_a_policy_are_given_by_name(queue: TaskQueue) -> None:
    value(queue, "taskq.create_topic('named', p_max_attempts => 3, p_base => '30 s', p_keep_succeeded => '7 d')")
    policy = queue.policy("named")
    assert (policy.retry.max_attempts, policy.retry.base) == (3, timedelta(seconds=30))
    assert (policy.keep_succeeded, policy.keep_failed) == (timedelta(days=7), None)


def test_upkeep_without_arguments_expires_every_lapsed_lease(queue: TaskQueue) -> None:
    assert queue.poll("work", queue.register("me")) == []
    lapse_lease(queue.conn)
    assert value(queue, "(expired, purged, more)::text FROM taskq.maintain()") == "(0,0,f)"
    assert queue.owners() == []


def test_an_owner_is_registered_for_five_minutes(queue: TaskQueue) -> None:
    assert value(queue, "lease FROM taskq.register('me')") == timedelta(minutes=5)


def test_a_poll_claims_the_oldest_task_under_no_condition(queue: TaskQueue) -> None:
    first, _second = queue.push("work", ["a", "a"])
    fence = value(queue, "fence FROM taskq.register('me')")
    assert value(queue, "taskq.ready('work')") == 1
    assert value(queue, f"sequence FROM taskq.poll('work', 'me', {fence})") == first.sequence
    assert value(queue, f"count(*) FROM taskq.poll('work', 'me', {fence})") == 1


def test_a_revival_by_sequence_resets_the_task(queue: TaskQueue) -> None:
    queue.push("work", ["a"])
    owner = queue.register("me")
    (task,) = queue.poll("work", owner)
    queue.complete(owner, {task: Result.FAILURE})
    sequences = f"ARRAY[{task.sequence}]"
    assert value(queue, f"new FROM taskq.revive('work', p_sequences => {sequences})") == task.sequence
    assert queue.ready("work") == 1


def test_expire_without_arguments_ends_leases_that_have_lapsed(queue: TaskQueue) -> None:
    queue.register("me", timedelta(minutes=5))
    assert value(queue, "taskq.expire()") == 0
