"""Each way into the queue refuses what no client could read back, and one bad row never hides others."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import time, timedelta
from decimal import Decimal
from typing import Any, cast
from uuid import UUID, uuid4

import numpy as np
import psycopg
import pytest
from psycopg.types.json import set_json_dumps

from airflow_provider_taskq.queue import (
    Condition,
    Cursor,
    Decision,
    InvalidArgument,
    InvalidTask,
    Json,
    NewTask,
    Owner,
    Result,
    RetryPolicy,
    State,
    TaskQueue,
    TaskQueueError,
    TopicPolicy,
    UnreadablePayload,
    connect,
    partition_of,
    ticks_cron,
    ticks_daily,
    ticks_every,
)
from airflow_provider_taskq.queue.encoding import FIRST_MOMENT, LAST_MOMENT, MAX_TIMEDELTA
from airflow_provider_taskq.queue.reports import TaskFilter
from tests.internals import lapse_lease, overwrite_times, stored_rows
from tests.queue.conftest import everything, known
from tests.queue.hostile import (
    ACCEPTED_JSON,
    ACCEPTED_TASKS,
    ACCEPTED_VALUES,
    HOUR,
    INTERVALS_TOO_LONG,
    MOMENTS_OUT_OF_RANGE,
    NEW_YEAR,
    NO_DURATIONS,
    NO_INTEGERS,
    REFUSED_JSON,
    REFUSED_TASKS,
    REFUSED_VALUES,
    TEN_YEARS,
    TOO_LONG,
    World,
    beyond,
    look,
    make_world,
)

pytestmark = pytest.mark.promise("Any input is stored as it is, or refused with an error of the queue")

# JSON in SQL, as any client can send it


@dataclass(frozen=True, slots=True)
class Way:
    """A way of JSON into the queue, as the second of two texts that come together, or alone."""

    store: Callable[[TaskQueue, Owner, list[str]], object]
    place: str
    alone: bool = False
    output: bool = False


def push(queue: TaskQueue, _owner: Owner, texts: list[str]) -> None:
    """Pushes several tasks."""
    queue.conn.execute("SELECT taskq.push('work'::text, 'APPEND', '{a,b}'::text[], %s::text[])", (texts,))


def offer(queue: TaskQueue, _owner: Owner, texts: list[str]) -> None:
    """Offers several tasks."""
    queue.conn.execute("SELECT taskq.offer_many('work', 'update', '{a,b}', %s::text[])", (texts,))


def install_ticks(queue: TaskQueue, _owner: Owner, texts: list[str]) -> None:
    """Installs recurring tasks."""
    moments = "'{2100-01-01 00:00Z,2100-01-02 00:00Z}'"
    queue.conn.execute(f"SELECT taskq.install_ticks('work', 'p', 'h', {moments}, %s::text[])".encode(), (texts,))


STAGED_TASK = """INSERT INTO taskq.staged_task (stage, part, attempt, place, identifier, payload, parent, topic)
    VALUES (%s, 0, 7, %s, %s, %s, %s, 'work')"""
PUSH_STAGED = "SELECT taskq.commit_stage(%s, ARRAY[0], ARRAY[7::bigint], ARRAY[%s::bigint], p_topic => 'work')"
COMMIT = "SELECT taskq.commit_stage(%s, ARRAY[0], ARRAY[7::bigint], ARRAY[%s::bigint], %s, %s)"


def push_staged(queue: TaskQueue, _owner: Owner, texts: list[str]) -> None:
    """Pushes as Spark's writer does: executors insert, and the driver commits."""
    stage = uuid4()
    for place, text in enumerate(texts):
        queue.conn.execute(STAGED_TASK, (stage, place, f"task {place}", text, None))
    queue.conn.execute(PUSH_STAGED, (stage, len(texts)))


def hold(queue: TaskQueue, owner: Owner, count: int) -> list[int]:
    """Tasks that an owner holds."""
    queue.push("work", [str(number) for number in range(count)])
    return [task.sequence for task in queue.poll("work", owner, count)]


def complete(queue: TaskQueue, owner: Owner, texts: list[str]) -> None:
    """Completes several tasks with outputs."""
    sequences = hold(queue, owner, len(texts))
    call = "SELECT taskq.complete(%s, %s, %s::bigint[], '{3,3}', %s::text[])"
    queue.conn.execute(call, (owner.name, owner.fence, sequences, texts))


