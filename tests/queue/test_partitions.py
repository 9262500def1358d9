"""Partitions of a log: the same in Python and SQL, complete, disjoint, and cheap to skip."""

import time
import zlib

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from airflow_provider_taskq.queue import (
    Cursor,
    InvalidArgument,
    InvalidTask,
    NewTask,
    Task,
    TaskQueue,
    TaskQueueError,
    partition_of,
    sequence_id,
)
from tests.internals import set_next_sequence
from tests.queue.conftest import numbered
from tests.queue.test_sessions import pages_of

pytestmark = pytest.mark.promise("Each partition keeps its order, and partitions are complete and disjoint")

CHECK_VALUES = {"/book/4711": 3006319413, "a": 3904355907, "b": 1908338681, "": 0}
LEVELS = {
    ("/book/4711/pages/2444", 2): "/book/4711",
    ("/book/4711/", 2): "/book/4711",
    ("/book/4711", 2): "/book/4711",
    ("/book/4711/pages/2444", 1): "/book",
    ("/book/4711/pages/2444", 9): "/book/4711/pages/2444",
    ("/", 1): "/",
    ("/", 2): "/",
    ("ignored/book/4711/43", 2): "/book/4711",
    ("order-17", 2): "order-17",
    ("//x", 1): "/",
    ("/a//b", 2): "/a/",
    ("/a", 5000): "/a",
    ("/book/4711", None): "/book/4711",
    ("/book/4711", 0): "7",
}
IDENTIFIERS = st.one_of(
    st.text(st.sampled_from("/ab"), max_size=12),
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=40),
)
WITH_ONE_DATABASE = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def partition_in_sql(queue: TaskQueue, task: Task, partitions: int, level: int | None) -> int:
    """The partition in which the log has a task, among the one that Python says and its neighbors."""
    expected = partition_of(task.identifier, partitions, level, task.sequence)
    near = [number for number in (expected - 1, expected, expected + 1) if 0 <= number < partitions]
    read = {number: queue.events("work", None, partition=number, partitions=partitions, level=level) for number in near}
    [found] = [number for number, events in read.items() if task in [each for _, each in events]]
    return found


@pytest.mark.parametrize(("identifier", "crc"), CHECK_VALUES.items())
def test_the_partition_is_the_crc_32_of_the_sequence_id(queue: TaskQueue, identifier: str, crc: int) -> None:
    assert [partition_of(identifier, n) for n in (1, 2, 3, 8, 2**31)] == [crc % n for n in (1, 2, 3, 8, 2**31)]
    if identifier.strip():
        [task] = queue.push("work", [identifier])
        for partitions in (1, 2, 3, 8, 2**31 - 1):
            assert partition_in_sql(queue, task, partitions, None) == crc % partitions


@pytest.mark.parametrize(("given_", "expected"), LEVELS.items(), ids=str)
def test_a_level_keeps_that_many_levels_of_the_identifier(given_: tuple[str, int | None], expected: str) -> None:
    identifier, level = given_
    assert sequence_id(identifier, level, 7) == expected


@WITH_ONE_DATABASE
@given(
    identifier=IDENTIFIERS,
    level=st.one_of(st.none(), st.integers(0, 4)),
    sequence=st.integers(1, 2**40),
    partitions=st.integers(1, 2**31 - 1),
)
def test_python_and_sql_agree(
    queue: TaskQueue, identifier: str, level: int | None, sequence: int, partitions: int
) -> None:
    assume(identifier.strip())
    set_next_sequence(queue.conn, sequence)
    try:
        [task] = queue.push("work", [identifier])
    except InvalidTask:  # what is blank to PostgreSQL only
        return
    assert task.sequence == sequence
    crc = zlib.crc32(sequence_id(identifier, level, sequence).encode())
    assert partition_in_sql(queue, task, partitions, level) == crc % partitions
    queue.purge_all("work")


