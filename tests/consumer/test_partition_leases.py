"""Partitions: one holder at a time, takeovers, and another number, which leaves no gap and no duplicate."""

import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial

import pytest

from airflow_provider_taskq.consumer import Consumer, ConsumerConfig, MemoryTracker
from airflow_provider_taskq.consumer.partition_lease import PartitionLeases
from airflow_provider_taskq.queue import (
    Cursor,
    InvalidState,
    LeaseLost,
    PartitionLease,
    Task,
    TaskQueue,
    TaskQueueError,
    connect,
    partition_of,
)
from tests.consumer.consumers import QUICK, Heard, heard_all, place, quick, state, table, until_at_end
from tests.internals import lapse_lease
from tests.queue.conftest import InBackground, await_standstill, background, own_queue, session, until

pytestmark = [
    pytest.mark.promise("One consumer of a group at a time handles a partition"),
    pytest.mark.promise("Another number of partitions leaves no gap and no duplicate"),
]

__all__ = ["background", "own_queue", "session"]  # fixtures that pytest finds here

HOUR = timedelta(hours=1)


def acquire(queue: TaskQueue, holder: str, partitions: int = 1) -> PartitionLease:
    """Acquires the group's next partition."""
    held = queue.acquire_partition("readers", "work", queue.register(holder, HOUR), partitions)
    assert held is not None
    return held


def is_taken_over(queue: TaskQueue) -> bool:
    """Lets the lease of the partition lapse, and tells whether another member has acquired the partition."""
    lapse_lease(queue.conn)
    return queue.acquire_partition("readers", "work", queue.register("new", HOUR)) is not None


def lapses_at(queue: TaskQueue) -> datetime:
    """The end of the lease of the first partition."""
    lease_until = state(queue).lease_until
    assert lease_until is not None
    return lease_until


def test_a_partition_has_one_holder_at_a_time(queue: TaskQueue) -> None:
    first, second = acquire(queue, "one", 2), acquire(queue, "two", 2)
    assert (first.partition, second.partition) == (0, 1)
    assert queue.acquire_partition("readers", "work", queue.register("three", HOUR), 2) is None
    lapse_lease(queue.conn, "two")
    third = acquire(queue, "three", 2)
    assert third.partition == 1
    assert first.fence < second.fence < third.fence
    assert [each.member for each in queue.partition_states()] == ["one", "three"]


def test_a_replaced_holder_reads_nothing_and_stores_nothing(queue: TaskQueue, session: TaskQueue) -> None:
    queue.push("work", ["a", "b"])
    old = acquire(queue, "old")
    events = queue.read_partition(old)
    lapse_lease(queue.conn)
    new = acquire(queue, "new")
    for call in (lambda: queue.read_partition(old), lambda: queue.advance_partition(old, events.after, events.cursor)):
        with pytest.raises(LeaseLost, match="no longer leased"):
            call()
    assert queue.release_partition(old) is False
    assert [task.identifier for _, task in queue.read_partition(new)] == ["a", "b"]
    session.conn.execute("CREATE TABLE undone ()")
    with pytest.raises(LeaseLost):
        session.advance_partition(old, events.after, events.cursor)
    session.conn.rollback()
    assert queue.conn.execute("SELECT to_regclass('undone')").fetchone() == (None,)


def test_a_holder_with_a_lapsed_lease_that_was_not_replaced_still_stores_progress(queue: TaskQueue) -> None:
    queue.push("work", ["a"])
    held = acquire(queue, "me")
    events = queue.read_partition(held)
    lapse_lease(queue.conn)
    assert queue.advance_partition(held, events.after, events.cursor)
    me = queue.owner("me")
    assert me is not None
    queue.heartbeat(me)
    assert queue.acquire_partition("readers", "work", queue.register("other", HOUR)) is None


