"""Partitions: one holder at a time, takeovers, and another number, whose partitions start where the old ones end."""

import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import chain

import pytest

from airflow_provider_taskq.consumer import Consumer, ConsumerConfig, MemoryTracker
from airflow_provider_taskq.queue import (
    LeaseLost,
    PartitionBatch,
    PartitionLease,
    Task,
    TaskQueue,
    TaskQueueError,
    partition_of,
)
from tests.consumer.consumers import QUICK, Heard, heard_all, place, quick, state, table, until_at_end
from tests.internals import lapse_partitions
from tests.queue.conftest import InBackground, await_lock_wait, await_standstill, background, session, until

pytestmark = [
    pytest.mark.promise("One consumer of a group at a time handles a partition"),
    pytest.mark.promise("Another number of partitions leaves no gap and no duplicate"),
]

__all__ = ["background", "session"]  # fixtures that pytest finds here

HOUR = timedelta(hours=1)


def acquire(queue: TaskQueue, holder: str, partitions: int = 1) -> PartitionLease:
    """Acquires the group's next partition."""
    queue.join_group("readers", "work", partitions)
    held = queue.acquire_partition("readers", "work", holder, HOUR)
    assert held is not None
    return held


def is_taken_over(queue: TaskQueue) -> bool:
    """Lets the lease of the partition lapse, and tells whether another member has acquired the partition."""
    lapse_partitions(queue.conn)
    return queue.acquire_partition("readers", "work", "new", HOUR) is not None


def lapses_at(queue: TaskQueue) -> datetime:
    """The end of the lease of the first partition."""
    lease_until = state(queue).lease_until
    assert lease_until is not None
    return lease_until


def test_a_partition_has_one_holder_at_a_time(queue: TaskQueue) -> None:
    first, second = acquire(queue, "one", 2), acquire(queue, "two", 2)
    assert (first.partition, second.partition) == (0, 1)
    assert queue.acquire_partition("readers", "work", "three", HOUR) is None
    lapse_partitions(queue.conn, 1)
    third = queue.acquire_partition("readers", "work", "three", HOUR)
    assert third is not None
    assert (third.partition, third.taken_over) == (1, True)
    assert first.fence < second.fence < third.fence
    assert queue.renew_partitions("readers", "work", "two") == set()
    assert queue.renew_partitions("readers", "work", "one") == {first.fence}


def test_a_replaced_holder_reads_nothing_and_stores_nothing(queue: TaskQueue, session: TaskQueue) -> None:
    queue.push("work", ["a", "b"])
    old = acquire(queue, "old")
    events = queue.read_partition(old)
    lapse_partitions(queue.conn)
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
    lapse_partitions(queue.conn)
    assert queue.advance_partition(held, events.after, events.cursor)
    assert queue.renew_partitions("readers", "work", "me") == {held.fence}
    assert queue.acquire_partition("readers", "work", "other", HOUR) is None


def test_a_holder_that_stores_progress_is_not_replaced_and_no_consumer_waits(
    queue: TaskQueue, session: TaskQueue
) -> None:
    queue.push("work", ["a"])
    held = acquire(queue, "me")
    events = queue.read_partition(held)
    session.advance_partition(held, events.after, events.cursor)
    lapse_partitions(session.conn)
    queue.conn.execute("SET lock_timeout = '5s'")  # shorter than the other session's lock, longer than an autovacuum's
    assert queue.acquire_partition("readers", "work", "other", HOUR) is None
    session.conn.commit()
    other = queue.acquire_partition("readers", "work", "other", HOUR)
    assert other is not None
    assert other.taken_over
    assert queue.read_partition(other) == []


def test_a_transaction_that_stored_progress_and_hangs_is_ended_by_the_server(
    queue: TaskQueue, open_queue: Callable[[], TaskQueue]
) -> None:
    queue.push("work", ["a"])
    queue.join_group("readers", "work")
    held = queue.acquire_partition("readers", "work", "me", timedelta(milliseconds=100))
    assert held is not None
    events = queue.read_partition(held)
    hanging = open_queue()
    hanging.advance_partition(held, events.after, events.cursor)
    until(lambda: queue.acquire_partition("readers", "work", "other", HOUR) is not None)
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
        assert holder.stop(20)
        queue.push("work", ["c"])
        assert second.wait(1) == ["c"]
    assert first.identifiers == ["a", "b"]


