"""Hostile input for every way into the queue: names, payloads, moments, numbers and words of the command line.

`make fuzz` generates 10,000 inputs for each test, or as many as TASKQ_FUZZ_INPUTS says: others in each run, or with
TASKQ_FUZZ=fixed the same ones in each, as a job of CI does. `make test` has 30 fixed ones for each, and `.ci/run`
300. Hypothesis prints how to repeat a failure.
"""

import os
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from tests.queue.hostile import nested

FUZZING = os.environ.get("TASKQ_FUZZ", "")  # "fresh" or "fixed" in `make fuzz`
MANY = 10_000
INPUTS = int(os.environ.get("TASKQ_FUZZ_INPUTS", MANY if FUZZING else 15))
# A call or a statement that takes longer is an error of the queue, also on a machine that is ten times slower.
LONGEST = timedelta(seconds=60)

FUZZ = settings(
    max_examples=INPUTS,
    derandomize=FUZZING != "fresh",
    database=None,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)


def mostly(usual: st.SearchStrategy[Any], odd: st.SearchStrategy[Any], times: int = 3) -> st.SearchStrategy[Any]:
    """Values of `usual`, `times` as often as those of `odd`. `one_of` ignores that a strategy is repeated."""
    return st.sampled_from([*[usual] * times, odd]).flatmap(lambda chosen: chosen)


# Characters, escapes, quotations, statements, numbers and options that some program once took for something else.
BOMBS = (
    *("", "\x00", "a\x00b", "\ud800", "\U0001f600", "\u202e", "\n", "\r\n", "\t", " ", "\x1b[2J", "\\", '"', "'"),
    *("'; DROP SCHEMA taskq CASCADE; --", "$$", "%s", "%(n)s", "{}", "%", "_", "NULL", "null", "None", "-1", "--help"),
    *("a" * 10_000, "é" * 5_000, "../../etc/passwd", "=cmd|' /C calc'!A0", "<script>alert(1)</script>"),
    *("${jndi:ldap://a}", "1e400", "NaN"),
)
TEXTS = st.one_of(st.sampled_from(BOMBS), st.text(max_size=30), st.text(st.characters(codec=None), max_size=10))
WHOLE = st.one_of(
    st.integers(-200, 200),
    st.sampled_from([0, 2**15, 2**31 - 1, 2**31, -(2**31) - 1, 2**63 - 1, 2**63, -(2**63) - 1, 10**400]),
)
# Python converts at most 4,300 digits by default.
DIGITS = st.one_of(st.integers(1, 6_000).map(lambda count: "9" * count), st.integers(0, 10**20).map(str))
REAL = st.one_of(st.floats(), st.sampled_from([1e308, -1e308, 5e-324, float("nan"), float("inf")]))
DURATIONS = st.one_of(
    st.timedeltas(),
    st.sampled_from([timedelta.max, timedelta.min, timedelta(0), timedelta(microseconds=-1), timedelta(days=36_500)]),
)
ZONES = st.sampled_from([None, UTC, timezone(timedelta(hours=14)), timezone(timedelta(hours=-23, minutes=-59))])
MOMENTS = st.one_of(
    st.datetimes(timezones=ZONES),
    st.sampled_from([datetime.max.replace(tzinfo=UTC), datetime.min.replace(tzinfo=UTC)]),
)
ANYTHING: st.SearchStrategy[Any] = st.one_of(
    st.none(), st.booleans(), WHOLE, REAL, TEXTS, DURATIONS, MOMENTS, st.binary(max_size=5), st.just(object()),
    st.lists(st.integers(), max_size=3), st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
)  # fmt: skip
JSON: st.SearchStrategy[Any] = st.recursive(
    st.one_of(st.none(), st.booleans(), WHOLE, REAL, TEXTS),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(TEXTS, inner, max_size=4)),
    max_leaves=8,
)


PAYLOADS = st.one_of(
    JSON,
    st.one_of(st.integers(98, 103), st.integers(1, 3_000)).map(nested),
    st.integers(0, 400_000).map(lambda size: "x" * size),
    st.sampled_from([{"a": object()}, {"a"}, b"bytes", [float("nan")], {"a\x00": "\x00"}, {"\ud800": "\udfff"}]),
)
