"""Retry: a failure with attempts left. Tests move the clock instead of waiting."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_provider_taskq.queue import (
    Decision,
    NewTask,
    Owner,
    Result,
    RetryPolicy,
    State,
    TaskQueue,
    TopicPolicy,
    connect,
)
from airflow_provider_taskq.queue.policies import UNLIMITED
from tests.conftest import SharedDatabase
from tests.internals import make_due, set_attempt, set_created
from tests.queue.conftest import in_second, known, last_failure, pass_time, task_in

pytestmark = pytest.mark.promise("A failure with attempts left goes back to READY, due after the delay of the policy")

SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)
SOON = timedelta(seconds=5)  # what the test itself may take between two readings of the clock


EVENTS = [2.0, 3.0, 4.5, 6.8, 10.1, 15.2, 22.8, 30.0, 30.0, 30.0]
# Policies, and the delays after the failures of a task in seconds. The task is given up after the last one.
DELAYS: dict[str, tuple[RetryPolicy, list[float]]] = {
    "by the factor to a maximum": (
        RetryPolicy(max_attempts=7, base=10 * SECOND, factor=3.0, max_delay=5 * MINUTE),
        [10, 30, 90, 270, 300, 300],
    ),
    "event handling": (RetryPolicy.event_handling(max_attempts=10), EVENTS),
    "two retries of event handling": (RetryPolicy.event_handling(max_attempts=2), EVENTS[:2]),
    "no retry of event handling": (RetryPolicy.event_handling(max_attempts=0), []),
    "at most 9.5 s, which three delays are": (RetryPolicy.event_handling(max_elapsed=9.5 * SECOND), EVENTS[:3]),
    "at most 9.6 s": (RetryPolicy.event_handling(max_elapsed=9.6 * SECOND), EVENTS[:4]),
}


@pytest.mark.parametrize(("policy", "expected"), DELAYS.values(), ids=DELAYS)
def test_the_delays_of_a_policy_grow_until_it_gives_up(
    queue: TaskQueue, owner: Owner, policy: RetryPolicy, expected: list[float]
) -> None:
    queue.alter_topic("work", TopicPolicy(policy))
    [task] = queue.push("work", ["a"])
    found: list[float] = []
    while polled := queue.poll("work", owner):
        queue.complete(owner, dict.fromkeys(polled, Result.FAILURE))
        if known(queue, task).state is State.READY:
            delay = known(queue, task).available_at - last_failure(queue, task)
            found.append(round(delay / SECOND, 1))
            pass_time(queue, delay)
    assert found == expected
    assert RetryPolicy.event_handling().delay(1_000_000) == 30 * SECOND, "it never gives up"


def test_the_worked_example_of_camunda_correlate_to_the_second(queue: TaskQueue, owner: Owner) -> None:
    """TTL 10 s, longest back-off 10 min, at most 5 retries, and a poll every 6 s."""
    retry = RetryPolicy.correlation(max_backoff=timedelta(minutes=10), max_retries=5)
    queue.alter_topic("work", TopicPolicy(retry))
    [task] = queue.push("work", [NewTask("message", ttl=10 * SECOND)])
    reported: list[tuple[int, int, int | None]] = []
    due = None
    for at in range(6, 700, 6):
        pass_time(queue, 6 * SECOND)
        created = queue.now() - at * SECOND  # the test's own time does not count
        set_created(queue.conn, {task.sequence: created})
        for polled in queue.poll("work", owner):
            queue.complete(owner, {polled: Decision(Result.FAILURE, error=f"at {at}")})
            info = known(queue, task)
            due = in_second(queue, task, at, created) if info.attempt and info.state is State.READY else None
            reported.append((at, info.attempt, due))
        if due is not None:  # nor does the moment between two clocks
            make_due(queue.conn, created + due * SECOND)
    assert reported == [(6, 0, None), (12, 1, 72), (72, 2, 192), (192, 3, 432), (432, 4, 600), (600, 5, None)]
    info = known(queue, task)
    assert (info.state, info.status, info.error) == (State.FAILED, "exhausted", "at 600")


@pytest.mark.parametrize("jitter", [0.25, 1.0])
def test_jitter_shortens_a_delay_by_at_most_its_share(queue: TaskQueue, owner: Owner, jitter: float) -> None:
    queue.alter_topic("work", TopicPolicy(RetryPolicy(max_attempts=2, base=100 * SECOND, jitter=jitter)))
    queue.push("work", [f"{number}" for number in range(200)])
    tasks = queue.poll("work", owner, 200)
    before = queue.now()
    queue.complete(owner, dict.fromkeys(tasks, Result.FAILURE))
    found = [(info.available_at - before) / SECOND for info in queue.page("work", size=200)]
    assert min(found) >= 100 * (1 - jitter)
    assert max(found) <= 100 + SOON / SECOND
    assert max(found) - min(found) > 100 * jitter / 2, "spread over the share, not all alike"


@pytest.mark.parametrize("of_topic", [None, timedelta(hours=1)])
def test_a_failure_within_the_ttl_of_the_task_or_else_of_its_topic_is_not_recorded(
    queue: TaskQueue, owner: Owner, of_topic: timedelta | None
) -> None:
    queue.alter_topic("work", TopicPolicy(ttl=of_topic))
    queue.push("work", [NewTask("of task", ttl=MINUTE), NewTask("of topic")])
    recorded = []
    for _ in range(2):
        queue.complete(owner, dict.fromkeys(queue.poll("work", owner, 2), Result.FAILURE))
        recorded.append([(info.state, info.attempt) for info in queue.page("work")])
        pass_time(queue, MINUTE)
    young, old = (State.READY, 0), (State.FAILED, 1)
    assert recorded == [[young, young if of_topic else old], [old, young if of_topic else old]]


DURATIONS = st.integers(0, 10**10).map(lambda count: timedelta(milliseconds=count))
POLICIES = st.builds(
    RetryPolicy,
    max_attempts=st.integers(1, 2**31 - 1),
    base=DURATIONS,
    factor=st.sampled_from([0.5, 1.0, 1.5, 2.0, 3.0, 10.0]) | st.floats(0.001, 1000),
    max_delay=DURATIONS,
    max_elapsed=st.none() | DURATIONS,
)


@pytest.fixture(scope="module")
def reckoning(shared_database: SharedDatabase) -> Any:
    with connect(shared_database.dsn, autocommit=True) as conn:
        yield conn


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(policy=POLICIES, attempts=st.integers(1, 60) | st.integers(1, 2**31 - 1))
def test_the_policy_in_python_is_the_policy_in_sql(
    reckoning: psycopg.Connection, policy: RetryPolicy, attempts: int
) -> None:
    policy = replace(policy, max_elapsed=None)  # the sum of the delays is in the row
    with reckoning.transaction(force_rollback=True):
        queue = TaskQueue(reckoning)
        queue.create_topic("reckoned", TopicPolicy(policy))
        assert queue.policy("reckoned").retry == policy
        owner = queue.register("me")
        queue.push("reckoned", ["a"])
        [task] = queue.poll("reckoned", owner)
        set_attempt(reckoning, task.sequence, attempts)
        before = queue.now()
        queue.complete(owner, {task.sequence: Result.FAILURE})
        after, info = queue.now(), known(queue, task, "reckoned")
    delay = policy.delay(attempts)
    assert (info.state is State.FAILED) == (delay is None)
    if delay is not None:
        rounding = timedelta(microseconds=2) + delay * 1e-12
        assert info.available_at - after - rounding <= delay <= info.available_at - before + rounding


@settings(max_examples=200)
@given(policy=POLICIES, attempts=st.integers(1, 60), share=st.floats(0.001, 2))
def test_delays_add_up_as_if_each_were_added_to_the_sum(policy: RetryPolicy, attempts: int, share: float) -> None:
    policy = replace(policy, max_attempts=UNLIMITED, max_elapsed=None)
    each = [policy.delay(number) for number in range(1, attempts)]
    elapsed = sum((delay for delay in each if delay is not None), start=timedelta(0))
    limit = elapsed * share + timedelta(microseconds=1)
    given_up = replace(policy, max_elapsed=limit).delay(attempts) is None
    if abs(limit - elapsed) > timedelta(microseconds=60) + elapsed * 1e-12:  # each delay is rounded
        assert given_up == (elapsed >= limit)


BILLIONS = 2_000_000_000
TINY = timedelta(microseconds=1)
TEN_YEARS = timedelta(days=3650)
ENDLESS = {
    "no delay": RetryPolicy(UNLIMITED, timedelta(0)),
    "shrinking delays": RetryPolicy(UNLIMITED, SECOND, 0.5),
    "one delay": RetryPolicy(UNLIMITED, 100 * SECOND, 1e-300, SECOND),
    "constant delays": RetryPolicy(UNLIMITED, TINY, 1.0),
    "slow growth": RetryPolicy(UNLIMITED, TINY, 1.0 + 1e-9, SECOND),
    "fast growth": RetryPolicy(UNLIMITED, TINY, 1e300, SECOND),
    "overflow": RetryPolicy(UNLIMITED, TEN_YEARS, 1e308, TEN_YEARS),
    "underflow": RetryPolicy(UNLIMITED, TEN_YEARS, 5e-324, TEN_YEARS),
    "no base": RetryPolicy(UNLIMITED, timedelta(0), 1e308, TEN_YEARS),
}


@pytest.mark.parametrize("policy", ENDLESS.values(), ids=ENDLESS)
def test_a_failure_after_billions_of_attempts_is_decided_without_a_loop_over_them(
    queue: TaskQueue, owner: Owner, policy: RetryPolicy
) -> None:
    expected = policy.delay(BILLIONS)
    queue.alter_topic("work", TopicPolicy(policy))
    task = task_in(queue, owner, State.ACTIVE)
    set_attempt(queue.conn, task.sequence, BILLIONS)
    with queue.conn.transaction():
        queue.conn.execute("SET LOCAL statement_timeout = '60s'")  # a loop takes many minutes
        queue.complete(owner, {task.sequence: Decision(Result.FAILURE, error="again")})
    info = known(queue, task)
    assert (info.state, info.attempt) == (State.FAILED if expected is None else State.READY, BILLIONS)
    if expected is not None:
        assert abs(info.available_at - last_failure(queue, task) - expected) <= TINY