def test_a_holder_that_stores_progress_is_not_replaced_and_no_consumer_waits(
    queue: TaskQueue, session: TaskQueue
) -> None:
    queue.push("work", ["a"])
    held = acquire(queue, "me")
    events = queue.read_partition(held)
    session.advance_partition(held, events.after, events.cursor)
    lapse_lease(queue.conn)
    queue.conn.execute("SET lock_timeout = '5s'")  # shorter than the other session's lock, longer than an autovacuum's
    assert queue.acquire_partition("readers", "work", queue.register("other", HOUR)) is None
    session.conn.commit()
    assert queue.read_partition(acquire(queue, "other")) == []


def test_a_transaction_that_stored_progress_and_hangs_is_ended_by_the_server(
    queue: TaskQueue, open_queue: Callable[[], TaskQueue]
) -> None:
    queue.push("work", ["a"])
    held = queue.acquire_partition("readers", "work", queue.register("me", timedelta(milliseconds=100)))
    assert held is not None
    events = queue.read_partition(held)
    hanging = open_queue()
    hanging.advance_partition(held, events.after, events.cursor)
    other = queue.register("other", HOUR)
    until(lambda: queue.acquire_partition("readers", "work", other) is not None)
    assert queue.progress("readers", "work") is None


def test_an_advance_from_an_outdated_cursor_stores_nothing(queue: TaskQueue) -> None:
    queue.push("work", ["a", "b"])
    held = acquire(queue, "me")
    events = queue.read_partition(held)
    queue.advance("readers", "work", 0, events.cursor)
    assert queue.advance_partition(held, events.after, events[0][0]) is False
    assert queue.progress("readers", "work") == events.cursor


def test_a_standby_consumer_takes_over_at_once_when_a_holder_stops(dsn: str, queue: TaskQueue) -> None:
    queue.push("work", ["a", "b"])
    first, second = heard_all(), heard_all()
    settings = quick(lease=HOUR)
    holder = Consumer(dsn, first.group, "work", settings)
    holder.start()
    first.wait(2)
    until_at_end(queue)
    with Consumer(dsn, second.group, "work", settings) as standby:
        assert standby.partitions == []
        assert holder.stop(120)
        queue.push("work", ["c"])
        assert second.wait(1) == ["c"]
    assert first.identifiers == ["a", "b"]


def test_a_standby_consumer_takes_over_within_the_lease_of_a_dead_holder(dsn: str, queue: TaskQueue) -> None:
    queue.push("work", ["a"])
    assert queue.acquire_partition("readers", "work", queue.register("dead", QUICK.stored_lease)) is not None
    lapses = lapses_at(queue)
    heard = heard_all()
    with Consumer(dsn, heard.group, "work", quick()):
        heard.wait(1)
        assert queue.now() >= lapses


@pytest.mark.parametrize("seconds", [0.5, 1, 10, 60])
def test_standby_consumers_look_often_enough_to_take_over_within_the_lease(seconds: float) -> None:
    config = ConsumerConfig(lease=seconds)
    assert config.stored_lease.total_seconds() + config.renewal_seconds <= seconds


def test_a_handler_that_takes_longer_than_the_lease_keeps_its_partition(dsn: str, queue: TaskQueue) -> None:
    queue.push("work", ["a"])
    slow, standby = Heard(), heard_all()
    inside, go = threading.Event(), threading.Event()
    settings = quick(lease=timedelta(seconds=2))

    @slow.group.on()
    def takes_long(event: Task) -> None:
        inside.set()
        assert go.wait(60)
        slow.hear(event)

    with Consumer(dsn, slow.group, "work", settings):
        assert inside.wait(120)
        with Consumer(dsn, standby.group, "work", settings):
            lapses = lapses_at(queue)
            until(
                lambda: lapses_at(queue) > lapses + settings.stored_lease, 30
            )  # renewed after the first lease would have lapsed
            go.set()
            slow.wait(1)
            until_at_end(queue)
    assert standby.events == []


