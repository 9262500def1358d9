"""Hostile arguments of policies, schedules and all verbs."""

import inspect
from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_taskq.queue import (
    Condition,
    Decision,
    LeaseLost,
    NewTask,
    NotHeld,
    Owner,
    Result,
    RetryPolicy,
    TaskQueue,
    TaskQueueError,
    TopicPolicy,
    UnreadablePayload,
    ticks_cron,
    ticks_daily,
    ticks_every,
)
from airflow_provider_taskq.queue.waits import JunctureWait, ReadyWait, StateWait
from tests.fuzz.inputs import DURATIONS, FUZZ, INPUTS, JSON, MOMENTS, REAL, TEXTS, WHOLE, mostly
from tests.fuzz.outcomes import StoredState, attempt
from tests.internals import stored_rows
from tests.queue.conftest import everything
from tests.queue.hostile import beyond, make_world

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(3600),
    pytest.mark.promise("Any input is stored as it is, or refused with an error of the queue"),
]

NOW = datetime(2026, 3, 29, 0, 30, tzinfo=UTC)  # the night on which summer time begins in Europe
LENGTHS = DURATIONS.filter(lambda duration: duration >= timedelta(0))  # models refuse others when they are made


def retry_of(durations: st.SearchStrategy[timedelta]) -> st.SearchStrategy[dict[str, Any]]:
    """Fields of a RetryPolicy."""
    lengths = dict.fromkeys(("base", "max_delay", "horizon", "max_elapsed"), durations)
    others = {"max_attempts": WHOLE, "factor": st.floats(), "jitter": st.floats(), "probe": st.booleans()}
    return st.fixed_dictionaries({}, optional={**lengths, **others})


POLICY = st.fixed_dictionaries(
    {},
    optional={
        "on_expiry": st.one_of(st.sampled_from(["redeliver", "expire"]), TEXTS),
        "max_crashes": WHOLE,
        "max_payload_bytes": WHOLE,
        **dict.fromkeys(("ttl", "keep_succeeded", "keep_failed"), LENGTHS),
        "notify": st.booleans(),
    },
)
POLICIES = st.builds(lambda retry, fields: TopicPolicy(RetryPolicy(**retry), **fields), retry_of(LENGTHS), POLICY)


@FUZZ
@given(policy=POLICIES)
def test_a_policy_is_stored_as_it_was_given_or_refused_and_the_topic_keeps_its_own(
    bounded: TaskQueue, state: StoredState, policy: TopicPolicy
) -> None:
    altered = attempt(lambda: bounded.alter_topic("work", policy), TaskQueueError)
    if isinstance(altered, TaskQueueError):
        state.check_unchanged()
    else:
        assert bounded.policy("work") == policy
        state.remember()


@FUZZ
@given(
    retry=retry_of(DURATIONS),
    failures=st.one_of(st.integers(-1, 10_000), st.sampled_from([10**5, 2**31 - 1, 2**63])),
)
def test_the_delay_of_a_retry_is_a_duration_none_or_an_error_of_the_queue(retry: dict[str, Any], failures: int) -> None:
    delay = attempt(lambda: RetryPolicy(**retry).delay(failures))
    assert delay is None or isinstance(delay, TaskQueueError) or delay >= timedelta(0)


ZONES = st.one_of(st.sampled_from(["UTC", "Europe/Berlin", "America/St_Johns", "../../etc/passwd"]), TEXTS)
FIELDS_OF_CRON = st.one_of(
    st.sampled_from(
        ["*", "*/5", "0", "59", "60", "1-3", "3-1", "*/0", "L", "?", "#", "MON", "31", "2", "29", "7", "0-6/2"]
    ),
    st.text("0123456789*/,-LW#?", max_size=6),
)
CRON = st.one_of(st.lists(FIELDS_OF_CRON, min_size=4, max_size=7).map(" ".join), TEXTS)
AHEAD = st.one_of(st.timedeltas(timedelta(-1), timedelta(days=40)), st.sampled_from([timedelta.min, timedelta(0)]))
MOMENT = st.one_of(st.just(NOW), MOMENTS)
SCHEDULES: dict[Callable[..., list[datetime]], st.SearchStrategy[tuple[Any, ...]]] = {
    ticks_cron: st.tuples(CRON, ZONES, MOMENT, AHEAD),
    ticks_daily: st.tuples(st.lists(st.times(), max_size=4), ZONES, MOMENT, AHEAD),
    ticks_every: st.tuples(DURATIONS, MOMENT, st.integers(-5, 500)),
}


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda schedule: schedule.__name__)
def test_a_schedule_gives_ascending_moments_or_an_error_of_the_queue(schedule: Callable[..., list[datetime]]) -> None:
    @FUZZ
    @given(SCHEDULES[schedule])
    def check(arguments: tuple[Any, ...]) -> None:
        moments = attempt(lambda: schedule(*arguments))
        if not isinstance(moments, TaskQueueError):
            assert moments == sorted(moments)
            assert all(moment > arguments[-2] for moment in moments)

    check()


