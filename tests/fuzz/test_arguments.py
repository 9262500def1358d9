"""Hostile arguments of policies, schedules, ticks, filters of the reads, and the data source of Spark."""

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

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

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
    bounded: TaskQueue, retry: dict[str, Any], policy: dict[str, Any]
) -> None:
    before = bounded.policy("work")
    try:
        given_policy = TopicPolicy(retry=RetryPolicy(**retry), **policy)
        bounded.alter_topic("work", given_policy)
    except TaskQueueError as error:
        assert str(error)
        assert bounded.policy("work") == before
    else:
        assert bounded.policy("work") == given_policy


@FUZZ
@given(retry=RETRY, failures=st.integers(-1, 10_000))
def test_the_delay_of_a_retry_is_a_duration_none_or_an_error_of_the_queue(retry: dict[str, Any], failures: int) -> None:
    try:
        delay = RetryPolicy(**retry).delay(failures)
    except TaskQueueError as error:
        assert str(error)
    else:
        assert delay is None or delay >= timedelta(0)


def check_moments(generate: Callable[[], list[datetime]], now: datetime) -> None:
    """The moments of a schedule ascend, and lie after now; or the schedule is refused."""
    try:
        moments = generate()
    except TaskQueueError as error:
        assert str(error)
    else:
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
    bounded: TaskQueue, prefix: Any, part: Any, ticks: list[Any]
) -> None:
    before = bounded.count_tasks("work")
    try:
        added = bounded.install_ticks("work", prefix, config_hash(part), ticks)
    except TaskQueueError as error:
        assert str(error)
        assert bounded.count_tasks("work") == before
    else:
        assert 0 <= added <= len(ticks)


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
    try:
        assert isinstance(bounded.page(topic, **filters), list)
    except TaskQueueError as error:
        assert str(error)


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
    for read in (
        lambda: bounded.count(topic, **filters),
        lambda: bounded.search_tasks(text),
        lambda: bounded.latest(topic, [text]),
        lambda: bounded.resolve(moment),
        lambda: bounded.results(moment),
    ):
        try:
            read()
        except TaskQueueError as error:
            assert str(error)


OPTION_NAMES = st.one_of(
    st.sampled_from(
        ["mode", "topic", "owner", "fence", "partitions", "until", "stage", "stream", "insertion", "batch"]
    ),
    TEXTS,
)


@FUZZ
@given(
    options=st.dictionaries(OPTION_NAMES, TEXTS, max_size=5),
    mode=st.sampled_from(["held", "complete", "push", "x"]),
)
def test_options_of_the_data_source_are_parsed_or_refused(options: dict[str, str], mode: str) -> None:
    from airflow_provider_taskq.spark.options import HeldOptions, PushOptions

    for parse in (
        lambda given: HeldOptions.parse(given, "held"),
        lambda given: HeldOptions.parse(given, "complete"),
        PushOptions.parse,
    ):
        try:
            parse({**options, "mode": mode})
        except TaskQueueError as error:
            assert str(error)