def test_a_holder_that_lost_its_lease_ends_and_its_effect_is_undone(dsn: str, queue: TaskQueue) -> None:
    table(queue, "shelf", "by text")
    queue.push("work", ["a"])
    heard = Heard()
    inside, go = threading.Event(), threading.Event()

    @heard.group.on()
    def shelve(event: Task, queue: TaskQueue) -> None:
        queue.conn.execute("INSERT INTO shelf VALUES ('the old holder')")
        inside.set()
        assert go.wait(120)
        heard.hear(event)

    with Consumer(dsn, heard.group, "work", quick(transactional=True)) as consumer:
        assert inside.wait(120)
        until(lambda: is_taken_over(queue))  # the holder may renew its lease between the two calls
        go.set()
        heard.wait(1)
        until(lambda: consumer.partitions == [])
        assert consumer.is_running, "it stands by from now on"
    assert queue.conn.execute("SELECT FROM shelf").fetchall() == []
    assert queue.progress("readers", "work") is None
    assert state(queue).member == "new"


def test_a_consumer_whose_lease_an_operator_ended_registers_again_and_leaves_no_lease_behind(
    dsn: str, queue: TaskQueue
) -> None:
    heard = heard_all()
    with Consumer(dsn, heard.group, "work", quick()) as consumer:
        until(lambda: consumer.partitions == [0])
        fence = state(queue).fence
        owner = queue.owner(consumer.member_id)
        assert owner is not None
        queue.release(owner)
        until(lambda: state(queue).fence not in (None, fence))
        queue.push("work", ["a"])
        heard.wait(1)
        until_at_end(queue)
    assert queue.owner(consumer.member_id) is None
    assert consumer.errors == {}


def test_a_renewal_tells_by_the_clock_of_the_server_that_the_lease_had_lapsed(dsn: str, queue: TaskQueue) -> None:
    leases = PartitionLeases(partial(connect, dsn), "readers", "work", "me", quick(lease=timedelta(milliseconds=50)))
    assert leases.renew()
    owner = queue.owner("me")
    assert owner is not None
    until(lambda: queue.now() > owner.lease_until)
    assert not leases.renew()
    leases.end()
    leases.session.close()


@pytest.mark.usefixtures("queue")
def test_a_program_holds_no_more_partitions_than_its_limit(dsn: str) -> None:
    one, two = heard_all(), heard_all()
    settings = quick(partitions=4, max_partitions=2, lease=HOUR)
    with Consumer(dsn, one.group, "work", settings) as first, Consumer(dsn, two.group, "work", settings) as second:
        until(lambda: sorted(first.partitions + second.partitions) == [0, 1, 2, 3])
        assert len(first.partitions) == len(second.partitions) == 2


def test_partitions_with_progress_in_memory_have_one_holder_unless_exclusive_is_false(
    dsn: str, queue: TaskQueue
) -> None:
    queue.push("work", ["a", "b"])
    one, two, three = heard_all(), heard_all(), heard_all()
    first = quick(progress=MemoryTracker(), partitions=2, lease=HOUR)
    second = replace(first, progress=MemoryTracker())
    for_each = replace(first, progress=MemoryTracker(), exclusive=False)
    with Consumer(dsn, one.group, "work", first) as holder:
        until(lambda: holder.partitions == [0, 1])  # before another consumer can acquire one of them
        with Consumer(dsn, two.group, "work", second) as standby:
            one.wait(2)
            assert (holder.partitions, standby.partitions) == ([0, 1], [])
            with Consumer(dsn, three.group, "work", for_each) as third:
                three.wait(2)
                until(lambda: third.partitions == [0, 1])
            holder.stop()
            assert sorted(two.wait(2)) == ["a", "b"]


def test_an_operator_sees_the_holder_and_the_progress_of_each_partition(dsn: str, queue: TaskQueue) -> None:
    heard = heard_all()
    with Consumer(dsn, heard.group, "work", quick(partitions=2, level=1, lease=HOUR)) as consumer:
        until(lambda: consumer.partitions == [0, 1])
        queue.push("work", ["a"])
        heard.wait(1)
        until_at_end(queue)
        one, two = queue.partition_states()
        assert (one.group, one.topic, one.partitions, one.level) == ("readers", "work", 2, 1)
        assert one.member == two.member == consumer.member_id
        assert one.cursor == two.cursor == place(queue, 1)
        assert not one.lapsed
        assert one.behind_since is None
    assert queue.partition_states()[0].member is None
    queue.push("work", ["b"])
    assert queue.partition_states()[0].behind_since is not None
    assert queue.partition_states("work") == queue.partition_states()


