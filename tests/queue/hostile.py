"""Hostile values, each with what has to become of it, and a queue with rows in all tables for them to meet.

The tests of the queue, of the command line and of the page take their values from here; tests/fuzz draws others.
"""

import json
import math
import sys
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, cast

from psycopg import sql

from airflow_provider_taskq.queue import (
    Cursor,
    Json,
    NewTask,
    Owner,
    Result,
    RetryPolicy,
    TaskQueue,
    TopicPolicy,
    UnreadablePayload,
)
from airflow_provider_taskq.queue.log import PartitionLease
from airflow_provider_taskq.queue.reports import TaskFilter
from tests.internals import SCHEMAS
from tests.queue.conftest import everything

HOUR = timedelta(hours=1)
INSTANT = timedelta(microseconds=1)
TEN_YEARS = timedelta(days=3650)
NEW_YEAR = datetime(2026, 1, 1, tzinfo=UTC)

# Values as words of a command line and as parameters of a request.
WRONG_DURATIONS = ("99999999d", "9" * 400 + "d", "1e999", "-5m", "nan", "inf", "", "\x00", "\udc80", "365001d")
WRONG_INTEGERS = ("-1", "1e999", "9" * 5000, "1.5", "nan", "\x00", str(2**80))
WRONG_MOMENTS = ("1e999", "nan", "9" * 400, "10000-01-01T00:00:00Z", "0000-01-01T00:00:00Z", "soon", "\x00")
WRONG_NUMBERS = ("nan", "inf", "-inf", "1e999", "-1", "", "\x00")

# Values that are no duration, and no integer, wherever Python takes one.
NO_DURATIONS: tuple[Any, ...] = (-1, -0.5, timedelta(microseconds=-1), True, math.nan, 1e300, "soon", [1], object())
NO_INTEGERS: tuple[Any, ...] = (1.5, 1.0, True, math.nan, "1", [1], timedelta(1))
TOO_LONG: tuple[timedelta, ...] = (timedelta(days=99_999_999), timedelta.max, TEN_YEARS + INSTANT)
# Months and days that cancel each other out in a comparison do not cancel each other out on a calendar.
INTERVALS_TOO_LONG = ("178000000 years", "122 months", "71582788 months -2147483640 days", "11 years -365 days")
MOMENTS_OUT_OF_RANGE = ("infinity", "-infinity", "294276-01-01 00:00Z", "10000-01-01 00:00Z", "4713-01-01 00:00Z BC")

TOO_DEEP = "nested deeper than 100 levels"
TOO_GREAT = "a number outside the range of a double"
NO_TEXT = "a NUL or a lone surrogate"
LARGEST = str(int(sys.float_info.max))  # 309 digits

# JSON that PostgreSQL takes and that no client can store as text, with the reason.
REFUSED_JSON = {
    "NUL": (r'"\\\u0000"', NO_TEXT),
    "a high surrogate": (r'["\ud83d\\\ude00"]', NO_TEXT),
    "a low surrogate": (r'{"\uDE00":1}', NO_TEXT),
    "NUL beside a fraction of many digits": (r'["\u0000",0.%s]' % ("1" * 20_000), NO_TEXT),
}
# JSON that each client reads.
ACCEPTED_JSON = {
    "a list of 100 levels": "[" * 100 + "]" * 100,
    "brackets in a string": json.dumps({"a": "[" * 5_000 + '"' + "{\\" * 5_000}),
    "the greatest double as an integer": LARGEST,
    "a number in a string": json.dumps([" 1e400 ", ",1e400,", "9" * 5_000, '"1e400']),
    "a fraction of many digits": "0." + "3" * 20_000,
    "an escaped backslash before u": r'"\\u0000 \\ud800"',
    "a pair of surrogates": r'"\ud83d\uDE00\u00e9"',
    "escapes beside a fraction of many digits": r'["\ud83d\ude00",0.%s]' % ("1" * 20_000),
}


def nested(levels: int) -> Json:
    """Alternating lists and objects, nested to this number of levels."""
    value: Json = "leaf"
    for level in range(levels):
        value = [value] if level % 2 else {"a": value}
    return value


