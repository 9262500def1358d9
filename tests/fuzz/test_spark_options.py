"""Hostile options and filters of the data source of Spark."""

import operator
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import datasource

from airflow_provider_taskq.queue import Insertion, TaskQueue, TaskQueueError
from airflow_provider_taskq.spark.options import HeldOptions, PushOptions
from airflow_provider_taskq.spark.readers import PushedFilters, TasksOptions
from airflow_provider_taskq.spark.streams import LogOptions
from tests.fuzz.inputs import DIGITS, FUZZ, INPUTS, MOMENTS, TEXTS, WHOLE, mostly
from tests.fuzz.outcomes import attempt, check_shares, limited_time
from tests.fuzz.situation import refill

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(3600),
    pytest.mark.promise("Any input is stored as it is, or refused with an error of the queue"),
]


@dataclass(frozen=True, slots=True)
class Parser:
    """A parser of options, with the names of its options."""

    mode: str
    parse: Callable[[Mapping[str, str]], Any]
    names: tuple[str, ...]


PARSERS = (
    Parser("held", lambda given: HeldOptions.parse(given, "held"), ("topic", "owner", "fence", "partitions", "until")),
    Parser("complete", lambda given: HeldOptions.parse(given, "complete"), ("topic", "owner", "fence", "stage")),
    Parser("push", PushOptions.parse, ("topic", "insertion", "stream", "batch")),
    Parser("tasks", TasksOptions.parse, ("topic", "payload", "partitions")),
    Parser("log", LogOptions.parse, ("topic", "after", "group", "partitions", "maxTasksPerTrigger")),
)
NUMBERS = st.sampled_from(["1", "8", "007", "2147483647", "9223372036854775807"])
USUAL = {
    **dict.fromkeys(("fence", "partitions", "batch"), NUMBERS),
    "payload": st.sampled_from(["true", "FALSE"]),
    "insertion": st.sampled_from([*Insertion.__members__, "append"]),
    "after": st.one_of(st.sampled_from(["earliest", "Latest"]), NUMBERS),
}
VALUES = st.one_of(DIGITS, WHOLE.map(str), TEXTS, *USUAL.values())
FEWEST = 200  # for each parser: of fewer inputs, all may be refused


def options_of(parser: Parser) -> st.SearchStrategy[dict[str, str]]:
    """Options of a parser, with names in any case. Seldom an option is unknown, or the mode another one."""
    values = {name: mostly(USUAL.get(name, TEXTS), VALUES) for name in parser.names}
    own = st.fixed_dictionaries({}, optional={**values, parser.names[0].upper(): values[parser.names[0]]})
    foreign = mostly(st.just({}), st.dictionaries(TEXTS, VALUES, max_size=1), 8)
    mode = mostly(st.just(parser.mode), TEXTS, 8)
    return st.builds(lambda given, other, named: {**given, **other, "mode": named}, own, foreign, mode)


def check_parsed(parsed: Any, values: Mapping[str, str]) -> None:
    """Each option that was given has its value."""
    for each in fields(parsed):
        if given_value := values.get(each.name):
            value = getattr(parsed, each.name)
            same = int(given_value) if type(value) is int else given_value.lower()
            assert same == (value if type(value) is int else str(value).lower())