def test_a_standby_consumer_takes_over_within_the_lease_of_a_dead_holder(dsn: str, queue: TaskQueue) -> None:
    queue.push("work", ["a"])
    queue.join_group("readers", "work")
    assert queue.acquire_partition("readers", "work", "dead", QUICK.stored_lease) is not None
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
        assert inside.wait(20)
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
        assert go.wait(20)
        heard.hear(event)

    with Consumer(dsn, heard.group, "work", quick(transactional=True)) as consumer:
        assert inside.wait(20)
        until(lambda: is_taken_over(queue))  # the holder may renew its lease between the two calls
        go.set()
        heard.wait(1)
        until(lambda: consumer.partitions == [])
        assert consumer.is_running, "it stands by from now on"
    assert queue.conn.execute("SELECT FROM shelf").fetchall() == []
    assert queue.progress("readers", "work") is None
    assert state(queue).member == "new"


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


def test_a_group_can_be_forgotten_and_its_consumers_end(dsn: str, queue: TaskQueue) -> None:
    queue.push("work", ["a"])
    heard = heard_all()
    with Consumer(dsn, heard.group, "work", quick()) as consumer:
        heard.wait(1)
        until_at_end(queue)
        assert queue.forget_group("readers", "work") is True
        until(lambda: consumer.partitions == [])
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
    assert dropped.result(10)


def test_a_group_can_be_forgotten_while_a_holder_renews_its_partitions(
    queue: TaskQueue, session: TaskQueue, open_queue: Callable[[], TaskQueue], background: InBackground[bool]
) -> None:
    queue.push("work", ["a", "b"])
    first = acquire(queue, "me", 2)
    acquire(queue, "me", 2)
    queue.renew_partitions("readers", "work", "me")
    session.read_partition(first)
    forgetting = open_queue()
    forgotten = background(lambda: forgetting.forget_group("readers", "work"))
    await_lock_wait(queue.conn, forgetting)
    assert len(session.renew_partitions("readers", "work", "me")) == 2
    session.conn.commit()
    assert forgotten.result(10)


# Another number of partitions: the old ones end at one event, and the new ones start after it


def acquire_all(queue: TaskQueue, consumer: str = "me") -> list[PartitionLease]:
    """Acquires all partitions that are free."""
    found: list[PartitionLease] = []
    while held := queue.acquire_partition("readers", "work", consumer, HOUR):
        found.append(held)
    return found


def sequences(events: PartitionBatch) -> list[int]:
    """The sequences of the events that a holder reads."""
    return [task.sequence for _, task in events]


def handle_all(queue: TaskQueue, held: PartitionLease, size: int = 3) -> list[int]:
    """Handles a partition to its end, or the end of the log."""
    done: list[int] = []
    while True:
        events = queue.read_partition(held, size)
        done += sequences(events)
        if events:
            assert queue.advance_partition(held, events.after, events.cursor)
        if events.at_end or not events:
            return done


def sharing(queue: TaskQueue) -> tuple[int, int, int | None, bool]:
    """The partitioning of the group: generation, partitions, level, and whether it is ending."""
    state = queue.partition_states()[0]
    return state.generation, state.partitions, state.level, state.ends is not None


def test_old_partitions_end_at_one_event_and_new_ones_start_after_it(queue: TaskQueue) -> None:
    tasks = queue.push("work", [f"id-{n}" for n in range(40)])
    queue.join_group("readers", "work", 2)
    zero, one = acquire_all(queue)
    first = queue.read_partition(zero, 5)
    queue.advance_partition(zero, first.after, first.cursor)
    reach = queue.read_partition(zero, 5).cursor  # read, not yet handled
    requested = queue.join_group("readers", "work", 3)
    assert (requested.generation, requested.partitions, requested.next_partitions) == (1, 2, 3)
    assert queue.partition_states()[0].ends == reach
    assert acquire_all(queue) == []
    old = sequences(first) + handle_all(queue, zero) + handle_all(queue, one)
    assert sorted(old) == [task.sequence for task in tasks if task.sequence <= reach.place]
    new = acquire_all(queue)
    assert [(held.generation, held.partition, held.partitions) for held in new] == [(2, 0, 3), (2, 1, 3), (2, 2, 3)]
    rest = [handle_all(queue, held) for held in new]
    assert sorted([*old, *chain(*rest)]) == [task.sequence for task in tasks]
    for task in tasks:
        if task.sequence > reach.place:
            assert task.sequence in rest[partition_of(task.identifier, 3)]


def test_no_new_partition_starts_before_every_old_one_has_ended_even_if_its_holder_is_dead(queue: TaskQueue) -> None:
    queue.push("work", [f"id-{n}" for n in range(20)])
    queue.join_group("readers", "work", 2)
    zero, one = acquire_all(queue)
    handle_all(queue, zero)
    queue.join_group("readers", "work", 1)
    assert acquire_all(queue) == []
    lapse_partitions(queue.conn)
    [acquired] = acquire_all(queue)
    assert (acquired.generation, acquired.partition, acquired.taken_over) == (1, 1, True), (
        "an ended partition needs no holder"
    )
    with pytest.raises(LeaseLost):
        queue.read_partition(one)
    handle_all(queue, acquired)
    [new] = acquire_all(queue)
    assert (new.generation, new.partitions) == (2, 1)