def exchange(queue: TaskQueue, owner: Owner, texts: list[str]) -> None:
    """Completes several tasks with outputs, and polls."""
    sequences = hold(queue, owner, len(texts))
    queue.conn.execute(
        "SELECT * FROM taskq.exchange(%s, %s, %s::bigint[], '{3,3}', %s::text[], NULL, NULL, NULL, 'work'::text, 1,"
        " 'FIRST_IN_FIRST_OUT', 'NONE')",
        (owner.name, owner.fence, sequences, texts),
    )


def stage_decisions(queue: TaskQueue, owner: Owner, outputs: dict[int, str]) -> UUID:
    """Stages SUCCESS with these outputs for all tasks of the owner, as Spark's executors do."""
    [stage] = queue.conn.execute("SELECT taskq.open_stage(%s, %s)", (owner.name, owner.fence)).fetchone() or [None]
    queue.conn.execute(
        "INSERT INTO taskq.staged (stage, part, attempt, sequence, result, output)"
        " SELECT %s, 0, 7, h.sequence, 3, %s::json ->> h.sequence::text"
        " FROM taskq.held_slice(%s, %s, NULL, 0, %s) h",
        (stage, json.dumps(outputs), owner.name, owner.fence, 2**62),
    )
    assert isinstance(stage, UUID)
    return stage


def complete_staged(queue: TaskQueue, owner: Owner, texts: list[str]) -> None:
    """Completes tasks as Spark's drain does."""
    outputs = dict(zip(hold(queue, owner, len(texts)), texts, strict=True))
    queue.conn.execute(COMMIT, (stage_decisions(queue, owner, outputs), len(texts), owner.name, owner.fence))


def follow_up(queue: TaskQueue, owner: Owner, texts: list[str]) -> None:
    """Completes a task as Spark's drain does, with tasks to push."""
    [parent] = hold(queue, owner, 1)
    stage = stage_decisions(queue, owner, {})
    for place, text in enumerate(texts):
        queue.conn.execute(STAGED_TASK, (stage, place, f"task {place}", text, parent))
    queue.conn.execute(COMMIT, (stage, 1, owner.name, owner.fence))


WAYS = {
    "push": Way(push, "position 1"),
    "push of one": Way(
        lambda queue, _, texts: queue.conn.execute("SELECT taskq.push('work', 'a', %s)", texts),
        "position 0",
        alone=True,
    ),
    "offer": Way(offer, "position 1"),
    "ticks": Way(install_ticks, "position 1"),
    "staged tasks": Way(push_staged, "position 1"),
    "follow-ups": Way(follow_up, r"position 1 \(identifier 'task 1'\)"),
    "complete": Way(complete, "sequence 2", output=True),
    "exchange": Way(exchange, "sequence 2", output=True),
    "staged decisions": Way(complete_staged, "sequence 2", output=True),
}


@pytest.fixture
def wide_queue(queue: TaskQueue) -> TaskQueue:
    """The queue whose topic `work` takes payloads of 1 MiB."""
    queue.alter_topic("work", TopicPolicy(max_payload_bytes=1_048_576))
    return queue


@pytest.mark.promise("A payload comes back as it was pushed, or is refused")
@pytest.mark.parametrize(("text", "reason"), REFUSED_JSON.values(), ids=REFUSED_JSON)
@pytest.mark.parametrize("way", WAYS)
def test_each_way_in_refuses_json_that_no_client_can_store_as_text(
    wide_queue: TaskQueue, owner: Owner, way: str, text: str, reason: str
) -> None:
    what = "" if WAYS[way].output else "its payload "
    with pytest.raises(psycopg.Error, match=f"{WAYS[way].place}.*{what}.*{reason}") as refusal:
        WAYS[way].store(wide_queue, owner, [text] if WAYS[way].alone else ["1", text])
    assert refusal.value.sqlstate == "TQ002"
    assert len(refusal.value.diag.message_primary or "") < 250
    assert {info.state for info in everything(wide_queue)} <= {State.ACTIVE}, "nothing was stored, nothing has ended"


@pytest.mark.promise("A payload comes back as it was pushed, or is refused")
@pytest.mark.parametrize("text", ACCEPTED_JSON.values(), ids=ACCEPTED_JSON)
@pytest.mark.parametrize("way", WAYS)
def test_each_way_in_takes_json_within_the_limits(wide_queue: TaskQueue, owner: Owner, way: str, text: str) -> None:
    WAYS[way].store(wide_queue, owner, [text] if WAYS[way].alone else ["1", text])
    stored = everything(wide_queue)[-1]
    assert (stored.output if WAYS[way].output else stored.payload) == json.loads(text)


