"""Each way to push refuses JSON that some clients cannot read, and all other JSON is returned as it was pushed."""

import json
import math
import sys
from collections.abc import Callable
from decimal import Decimal
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from airflow_provider_taskq.queue import (
    Decision,
    InvalidTask,
    Json,
    NewTask,
    Owner,
    Result,
    State,
    TaskQueue,
    TopicPolicy,
    UnreadablePayload,
)
from airflow_provider_taskq.queue.encoding import decode_json, json_text
from tests.queue.conftest import everything, known

pytestmark = pytest.mark.promise("A payload comes back as it was pushed, or is refused")

TOO_DEEP = "nested deeper than 100 levels"
TOO_GREAT = "a number outside the range of a double"
LARGEST = str(int(sys.float_info.max))  # 309 digits

REFUSED = {
    "a list of 101 levels": ("[" * 101 + "]" * 101, TOO_DEEP),
    "an object of 101 levels": ('{"a":' * 101 + "1" + "}" * 101, TOO_DEEP),
    "101 levels of both": ('[{"a":' * 50 + "[]" + "}]" * 50, TOO_DEEP),
    "levels after shallow siblings": ("[" + "{}, {}," * 60 + "[" * 100 + "]" * 101, TOO_DEEP),
    "levels under a key that comes twice": ('{"a":%s,"a":1}' % ("[" * 100 + "]" * 100), TOO_DEEP),
    "levels with brackets in strings beside": ('["]]]]",' * 101 + "1" + "]" * 101, TOO_DEEP),
    "128 KiB of nested lists": ("[" * 131_072 + "]" * 131_072, TOO_DEEP),
    "256 KiB of open brackets": ("[" * 262_144, TOO_DEEP),
    "an exponent of 309": ("1e309", TOO_GREAT),
    "an exponent with a sign": ('{"a": [-1.5E+400]}', TOO_GREAT),
    "an exponent of many digits": ("1e99999999999999999999999", TOO_GREAT),
    "an exponent with leading zeros": ("[1e0000000000000000000000309 ]", TOO_GREAT),
    "an exponent under a key that comes twice": ('{"a":1e400,"a":1}', TOO_GREAT),
    "an exponent after an escaped quote": (r'["\"",1e400,"\\"]', TOO_GREAT),
    "an exponent after a line break": ('{"a":\n1e400\n}', TOO_GREAT),
    "309 digits above the greatest double": ("17976931348623158" + "0" * 292, TOO_GREAT),
    "310 digits": ("1" + "0" * 309, TOO_GREAT),
    "5,000 digits": ("9" * 5_000, TOO_GREAT),
    "256 KiB of digits": ("9" * 262_144, TOO_GREAT),
    "digits and an exponent of two digits": ("-" + "1" * 250 + "e99", TOO_GREAT),
    "a fraction and an exponent": ("0." + "0" * 400 + "1e710", TOO_GREAT),
    "NUL": (r'"\\\u0000"', "a NUL or a lone surrogate"),
    "a high surrogate": (r'["\ud83d\\\ude00"]', "a NUL or a lone surrogate"),
    "a low surrogate": (r'{"\uDE00":1}', "a NUL or a lone surrogate"),
    "NUL beside a fraction of many digits": (r'["\u0000",0.%s]' % ("1" * 20_000), "a NUL or a lone surrogate"),
}

ACCEPTED = {
    "a list of 100 levels": "[" * 100 + "]" * 100,
    "an object of 100 levels": '{"a":' * 100 + "1" + "}" * 100,
    "100 levels of both": '[{"a":' * 50 + "1" + "}]" * 50,
    "many shallow lists": "[" + "[[]],[{}], {}, {}," * 2_000 + "1]",
    "brackets in a string": json.dumps({"a": "[" * 5_000 + '"' + "{\\" * 5_000}),
    "the greatest double": "[1.7976931348623157e308,-1.7976931348623157E+308]",
    "the greatest double as an integer": LARGEST,
    "308 digits": "9" * 308,
    "a number in a string": json.dumps([" 1e400 ", ",1e400,", "9" * 5_000, '"1e400']),
    "a fraction of many digits": "0." + "3" * 20_000,
    "zero with an exponent": "[0e99999999999999999999,0.000E+400]",
    "an exponent that a fraction takes back": "0." + "0" * 400 + "1e700",
    "hexadecimal digits": '{"id":"6f1b8a52-5b52-4d43-3e412-412f0c8a7b11","color":"1e4000"}',
    "an escaped backslash before u": r'"\\u0000 \\ud800"',
    "a pair of surrogates": r'"\ud83d\uDE00\u00e9"',
    "escapes beside a fraction of many digits": r'["\ud83d\ude00",0.%s]' % ("1" * 20_000),
}

