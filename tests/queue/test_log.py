"""The log of a topic: its tasks, their order, and the rights to read it."""

import json
import re
from collections.abc import Callable
from datetime import timedelta

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_taskq.queue import (
    Cursor,
    Insertion,
    InvalidArgument,
    NewTask,
    Owner,
    Result,
    State,
    Task,
    TaskQueue,
    TaskQueueError,
    UnknownTopic,
    connect,
    install,
)
from demo.postgres import EmbeddedPostgres
from tests.queue.conftest import numbered, task_in

pytestmark = pytest.mark.promise("Readers take nothing and lock nothing")

PLACES = st.integers(0, 2**63 - 1)


def names(events: list[tuple[Cursor, Task]]) -> list[str]:
    """The identifiers of the events, in order."""
    return [task.identifier for _, task in events]


def test_the_log_has_every_task_in_the_order_of_sequences(queue: TaskQueue) -> None:
    later = NewTask("c", delay=timedelta(days=1))
    pushed = queue.push("work", ["a", NewTask("b", {"n": 1}, "r", priority=9), later, "a"])
    read = [task for _, task in queue.events("work", None)]
    assert read == pushed
    assert [(task.identifier, task.payload, task.reference) for task in read] == [
        ("a", None, None),
        ("b", {"n": 1}, "r"),
        ("c", None, None),
        ("a", None, None),
    ]


def test_the_log_shows_a_task_as_it_was_pushed_after_any_later_change(queue: TaskQueue, owner: Owner) -> None:
    tasks = [task_in(queue, owner, state, state.name) for state in (State(n) for n in (*range(2, 9), 0, 1))]
    read = [task for _, task in queue.events("work", None)]
    assert read == tasks
    assert {(task.attempt, task.redelivered) for task in read} == {(0, False)}


def test_the_log_has_redundant_tasks_and_no_deleted_ones(queue: TaskQueue) -> None:
    queue.push("work", ["a", "b"])
    queue.push("work", ["a"], Insertion.SUPERSEDE)
    queue.push("work", ["b"], Insertion.DELETE)
    assert names(queue.events("work", None)) == ["a", "a", "b"]


def test_reading_continues_after_the_cursor_and_stops_at_the_size(queue: TaskQueue) -> None:
    queue.push("work", numbered(5))
    first = queue.events("work", None, 2)
    second = queue.events("work", first[-1][0], 2)
    third = queue.events("work", Cursor.parse(str(second[-1][0])), 2)
    assert [*names(first), *names(second), *names(third)] == [f"task-{n}" for n in range(5)]
    assert queue.events("work", third[-1][0], 2) == []
    assert queue.events("work", None, 0) == []


def test_a_cursor_is_the_same_however_its_task_was_read(queue: TaskQueue) -> None:
    queue.push("work", numbered(4))
    at_once = queue.events("work", None)
    one_by_one = [queue.events("work", after, 1)[0] for after in (None, *(cursor for cursor, _ in at_once[:-1]))]
    assert one_by_one == list(at_once)
    assert [cursor for cursor, _ in at_once] == sorted({cursor for cursor, _ in at_once})


def test_any_number_of_readers_read_the_log_without_claiming_a_task(queue: TaskQueue, owner: Owner) -> None:
    queue.push("work", numbered(3))
    assert queue.events("work", None) == queue.events("work", None)
    assert len(queue.poll("work", owner, 5)) == 3


def test_topics_have_logs_of_their_own(queue: TaskQueue) -> None:
    queue.create_topic("other")
    for name in "abc":
        queue.push("work", [name])
        queue.push("other", [name.upper()])
    assert names(queue.events("work", None)) == ["a", "b", "c"]
    assert names(queue.events("other", None)) == ["A", "B", "C"]


def test_an_empty_log_has_a_beginning(queue: TaskQueue) -> None:
    nothing = queue.events("work", None)
    assert nothing == []
    queue.push("work", ["a"])
    assert names(queue.events("work", nothing.cursor)) == ["a"]


def test_a_recreated_topic_has_a_log_of_its_own_after_any_old_cursor(queue: TaskQueue) -> None:
    queue.push("work", ["old"])
    end = queue.events("work", None).cursor
    queue.drop_topic("work")
    queue.create_topic("work")
    queue.push("work", ["new"])
    assert names(queue.events("work", end)) == names(queue.events("work", None)) == ["new"]


def test_the_log_of_an_unknown_topic_is_refused(queue: TaskQueue) -> None:
    with pytest.raises(UnknownTopic, match="nowhere"):
        queue.events("nowhere", None)