@pytest.mark.parametrize("text", ["[1e400]", "9" * 5_000, "[" * 150 + "]" * 150], ids=["exponent", "digits", "depth"])
def test_sql_takes_json_that_some_client_cannot_read(queue: TaskQueue, text: str) -> None:
    queue.conn.execute("SELECT taskq.push('work', 'a', %s)", (text,))
    assert isinstance(everything(queue)[0].payload, UnreadablePayload) is not text.startswith("[[")


def test_a_payload_above_the_limit_of_its_topic_is_refused_for_that(queue: TaskQueue, owner: Owner) -> None:
    with pytest.raises(psycopg.Error, match="position 1: its payload has 300000 bytes"):
        push(queue, owner, ["1", "[" * 300_000])


# Tasks and values in Python

PUSHES: dict[str, Callable[[TaskQueue, list[Any]], object]] = {
    "push": lambda queue, tasks: queue.push("work", tasks),
    "push_stream": lambda queue, tasks: queue.push_stream("work", tasks),
    "offer_many": lambda queue, tasks: queue.offer_many("work", tasks),
}
UNFIT = {
    **REFUSED_TASKS,
    **{f"payload of {name}": (NewTask("a", value), reason) for name, (value, reason) in REFUSED_VALUES.items()},
}


@pytest.mark.promise("An invalid task is refused by its position, and nothing is stored")
@pytest.mark.parametrize("push", PUSHES)
@pytest.mark.parametrize(("bad", "reason"), UNFIT.values(), ids=UNFIT)
def test_a_task_that_breaks_a_rule_is_refused_by_its_position(
    queue: TaskQueue, push: str, bad: Any, reason: str
) -> None:
    with pytest.raises(InvalidTask, match=rf"topic 'work', task at position 1\b.*{reason}") as refusal:
        PUSHES[push](queue, ["fine", bad, "fine, too"])
    assert "secret-word" not in str(refusal.value)
    assert len(str(refusal.value).splitlines()) == 1
    assert everything(queue) == []


@pytest.mark.promise("An invalid task is refused by its position, and nothing is stored")
@pytest.mark.parametrize("push", PUSHES)
@pytest.mark.parametrize(
    "given", [{"identifier": "a"}, NewTask("a"), "order-17", b"abc"], ids=lambda one: type(one).__name__
)
def test_one_task_instead_of_a_list_is_refused(queue: TaskQueue, push: str, given: Any) -> None:
    """A common mistake: push("work", "order-17") must not store eight tasks of one letter each."""
    with pytest.raises(InvalidTask, match=f"tasks is one {type(given).__name__}: give a list of tasks"):
        PUSHES[push](queue, given)
    assert everything(queue) == []


@pytest.mark.promise("An invalid task is refused by its position, and nothing is stored")
@pytest.mark.parametrize("bad", ["long identifier", "NUL in the reference", "lone surrogate in the identifier"])
def test_a_stream_names_the_position_beyond_its_first_call(queue: TaskQueue, bad: str) -> None:
    with pytest.raises(InvalidTask, match=r"position 10001\b"):
        queue.push_stream("work", (UNFIT[bad][0] if number == 10_001 else f"{number}" for number in range(10_005)))
    assert everything(queue) == []


@pytest.mark.parametrize(("value", "reason"), REFUSED_VALUES.values(), ids=REFUSED_VALUES)
def test_python_refuses_an_output_that_sql_refuses(queue: TaskQueue, owner: Owner, value: Any, reason: str) -> None:
    queue.push("work", ["a", "b"])
    good, bad = queue.poll("work", owner, 2)
    with pytest.raises(InvalidTask, match=rf"sequence {bad.sequence}\b.*{reason}"):
        queue.complete(owner, {good: Result.SUCCESS, bad: Decision(Result.SUCCESS, value)})
    assert queue.held(owner) == [good, bad]


def plain(value: object) -> object:
    """JSON of an object that JSON does not have."""
    return value.item() if isinstance(value, np.generic) else str(value)


def with_default(conn: psycopg.Connection) -> TaskQueue:
    """A queue with a function for objects."""
    return TaskQueue(conn, json_default=plain)


def with_dumps(conn: psycopg.Connection) -> TaskQueue:
    """A queue on a connection whose JSON another function writes."""
    set_json_dumps(lambda value: json.dumps(value, default=plain, indent=1).encode(), conn)
    return TaskQueue(conn)


