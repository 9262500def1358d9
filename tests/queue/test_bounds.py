"""Bounds: no argument stores a value that a client cannot read back, and one bad row never hides others."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg import sql

from airflow_provider_taskq.queue import (
    Condition,
    Cursor,
    Decision,
    InvalidArgument,
    InvalidTask,
    NewTask,
    Owner,
    Result,
    RetryPolicy,
    State,
    TaskQueue,
    TaskQueueError,
    TopicPolicy,
)
from airflow_provider_taskq.queue.encoding import FIRST_MOMENT, LAST_MOMENT, MAX_TIMEDELTA
from airflow_provider_taskq.queue.log import PartitionLease
from airflow_provider_taskq.queue.reports import TaskFilter
from tests.internals import SCHEMAS, lapse_lease, overwrite_times, set_attempt, stored_rows
from tests.queue.conftest import everything, known, last_failure

pytestmark = pytest.mark.promise("A duration or a moment is stored as written, or refused")

EVIL = timedelta(days=99_999_999)
TEN_YEARS = timedelta(days=3650)
INSTANT = timedelta(microseconds=1)
HOUR = timedelta(hours=1)
NEW_YEAR = datetime(2026, 1, 1, tzinfo=UTC)

BAD_MOMENTS = ["infinity", "-infinity", "294276-01-01 00:00Z", "10000-01-01 00:00Z", "4713-01-01 00:00Z BC"]

COLUMNS = """
    SELECT c.oid::regclass::text, a.attname, format_type(a.atttypid, a.atttypmod)
    FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
    WHERE c.relnamespace = ANY (%s::regnamespace[])
      AND c.relkind IN ('r', 'p') AND NOT c.relispartition
      AND NOT a.attisdropped AND a.atttypid IN ('timestamptz'::regtype, 'interval'::regtype)