@pytest.mark.parametrize("parser", PARSERS, ids=lambda parser: parser.mode)
def test_options_of_the_data_source_are_parsed_as_given_or_refused(parser: Parser) -> None:
    outcomes: Counter[bool] = Counter()

    @settings(FUZZ, max_examples=max(-(-INPUTS // len(PARSERS)), FEWEST))
    @given(options=options_of(parser))
    def check(options: dict[str, str]) -> None:
        parsed = attempt(lambda: parser.parse(options), TaskQueueError)
        outcomes[not isinstance(parsed, TaskQueueError)] += 1
        if not isinstance(parsed, TaskQueueError):
            check_parsed(parsed, {name.lower(): value for name, value in options.items()})

    check()
    check_shares(outcomes)


COLUMNS = st.sampled_from([("state",), ("identifier",), ("sequence",), ("created",), ("reference",), ("a", "b"), ()])
PAIRED: Mapping[tuple[str, ...], st.SearchStrategy[Any]] = {
    ("state",): st.sampled_from(["READY", "FAILED", "ready", "SCHEDULED"]),
    ("identifier",): st.one_of(st.sampled_from(["a", "failed", "later"]), TEXTS),
    ("sequence",): st.one_of(st.integers(0, 10), WHOLE),
    ("created",): st.one_of(st.just(datetime(2026, 1, 1, tzinfo=UTC)), MOMENTS),
}
COMPARISONS = {
    "EqualTo": operator.eq,
    "EqualNullSafe": operator.eq,
    "LessThan": operator.lt,
    "LessThanOrEqual": operator.le,
    "GreaterThan": operator.gt,
    "GreaterThanOrEqual": operator.ge,
}
ANY_VALUE = st.one_of(st.none(), st.booleans(), WHOLE, st.floats(), TEXTS, MOMENTS)


def filter_of(column: tuple[str, ...]) -> st.SearchStrategy[datasource.Filter]:
    """A filter of Spark on a column, mostly with a value of its type."""
    values = mostly(PAIRED.get(column, ANY_VALUE), ANY_VALUE)
    compared = st.sampled_from(sorted(COMPARISONS)).flatmap(
        lambda name: values.map(lambda value: getattr(datasource, name)(column, value))
    )
    listed = st.lists(values, max_size=3).map(lambda given: datasource.In(column, tuple(given)))
    other = st.sampled_from(
        [
            datasource.IsNull(column),
            datasource.IsNotNull(column),
            datasource.Not(datasource.EqualTo(column, "a")),
            datasource.StringContains(column, "a"),
        ]
    )
    return mostly(compared, st.one_of(listed, other))


def passes(pushed: datasource.Filter, row: Mapping[str, Any]) -> bool:
    """Whether a task passes an accepted filter, in the way of Spark."""
    kind, value = type(pushed).__name__, row[pushed.attribute[0]]  # type: ignore[attr-defined]
    if kind == "IsNotNull":
        return value is not None
    if kind == "In":
        return value in pushed.value  # type: ignore[attr-defined]
    return bool(COMPARISONS[kind](value, pushed.value))  # type: ignore[attr-defined]


SELECTED = """
    SELECT s.sequence FROM taskq.task_bounds('work', %s::bigint, %s::bigint, %s::int[], %s::text[], %s::timestamptz,
        %s::timestamptz, 2) b,
    taskq.task_slice('work', b.low, b.high, %s::int[], %s::text[], %s::timestamptz, %s::timestamptz, false) s
"""
ROWS = (
    "SELECT sequence, identifier, state, created FROM taskq.task_slice('work', 0, 100, NULL, NULL, NULL, NULL, false)"
)


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("sequence", 2**63 - 1),
        ("sequence", -(2**63)),
        ("sequence", True),
        ("created", datetime.max.replace(tzinfo=UTC)),
        ("created", datetime.min.replace(tzinfo=UTC)),
        ("identifier", "a\ud800"),
    ],
)
def test_a_filter_that_the_database_cannot_apply_exactly_is_left_to_spark(column: str, value: object) -> None:
    filters = PushedFilters()
    for name in COMPARISONS:
        assert not filters.accept(getattr(datasource, name)((column,), value))
    assert filters == PushedFilters()


@pytest.mark.promise("Filters return the same rows in Spark and in the database")
def test_a_pushed_filter_is_left_to_spark_or_selects_the_tasks_that_pass_it(bounded: TaskQueue) -> None:
    refill(bounded)
    conn = bounded.conn
    rows = [
        dict(zip(("sequence", "identifier", "state", "created"), row, strict=True))
        for row in conn.execute(ROWS.encode())
    ]
    outcomes: Counter[bool] = Counter()

    @cache
    def select(*arguments: Any) -> set[int]:
        states, identifiers = ([*each] if each else None for each in arguments[2:4])
        values = (*arguments[:2], states, identifiers, *arguments[4:])
        return {row[0] for row in conn.execute(SELECTED.encode(), (*values, *values[2:]))}

    def selected(filters: PushedFilters) -> set[int]:
        if filters.match_nothing:
            return set()
        return select(filters.low, filters.high, filters.states, filters.identifiers, filters.since, filters.until)

    @FUZZ
    @given(given=st.lists(COLUMNS.flatmap(filter_of), min_size=1, max_size=3))
    def check(given: list[datasource.Filter]) -> None:
        filters = PushedFilters()
        with limited_time():
            accepted = [each for each in given if filters.accept(each)]
        outcomes[bool(accepted)] += 1
        passing = {row["sequence"] for row in rows if all(passes(each, row) for each in accepted)}
        assert selected(filters) == passing

    check()
    check_shares(outcomes)