@pytest.mark.promise("A payload comes back as it was pushed, or is refused")
@pytest.mark.parametrize("make", [with_default, with_dumps])
def test_a_function_of_the_queue_or_its_connection_encodes_what_json_does_not_have(
    dsn: str, queue: TaskQueue, make: Callable[[psycopg.Connection], TaskQueue]
) -> None:
    data: Any = {"at": NEW_YEAR, "key": UUID(int=7), "price": Decimal("1.50"), "n": np.int64(3), "x": np.float32(0.5)}
    kept = {"at": str(NEW_YEAR), "key": str(UUID(int=7)), "price": "1.50", "n": 3, "x": 0.5}
    with connect(dsn) as conn:
        given = make(conn)
        for store in PUSHES.values():
            store(given, [NewTask("a", data)])
        given.offer("work", "b", data)
        given.install_ticks("work", "c", "hash", [(NEW_YEAR, data)])
        assert {json.dumps(task.payload) for task in given.page("work")} == {json.dumps(kept)}
        owner = given.register("me")
        [task] = given.poll("work", owner)
        given.complete(owner, {task: Decision(Result.SUCCESS, data)})
        assert known(given, task).output == kept
        wrongs: list[tuple[Any, str]] = [
            ({"x": np.float32("nan")}, "holds NaN"),
            ({"x": {1: NEW_YEAR}}, "has a key that"),
        ]
        for wrong, reason in wrongs:
            with pytest.raises(InvalidTask, match=f"position 0: its payload {reason}"):
                given.push("work", [NewTask("a", wrong)])
    with pytest.raises(InvalidTask, match="datetime is not JSON serializable; json_default=str, or psycopg's set_json"):
        queue.push("work", [NewTask("a", data)])


FIT = {**ACCEPTED_TASKS, **{name: NewTask("a", value) for name, value in ACCEPTED_VALUES.items()}}


@pytest.mark.promise("A payload comes back as it was pushed, or is refused")
@pytest.mark.parametrize("good", FIT.values(), ids=FIT)
def test_allowed_values_come_back_as_they_were_pushed(queue: TaskQueue, owner: Owner, good: NewTask) -> None:
    [pushed] = queue.push("work", [good])
    [polled] = queue.poll("work", owner)
    for task in (pushed, polled, known(queue, pushed)):
        assert (task.identifier, task.payload, task.reference) == (good.identifier, good.payload, good.reference)
        assert type(task.payload) is type(good.payload)
    queue.complete(owner, {polled: Decision(Result.SUCCESS, good.payload)})
    assert known(queue, pushed).output == good.payload


@pytest.mark.promise("A payload comes back as it was pushed, or is refused")
@pytest.mark.parametrize(
    ("payload", "size"),
    [
        ("é", 4),
        ("\N{GRINNING FACE}", 6),
        ({"a": [1, 2]}, 11),
        ({"ä": "ö", "n": None}, 20),
        ("\n", 4),
        ('"', 4),
    ],
    ids=["two bytes", "four bytes", "compact", "object", "escape", "quote"],
)
def test_a_payload_is_counted_as_utf8_bytes_of_compact_json(queue: TaskQueue, payload: Json, size: int) -> None:
    queue.alter_topic("work", max_payload_bytes=size)
    queue.push("work", [NewTask("a", payload)])
    queue.alter_topic("work", max_payload_bytes=size - 1)
    with pytest.raises(InvalidTask, match="work"):
        queue.push("work", [NewTask("a", payload)])
    queue.push("work", ["without a payload"])


@pytest.mark.parametrize(
    "name", ["a\x00b", "a\ud800b", "", "  ", "\t\n"], ids=["NUL", "surrogate", "none", "blank", "tab"]
)
def test_a_name_that_is_blank_or_that_postgresql_cannot_store_is_refused_in_one_line(
    queue: TaskQueue, name: str
) -> None:
    for verb in (queue.create_topic, queue.register):
        with pytest.raises(TaskQueueError) as refusal:
            verb(name)
        assert len(str(refusal.value).splitlines()) == 1
    assert (queue.topics(), queue.owners()) == (["work"], [])


# Verbs that store a name in an index, which takes about 2,700 bytes.
NAMING: dict[str, Callable[[TaskQueue, str], object]] = {
    "owner": lambda queue, name: queue.register(name),
    "lock": lambda queue, name: queue.lock(name, "me", HOUR),
    "worker": lambda queue, name: queue.activate_worker(name),
    "drain": lambda queue, name: queue.begin_drain(name, "work"),
    "group": lambda queue, name: queue.acquire_partition(name, "work", queue.register("me")),
    "group that only advances": lambda queue, name: queue.advance(name, "work", 0, Cursor(0)),
    "wait": lambda queue, name: queue.release_groups_once(name, "work", [{"a"}]),
    "stream": lambda queue, name: queue.conn.execute("SELECT taskq.begin_stream_batch(%s, 1)", (name,)),
    "topic of a grant": lambda queue, name: queue.conn.execute(
        "SELECT taskq.grant_access(current_user::text, 'reader', ARRAY[%s])", (name,)
    ),
}


