"""Hostile arguments of policies, schedules and all other verbs."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_taskq.queue import (
    Cursor,
    Decision,
    LeaseLost,
    NewTask,
    NotHeld,
    Owner,
    Result,
    RetryPolicy,
    State,
    TaskQueue,
    TaskQueueError,
    TopicPolicy,
    ticks_cron,
    ticks_daily,
    ticks_every,
)
from airflow_provider_taskq.queue.reports import TaskFilter
from tests.fuzz.inputs import DURATIONS, FUZZ, INPUTS, MOMENTS, TEXTS, WHOLE
from tests.fuzz.outcomes import StoredState, attempt
from tests.internals import stored_rows
from tests.queue.conftest import everything
from tests.queue.hostile import World, beyond, make_world, policy

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(3600),
    pytest.mark.promise("Any input is stored as it is, or refused with an error of the queue"),
]

NOW = datetime(2026, 3, 29, 0, 30, tzinfo=UTC)  # the night on which summer time begins in Europe
RETRY = st.fixed_dictionaries(
    {},
    optional={
        "max_attempts": WHOLE,
        "base": DURATIONS,
        "factor": st.floats(),
        "max_delay": DURATIONS,
        "horizon": DURATIONS,
        "max_elapsed": DURATIONS,
        "jitter": st.floats(),
        "probe": st.booleans(),
    },
)
POLICY = st.fixed_dictionaries(
    {},
    optional={
        "on_expiry": st.one_of(st.sampled_from(["redeliver", "expire"]), TEXTS),
        "max_crashes": WHOLE,
        "max_payload_bytes": WHOLE,
        "ttl": DURATIONS,
        "keep_succeeded": DURATIONS,
        "keep_failed": DURATIONS,
        "notify": st.booleans(),
    },
)


@FUZZ
@given(retry=RETRY, policy=POLICY)
def test_a_policy_is_stored_as_it_was_given_or_refused_and_the_topic_keeps_its_own(
    bounded: TaskQueue, state: StoredState, retry: dict[str, Any], policy: dict[str, Any]
) -> None:
    given_policy = TopicPolicy(retry=RetryPolicy(**retry), **policy)
    altered = attempt(lambda: bounded.alter_topic("work", given_policy), TaskQueueError)
    if isinstance(altered, TaskQueueError):
        state.check_unchanged()
    else:
        assert bounded.policy("work") == given_policy
        state.remember()


@FUZZ
@given(retry=RETRY, failures=st.one_of(st.integers(-1, 10_000), st.sampled_from([10**6, 2**31 - 2, 2**31 - 1, 2**63])))
def test_the_delay_of_a_retry_is_a_duration_none_or_an_error_of_the_queue(retry: dict[str, Any], failures: int) -> None:
    delay = attempt(lambda: RetryPolicy(**retry).delay(failures))
    assert delay is None or isinstance(delay, TaskQueueError) or delay >= timedelta(0)


def check_moments(generate: Callable[[], list[datetime]], now: datetime) -> None:
    """The moments of a schedule ascend, and lie after now; or the schedule is refused."""
    moments = attempt(generate)
    if not isinstance(moments, TaskQueueError):
        assert moments == sorted(moments)
        assert all(moment > now for moment in moments)


ZONES = st.one_of(st.sampled_from(["UTC", "Europe/Berlin", "America/St_Johns", "../../etc/passwd"]), TEXTS)
FIELDS_OF_CRON = st.one_of(
    st.sampled_from(
        ["*", "*/5", "0", "59", "60", "1-3", "3-1", "*/0", "L", "?", "#", "MON", "31", "2", "29", "7", "0-6/2"]
    ),
    st.text("0123456789*/,-LW#?", max_size=6),
)
CRON = st.one_of(st.lists(FIELDS_OF_CRON, min_size=4, max_size=7).map(" ".join), TEXTS)
AHEAD = st.one_of(st.timedeltas(timedelta(-1), timedelta(days=40)), st.sampled_from([timedelta.min, timedelta(0)]))


@FUZZ
@given(expression=CRON, zone=ZONES, now=st.one_of(st.just(NOW), MOMENTS), ahead=AHEAD)
def test_a_cron_expression_gives_ascending_moments_or_an_error_of_the_queue(
    expression: str, zone: str, now: datetime, ahead: timedelta
) -> None:
    check_moments(lambda: ticks_cron(expression, zone, now, ahead), now)


@FUZZ
@given(
    hours=st.lists(st.times(), max_size=4),
    zone=ZONES,
    now=st.one_of(st.just(NOW), MOMENTS),
    ahead=AHEAD,
)
def test_daily_hours_give_ascending_moments_or_an_error_of_the_queue(
    hours: list[Any], zone: str, now: datetime, ahead: timedelta
) -> None:
    check_moments(lambda: ticks_daily(hours, zone, now, ahead), now)


@FUZZ
@given(period=DURATIONS, now=st.one_of(st.just(NOW), MOMENTS), ahead=st.integers(-5, 500))
def test_a_period_gives_ascending_moments_or_an_error_of_the_queue(
    period: timedelta, now: datetime, ahead: int
) -> None:
    check_moments(lambda: ticks_every(period, now, ahead), now)


@dataclass(frozen=True, slots=True)
class Arguments:
    """Arbitrary arguments for one call."""

    i: int
    j: int
    k: int
    d: timedelta
    e: timedelta
    t: datetime
    f: float
    g: float
    s: str


ARGUMENTS = st.builds(
    Arguments, WHOLE, WHOLE, WHOLE, DURATIONS, DURATIONS, MOMENTS, st.floats(), st.floats(), st.just("work") | TEXTS
)

CALLS: dict[str, Callable[[World, Arguments], object]] = {
    "register": lambda w, a: w.queue.register("new", a.d),
    "register again": lambda w, a: w.queue.register("owner", a.d),
    "heartbeat": lambda w, a: w.queue.heartbeat(Owner("owner", a.i, a.d, a.t, False)),
    "release": lambda w, a: w.queue.release(Owner("owner", a.i, a.d, a.t, False)),
    "maintain": lambda w, a: (
        w.queue.alter_topic("work", policy(keep_succeeded=a.d, keep_failed=a.e)),  # type: ignore[func-returns-value]
        w.queue.maintain(),
    ),
    "held": lambda w, a: w.queue.held(Owner("owner", a.i, a.d, a.t, False)),
    "lock": lambda w, a: w.queue.lock("job", "me", a.d, a.e),
    "install_ticks": lambda w, a: w.queue.install_ticks("work", "p", "h", [(a.t, NewTask("p", ttl=a.d, priority=a.i))]),
    "install_ticks delayed": lambda w, a: w.queue.install_ticks("work", "p", "h", [(a.t, NewTask("p", delay=a.d))]),
    "poll": lambda w, a: w.queue.poll("work", w.owner, a.i),
    "claim": lambda w, a: w.queue.claim("work", w.owner, a.i),
    "poll_batch": lambda w, a: w.queue.poll_batch("work", w.owner, a.i, a.j),
    "ready": lambda w, a: w.queue.ready("work", a.i),
    "complete": lambda w, a: w.queue.complete(w.owner, {w.held: Decision(Result.SUSPENSION, delay=a.d)}),
    "complete unknown": lambda w, a: w.queue.complete(w.owner, {a.i: Result.SUCCESS}),
    "exchange": lambda w, a: w.queue.exchange(
        w.owner, {w.held: Decision(Result.SUSPENSION, delay=a.d)}, "retries", a.i
    ),
    "task": lambda w, a: w.queue.task("work", a.i),
    "results": lambda w, a: w.queue.results(a.t, a.t),
    "resolve": lambda w, a: w.queue.resolve(a.t, a.i % 2 == 0),
    "revive": lambda w, a: w.queue.revive("retries", State.SUSPENDED, from_=a.i, to=a.j, size=a.k),
    "revive named": lambda w, a: w.queue.revive("retries", sequences=[a.i]),
    "reassign": lambda w, a: w.queue.reassign("retries", Result.SUCCESS, state=State.SUSPENDED, from_=a.i, to=a.j),
    "purge": lambda w, a: w.queue.purge("retries", a.i, a.j, size=a.k),
    "purge waiting": lambda w, a: w.queue.purge("retries", a.i, a.j, State.READY, size=a.k),
    "purge_past_ttl": lambda w, a: w.queue.purge_past_ttl("retries", a.i),
    "purge_sequences": lambda w, a: w.queue.purge_sequences("retries", [a.i, a.j], [State.READY]),
    "lock_tasks": lambda w, a: w.queue.lock_tasks("retries", [a.i, a.j], [State.SUSPENDED]),
    "events": lambda w, a: w.queue.events("work", Cursor(a.i), a.j),
    "events of a partition": lambda w, a: w.queue.events("work", None, 5, partition=a.i, partitions=a.j, level=a.k),
    "progress": lambda w, a: w.queue.progress("readers", "work", a.i),
    "advance": lambda w, a: w.queue.advance("readers", "work", a.i, Cursor(a.j)),
    "join_group": lambda w, a: w.queue.join_group("group", "work", a.i, a.j),
    "join_group new": lambda w, a: w.queue.join_group("new", "work", a.i, a.j),
    "acquire_partition": lambda w, a: w.queue.acquire_partition("group", "work", "other", a.d, [a.i]),
    "read_partition": lambda w, a: w.queue.read_partition(w.partition, a.i),
    "advance_partition": lambda w, a: w.queue.advance_partition(w.partition, Cursor(a.i), Cursor(a.j)),
    "set_due": lambda w, a: w.queue.set_due("retries", w.waiting, a.t),
    "set_attempts": lambda w, a: w.queue.set_attempts("retries", w.waiting, a.i),
    "pause_task": lambda w, a: w.queue.pause_task("retries", a.i),
    "set_priority": lambda w, a: w.queue.set_priority("retries", [w.waiting], a.i),
    "run_now": lambda w, a: w.queue.run_now("retries", [a.i]),
    "cancel": lambda w, a: w.queue.cancel("retries", [a.i]),
    "search_tasks": lambda w, a: w.queue.search_tasks("1", a.i),
    "release_tasks": lambda w, a: w.queue.release_tasks(w.owner, [a.i]),
    "record_handling_times": lambda w, a: w.queue.record_handling_times("work", [a.f, a.g]),
    "throughput": lambda w, a: w.queue.throughput(a.d, a.i),
    "timeline": lambda w, a: w.queue.timeline("retries", a.i),
    "explain": lambda w, a: w.queue.explain("retries", a.i),
    "find_tasks": lambda w, a: w.queue.find_tasks("retries", TaskFilter(), after=a.i, size=a.j, budget=a.k),
    "find_tasks oldest": lambda w, a: w.queue.find_tasks(
        "retries", TaskFilter(State.READY, since=a.t), after=a.i, newest=False, size=a.j, budget=a.k
    ),
    "find_tasks until": lambda w, a: w.queue.find_tasks("retries", TaskFilter(State.ACTIVE, until=a.t), budget=a.k),
    "browse_tasks": lambda w, a: w.queue.browse_tasks("retries", [a.i, w.held], a.j),
    "browse_topics": lambda w, a: w.queue.browse_topics(size=a.i, cap=a.j),
    "browse_topic": lambda w, a: w.queue.browse_topic("retries", a.i),
    "browse_owners": lambda w, a: w.queue.browse_owners(after=a.i, size=a.j, budget=a.k),
    "browse_held": lambda w, a: w.queue.browse_held("owner", a.i, a.j),
    "browse_locks": lambda w, a: w.queue.browse_locks(size=a.i),
    "browse_groups": lambda w, a: w.queue.browse_groups(a.i, a.j),
    "browse_ticks": lambda w, a: w.queue.browse_ticks("work", min(a.i, 5)),
    "find_pushed": lambda w, a: w.queue.find_pushed("retries", a.i, a.j, a.k),
    "task_texts": lambda w, a: w.queue.task_texts("retries", w.held, a.i),
    "dependencies": lambda w, a: w.queue.dependencies("work", a.i),
    "audit_trail": lambda w, a: w.queue.audit_trail(after=a.i, size=a.j),
    "record_action": lambda w, a: w.queue.record_action("push", "work", "tasks", a.i),
    "push ticks": lambda w, a: w.queue.install_ticks("work", a.s, a.s, [(a.t, a.s), (a.t, NewTask(a.s, a.s))]),
    "page": lambda w, a: w.queue.page(a.s, after=a.i, before=a.j, size=a.k, identifier=a.s, reference=a.s),
    "page of a state": lambda w, a: w.queue.page("retries", State.FAILED, from_=a.i, to=a.j, size=a.k),
    "count": lambda w, a: w.queue.count("work", from_=a.i, to=a.j, identifier=a.s, reference=a.s),
    "count recent": lambda w, a: w.queue.count(a.s, recent=a.i % 2 == 0),
    "latest": lambda w, a: w.queue.latest("work", [a.s]),
    "search_tasks for a text": lambda w, a: w.queue.search_tasks(a.s),
}


@pytest.mark.parametrize("verb", CALLS)
def test_any_argument_is_refused_with_a_message_or_stored_within_the_bounds(bounded: TaskQueue, verb: str) -> None:
    world = make_world(bounded)
    before = stored_rows(bounded.conn)

    @settings(FUZZ, max_examples=max(INPUTS // 10, 10))
    @given(ARGUMENTS)
    def check(arguments: Arguments) -> None:
        with bounded.conn.transaction(force_rollback=True):
            attempt(lambda: call(arguments), TaskQueueError, NotHeld, LeaseLost)
            assert beyond(bounded) == []
            for listing in (bounded.owners, bounded.browse_owners, bounded.browse_locks, bounded.partition_states):
                listing()
            for topic in bounded.topics():
                assert bounded.policy(topic).retry.base >= timedelta(0)
                everything(bounded, topic)

    def call(arguments: Arguments) -> None:
        with bounded.conn.transaction():
            CALLS[verb](world, arguments)

    check()
    assert stored_rows(bounded.conn) == before