refused = pytest.mark.parametrize(("text", "reason"), REFUSED.values(), ids=REFUSED.keys())
accepted = pytest.mark.parametrize("text", ACCEPTED.values(), ids=ACCEPTED.keys())


@pytest.fixture
def small_queue(queue: TaskQueue) -> TaskQueue:
    """The queue whose topic `work` takes payloads of 1 MiB."""
    queue.alter_topic("work", TopicPolicy(max_payload_bytes=1_048_576))
    return queue


def push_many(conn: psycopg.Connection, payloads: list[str | None]) -> None:
    """Pushes by SQL, as any client can."""
    names = [f"task {place}" for place in range(len(payloads))]
    conn.execute("SELECT taskq.push('work'::text, 'APPEND', %s::text[], %s::text[])", (names, payloads))


def push_text(conn: psycopg.Connection, payload: str) -> None:
    """Pushes by the short form for one task."""
    conn.execute("SELECT taskq.push('work', 'a', %s)", (payload,))


def install_ticks(conn: psycopg.Connection, payloads: list[str]) -> None:
    """Installs recurring tasks, one a day."""
    conn.execute(
        "SELECT taskq.install_ticks('work', 'prefix', 'hash', ARRAY(SELECT timestamptz '2100-01-01 00:00Z'"
        " + n * interval '1 day' FROM generate_series(1, cardinality(%(payloads)s::text[])) AS n),"
        " %(payloads)s::text[])",
        {"payloads": payloads},
    )


def push_staged(conn: psycopg.Connection, payloads: list[str | None]) -> None:
    """Pushes as Spark's writer does: executors insert, and the driver commits."""
    [stage] = conn.execute("SELECT taskq.open_push()").fetchone() or [None]
    for place, payload in enumerate(payloads):
        conn.execute(
            "INSERT INTO taskq.staged_task (stage, part, attempt, place, identifier, payload)"
            " VALUES (%s, 0, 7, %s, %s, %s)",
            (stage, place, f"task {place}", payload),
        )
    conn.execute(
        "SELECT taskq.push_staged(%s, 'work', 'APPEND', ARRAY[0], ARRAY[7::bigint], ARRAY[%s::bigint])",
        (stage, len(payloads)),
    )


WAYS: dict[str, Callable[[psycopg.Connection, list[Any]], None]] = {
    "push": push_many,
    "staged tasks": push_staged,
    "ticks": install_ticks,
}


@refused
@pytest.mark.parametrize("way", WAYS)
def test_every_push_and_offer_refuses_json_that_not_every_client_can_read(
    small_queue: TaskQueue, way: str, text: str, reason: str
) -> None:
    with pytest.raises(psycopg.Error) as refusal:
        WAYS[way](small_queue.conn, ["1", "{}", text, "9" * 5_000])
    assert refusal.value.sqlstate == "TQ002"
    message = refusal.value.diag.message_primary or ""
    assert "position 2" in message
    assert reason in message
    assert len(message) < 250
    assert everything(small_queue) == []


@refused
def test_a_push_of_one_task_refuses_json_that_not_every_client_can_read(
    small_queue: TaskQueue, text: str, reason: str
) -> None:
    with pytest.raises(psycopg.Error, match=f"position 0: its payload .*{reason}") as refusal:
        push_text(small_queue.conn, text)
    assert refusal.value.sqlstate == "TQ002"
    assert everything(small_queue) == []


@accepted
@pytest.mark.parametrize("way", WAYS)
def test_every_push_and_offer_takes_json_within_the_limits(small_queue: TaskQueue, way: str, text: str) -> None:
    WAYS[way](small_queue.conn, ["1", text])
    assert everything(small_queue)[1].payload == json.loads(text)