@pytest.mark.parametrize("store", NAMING.values(), ids=NAMING)
def test_a_name_of_more_bytes_than_an_index_takes_is_refused(
    queue: TaskQueue, store: Callable[[TaskQueue, str], object]
) -> None:
    with pytest.raises((InvalidArgument, psycopg.Error), match="has 2800 bytes, more than 2000"):
        store(queue, "\N{GRINNING FACE}" * 700)
    with queue.conn.transaction(force_rollback=True):
        store(queue, "\N{GRINNING FACE}" * 500)


# Durations and moments

FIELDS = ("base", "max_delay", "horizon", "max_elapsed", "ttl", "keep_succeeded", "keep_failed")
# Verbs that store a duration.
STORING: dict[str, Callable[[World, Any], object]] = {
    "register": lambda w, d: w.queue.register("evil", d),
    "register again": lambda w, d: w.queue.register("owner", d),
    "lock at_most": lambda w, d: w.queue.lock("evil", "me", d),
    "lock at_least": lambda w, d: w.queue.lock("evil", "me", d, d),
    "lock extended": lambda w, d: w.queue.lock("job", "me", d),
    "push delay": lambda w, d: w.queue.push("work", [NewTask("evil", delay=d)]),
    "push ttl": lambda w, d: w.queue.push("work", [NewTask("evil", ttl=d)]),
    "push many": lambda w, d: w.queue.push("work", [NewTask("a"), NewTask("evil", delay=d)]),
    "push_stream": lambda w, d: w.queue.push_stream("work", iter([NewTask("a"), NewTask("evil", ttl=d)])),
    "tick delay": lambda w, d: w.queue.install_ticks("work", "t", "h", [(NEW_YEAR, NewTask("t", delay=d))]),
    "tick ttl": lambda w, d: w.queue.install_ticks("work", "t", "h", [(NEW_YEAR, NewTask("t", ttl=d))]),
    **{
        f"{verb}_topic {field}": lambda w, d, verb=verb, topic=topic, field=field: (  # type: ignore[misc]
            getattr(w.queue, f"{verb}_topic")(topic, **{field: d})
        )
        for verb, topic in (("create", "evil"), ("alter", "work"))
        for field in FIELDS
    },
}


@pytest.mark.promise("A duration or a moment is stored as written, or refused")
@pytest.mark.parametrize("verb", STORING)
def test_ten_years_are_stored_and_a_longer_or_negative_duration_or_another_value_is_refused(
    queue: TaskQueue, verb: str
) -> None:
    world = make_world(queue)
    before = stored_rows(queue.conn)
    for duration in (*TOO_LONG, *NO_DURATIONS):
        with pytest.raises((InvalidArgument, InvalidTask), match="3650 days" if duration in TOO_LONG else "invalid"):
            STORING[verb](world, duration)
    assert stored_rows(queue.conn) == before
    STORING[verb](world, TEN_YEARS.total_seconds())  # of numbers, seconds are meant
    assert beyond(queue) == []
    look(queue)


INTERVALS = (
    "taskq.register('evil', {})",
    "taskq.lock('evil', 'me', {}, '0')",
    "taskq.push('work', 'APPEND', ARRAY['a'], p_delays => ARRAY[{}]::interval[])",
    "taskq.push('work', 'APPEND', ARRAY['a'], p_ttls => ARRAY[{}]::interval[])",
    "taskq.push('work', 'a', delay => {})",
    "taskq.push('work', 'a', ttl => {})",
    "taskq.alter_topic('work', jsonb_build_object('base', {}))",
    "taskq.alter_topic('work', jsonb_build_object('max_delay', {}))",
)
MOMENTS = (
    "taskq.push('work', 'APPEND', ARRAY['a'], p_available_at => ARRAY[{}]::timestamptz[])",
    "taskq.push('work', 'a', available_at => {})",
    "taskq.change_waiting('retries', ARRAY(SELECT max(sequence) FROM taskq.tasks WHERE identifier = 'waiting'), {})",
    "taskq.install_ticks('work', 't', 'h', ARRAY[{}]::timestamptz[])",
)