"""


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
    queue.join_group("group", "work")
    partition = queue.acquire_partition("group", "work", "consumer", HOUR)
    assert partition is not None
    queue.advance("readers", "work", 0, Cursor(1))
    queue.release_groups_once("wait", "retries", [["failed"]])
    queue.activate_worker("worker")
    queue.record_handling_times("work", [1.0])
    with queue.conn.transaction():
        queue.set_actor("tester")
        queue.record_action("push", "work", "two tasks", 2)
    return World(queue, owner, held, waiting, failed, partition)


def look(queue: TaskQueue) -> None:
    """Reads everything that can be read: by the verbs, and by the views for psql."""
    for line in queue.browse_owners()[0]:
        for read in (queue.browse_owner, queue.browse_held, queue.owner):
            read(line.name)
    for listing in (
        *(queue.owners, queue.browse_locks, queue.browse_groups, queue.partition_states, queue.workers, queue.health),
        *(queue.stuck_owners, queue.topic_errors, queue.browse_topics, queue.audit_trail, queue.results, queue.count),
        *(queue.statistics, queue.handling_times),
    ):
        listing()
    queue.owners(TEN_YEARS)
    queue.throughput(timedelta(minutes=1), 60)
    queue.count_lapsed(HOUR)
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
        for table, column, kind in queue.conn.execute(COLUMNS, (SCHEMAS,)).fetchall()
    )
    return [name for (name,) in queue.conn.execute(query).fetchall()]


OF_TOPIC = ("ttl", "max_crashes", "max_payload_bytes", "keep_succeeded", "keep_failed")


def policy(**fields: timedelta | float | int | None) -> TopicPolicy:
    """A policy with these fields, of the retry policy or of the topic."""
    rest = {name: fields.pop(name) for name in OF_TOPIC if name in fields}
    return TopicPolicy(RetryPolicy(**fields), **rest)  # type: ignore[arg-type]


# Verbs that store a duration.
STORING: dict[str, Callable[[World, timedelta], object]] = {
    "register": lambda w, d: w.queue.register("evil", d),
    "register again": lambda w, d: w.queue.register("owner", d),
    "lock at_most": lambda w, d: w.queue.lock("evil", "me", d),
    "lock at_least": lambda w, d: w.queue.lock("evil", "me", d, d),
    "lock extended": lambda w, d: w.queue.lock("job", "me", d),
    "acquire_partition": lambda w, d: w.queue.acquire_partition("group", "work", "evil", d),
    "push delay": lambda w, d: w.queue.push("work", [NewTask("evil", delay=d)]),
    "push ttl": lambda w, d: w.queue.push("work", [NewTask("evil", ttl=d)]),
    "push many": lambda w, d: w.queue.push("work", [NewTask("a"), NewTask("evil", delay=d)]),
    "push_stream": lambda w, d: w.queue.push_stream("work", iter([NewTask("a"), NewTask("evil", ttl=d)])),
    "tick delay": lambda w, d: w.queue.install_ticks("work", "t", "h", [(NEW_YEAR, NewTask("t", delay=d))]),
    "tick ttl": lambda w, d: w.queue.install_ticks("work", "t", "h", [(NEW_YEAR, NewTask("t", ttl=d))]),
    "base": lambda w, d: w.queue.create_topic("evil", policy(base=d)),
    "max_delay": lambda w, d: w.queue.create_topic("evil", policy(max_delay=d)),
    "horizon": lambda w, d: w.queue.create_topic("evil", policy(horizon=d)),
    "max_elapsed": lambda w, d: w.queue.create_topic("evil", policy(max_elapsed=d)),
    "ttl": lambda w, d: w.queue.create_topic("evil", policy(ttl=d)),
    "keep_succeeded": lambda w, d: w.queue.create_topic("evil", policy(keep_succeeded=d)),
    "keep_failed": lambda w, d: w.queue.create_topic("evil", policy(keep_failed=d)),
    "altered base": lambda w, d: w.queue.alter_topic("work", policy(base=d)),
    "altered horizon": lambda w, d: w.queue.alter_topic("work", policy(horizon=d)),
    "altered ttl": lambda w, d: w.queue.alter_topic("work", policy(ttl=d)),
    "altered keep_failed": lambda w, d: w.queue.alter_topic("work", policy(keep_failed=d)),
}


@pytest.mark.parametrize("verb", STORING)
def test_a_duration_of_ten_years_is_stored_and_a_longer_one_refused(queue: TaskQueue, verb: str) -> None:
    world = make_world(queue)
    before = stored_rows(queue.conn)
    for duration in (EVIL, timedelta.max, TEN_YEARS + INSTANT):
        with pytest.raises((InvalidArgument, InvalidTask), match="3650 days"):
            STORING[verb](world, duration)
    assert stored_rows(queue.conn) == before
    look(queue)
    STORING[verb](world, TEN_YEARS)
    assert beyond(queue) == []
    look(queue)


@pytest.mark.parametrize(
    "call",
    [
        "taskq.register('evil', {})",
        "taskq.lock('evil', 'me', {}, '0')",
        "taskq.acquire_partition('group', 'work', 'evil', {})",
        "taskq.push('work', 'APPEND', ARRAY['a'], p_delays => ARRAY[{}]::interval[])",
        "taskq.push('work', 'APPEND', ARRAY['a'], p_ttls => ARRAY[{}]::interval[])",
        "taskq.push('work', 'a', delay => {})",
        "taskq.push('work', 'a', ttl => {})",
        "taskq.alter_topic('work', jsonb_build_object('base', {}))",
        "taskq.alter_topic('work', jsonb_build_object('max_delay', {}))",
    ],
)
def test_an_interval_of_sql_is_bound_by_months_and_days(queue: TaskQueue, call: str) -> None:
    """Months and days that cancel each other out in a comparison do not cancel each other out on a calendar."""
    make_world(queue)
    before = stored_rows(queue.conn)
    durations = ["178000000 years", "122 months", "71582788 months -2147483640 days", "11 years -365 days"]
    if queue.conn.info.server_version >= 170_000:
        durations += ["infinity", "-infinity"]
    for duration in durations:
        with pytest.raises(psycopg.Error) as error:
            queue.conn.execute(f"SELECT {call.format(f'interval {duration!r}')}".encode())
        assert (error.value.sqlstate or "").startswith("TQ"), error.value
    assert stored_rows(queue.conn) == before


@pytest.mark.parametrize(
    "call",
    [
        "taskq.push('work', 'APPEND', ARRAY['a'], p_available_at => ARRAY[{}]::timestamptz[])",
        "taskq.push('work', 'a', available_at => {})",
        "taskq.set_due('retries', (SELECT max(sequence) FROM taskq.tasks WHERE identifier = 'waiting'), {})",
        "taskq.install_ticks('work', 't', 'h', ARRAY[{}]::timestamptz[])",
    ],
)
def test_a_moment_of_sql_outside_of_the_years_1_to_9999_is_refused(queue: TaskQueue, call: str) -> None:
    make_world(queue)
    before = stored_rows(queue.conn)
    for moment in BAD_MOMENTS:
        with pytest.raises(psycopg.Error, match="the years 1 to 9999") as error:
            queue.conn.execute(f"SELECT {call.format(f'timestamptz {moment!r}')}".encode())
        assert error.value.sqlstate == "TQ002"
    assert stored_rows(queue.conn) == before


@pytest.mark.parametrize("delay", [timedelta.max, TEN_YEARS, timedelta.min], ids=["greatest", "ten years", "least"])
def test_a_snooze_of_any_length_is_due_by_the_year_9999(queue: TaskQueue, delay: timedelta) -> None:
    """An error here would fail the other decisions of the batch."""
    world = make_world(queue)
    queue.complete(world.owner, {world.held: Decision(Result.SUSPENSION, delay=delay)})
    assert known(queue, world.held, "retries").state is State.READY
    assert beyond(queue) == []
    look(queue)


@pytest.mark.parametrize("delay", ["4000000 months -120000000 days", "-4000000 months 120000000 days"])
def test_a_snooze_whose_months_and_days_cancel_each_other_out_fails_no_batch(queue: TaskQueue, delay: str) -> None:
    world = make_world(queue)
    queue.conn.execute(
        "SELECT taskq.complete(%s, %s, ARRAY[%s], '{1}', NULL, NULL, ARRAY[%s::interval])",
        (world.owner.name, world.owner.fence, world.held, delay),
    )
    assert known(queue, world.held, "retries").state is State.READY
    assert beyond(queue) == []


@pytest.mark.parametrize(
    "retry",
    [
        RetryPolicy(2**31 - 1, TEN_YEARS, 1e308, TEN_YEARS),
        RetryPolicy(2**31 - 1, TEN_YEARS, 5e-324, TEN_YEARS),
        RetryPolicy(2**31 - 1, INSTANT, 1e308, TEN_YEARS, horizon=TEN_YEARS, max_elapsed=TEN_YEARS, jitter=1.0),
        RetryPolicy(2**31 - 1, INSTANT, 1.0000001, timedelta(0)),
        RetryPolicy(2**31 - 1, timedelta(0), 1e308, TEN_YEARS, horizon=timedelta(0)),
    ],
    ids=["overflow", "underflow", "fast growth", "no delay", "no base"],
)
def test_the_delay_of_an_extreme_policy_has_a_bound(queue: TaskQueue, owner: Owner, retry: RetryPolicy) -> None:
    queue.alter_topic("work", TopicPolicy(retry))
    for attempts in (1, 2, 1000, 2_000_000_000):
        [task] = queue.push("work", ["a"])
        queue.poll("work", owner)
        set_attempt(queue.conn, task.sequence, attempts)
        queue.complete(owner, {task: Result.FAILURE})
        info = known(queue, task)
        assert info.state is State.FAILED or info.available_at - last_failure(queue, task) <= retry.max_delay
        assert beyond(queue) == []
        queue.purge_all("work")


# Verbs that only compare a duration with an age: any duration means something.
AGES: dict[str, Callable[[TaskQueue, timedelta], object]] = {
    "owners": lambda q, d: q.owners(within=d),
    "expire": lambda q, d: q.expire(d),
    "count_lapsed": lambda q, d: q.count_lapsed(d),
    "purge_owners": lambda q, d: q.purge_owners(d),
    "purge_group_releases": lambda q, d: q.purge_group_releases(d),
    "statistics": lambda q, d: q.statistics(d),
    "handling_times": lambda q, d: q.handling_times(d),
    "stuck_owners": lambda q, d: q.stuck_owners(d),
    "health": lambda q, d: q.health(d),
}


@pytest.mark.parametrize("verb", AGES)
def test_an_age_may_be_of_any_length(queue: TaskQueue, verb: str) -> None:
    make_world(queue)
    for duration in (timedelta.max, EVIL, timedelta(days=800_000), timedelta(days=-1), timedelta.min):
        AGES[verb](queue, duration)
    look(queue)


def test_an_age_beyond_the_range_of_time_counts_as_all_time(queue: TaskQueue) -> None:
    world = make_world(queue)
    assert [owner.name for owner in queue.owners(within=timedelta.max)] == ["owner"]
    lapse_lease(queue.conn, ago=timedelta(days=1))
    assert queue.expire(timedelta.max) == 0
    assert queue.purge_owners(timedelta.max) == 0
    assert known(queue, world.held, "retries").state is State.ACTIVE
    assert queue.expire(timedelta.min) == 1


@pytest.mark.parametrize("patience", [timedelta.max, EVIL], ids=["greatest", "evil"])
def test_any_patience_is_enough_to_move_a_topic(queue: TaskQueue, patience: timedelta) -> None:
    queue.push("work", ["a"])
    assert queue.own_partition("work", patience)
    assert queue.shared_partition("work", 10, patience)
    assert queue.drop_vacant_partitions(patience) == 0
    look(queue)


def test_the_lease_of_a_partition_may_be_longer_than_a_timeout_of_the_server(queue: TaskQueue) -> None:
    """The server ends a holder's transaction after the lease by a timeout, which has a maximum of 24 days."""
    queue.join_group("group", "work")
    partition = queue.acquire_partition("group", "work", "consumer", TEN_YEARS)
    assert partition is not None
    [task] = queue.push("work", ["a"])
    batch = queue.read_partition(partition)
    assert queue.advance_partition(partition, batch.after, Cursor(task.sequence))


