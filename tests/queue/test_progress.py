"""Progress of readers: stored with their own rows, for each group, topic and partition."""

from collections.abc import Callable

import pytest

from airflow_provider_taskq.queue import Cursor, TaskQueue, TaskQueueError, UnknownTopic
from tests.internals import stored_rows
from tests.queue.conftest import InBackground, await_lock_wait, numbered

pytestmark = pytest.mark.promise("Progress is committed with the rows of the handler, or not at all")


def test_progress_is_none_before_the_first_advance(queue: TaskQueue) -> None:
    assert queue.progress("readers", "work") is None


def test_a_reader_continues_after_the_stored_progress(queue: TaskQueue) -> None:
    queue.push("work", numbered(3))
    first = queue.events("work", queue.progress("readers", "work"), 2)
    queue.advance("readers", "work", 0, first[-1][0])
    [(_, task)] = queue.events("work", queue.progress("readers", "work"))
    assert task.identifier == "task-2"


def test_progress_is_kept_for_each_group_topic_and_partition(queue: TaskQueue) -> None:
    queue.create_topic("other")
    places = [("one", "work", 0), ("one", "work", 1), ("one", "other", 0), ("two", "work", 0)]
    for number, (group, topic, partition) in enumerate(places):
        assert queue.progress(group, topic, partition) is None
        queue.advance(group, topic, partition, Cursor(number))
    assert [queue.progress(*place) for place in places] == [Cursor(number) for number in range(4)]


def test_progress_commits_or_rolls_back_with_the_handlers_own_rows(queue: TaskQueue, session: TaskQueue) -> None:
    session.advance("readers", "work", 0, Cursor(7))
    assert queue.progress("readers", "work") is None
    session.conn.rollback()
    assert queue.progress("readers", "work") is None
    session.advance("readers", "work", 0, Cursor(8))
    session.conn.commit()
    assert queue.progress("readers", "work") == Cursor(8)


def test_an_advance_to_an_earlier_place_replays_the_events_after_it(queue: TaskQueue) -> None:
    queue.push("work", numbered(3))
    everything = queue.events("work", None)
    queue.advance("readers", "work", 0, everything.cursor)
    assert queue.events("work", queue.progress("readers", "work")) == []
    queue.advance("readers", "work", 0, everything[0][0])
    assert queue.events("work", queue.progress("readers", "work")) == list(everything[1:])


@pytest.mark.parametrize("commits", [True, False], ids=["commits", "rolls back"])
def test_of_two_concurrent_advances_the_second_waits_and_wins(
    queue: TaskQueue,
    session: TaskQueue,
    open_queue: Callable[[], TaskQueue],
    background: InBackground[None],
    commits: bool,
) -> None:
    later = open_queue()
    session.advance("readers", "work", 0, Cursor(10))
    waiting = background(lambda: later.advance("readers", "work", 0, Cursor(5)))
    await_lock_wait(queue.conn, later)
    if commits:
        session.conn.commit()
    else:
        session.conn.rollback()
    waiting.result()
    later.conn.commit()
    assert queue.progress("readers", "work") == Cursor(5)


def test_readers_of_different_partitions_do_not_wait_for_each_other(
    session: TaskQueue, open_queue: Callable[[], TaskQueue], queue: TaskQueue
) -> None:
    session.advance("readers", "work", 0, Cursor(1))
    other = open_queue()
    other.conn.execute("SET lock_timeout = '3s'")
    other.advance("readers", "work", 1, Cursor(2))
    other.conn.commit()
    assert queue.progress("readers", "work", 1) == Cursor(2)


def test_dropping_a_topic_removes_the_progress_of_its_groups(queue: TaskQueue) -> None:
    queue.advance("readers", "work", 0, Cursor(1))
    queue.drop_topic("work")
    assert stored_rows(queue.conn) == {}
    queue.create_topic("work")
    assert queue.progress("readers", "work") is None


def test_progress_of_an_unknown_topic_is_refused(queue: TaskQueue) -> None:
    with pytest.raises(UnknownTopic, match="nowhere"):
        queue.progress("readers", "nowhere")
    with pytest.raises(UnknownTopic, match="nowhere"):
        queue.advance("readers", "nowhere", 0, Cursor(1))


@pytest.mark.parametrize(("group", "partition"), [(" ", 0), ("x" * 1001, 0), ("readers", -1)])
def test_a_group_without_a_name_and_a_partition_below_zero_are_refused(
    queue: TaskQueue, group: str, partition: int
) -> None:
    with pytest.raises(TaskQueueError, match="out of its range"):
        queue.advance(group, "work", partition, Cursor(1))