def intervals(queue: TaskQueue, *values: str) -> tuple[str, ...]:
    """Values of an interval, with the infinite ones of newer servers."""
    return (*values, "infinity", "-infinity") if queue.conn.info.server_version >= 170_000 else values


@pytest.mark.promise("A duration or a moment is stored as written, or refused")
@pytest.mark.parametrize("call", INTERVALS)
def test_an_interval_of_sql_is_bound_by_months_and_days(queue: TaskQueue, call: str) -> None:
    make_world(queue)
    before = stored_rows(queue.conn)
    for duration in intervals(queue, *INTERVALS_TOO_LONG):
        with pytest.raises(psycopg.Error) as error:
            queue.conn.execute(f"SELECT {call.format(f'interval {duration!r}')}".encode())
        assert (error.value.sqlstate or "").startswith("TQ"), error.value
    assert stored_rows(queue.conn) == before


@pytest.mark.promise("A duration or a moment is stored as written, or refused")
@pytest.mark.parametrize("call", MOMENTS)
def test_a_moment_of_sql_outside_of_the_years_1_to_9999_is_refused(queue: TaskQueue, call: str) -> None:
    make_world(queue)
    before = stored_rows(queue.conn)
    for moment in MOMENTS_OUT_OF_RANGE:
        with pytest.raises(psycopg.Error, match="the years 1 to 9999") as error:
            queue.conn.execute(f"SELECT {call.format(f'timestamptz {moment!r}')}".encode())
        assert error.value.sqlstate == "TQ002"
    assert stored_rows(queue.conn) == before


# Verbs that compare a duration with an age, or wait.
COMPARING: dict[str, Callable[[World, Any], object]] = {
    "owners": lambda w, d: w.queue.owners(d),
    "purge_owners": lambda w, d: w.queue.purge_owners(d),
    "expire": lambda w, d: w.queue.expire(d),
    "statistics": lambda w, d: w.queue.statistics(d),
    "throughput": lambda w, d: w.queue.throughput(d, 1),
    "health": lambda w, d: w.queue.health(d),
    "ticks_every": lambda _, d: ticks_every(d, NEW_YEAR),
    "ticks_daily": lambda _, d: ticks_daily([time(8)], "UTC", NEW_YEAR, d),
    "ticks_cron": lambda _, d: ticks_cron("@daily", "UTC", NEW_YEAR, d),
    "correlation": lambda _, d: RetryPolicy.correlation(max_backoff=d),
    "event_handling": lambda _, d: RetryPolicy.event_handling(initial=d, max_elapsed=d),
    "snooze": lambda _, d: Decision(Result.SUSPENSION, delay=d),
}
# Verbs with an integer.
COUNTING: dict[str, Callable[[World, Any], object]] = {
    "poll": lambda w, n: w.queue.poll("work", w.owner, n),
    "claim": lambda w, n: w.queue.claim("work", w.owner, n),
    "poll_batch": lambda w, n: w.queue.poll_batch("work", w.owner, n),
    "poll_batch size": lambda w, n: w.queue.poll_batch("work", w.owner, 1, n),
    "ready": lambda w, n: w.queue.ready("work", n),
    "topic_status": lambda w, n: w.queue.topic_status("work", cap=n),
    "page": lambda w, n: w.queue.page("work", size=n),
    "page after": lambda w, n: w.queue.page("work", after=n),
    "task": lambda w, n: w.queue.task("work", n),
    "events": lambda w, n: w.queue.events("work", None, n),
    "events partitions": lambda w, n: w.queue.events("work", None, partitions=n),
    "progress": lambda w, n: w.queue.progress("group", "work", n),
    "acquire_partition": lambda w, n: w.queue.acquire_partition("group", "work", w.owner, n),
    "read_partition": lambda w, n: w.queue.read_partition(w.partition, n),
    "revive": lambda w, n: w.queue.revive("work", State.FAILED, from_=n),
    "revive sequences": lambda w, n: w.queue.revive("retries", sequences=[n]),
    "reassign": lambda w, n: w.queue.reassign("retries", Result.FILTER, sequences=[n]),
    "complete": lambda w, n: w.queue.complete(w.owner, cast("Any", {str(n) if isinstance(n, list) else n: "SUCCESS"})),
    "purge": lambda w, n: w.queue.purge("work", to=n),
    "purge_past_ttl": lambda w, n: w.queue.purge_past_ttl("work", n),
    "cancel": lambda w, n: w.queue.cancel("work", [n]),
    "set_priority": lambda w, n: w.queue.change_waiting("work", [w.waiting], priority=n),
    "set_attempts": lambda w, n: w.queue.change_waiting("work", [w.waiting], attempts=n),
    "push": lambda w, n: w.queue.push("work", [NewTask("evil", priority=n)]),
    "offer": lambda w, n: w.queue.offer("work", "evil", priority=n),
    "alter_topic": lambda w, n: w.queue.alter_topic("work", max_attempts=n),
    "TopicPolicy": lambda _, n: TopicPolicy(max_crashes=n),
    "RetryPolicy.delay": lambda _, n: RetryPolicy().delay(n),
    "partition_of": lambda _, n: partition_of("a", n),
    "partition_of level": lambda _, n: partition_of("a", 2, n),
    "ticks_every": lambda _, n: ticks_every(HOUR, NEW_YEAR, n),
}