EXTREMES = (0, -1, 1, -2, 2**15, 2**31 - 1, 2**31, -(2**31), -(2**31) - 1, 2**40, 2**63 - 1, 2**63, -(2**63), 2**70)
INTEGERS = st.sampled_from(EXTREMES) | st.integers(-(2**80), 2**80) | st.integers(-3, 3)
DURATIONS = (
    st.sampled_from(
        (
            timedelta(0),
            INSTANT,
            -INSTANT,
            HOUR,
            TEN_YEARS,
            TEN_YEARS + INSTANT,
            -TEN_YEARS,
            EVIL,
            timedelta.max,
            timedelta.min,
        )
    )
    | st.timedeltas()
)
ZONES = st.sampled_from((UTC, timezone(timedelta(hours=14)), timezone(timedelta(hours=-12))))
MOMENTS = (
    st.datetimes(timezones=ZONES)
    | st.sampled_from((FIRST_MOMENT, LAST_MOMENT))
    | ZONES.flatmap(
        lambda zone: st.sampled_from((datetime.min.replace(tzinfo=zone), datetime.max.replace(tzinfo=zone)))
    )
)
FLOATS = st.floats() | st.sampled_from((0.0, -0.0, 1.0, float("nan"), float("inf"), -float("inf"), 1e308, 5e-324))


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


