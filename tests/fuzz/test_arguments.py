"""Hostile arguments of policies, schedules, ticks and filters of the reads."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_taskq.queue import (
    NewTask,
    RetryPolicy,
    State,
    TaskQueue,
    TaskQueueError,
    TopicPolicy,
    config_hash,
    ticks_cron,
    ticks_daily,
    ticks_every,
)
from tests.fuzz.inputs import DURATIONS, FUZZ, JSON, MOMENTS, TEXTS, WHOLE
from tests.fuzz.outcomes import StoredState, attempt

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


@FUZZ
@given(
    prefix=TEXTS,
    part=JSON,
    ticks=st.lists(st.tuples(MOMENTS, st.one_of(JSON, TEXTS.map(NewTask))), max_size=3),
)
def test_ticks_are_installed_or_refused_and_then_nothing_has_changed(
    bounded: TaskQueue, state: StoredState, prefix: Any, part: Any, ticks: list[Any]
) -> None:
    added = attempt(lambda: bounded.install_ticks("work", prefix, config_hash(part), ticks))
    if isinstance(added, TaskQueueError):
        state.check_unchanged()
    else:
        assert 0 <= added <= len(ticks)
        state.remember()


FILTERS = {
    "state": st.sampled_from(State),
    "identifier": TEXTS,
    "reference": TEXTS,
}
SIZES = st.one_of(st.none(), WHOLE)


@FUZZ
@given(
    topic=st.one_of(st.just("work"), TEXTS),
    filters=st.fixed_dictionaries(
        {}, optional={**FILTERS, "after": SIZES, "before": SIZES, "size": st.integers(-2, 10)}
    ),
)
def test_a_page_with_any_filter_is_a_list_or_an_error_of_the_queue(
    bounded: TaskQueue, topic: Any, filters: dict[str, Any]
) -> None:
    page = attempt(lambda: bounded.page(topic, **filters))
    assert isinstance(page, list | TaskQueueError)


@FUZZ
@given(
    topic=st.one_of(st.just("work"), TEXTS),
    filters=st.fixed_dictionaries({}, optional={**FILTERS, "from_": SIZES, "to": SIZES, "recent": st.booleans()}),
    text=TEXTS,
    moment=MOMENTS,
)
def test_a_count_a_search_and_a_moment_have_a_result_or_an_error_of_the_queue(
    bounded: TaskQueue, topic: Any, filters: dict[str, Any], text: str, moment: datetime
) -> None:
    reads: tuple[Callable[[], object], ...] = (
        lambda: bounded.count(topic, **filters),
        lambda: bounded.search_tasks(text),
        lambda: bounded.latest(topic, [text]),
        lambda: bounded.resolve(moment),
        lambda: bounded.results(moment),
    )
    for read in reads:
        attempt(read)