# Values in Python that are no JSON which each client can read, with the reason.
REFUSED_VALUES: dict[str, tuple[Any, str]] = {
    "101 levels": (nested(101), TOO_DEEP),
    "levels that Python encodes": (nested(500), TOO_DEEP),
    "levels that Python does not encode": (nested(50_000), TOO_DEEP),
    "an integer beyond a double": ([10**309], TOO_GREAT),
    "an integer of 4,000 digits": ({"a": -(10**4_000)}, TOO_GREAT),
    "an integer that Python does not print": (10**5_000, "is not JSON"),
    "NaN": (float("nan"), "holds NaN or an infinity, which JSON does not have: write None$"),
    "infinity": ({"x": [math.inf]}, "holds NaN or an infinity"),
    "keys that become one": ({1: "a", "1": "b"}, "has a key that is a int: a key of JSON is a str"),
    "a bool as a key": ([{"a": {True: 1}}], "has a key that is a bool"),
    "None as a key": ({"a": [1, ({None: 1},)]}, "has a key that is a NoneType"),
    "a set": ({1, 2}, "is not JSON"),
    "a moment": ({"at": NEW_YEAR}, "is not JSON"),
    "bytes": (b"x", "is not JSON"),
    "an unreadable payload": (UnreadablePayload("the reason"), "is not JSON: .*UnreadablePayload"),
    "NUL": ({"x": ["a\x00b"]}, "holds a NUL"),
    "NUL in a key": ({"a\x00b": 1}, "holds a NUL"),
    "a lone surrogate": ({"x": "\ud83d"}, "a lone surrogate"),
    "a lone surrogate in a key": ({"\udc00": None}, "a lone surrogate"),
}
ACCEPTED_VALUES: dict[str, Json] = {
    "none": None,
    "false": False,
    "zero": 0,
    "an empty text": "",
    "an empty list": [],
    "an empty object": {},
    "numbers": [1, 2.5, -0.0, 10**300, True, None, {"k": ["v"]}, 12345678901234567890123],
    "escapes": {"": "\\u0000 written out", "back\\slash": "\\ud800", '\\"[': ["\\", '"'] * 200},
    "odd characters": "\N{GRINNING FACE} é \u2028 \x7f \x01",
    "100 levels": nested(100),
    "the greatest numbers": [10**308, -int(LARGEST), sys.float_info.max],
    "brackets and digits in texts": {"a": "9" * 5_000, "b": "[{" * 500, "c": [{}] * 500},
}

# Tasks that no push takes, with the reason.
REFUSED_TASKS: dict[str, tuple[Any, str]] = {
    "empty identifier": (NewTask(""), "its identifier is blank"),
    "blank identifier": (NewTask(" \t\n "), "its identifier is blank"),
    "long identifier": (NewTask("x" * 501), "501"),
    "long reference": (NewTask("a", reference="r" * 2001), "its reference has 2001 bytes, more than 2000"),
    "low priority": (NewTask("a", priority=-101), "priority -101"),
    "high priority": (NewTask("a", priority=101), "priority 101"),
    "priority beyond any integer": (NewTask("a", priority=2**70), "priority"),
    "both times": (NewTask("a", available_at=NEW_YEAR, delay=HOUR), "both available_at and delay"),
    "moment without a time zone": (NewTask("a", available_at=datetime(2030, 1, 1)), "no time zone"),  # noqa: DTZ001
    "payload too large": (NewTask("a", "x" * 262_143), "262145 bytes"),
    "NUL in the identifier": (NewTask("a\x00b"), "NUL"),
    "NUL in the reference": (NewTask("a", reference="a\x00b"), "NUL"),
    "lone surrogate in the identifier": (NewTask("a\ud800"), "surrogate"),
    "lone surrogate in the reference": (NewTask("a", reference="\udfff"), "surrogate"),
    "a number": (5, "a task is an identifier, a dict or a NewTask, not a int"),
    "no identifier": ({"payload": "secret-word"}, "its identifier is missing"),
    "unknown fields": (
        {"identifier": "a", "prio": 1, "colour": "secret-word"},
        "unknown field 'prio', 'colour': a task has identifier",
    ),
    "identifier of a number": ({"identifier": 7}, "its identifier is a int, not a text"),
    "suspended of a text": ({"identifier": "a", "suspended": "no"}, "its suspended is a str, not true or false"),
    "priority of a truth": (
        {"identifier": "a", "priority": True},
        r"invalid priority True \(a bool\): expected an integer",
    ),
    "no moment": ({"identifier": "a", "available_at": "noon"}, "its available_at 'noon' is not a moment in ISO 8601"),
    "moment of a number": (
        {"identifier": "a", "available_at": 5},
        "its available_at is a int, not a datetime or a text in ISO 8601",
    ),
    "local moment": ({"identifier": "a", "available_at": "2030-01-01T00:00"}, "its available_at has no time zone"),
    "no duration": ({"identifier": "a", "delay": "later"}, "invalid duration 'later': expected for example 90s"),
    "endless duration": ({"identifier": "a", "ttl": math.inf}, "invalid ttl inf: no such number of seconds"),
    "duration of a list": (
        {"identifier": "a", "ttl": [90]},
        r"invalid ttl \[90\] \(a list\): expected a timedelta, a number of seconds, or a text",
    ),
    "dependency of a text": ({"identifier": "a", "depends_on": "b"}, "its depends_on is a str, not a list of pairs"),
    "dependency without a topic": (
        {"identifier": "a", "depends_on": ["b"]},
        "its depends_on is no list of pairs|push it",
    ),
}
ACCEPTED_TASKS: dict[str, NewTask] = {
    "500 characters": NewTask("x" * 500),
    "500 characters of four bytes": NewTask("\N{GRINNING FACE}" * 500),
    "lowest priority": NewTask("a", priority=-100),
    "highest priority": NewTask("a", priority=100),
    "256 KiB": NewTask("a", "x" * 262_142),
    "quotes": NewTask("a 'quoted' \"{}\", \\ %s NULL"),
    "NULL": NewTask("NULL", "NULL", "NULL"),
    "empty reference": NewTask("a", reference=""),
    "long reference": NewTask("a", reference="r" * 2000),
    "braces": NewTask("{a,b}", "{}", "{}"),
}


