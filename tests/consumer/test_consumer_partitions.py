"""Another number of partitions: the old ones end at one event, and the new ones start after it."""

from collections.abc import Callable
from datetime import timedelta
from itertools import chain

import pytest

from airflow_provider_taskq.consumer import Consumer
from airflow_provider_taskq.queue import LeaseLost, PartitionBatch, PartitionLease, TaskQueue, partition_of
from tests.consumer.consumers import Heard, heard_all, place, quick, until_at_end
from tests.internals import lapse_partitions
from tests.queue.conftest import until

pytestmark = pytest.mark.promise("Another number of partitions leaves no gap and no duplicate")

HOUR = timedelta(hours=1)


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