@pytest.mark.promise("A duration or a moment is stored as written, or refused")
def test_each_verb_takes_seconds_for_a_duration_and_refuses_a_negative_one_and_another_value(queue: TaskQueue) -> None:
    world = make_world(queue)
    for name, verb in COMPARING.items():
        for duration in (3600, 3600.5, "1h", HOUR, np.int64(3600)):
            verb(world, duration)
        for wrong in NO_DURATIONS:
            with pytest.raises(InvalidArgument, match="invalid"):
                pytest.fail(f"{name} took {wrong!r}: {verb(world, wrong)}")


def test_each_verb_refuses_a_fraction_a_truth_and_a_text_for_an_integer(queue: TaskQueue) -> None:
    world = make_world(queue)
    before = stored_rows(queue.conn)
    for name, verb in COUNTING.items():
        for wrong in NO_INTEGERS:
            with pytest.raises((InvalidArgument, InvalidTask), match="invalid"):
                pytest.fail(f"{name} took {wrong!r}: {verb(world, wrong)}")
    assert stored_rows(queue.conn) == before
    COUNTING["poll"](world, np.int64(1))


@pytest.mark.parametrize(
    "delay",
    [
        timedelta.max,
        TEN_YEARS,
        timedelta.min,  # of UNDECIDED
        "4000000 months -120000000 days",  # which cancel each other out in a comparison
        "-4000000 months 120000000 days",
    ],
    ids=str,
)
def test_a_snooze_of_any_length_is_due_by_the_year_9999(queue: TaskQueue, delay: timedelta | str) -> None:
    """An error here would fail the other decisions of the batch."""
    world = make_world(queue)
    if isinstance(delay, timedelta):
        queue.complete(world.owner, {world.held: Decision(Result.SUSPENSION, delay=delay)})
    else:
        call = "SELECT taskq.complete(%s, %s, ARRAY[%s], '{1}', NULL, NULL, ARRAY[%s::interval])"
        queue.conn.execute(call, (world.owner.name, world.owner.fence, world.held, delay))
    assert known(queue, world.held, "retries").state is State.READY
    assert beyond(queue) == []
    look(queue)


def test_an_age_beyond_the_range_of_time_counts_as_all_time(queue: TaskQueue) -> None:
    world = make_world(queue)
    assert [owner.name for owner in queue.owners(within=timedelta.max)] == ["owner"]
    lapse_lease(queue.conn, ago=timedelta(days=1))
    assert queue.expire(timedelta.max) == 0
    assert queue.purge_owners(timedelta.max) == 0
    assert known(queue, world.held, "retries").state is State.ACTIVE
    assert queue.expire() == 1


def test_the_lease_of_a_partition_may_be_longer_than_a_timeout_of_the_server(queue: TaskQueue) -> None:
    """The server ends a holder's transaction after the lease by a timeout, which has a maximum of 24 days."""
    partition = queue.acquire_partition("group", "work", queue.register("consumer", TEN_YEARS))
    assert partition is not None
    [task] = queue.push("work", ["a"])
    batch = queue.read_partition(partition)
    assert queue.advance_partition(partition, batch.after, Cursor(task.sequence))


# Sizes