ARGUMENTS = st.builds(Arguments, INTEGERS, INTEGERS, INTEGERS, DURATIONS, DURATIONS, MOMENTS, FLOATS, FLOATS)

CALLS: dict[str, Callable[[World, Arguments], object]] = {
    "register": lambda w, a: w.queue.register("new", a.d),
    "register again": lambda w, a: w.queue.register("owner", a.d),
    "heartbeat": lambda w, a: w.queue.heartbeat(Owner("owner", a.i, a.d, a.t, False)),
    "owners": lambda w, a: w.queue.owners(a.d),
    "release": lambda w, a: w.queue.release(Owner("owner", a.i, a.d, a.t, False)),
    "expire": lambda w, a: w.queue.expire(a.d),
    "maintain": lambda w, a: (
        w.queue.alter_topic("work", policy(keep_succeeded=a.d, keep_failed=a.e)),  # type: ignore[func-returns-value]
        w.queue.maintain(),
    ),
    "held": lambda w, a: w.queue.held(Owner("owner", a.i, a.d, a.t, False)),
    "lock": lambda w, a: w.queue.lock("job", "me", a.d, a.e),
    "push": lambda w, a: w.queue.push("work", [NewTask("a", available_at=a.t, ttl=a.d, priority=a.i)]),
    "push delayed": lambda w, a: w.queue.push("work", [NewTask("a", delay=a.d, ttl=a.e), NewTask("b", delay=a.e)]),
    "install_ticks": lambda w, a: w.queue.install_ticks("work", "p", "h", [(a.t, NewTask("p", ttl=a.d, priority=a.i))]),
    "install_ticks delayed": lambda w, a: w.queue.install_ticks("work", "p", "h", [(a.t, NewTask("p", delay=a.d))]),
    "create_topic": lambda w, a: w.queue.create_topic(
        "new", policy(max_attempts=a.i, base=a.d, factor=a.f, max_delay=a.e, jitter=a.g, max_crashes=a.j)
    ),
    "alter_topic": lambda w, a: w.queue.alter_topic(
        "work", policy(horizon=a.d, max_elapsed=a.e, factor=a.f, ttl=a.d, max_payload_bytes=a.i)
    ),
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
    "page": lambda w, a: w.queue.page("work", after=a.i, size=a.j),
    "page before": lambda w, a: w.queue.page("work", before=a.i, size=a.j),
    "count": lambda w, a: w.queue.count("work", from_=a.i, to=a.j),
    "results": lambda w, a: w.queue.results(a.t, a.t),
    "resolve": lambda w, a: w.queue.resolve(a.t, a.i % 2 == 0),
    "revive": lambda w, a: w.queue.revive("retries", State.SUSPENDED, from_=a.i, to=a.j, size=a.k),
    "revive named": lambda w, a: w.queue.revive("retries", sequences=[a.i]),
    "reassign": lambda w, a: w.queue.reassign("retries", Result.SUCCESS, state=State.SUSPENDED, from_=a.i, to=a.j),
    "purge": lambda w, a: w.queue.purge("retries", a.i, a.j, size=a.k),
    "purge waiting": lambda w, a: w.queue.purge("retries", a.i, a.j, State.READY, size=a.k),
    "purge_owners": lambda w, a: w.queue.purge_owners(a.d),
    "purge_group_releases": lambda w, a: w.queue.purge_group_releases(a.d),
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
    "statistics": lambda w, a: w.queue.statistics(a.d),
    "handling_times": lambda w, a: w.queue.handling_times(a.d),
    "record_handling_times": lambda w, a: w.queue.record_handling_times("work", [a.f, a.g]),
    "stuck_owners": lambda w, a: w.queue.stuck_owners(a.d),
    "health": lambda w, a: w.queue.health(a.d),
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
    "count_lapsed": lambda w, a: w.queue.count_lapsed(a.d),
}