def test_a_group_can_be_forgotten_while_no_program_holds_its_partitions(queue: TaskQueue) -> None:
    queue.push("work", ["a"])
    held = acquire(queue, "me")
    handle(queue, held)
    with pytest.raises(InvalidState, match="'readers' is in use"):
        queue.forget_group("readers", "work")
    queue.release_partition(held)
    assert queue.forget_group("readers", "work") is True
    assert queue.forget_group("readers", "work") is False
    assert queue.progress("readers", "work") is None
    assert queue.partition_states() == []


def test_a_dropped_topic_forgets_its_consumers_and_a_consumer_of_it_ends_with_the_reason(
    dsn: str, queue: TaskQueue
) -> None:
    heard = heard_all()
    consumer = Consumer(dsn, heard.group, "work", quick())
    consumer.start()
    until(lambda: consumer.partitions == [0])
    queue.drop_topic("work")
    with pytest.raises(TaskQueueError, match="work"):
        consumer.wait(20)
    queue.create_topic("work")
    assert queue.partition_states() == []


def test_a_topic_can_be_dropped_while_a_holder_stores_progress_in_it(
    queue: TaskQueue, session: TaskQueue, open_queue: Callable[[], TaskQueue], background: InBackground[bool]
) -> None:
    queue.push("work", ["a", "b"])
    held = acquire(queue, "me")
    events = queue.read_partition(held, 1)
    queue.advance_partition(held, events.after, events.cursor)
    events = session.read_partition(held)
    dropping = open_queue()
    dropped = background(lambda: dropping.drop_topic("work"))
    await_standstill(queue.conn, dropping)
    assert session.advance_partition(held, events.after, events.cursor)
    session.conn.commit()
    assert dropped.result(120)


# Another number of partitions, while no member runs


def acquire_all(queue: TaskQueue, partitions: int = 1, level: int | None = None) -> list[PartitionLease]:
    """Acquires all partitions that are free."""
    found: list[PartitionLease] = []
    owner = queue.register(f"member of {partitions}", HOUR)
    while held := queue.acquire_partition("readers", "work", owner, partitions, level):
        found.append(held)
    return found


def handle(queue: TaskQueue, held: PartitionLease, size: int = 1000) -> list[int]:
    """Handles the next events of a partition, and returns their sequences."""
    events = queue.read_partition(held, size)
    if events:
        assert queue.advance_partition(held, events.after, events[-1][0])
    return [task.sequence for _, task in events]


def test_another_number_of_partitions_is_refused_while_a_member_holds_one(queue: TaskQueue) -> None:
    queue.push("work", ["a", "b"])
    zero, one = acquire_all(queue, 2)
    for division in ((3, None), (2, 1)):
        with pytest.raises(InvalidState, match="'readers' is in use: programs hold its partitions 0, 1; stop them"):
            acquire_all(queue, *division)
    queue.release_partition(zero)
    with pytest.raises(InvalidState, match="hold its partitions 1;"):
        acquire_all(queue, 3)
    assert [each.partitions for each in queue.partition_states()] == [2, 2]
    lapse_lease(queue.conn)
    assert [held.partition for held in acquire_all(queue, 3)] == [0, 1, 2]
    with pytest.raises(LeaseLost):
        queue.read_partition(one)