@pytest.mark.parametrize("size", [0, -1, -(2**40)])
def test_a_size_below_one_returns_nothing(queue: TaskQueue, size: int) -> None:
    world = make_world(queue)
    before = stored_rows(queue.conn)
    assert queue.poll("work", world.owner, size) == []
    assert queue.claim("work", world.owner, size) == 0
    assert queue.poll_batch("work", world.owner, size) == {}
    assert queue.ready("work", size) == 0
    assert queue.page("retries", size=size) == []
    assert queue.events("work", None, size) == []
    assert queue.revive("retries", State.SUSPENDED, size=size) == {}
    assert queue.purge("retries", size=size) == 0
    assert queue.purge_past_ttl("retries", size) == 0
    assert queue.find_tasks("retries", TaskFilter(), size=size).sequences == []
    assert (queue.browse_topics(size=size), queue.browse_locks(size=size)) == ([], [])
    assert queue.browse_owners(size=size) == []
    assert (queue.partition_states(size=size), queue.browse_held("owner", size=size)) == ([], [])
    assert queue.audit_trail(size=size) == []
    with pytest.raises(InvalidArgument, match="expected at least 1"):
        queue.read_partition(world.partition, size)
    assert stored_rows(queue.conn) == before


def test_a_size_beyond_every_integer_returns_everything(queue: TaskQueue) -> None:
    make_world(queue)
    assert len(queue.page("retries", size=2**70)) == 4
    assert len(queue.find_tasks("retries", TaskFilter(), size=2**70, budget=2**70).sequences) == 4
    assert queue.ready("work", 2**70) == 0
    queue.push("work", ["a", "b"])
    for condition in Condition:
        assert queue.ready("work", 2**70, condition) == 2
        mine = queue.register("mine")
        tasks = queue.poll("work", mine, 2**70, condition=condition)
        assert queue.release(mine) == len(tasks) == 2


def test_the_size_of_a_group_is_minus_one_or_more(queue: TaskQueue, owner: Owner) -> None:
    queue.push("work", ["a", "a"])
    for size in (-2, -(2**70)):
        with pytest.raises(InvalidArgument, match="-1 for all"):
            queue.poll_batch("work", owner, 1, size)
    assert queue.poll_batch("work", owner, 1, 0) == {}
    assert [len(group) for group in queue.poll_batch("work", owner, 2**70, -1).values()] == [2]


# Rows that other programs have stored


@pytest.mark.parametrize("value", MOMENTS_OUT_OF_RANGE)
def test_a_row_with_a_moment_out_of_range_hides_no_other_row(own_queue: TaskQueue, value: str) -> None:
    world = make_world(own_queue)
    overwrite_times(own_queue.conn, "timestamptz", value)
    shown = FIRST_MOMENT if value.startswith("-") or value.endswith("BC") else LAST_MOMENT
    late = [shown] if shown == LAST_MOMENT else []
    for zone in ("UTC", "Pacific/Auckland", "America/New_York"):
        own_queue.conn.execute("SELECT set_config('timezone', %s, false)", (zone,))
        look(own_queue)
        assert {info.created for info in everything(own_queue, "retries")} == {shown}
        assert [line.created for line in own_queue.browse_tasks("retries", [world.held])] == [shown]
        assert own_queue.timeline("retries", world.held)[0].happened == shown
        [line] = own_queue.browse_owners()
        assert (line.lease_until, line.seen, line.lapsed) == (shown, shown, shown == FIRST_MOMENT)
        assert [owner.lease_until for owner in own_queue.owners()] == late
        assert [lock.until for lock in own_queue.browse_locks()] == late
        assert [state.lease_until for state in own_queue.partition_states()] == [shown, None]
        assert "lapsed leases" in {finding.subject for finding in own_queue.health()}


def test_a_row_with_a_duration_out_of_range_hides_no_other_row(own_queue: TaskQueue) -> None:
    make_world(own_queue)
    for value in intervals(own_queue, "178000000 years", "-178000000 years", "71582788 months 2147483640 days"):
        overwrite_times(own_queue.conn, "interval", value)
        shown = -MAX_TIMEDELTA if value.startswith("-") else MAX_TIMEDELTA
        look(own_queue)
        assert [line.lease for line in own_queue.browse_owners()] == [shown]
        assert [owner.lease for owner in own_queue.owners()] == [shown]
        assert own_queue.policy("retries").retry.base == max(shown, timedelta(0))


@pytest.mark.promise("A duration or a moment is stored as written, or refused")
def test_a_moment_within_bounds_is_read_as_it_is(queue: TaskQueue) -> None:
    """In any time zone of the session, up to the last day."""
    queue.conn.execute("SET timezone = 'Pacific/Auckland'")
    moments = [FIRST_MOMENT, NEW_YEAR, LAST_MOMENT]
    tasks = queue.push("work", [NewTask("a", available_at=moment) for moment in moments])
    for zone in ("Pacific/Auckland", "America/New_York", "UTC"):
        queue.conn.execute("SELECT set_config('timezone', %s, false)", (zone,))
        assert [known(queue, task).available_at for task in tasks] == moments