@pytest.mark.parametrize("level", [None, 0, 1, 2])
def test_every_task_is_in_exactly_one_partition_and_each_keeps_its_order(queue: TaskQueue, level: int | None) -> None:
    tasks = queue.push("work", [NewTask(f"/{n % 29}/{n % 20}/{n}", n) for n in range(200)])
    for partition in range(3):
        read = [task for _, task in queue.events("work", None, partition=partition, partitions=3, level=level)]
        assert read == [task for task in tasks if partition_of(task.identifier, 3, level, task.sequence) == partition]
        assert read


def test_a_partition_read_in_pieces_equals_one_read_at_once(queue: TaskQueue) -> None:
    queue.push("work", numbered(100))
    at_once = queue.events("work", None, partition=1, partitions=4)
    in_pieces: list[tuple[Cursor, Task]] = []
    after: Cursor | None = None
    while piece := queue.events("work", after, 3, partition=1, partitions=4):
        in_pieces += piece
        after = piece[-1][0]
    assert in_pieces == list(at_once)
    assert len(in_pieces) > 10


def test_a_cursor_passes_the_tasks_of_other_partitions(queue: TaskQueue) -> None:
    """Otherwise a reader of an empty partition would read the tasks of all others at each call."""
    elsewhere = [f"{n}" for n in range(60) if partition_of(f"{n}", 2) == 1]
    last = queue.push("work", elsewhere)[-1]
    nothing = queue.events("work", None, partition=0, partitions=2)
    assert nothing == []
    assert str(nothing.cursor) == str(last.sequence)
    mine = next(f"{n}" for n in range(60) if partition_of(f"{n}", 2) == 0)
    [task] = queue.push("work", [mine])
    [(_, read)] = queue.events("work", nothing.cursor, partition=0, partitions=2)
    assert read == task


def test_a_reader_pays_only_for_tasks_that_are_new_since_its_last_read(own_queue: TaskQueue) -> None:
    own_queue.push_stream("work", (name for n in range(40_000) if partition_of(name := f"{n}", 2) == 1))
    own_queue.conn.execute("VACUUM")
    nothing = own_queue.events("work", None, partition=0, partitions=2)
    assert pages_of(own_queue, lambda: own_queue.events("work", nothing.cursor, partition=0, partitions=2)) < 100
    assert pages_of(own_queue, lambda: own_queue.events("work", None, partition=0, partitions=2)) > 200


@pytest.mark.slow
def test_a_reader_of_one_partition_in_eight_is_not_ten_times_slower_per_task(own_queue: TaskQueue) -> None:
    own_queue.push_stream("work", (NewTask(f"/flight/UA{n}/2013-01-{n % 28}", {"n": n}) for n in range(60_000)))
    own_queue.events("work", None, partitions=8)

    def seconds_per_task(partitions: int) -> float:
        count, after, start = 0, None, time.perf_counter()
        while piece := own_queue.events("work", after, partitions=partitions):
            count, after = count + len(piece), piece[-1][0]
        return (time.perf_counter() - start) / count

    whole, eighth = (min(seconds_per_task(n) for _ in range(3)) for n in (1, 8))
    assert eighth < 10 * whole


@pytest.mark.parametrize(("partition", "partitions"), [(-1, 2), (2, 2), (0, 0), (0, -1)])
def test_an_impossible_partition_is_refused(queue: TaskQueue, partition: int, partitions: int) -> None:
    with pytest.raises(TaskQueueError, match=f"partition {partition} of {partitions}"):
        queue.events("work", None, partition=partition, partitions=partitions)


@pytest.mark.parametrize("level", [-1, -5])
def test_a_level_below_zero_is_refused(queue: TaskQueue, level: int) -> None:
    with pytest.raises(TaskQueueError, match="level"):
        queue.events("work", None, level=level)
    with pytest.raises(InvalidArgument, match="level"):
        sequence_id("a", level)


def test_an_invalid_argument_is_a_value_error_and_a_task_queue_error() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        partition_of("a", 0)
    with pytest.raises(TaskQueueError, match="at least 1"):
        partition_of("a", -1)
    with pytest.raises(InvalidArgument, match="own sequence"):
        sequence_id("a", 0)