def test_a_new_division_handles_exactly_what_the_old_ones_left_in_order(queue: TaskQueue) -> None:
    """Two changes, the second while the first one's partitions are still at different places."""
    tasks = queue.push("work", [f"/{n % 3}/{n % 7}" for n in range(60)])
    zero, one = acquire_all(queue, 2)
    done = handle(queue, zero, 20) + handle(queue, one, 3)
    lapse_lease(queue.conn)
    held = acquire_all(queue, 3, 1)
    for each in held:
        rest = [
            task
            for task in tasks
            if task.sequence not in done and partition_of(task.identifier, 3, 1) == each.partition
        ]
        assert [task.sequence for _, task in queue.read_partition(each, 100)] == [task.sequence for task in rest]
    done += handle(queue, held[0], 4) + handle(queue, held[2])
    lapse_lease(queue.conn)
    held = acquire_all(queue, 2)
    for each in held:
        done += handle(queue, each)
        assert handle(queue, each) == []
    assert sorted(done) == [task.sequence for task in tasks]
    queue.advance("readers", "work", 0, Cursor(0))  # a replay handles all, of this partition
    assert handle(queue, held[0]) == [task.sequence for task in tasks if partition_of(task.identifier, 2) == 0]
    assert handle(queue, held[1]) == []


def test_an_advance_costs_the_same_after_any_number_of_them_under_an_open_snapshot(
    own_queue: TaskQueue, own_dsn: str
) -> None:
    queue = own_queue
    queue.push("work", ["a"])
    held = acquire(queue, "me")
    advance = f"taskq.advance_partition('readers', 'work', 0, {held.fence}, n - 1, n)"
    call = f"SELECT {advance} FROM generate_series(%s::int, %s) n"

    def pages(step: int) -> int:
        row = queue.conn.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {call}".encode(), (step, step)).fetchone()
        assert row is not None
        read: int = row[0][0]["Plan"]["Shared Hit Blocks"]
        return read

    with connect(own_dsn) as old:
        old.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        old.execute("SELECT FROM taskq.migrations")
        pages(1)
        before = pages(2)
        queue.conn.execute(call.encode(), (3, 2000))
        assert pages(2001) <= before + 20


def test_a_change_is_refused_while_a_transaction_stores_progress_and_waits_for_none(
    queue: TaskQueue, session: TaskQueue
) -> None:
    queue.push("work", ["a", "b"])
    held = acquire(queue, "me")
    events = session.read_partition(held)
    session.advance_partition(held, events.after, events.cursor)
    lapse_lease(queue.conn)
    queue.conn.execute("SET lock_timeout = '5s'")
    for call in (lambda: acquire_all(queue, 2), lambda: queue.forget_group("readers", "work")):
        with pytest.raises(InvalidState, match="hold its partitions 0"):
            call()
    session.conn.commit()
    assert [handle(queue, each) for each in acquire_all(queue, 2)] == [[], []]


def test_consumers_of_another_division_wait_say_so_and_handle_each_event_once(
    dsn: str, queue: TaskQueue, caplog: pytest.LogCaptureFixture
) -> None:
    names = [f"id-{n % 7}" for n in range(300)]
    old, new = heard_all(), heard_all()
    queue.push("work", names[:200])
    settings = quick(size=10, lease=timedelta(seconds=30))
    with Consumer(dsn, old.group, "work", replace(settings, partitions=2)) as first:
        old.wait(20)
        with Consumer(dsn, new.group, "work", replace(settings, partitions=3)) as second:
            until(lambda: "consumer waits" in caplog.text)
            assert (len(first.partitions), second.partitions) == (2, [])
            first.stop()
            queue.push("work", names[200:])
            second.resume()
            until_at_end(queue)
            assert second.partitions == [0, 1, 2]
    handled = sorted(event.sequence for event in old.events + new.events)
    assert handled == [task.sequence for _, task in queue.events("work", None)]
    assert in_order(old)
    assert in_order(new)


def in_order(heard: Heard) -> bool:
    """Whether each identifier's events came in the order of the log."""
    by_identifier: dict[str, list[int]] = {}
    for event in heard.events:
        by_identifier.setdefault(event.identifier, []).append(event.sequence)
    return all(each == sorted(each) for each in by_identifier.values())