@accepted
def test_a_push_of_one_task_takes_json_within_the_limits(small_queue: TaskQueue, text: str) -> None:
    push_text(small_queue.conn, text)
    assert everything(small_queue)[0].payload == json.loads(text)


def test_a_payload_above_the_limit_of_its_topic_is_refused_for_that(queue: TaskQueue) -> None:
    with pytest.raises(psycopg.Error, match="position 0: its payload has 300000 bytes"):
        push_many(queue.conn, ["[" * 300_000])


@refused
def test_a_completion_refuses_an_output_that_not_every_client_can_read(
    queue: TaskQueue, owner: Owner, text: str, reason: str
) -> None:
    first, second = queue.push("work", ["a", "b"])
    queue.poll("work", owner, 2)
    with pytest.raises(psycopg.Error, match=f"sequence {second.sequence} .*{reason}") as refusal:
        queue.conn.execute(
            "SELECT taskq.complete(%s, %s, %s::bigint[], '{3,3}', %s::text[])",
            (owner.name, owner.fence, [first.sequence, second.sequence], ["1", text]),
        )
    assert refusal.value.sqlstate == "TQ002"
    assert {info.state for info in everything(queue)} == {State.ACTIVE}


@accepted
def test_a_completion_takes_an_output_within_the_limits(queue: TaskQueue, owner: Owner, text: str) -> None:
    [task] = queue.push("work", ["a"])
    queue.poll("work", owner)
    queue.conn.execute(
        "SELECT taskq.complete(%s, %s, ARRAY[%s::bigint], '{3}', ARRAY[%s::text])",
        (owner.name, owner.fence, task.sequence, text),
    )
    assert known(queue, task).output == json.loads(text)


def test_an_exchange_refuses_an_output_that_not_every_client_can_read(queue: TaskQueue, owner: Owner) -> None:
    [task, _] = queue.push("work", ["a", "b"])
    queue.poll("work", owner)
    with pytest.raises(psycopg.Error, match=f"sequence {task.sequence} is nested"):
        queue.conn.execute(
            "SELECT * FROM taskq.exchange(%s, %s, ARRAY[%s::bigint], '{3}', ARRAY[%s::text], NULL, NULL,"
            " NULL, 'work'::text, 1, 'FIRST_IN_FIRST_OUT', 'NONE')",
            (owner.name, owner.fence, task.sequence, "[" * 131_072 + "]" * 131_072),
        )
    assert [info.state for info in everything(queue)] == [State.ACTIVE, State.READY]


def stage_decisions(queue: TaskQueue, owner: Owner, outputs: dict[int, str]) -> UUID:
    """Stages SUCCESS with these outputs for all tasks of the owner, as Spark's executors do."""
    [stage] = queue.conn.execute("SELECT taskq.open_stage(%s, %s)", (owner.name, owner.fence)).fetchone() or [None]
    queue.conn.execute(
        "INSERT INTO taskq.staged (stage, part, attempt, sequence, result, output)"
        " SELECT %s, 0, 7, l.sequence, 3, %s::json ->> l.sequence::text FROM taskq.tasks l"
        " WHERE l.state = 'ACTIVE'",
        (stage, json.dumps(outputs)),
    )
    assert isinstance(stage, UUID)
    return stage


@pytest.mark.parametrize("count", [3, 50_001], ids=["one chunk", "one statement"])
def test_a_stage_of_decisions_refuses_an_output_that_not_every_client_can_read(
    queue: TaskQueue, owner: Owner, count: int
) -> None:
    queue.push_stream("work", map(str, range(count)))
    assert queue.claim("work", owner, count) == count
    task = queue.page("work", size=2)[1]
    stage = stage_decisions(queue, owner, {task.sequence: "[1e400]"})
    with pytest.raises(psycopg.Error, match=f"sequence {task.sequence} holds a number outside") as refusal:
        queue.conn.execute(
            "SELECT taskq.complete_staged(%s, %s, %s, ARRAY[0], ARRAY[7::bigint], ARRAY[%s::bigint])",
            (owner.name, owner.fence, stage, count),
        )
    assert refusal.value.sqlstate == "TQ002"
    assert queue.count("work")["work"].keys() == {State.ACTIVE}