VERBS = [name for name, _ in inspect.getmembers(TaskQueue, callable) if not name.startswith("_")]
KNOWN = {
    "topic": ["work", "retries"],
    "owner": ["owner"],
    "group": ["group", "readers"],
    "prefix": ["tick"],
    "config_hash": ["hash"],
    "identifier": ["waiting", "held", "failed", "later"],
    "name": ["job", "wait", "worker", "owner"],
    "by": ["me"],
}
SEQUENCES = st.one_of(st.integers(1, 7), WHOLE)
BY_NAME: dict[str, st.SearchStrategy[Any]] = {
    "payload": JSON,
    "policy": POLICIES,
    "report": st.dictionaries(TEXTS, JSON, max_size=2),
    "tasks": st.lists(st.builds(NewTask, TEXTS, JSON, delay=DURATIONS, ttl=DURATIONS, priority=WHOLE), max_size=2),
    "ticks": st.lists(st.tuples(MOMENTS, st.one_of(JSON, TEXTS.map(NewTask))), max_size=3),
    "topics": st.lists(st.tuples(mostly(st.sampled_from(["work", "retries"]), TEXTS), st.sampled_from(Condition))),
    "waits": st.lists(
        st.one_of(
            st.builds(ReadyWait, st.sampled_from(["work", "unknown"]), st.integers(1)),
            st.just(StateWait("work", ("held",), frozenset({"READY"}), frozenset())),
            st.just(JunctureWait("wait", "work", (("waiting", "held"),))),
        )
    ),
    "decisions": st.dictionaries(
        SEQUENCES, st.builds(Decision, st.just(Result.SUSPENSION), JSON, delay=LENGTHS), max_size=2
    ),
}
BY_TYPE: dict[Any, st.SearchStrategy[Any]] = {
    int: SEQUENCES,
    float: REAL,
    str: TEXTS,
    timedelta: DURATIONS,
    datetime: MOMENTS,
    type(None): st.none(),
    Owner: st.builds(Owner, st.sampled_from(["owner", "other"]), SEQUENCES, DURATIONS, MOMENTS, st.booleans()),
}


def values_of(hint: Any, name: str = "") -> st.SearchStrategy[Any]:
    """Values of a parameter, as its name and its type tell."""
    if name in BY_NAME:
        return BY_NAME[name]
    if hint is str and name in KNOWN:
        return mostly(st.sampled_from(KNOWN[name]), TEXTS)
    if hint in BY_TYPE:
        return BY_TYPE[hint]
    if get_origin(hint) in (Union, UnionType):
        return st.one_of([values_of(each, name) for each in get_args(hint)])
    if get_origin(hint) in (Iterable, Sequence, Collection):
        return st.lists(values_of(get_args(hint)[0]), max_size=3)
    return st.from_type(hint)


def arguments_of(verb: str) -> st.SearchStrategy[dict[str, Any]]:
    """Arguments of a verb: those that it needs, and some of the others."""
    method = getattr(TaskQueue, verb)
    hints = get_type_hints(method, localns={"UnreadablePayload": UnreadablePayload})
    named = [each for each in inspect.signature(method).parameters.values() if each.kind is not each.VAR_KEYWORD][1:]
    values = {each.name: values_of(hints[each.name], each.name) for each in named}
    needed = {each.name: values[each.name] for each in named if each.default is each.empty}
    return st.fixed_dictionaries(needed, optional={name: values[name] for name in values.keys() - needed.keys()})


@pytest.mark.parametrize("verb", VERBS)
def test_any_argument_is_refused_with_a_message_or_stored_within_the_bounds(bounded: TaskQueue, verb: str) -> None:
    make_world(bounded)
    before = stored_rows(bounded.conn)

    @settings(FUZZ, max_examples=max(INPUTS // 10, 10))
    @given(arguments_of(verb))
    def check(arguments: dict[str, Any]) -> None:
        def call() -> object:
            with bounded.conn.transaction():
                return getattr(bounded, verb)(**arguments)

        with bounded.conn.transaction(force_rollback=True):
            attempt(call, TaskQueueError, NotHeld, LeaseLost)
            assert beyond(bounded) == []
            for listing in (bounded.owners, bounded.browse_owners, bounded.browse_locks, bounded.partition_states):
                listing()
            for topic in bounded.topics():
                assert bounded.policy(topic).retry.base >= timedelta(0)
                everything(bounded, topic)

    check()
    assert stored_rows(bounded.conn) == before