@pytest.mark.parametrize("level", [psycopg.IsolationLevel.REPEATABLE_READ, psycopg.IsolationLevel.SERIALIZABLE])
def test_the_log_is_read_at_read_committed_only(
    queue: TaskQueue, session: TaskQueue, level: psycopg.IsolationLevel
) -> None:
    queue.push("work", ["a"])
    session.conn.isolation_level = level
    with pytest.raises(TaskQueueError, match="READ COMMITTED"):
        session.events("work", None)


def test_a_transaction_that_may_only_read_can_read_the_log(queue: TaskQueue, session: TaskQueue) -> None:
    queue.push("work", ["a"])
    session.conn.read_only = True
    assert names(session.events("work", None)) == ["a"]


def test_the_log_has_committed_tasks_only_its_readers_own_included(queue: TaskQueue, session: TaskQueue) -> None:
    session.push("work", ["mine"])
    queue.push("work", ["another's"])
    assert session.events("work", None) == []
    session.conn.commit()
    assert names(session.events("work", None)) == ["mine", "another's"]


@pytest.mark.slow
def test_a_standby_refuses_to_read_the_log() -> None:
    """A standby has the rows, but not the locks of pushes that are open on the primary."""
    with EmbeddedPostgres() as server:
        with connect(server.dsn, autocommit=True) as conn:
            install(conn)
            TaskQueue(conn).create_topic("work")
        server.stop("fast")
        (server.folder / "data" / "standby.signal").touch()
        server.start()
        with connect(server.dsn) as conn, pytest.raises(TaskQueueError, match="primary"):
            TaskQueue(conn).events("work", None)


def test_the_operator_sees_which_transaction_holds_a_log_back(
    queue: TaskQueue, session: TaskQueue, open_queue: Callable[[], TaskQueue]
) -> None:
    holders = "SELECT pid, application, since <= clock_timestamp(), floor FROM taskq.log_blockers('work')"
    queue.push("work", ["before"])
    assert queue.conn.execute(holders.encode()).fetchall() == []
    session.conn.execute("SET application_name = 'importer'")
    [task] = session.push("work", ["open"])
    queue.create_topic("other")
    open_queue().push("other", ["of no concern"])
    assert queue.conn.execute(holders.encode()).fetchall() == [
        (session.conn.info.backend_pid, "importer", True, task.sequence)
    ]
    session.conn.commit()
    assert queue.conn.execute(holders.encode()).fetchall() == []
    with pytest.raises(psycopg.DatabaseError, match="nowhere"):
        queue.conn.execute("SELECT taskq.log_blockers('nowhere')")


@given(PLACES)
def test_the_text_of_a_cursor_restores_it(place: int) -> None:
    text = str(Cursor(place))
    assert Cursor.parse(text) == Cursor.parse(json.loads(json.dumps(text))) == Cursor(place)


@given(PLACES, PLACES)
def test_cursors_compare_and_hash_by_their_place(one: int, other: int) -> None:
    assert (Cursor(one) < Cursor(other)) == (one < other)
    assert (Cursor(one) == Cursor(other)) == (one == other)
    assert len({Cursor(one), Cursor(other)}) == len({one, other})


def test_a_cursor_is_frozen() -> None:
    with pytest.raises(AttributeError):
        Cursor(1).place = 2  # type: ignore[misc]


@given(st.one_of(st.text(), st.from_regex(r"[-+ 0]*[0-9]{1,25}\s?", fullmatch=True)))
def test_a_text_that_is_no_cursor_is_refused(text: str) -> None:
    if re.fullmatch("0|[1-9][0-9]*", text, re.ASCII) and int(text) < 2**63:
        assert str(Cursor.parse(text)) == text
        return
    with pytest.raises(InvalidArgument, match="invalid cursor") as error:
        Cursor.parse(text)
    assert len(str(error.value).splitlines()) == 1


@pytest.mark.parametrize("text", ["", "x", "-1", "007", "1 ", "1.0", "٣", "²", str(2**63), "9" * 30])
def test_a_value_that_is_no_cursor_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument, match="invalid cursor"):
        Cursor.parse(text)


def test_a_reader_of_the_log_completes_nothing(queue: TaskQueue, owner: Owner) -> None:
    queue.push("work", ["a"])
    [(_, task)] = queue.events("work", None)
    assert queue.poll("work", owner) == [task]
    queue.complete(owner, {task: Result.SUCCESS})
    assert [read for _, read in queue.events("work", None)] == [task]