@dataclass(frozen=True, slots=True)
class World:
    """A queue with rows in the tables that hold moments, and the keys of some of them."""

    queue: TaskQueue
    owner: Owner
    held: int
    waiting: int
    failed: int
    partition: PartitionLease


def make_world(queue: TaskQueue) -> World:
    """Stores tasks in all kinds of states, leases, locks, a consumer group, ticks and an audit row."""
    owner = queue.register("owner")
    queue.create_topic("retries", TopicPolicy(RetryPolicy(3, horizon=TEN_YEARS, max_elapsed=TEN_YEARS), ttl=None))
    tasks = queue.push("retries", ["waiting", "held", "failed", "ended"])
    queue.poll("retries", owner, len(tasks))
    waiting, held, failed, ended = (task.sequence for task in tasks)
    queue.complete(owner, {waiting: Result.FAILURE, failed: Result.SUSPENSION, ended: Result.SUCCESS})
    queue.push("work", [NewTask("later", delay=HOUR, ttl=HOUR), NewTask("blocked", depends_on=[("work", "later")])])
    queue.install_ticks("work", "tick", "hash", [(datetime(2030, 1, 1, tzinfo=UTC), None)])
    queue.lock("job", "me", HOUR)
    partition = queue.acquire_partition("group", "work", owner)
    queue.advance("readers", "work", 0, Cursor(1))
    queue.release_groups_once("wait", "retries", [["failed"]])
    queue.activate_worker("worker")
    with queue.conn.transaction():
        queue.set_actor("tester")
        queue.record_action("push", "work", "two tasks", 2)
    return World(queue, owner, held, waiting, failed, cast("PartitionLease", partition))


def look(queue: TaskQueue) -> None:
    """Reads everything that can be read: by the verbs, and by the views for psql."""
    for line in queue.browse_owners():
        for read in (queue.browse_owner, queue.browse_held, queue.owner):
            read(line.name)
    for listing in (
        *(queue.owners, queue.browse_locks, queue.partition_states, queue.workers, queue.health),
        *(queue.browse_topics, queue.audit_trail, queue.results, queue.count),
        queue.statistics,
    ):
        listing()
    queue.owners(TEN_YEARS)
    queue.throughput(timedelta(minutes=1), 60)
    for preceding in (False, True):
        queue.resolve(NEW_YEAR, preceding)
    for topic in queue.topics():
        look_at(queue, topic)
    for view in ("tasks", "topic_summaries", "task_info"):
        queue.conn.execute(sql.SQL("SELECT count(v::text) FROM taskq.{} v").format(sql.Identifier(view)))


def look_at(queue: TaskQueue, topic: str) -> None:
    """Reads everything about a topic and its tasks."""
    for read in (queue.policy, queue.browse_topic, queue.browse_holders, queue.browse_ticks, queue.ready):
        read(topic)
    found = queue.find_tasks(topic, TaskFilter())
    queue.find_tasks(topic, TaskFilter(since=NEW_YEAR))
    assert len(queue.browse_tasks(topic, found.sequences)) == len(found.sequences)
    for info in everything(queue, topic):
        queue.latest(topic, [info.identifier])
        for tell in (queue.task, queue.timeline, queue.explain, queue.dependencies):
            tell(topic, info.sequence)


_COLUMNS = """
    SELECT c.oid::regclass::text, a.attname, format_type(a.atttypid, a.atttypmod)
    FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
    WHERE c.relnamespace = ANY (%s::regnamespace[])
      AND c.relkind IN ('r', 'p') AND NOT c.relispartition
      AND NOT a.attisdropped AND a.atttypid IN ('timestamptz'::regtype, 'interval'::regtype)
"""


def beyond(queue: TaskQueue) -> list[str]:
    """The columns that hold a moment or a duration beyond the bounds."""
    query = sql.SQL(" UNION ALL ").join(
        sql.SQL(
            "SELECT {name} WHERE EXISTS (SELECT FROM {table} WHERE {column} NOT BETWEEN {least} AND {most})"
        ).format(
            name=sql.Literal(f"{table}.{column}"),
            table=sql.Identifier(*table.split(".")),
            column=sql.Identifier(column),
            least=sql.Literal("0001-01-01 00:00Z" if "timestamp" in kind else "-3650 days"),
            most=sql.Literal("9999-12-31 00:00Z" if "timestamp" in kind else "3650 days"),
        )
        for table, column, kind in queue.conn.execute(_COLUMNS, (SCHEMAS,)).fetchall()
    )
    return [name for (name,) in queue.conn.execute(query).fetchall()]
