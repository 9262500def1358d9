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


def test_fields_of_a_policy_are_given_by_name_and_have_the_defaults_of_python(queue: TaskQueue) -> None:
    assert value(queue, "taskq.create_topic('plain')") is True
    assert queue.policy("plain") == TopicPolicy()
    value(queue, "taskq.create_topic('named', p_max_attempts => 3, p_base => '30 s', p_keep_succeeded => '7 d')")
    policy = queue.policy("named")
    assert (policy.retry.max_attempts, policy.retry.base) == (3, timedelta(seconds=30))
    assert (policy.keep_succeeded, policy.keep_failed) == (timedelta(days=7), None)


# Calls without optional arguments, for a topic with a READY task, an ACTIVE and a FAILED one, and a lapsed lease.
DEFAULTS: dict[str, object] = {
    "lease FROM taskq.register('another')": timedelta(minutes=5),
    "(expired, purged, more)::text FROM taskq.maintain()": "(1,0,f)",
    "taskq.expire()": 1,
    "taskq.ready('work')": 1,
    "sequence FROM taskq.poll('work', 'me', 1)": 3,
    "count(*) FROM taskq.poll('work', 'me', 1)": 1,
    "new FROM taskq.revive('work', p_sequences => '{1}')": 1,
}


@pytest.mark.parametrize("call", DEFAULTS)
def test_a_call_at_a_prompt_has_the_defaults_of_python(queue: TaskQueue, call: str) -> None:
    me, lapsed = queue.register("me"), queue.register("lapsed")
    queue.push("work", ["a", "a", "a", "a"])
    queue.complete(me, dict.fromkeys(queue.poll("work", me), Result.FAILURE))
    queue.poll("work", lapsed)
    lapse_lease(queue.conn, "lapsed")
    assert value(queue, call) == DEFAULTS[call]