def test_a_follow_up_of_a_stage_is_refused_like_any_push(queue: TaskQueue, owner: Owner) -> None:
    [task] = queue.push("work", ["a"])
    queue.poll("work", owner)
    stage = stage_decisions(queue, owner, {})
    queue.conn.execute(
        "INSERT INTO taskq.staged_task (stage, part, attempt, place, parent, topic, identifier, payload)"
        " VALUES (%s, 0, 7, 0, %s, 'work', 'follow-up', %s)",
        (stage, task.sequence, "[" * 131_072 + "]" * 131_072),
    )
    with pytest.raises(psycopg.Error, match=r"position 0 \(identifier 'follow-up'\): its payload is nested") as refusal:
        queue.conn.execute(
            "SELECT taskq.complete_staged(%s, %s, %s, ARRAY[0], ARRAY[7::bigint], ARRAY[1::bigint])",
            (owner.name, owner.fence, stage),
        )
    assert refusal.value.sqlstate == "TQ002"
    assert [info.state for info in everything(queue)] == [State.ACTIVE]


def test_dependencies_nested_too_deeply_to_parse_are_an_invalid_task(queue: TaskQueue) -> None:
    stage = uuid4()
    queue.conn.execute(
        "INSERT INTO taskq.staged_task (stage, part, attempt, place, identifier, depends_on)"
        " VALUES (%s, 0, 7, 0, 'a', %s)",
        (stage, "[" * 131_072 + "]" * 131_072),
    )
    with pytest.raises(psycopg.Error) as refusal:
        queue.conn.execute(
            "SELECT taskq.push_staged(%s, 'work', 'APPEND', ARRAY[0], ARRAY[7::bigint], ARRAY[1::bigint])", (stage,)
        )
    assert refusal.value.sqlstate == "TQ002"


def nested(levels: int) -> Json:
    """Alternating lists and objects, nested to this number of levels."""
    value: Json = "leaf"
    for level in range(levels):
        value = [value] if level % 2 else {"a": value}
    return value


PYTHON_REFUSED: dict[str, tuple[Json, str]] = {
    "101 levels": (nested(101), TOO_DEEP),
    "levels that Python encodes": (nested(500), TOO_DEEP),
    "levels that Python does not encode": (nested(50_000), TOO_DEEP),
    "an integer beyond a double": ([10**309], TOO_GREAT),
    "an integer of 4,000 digits": ({"a": -(10**4_000)}, TOO_GREAT),
    "an integer that Python does not print": (10**5_000, "is not JSON"),
    "infinity": (math.inf, "is not JSON"),
}


@pytest.mark.parametrize(("payload", "reason"), PYTHON_REFUSED.values(), ids=PYTHON_REFUSED.keys())
def test_python_refuses_the_json_that_sql_refuses(queue: TaskQueue, owner: Owner, payload: Json, reason: str) -> None:
    tasks = [NewTask("a"), NewTask("b", payload)]
    for push in (queue.push, queue.push_stream):
        with pytest.raises(InvalidTask, match=f"position 1: its payload .*{reason}"):
            push("work", tasks)
    assert everything(queue) == []
    [task] = queue.push("work", ["a"])
    queue.poll("work", owner)
    with pytest.raises(InvalidTask, match=f"sequence {task.sequence} .*{reason}"):
        queue.complete(owner, {task: Decision(Result.SUCCESS, payload)})


def test_python_pushes_json_within_the_limits(queue: TaskQueue) -> None:
    payloads: list[Json] = [
        nested(100),
        10**308,
        -int(LARGEST),
        sys.float_info.max,
        {"a": "9" * 5_000, "b": "[{" * 500, "c": [{}] * 500, '\\"[': ["\\", '"'] * 200},
    ]
    queue.push("work", [NewTask(str(place), payload) for place, payload in enumerate(payloads)])
    assert [info.payload for info in everything(queue)] == payloads


scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(10**320), 10**320)
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]))
    | st.sampled_from(["1e400", '"', "\\", "[" * 120, "\\u0000", "\x00", "},{", "9" * 320])
)
payloads = st.recursive(
    scalars, lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=5) | st.just("[\\"), inner), max_leaves=30
)


LEVELS = st.integers(0, 3) | st.integers(30, 60)