def test_joining_with_the_same_setting_changes_nothing_and_the_last_join_decides(queue: TaskQueue) -> None:
    queue.push("work", ["a", "b"])
    queue.join_group("readers", "work", 2)
    leases = acquire_all(queue)
    for held in leases:
        queue.read_partition(held)
    assert queue.join_group("readers", "work", 2).generation == 1
    assert sharing(queue) == (1, 2, None, False)
    queue.join_group("readers", "work", 3)
    queue.join_group("readers", "work", 4, 1)
    assert sharing(queue) == (1, 2, None, True)
    for held in leases:
        handle_all(queue, held)
    assert len(acquire_all(queue)) == 4
    assert sharing(queue) == (2, 4, 1, False)


def test_a_generation_ends_although_its_last_tasks_were_deleted(queue: TaskQueue) -> None:
    queue.push("work", ["a", "b", "c"])
    queue.join_group("readers", "work")
    [held] = acquire_all(queue)
    queue.read_partition(held)
    queue.purge_all("work")
    queue.join_group("readers", "work", 2)
    assert handle_all(queue, held) == []
    assert len(acquire_all(queue)) == 2


def test_an_open_push_does_not_end_a_generation_before_its_tasks_were_handled(
    queue: TaskQueue, open_queue: Callable[[], TaskQueue]
) -> None:
    """A transaction that pushed to another topic before moves the horizon of this log back."""
    queue.create_topic("other")
    pusher = open_queue()
    pusher.push("other", ["x"])
    queue.push("work", ["a", "b"])
    queue.join_group("readers", "work", 2)
    zero, one = acquire_all(queue)
    assert (len(queue.read_partition(zero)), len(queue.read_partition(one))) == (0, 2)
    pusher.push("work", ["c"])
    queue.join_group("readers", "work", 1)
    assert queue.read_partition(zero).at_end
    again = queue.read_partition(one)
    assert (len(again), again.at_end) == (0, False), "the partition waits, and has not ended"
    assert acquire_all(queue) == []
    pusher.conn.commit()
    assert len(handle_all(queue, one)) == 2
    [new] = acquire_all(queue)
    assert len(handle_all(queue, new)) == 1


def test_a_change_of_the_partitions_waits_for_a_holder_that_reads_events(
    queue: TaskQueue, open_queue: Callable[[], TaskQueue]
) -> None:
    queue.push("work", ["a", "b"])
    queue.join_group("readers", "work")
    [held] = acquire_all(queue)
    reading, joining = open_queue(), open_queue()
    events = reading.read_partition(held)
    joining.conn.execute("SET lock_timeout = '50ms'")
    joining.conn.commit()
    with pytest.raises(Exception, match="lock timeout"):
        joining.join_group("readers", "work", 2)
    joining.conn.rollback()
    reading.conn.commit()
    joining.join_group("readers", "work", 2)
    joining.conn.commit()
    assert queue.partition_states()[0].ends == events.cursor, "events that were read belong to the old partition"


def test_consumers_with_different_settings_handle_each_event_once(dsn: str, queue: TaskQueue) -> None:
    names = [f"id-{n % 7}" for n in range(300)]
    old, new = heard_all(), heard_all()
    slow_to_lapse = timedelta(
        seconds=30
    )  # a consumer that is replaced while it handles an event has recorded the event all the same
    queue.push("work", names[:100])
    with Consumer(dsn, old.group, "work", quick(partitions=2, size=10, lease=slow_to_lapse)) as first:
        old.wait(20)
        with Consumer(dsn, new.group, "work", quick(partitions=3, size=10, lease=slow_to_lapse)):
            queue.push("work", names[100:200])
            until(lambda: sharing(queue)[:2] == (2, 3), 20)
            until_at_end(queue)
            first.stop()
            queue.push("work", names[200:])
            until_at_end(queue)
    transaction_size = sorted(event.sequence for event in old.events + new.events)
    assert transaction_size == [task.sequence for _, task in queue.events("work", None)]
    assert in_order(old)
    assert in_order(new)
    assert queue.progress("readers", "work", 2) == place(queue, 300)


def in_order(heard: Heard) -> bool:
    """Whether each identifier's events came in the order of the log."""
    by_identifier: dict[str, list[int]] = {}
    for event in heard.events:
        by_identifier.setdefault(event.identifier, []).append(event.sequence)
    return all(each == sorted(each) for each in by_identifier.values())