@pytest.mark.parametrize("verb", CALLS)
def test_any_argument_is_refused_with_a_message_or_stored_within_the_bounds(queue: TaskQueue, verb: str) -> None:
    world = make_world(queue)

    @settings(max_examples=10, suppress_health_check=[HealthCheck.too_slow])
    @given(ARGUMENTS)
    def calls(arguments: Arguments) -> None:
        with queue.conn.transaction(force_rollback=True):
            refusal = ""
            try:
                with queue.conn.transaction():
                    CALLS[verb](world, arguments)
            except TaskQueueError as error:
                refusal = str(error)
            assert len(refusal.splitlines()) <= 1
            assert "relation" not in refusal, "this speaks of a table, not of the argument"
            assert beyond(queue) == []
            for listing in (queue.owners, queue.browse_owners, queue.browse_locks, queue.partition_states):
                listing()
            for topic in queue.topics():
                assert queue.policy(topic).retry.base >= timedelta(0)
                everything(queue, topic)

    before = stored_rows(queue.conn)
    calls()
    assert stored_rows(queue.conn) == before


@pytest.mark.parametrize("size", [0, -1, -(2**31), -(2**40)])
def test_a_size_below_one_returns_nothing(queue: TaskQueue, size: int) -> None:
    world = make_world(queue)
    before = stored_rows(queue.conn)
    assert queue.poll("work", world.owner, size) == []
    assert queue.claim("work", world.owner, size) == 0
    assert queue.ready("work", size) == 0
    assert queue.page("retries", size=size) == []
    assert queue.events("work", None, size) == []
    assert queue.revive("retries", State.SUSPENDED, size=size) == {}
    assert queue.purge("retries", size=size) == 0
    assert queue.purge_past_ttl("retries", size) == 0
    assert queue.find_tasks("retries", TaskFilter(), size=size).sequences == []
    assert (queue.browse_topics(size=size), queue.browse_locks(size=size)) == ([], [])
    assert queue.browse_owners(size=size) == ([], None)
    assert (queue.browse_groups(size), queue.browse_held("owner", size=size)) == ([], [])
    assert queue.audit_trail(size=size) == []
    assert stored_rows(queue.conn) == before