@st.composite
def deep_payloads(draw: st.DrawFn) -> Json:
    """Payloads about as deep as the limit."""
    value: Json = draw(payloads)
    for levels in draw(st.lists(LEVELS, max_size=3)):
        sibling, as_list = draw(scalars), draw(st.booleans())
        for _ in range(levels):
            value = [sibling, value] if as_list else {"a": value, "b": sibling}
    return value


@given(st.lists(payloads | deep_payloads(), min_size=1, max_size=5))
@example([nested(100), 10**308, "x" * 250])
@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_a_poll_returns_a_payload_equal_to_the_pushed_one(queue: TaskQueue, owner: Owner, pushed: list[Json]) -> None:
    queue.purge_all("work")
    try:
        tasks = queue.push("work", [NewTask("a", payload) for payload in pushed])
    except InvalidTask:
        return
    found = [task.payload for task in queue.poll("work", owner, 10)]
    queue.complete(owner, dict.fromkeys(tasks, Result.SUCCESS))
    assert found == pushed
    assert list(map(repr, found)) == list(map(repr, pushed))


@st.composite
def json_texts(draw: st.DrawFn) -> str:
    """JSON as any client may write it: repeated keys, white space, and numbers and escapes of any form."""
    number = st.from_regex(r"-?(0|[1-9][0-9]{0,3})(\.[0-9]{1,4})?([eE][-+]?[0-9]{1,4})?", fullmatch=True) | st.builds(
        lambda digits, count, exponent: digits + "0" * count + exponent,
        st.sampled_from(["1", "17976931348623157", "17976931348623158", "2", "0.000"]),
        st.integers(280, 312),
        st.sampled_from(["", "e10", "e-3", "E99"]),
    )
    if draw(st.booleans()):
        number = st.sampled_from(["1", "-0.5", "2e3"])
    string = st.sampled_from(['"a"', r'"\\"', r'"\""', '"[[["', '"}},"', '", 1e400"', r'"é\u00e9"', '"5e4000"', '""'])
    gaps = st.sampled_from(["", "", " ", "\n\t"])
    siblings = st.sampled_from(["[]", "{}", "{},{}", "{}, {}", "[1],[2], [3]", "true,null"])
    text = draw(number | string)
    for levels in draw(st.lists(LEVELS, max_size=3)):
        beside, value, gap = draw(siblings), draw(number | string), draw(gaps)
        before, after = draw(
            st.sampled_from(
                [
                    (f"[{gap}", f"{gap}]"),
                    (f'{{"a"{gap}:', f',"a":{gap}{value}}}'),
                    (f"[{beside},{gap}", "]"),
                    (f"[{value},{gap}{beside}, ", f",{beside}]"),
                ]
            )
        )
        text = before * levels + text + after * levels
    return text


def depth_of(value: Any) -> int:
    """The number of levels, where objects are given as lists of pairs."""
    if isinstance(value, tuple):
        return 1 + max((depth_of(item) for _, item in value), default=0)
    return 1 + max(map(depth_of, value), default=0) if isinstance(value, list) else 0


def expected_defect(text: str) -> str | None:
    """The limit that a text breaks, according to Python's decoder, which sees every repeated key."""
    numbers: list[Decimal] = []

    def recorded(number: str) -> None:
        numbers.append(abs(Decimal(number)))

    value = json.loads(text, parse_float=recorded, parse_int=recorded, object_pairs_hook=tuple)
    if depth_of(value) > 100:
        return TOO_DEEP
    return TOO_GREAT if max(numbers, default=0) >= Decimal("1.7976931348623158e308") else None


@given(json_texts())
@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_the_check_in_sql_finds_exactly_the_json_beyond_a_limit(queue: TaskQueue, text: str) -> None:
    expected = expected_defect(text)
    if expected is None:
        push_text(queue.conn, text)
        assert not isinstance(decode_json(text), UnreadablePayload)
        return
    with pytest.raises(psycopg.Error, match=expected):
        push_text(queue.conn, text)


@given(payloads | deep_payloads())
@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_python_and_sql_refuse_the_same(queue: TaskQueue, payload: Json) -> None:
    try:
        text = json_text(payload)
    except ValueError:
        with pytest.raises(psycopg.Error):
            push_many(queue.conn, [json.dumps(payload, ensure_ascii=False)])
    else:
        if text is not None and "\\u0000" not in text:
            push_many(queue.conn, [text])