def test_a_size_beyond_every_integer_returns_everything(queue: TaskQueue) -> None:
    world = make_world(queue)
    assert len(queue.page("retries", size=2**70)) == 4
    assert len(queue.find_tasks("retries", TaskFilter(), size=2**70, budget=2**70).sequences) == 4
    assert queue.ready("work", 2**70) == 0
    queue.push("work", ["a", "b"])
    for condition in Condition:
        assert queue.ready("work", 2**70, condition) == 2
        tasks = queue.poll("work", world.owner, 2**70, condition=condition)
        assert queue.release_tasks(world.owner, tasks) == 2


def test_the_size_of_a_group_is_minus_one_or_more(queue: TaskQueue, owner: Owner) -> None:
    queue.push("work", ["a", "a"])
    before = stored_rows(queue.conn)
    for size in (-2, -(2**70)):
        with pytest.raises(InvalidArgument, match="-1 for all"):
            queue.poll_batch("work", owner, 1, size)
    assert queue.poll_batch("work", owner, -1) == {}
    assert queue.poll_batch("work", owner, 1, 0) == {}
    assert stored_rows(queue.conn) == before
    assert [len(group) for group in queue.poll_batch("work", owner, 2**70, -1).values()] == [2]


@pytest.mark.parametrize("size", [0, -1, -(2**70)])
def test_reading_a_partition_needs_a_size_of_at_least_one(queue: TaskQueue, size: int) -> None:
    world = make_world(queue)
    with pytest.raises(InvalidArgument, match="expected at least 1"):
        queue.read_partition(world.partition, size)


@pytest.mark.parametrize("value", BAD_MOMENTS)
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
        [line] = own_queue.browse_owners()[0]
        assert (line.lease_until, line.seen, line.lapsed) == (shown, shown, shown == FIRST_MOMENT)
        assert [owner.lease_until for owner in own_queue.owners()] == late
        assert [lock.until for lock in own_queue.browse_locks()] == late
        assert [state.lease_until for state in own_queue.partition_states()] == [shown]
        assert "lapsed leases" in {finding.subject for finding in own_queue.health()}


def test_a_row_with_a_duration_out_of_range_hides_no_other_row(own_queue: TaskQueue) -> None:
    make_world(own_queue)
    values = ["178000000 years", "-178000000 years", "71582788 months 2147483640 days"]
    if own_queue.conn.info.server_version >= 170_000:
        values += ["infinity", "-infinity"]
    for value in values:
        overwrite_times(own_queue.conn, "interval", value)
        shown = -MAX_TIMEDELTA if value.startswith("-") else MAX_TIMEDELTA
        look(own_queue)
        assert [line.lease for line in own_queue.browse_owners()[0]] == [shown]
        assert [owner.lease for owner in own_queue.owners()] == [shown]
        assert own_queue.policy("retries").retry.base == shown


def test_a_moment_within_bounds_is_read_as_it_is(queue: TaskQueue) -> None:
    """In any time zone of the session, up to the last day."""
    queue.conn.execute("SET timezone = 'Pacific/Auckland'")
    moments = [FIRST_MOMENT, NEW_YEAR, LAST_MOMENT]
    tasks = queue.push("work", [NewTask("a", available_at=moment) for moment in moments])
    for zone in ("Pacific/Auckland", "America/New_York", "UTC"):
        queue.conn.execute("SELECT set_config('timezone', %s, false)", (zone,))
        assert [known(queue, task).available_at for task in tasks] == moments
