"""Browsing by the queue's own verbs, where the API leaves something to be seen: caps, budgets, races and rights."""

from collections.abc import Callable
from datetime import timedelta

import psycopg
import pytest
from psycopg import sql

from airflow_provider_taskq.queue import Decision, NewTask, Result, State, TaskQueue, TaskQueueError
from airflow_provider_taskq.queue.browse import TaskFilter


def fail(queue: TaskQueue, number: int) -> list[int]:
    """Tasks that failed, the first with another error."""
    owner = queue.register("worker")
    queue.push("work", [f"failing-{n}" for n in range(number)])
    polled = queue.poll("work", owner, number)
    queue.complete(
        owner, {task: Decision(Result.FAILURE, error="first" if n == 0 else "then") for n, task in enumerate(polled)}
    )
    return [task.sequence for task in polled]


def test_counts_stop_at_their_cap(queue: TaskQueue) -> None:
    queue.push("work", [NewTask(f"due-{n}", priority=n % 3) for n in range(7)])
    queue.push("work", [NewTask(f"later-{n}", delay=timedelta(hours=1), priority=5) for n in range(6)])
    (seen,) = queue.browse_topics(cap=5)
    assert (seen.due, seen.later) == (5, 5)
    (whole,) = queue.browse_topics(cap=100)
    assert (whole.due, whole.later) == (7, 6)


def test_due_and_later_are_told_apart_at_every_priority(queue: TaskQueue, conn: psycopg.Connection) -> None:
    queue.push("work", [NewTask(f"{n}", priority=n % 5 - 2) for n in range(10)])
    conn.execute("UPDATE taskq.live SET available_at = clock_timestamp() + interval '1 hour' WHERE sequence % 2 = 0")
    (seen,) = queue.browse_topics()
    assert (seen.due, seen.later) == (5, 5)


def test_a_search_stops_at_its_budget_and_goes_on_from_there(queue: TaskQueue) -> None:
    sequences = fail(queue, 10)
    given = TaskFilter(state=State.FAILED, error="first")
    found: list[int] = []
    looked_to, rounds = None, 0
    while rounds == 0 or looked_to is not None:
        page = queue.find_tasks("work", given, after=looked_to, newest=True, budget=3)
        found += page.sequences
        looked_to, rounds = page.looked_to, rounds + 1
    assert (found, rounds) == (sequences[:1], 4)
    assert queue.find_tasks("work", given, newest=False, budget=3, size=1).looked_to is None


def test_held_tasks_are_found_whether_few_or_more_than_the_budget(queue: TaskQueue) -> None:
    queue.push("work", [f"{n}" for n in range(6)])
    held = [task.sequence for task in queue.poll("work", queue.register("worker"), 6)]
    given = TaskFilter(state=State.ACTIVE)
    assert queue.find_tasks("work", given, newest=False).sequences == held
    first = queue.find_tasks("work", given, newest=False, budget=4)
    assert (first.sequences, first.looked_to) == (held[:4], held[3])
    assert queue.find_tasks("work", given, newest=False, budget=4, after=held[3]).sequences == held[4:]


def test_every_status_finds_exactly_the_tasks_that_have_it(queue: TaskQueue) -> None:
    fail(queue, 3)
    owner = queue.register("worker")
    queue.push("work", [NewTask("s", suspended=True), "a", "b", NewTask("c", depends_on=[("work", "b")])])
    queue.poll("work", owner)
    everything = queue.find_tasks("work", TaskFilter(), size=100).sequences
    statuses = {line.sequence: line.status for line in queue.browse_tasks("work", everything)}
    assert set(statuses.values()) == {"exhausted", "suspended", "active", "ready", "waiting"}
    for status in {*statuses.values(), "failed", "paused", "retrying", "scheduled", "no such"}:
        expected = {sequence for sequence, has in statuses.items() if has == status}
        assert set(queue.find_tasks("work", TaskFilter(status=status)).sequences) == expected, status


def test_a_push_is_told_from_others_between_its_ends(open_queue: Callable[[], TaskQueue], queue: TaskQueue) -> None:
    one, other = open_queue(), open_queue()
    first = one.push("work", ["a"])[0].sequence
    between = other.push("work", ["x"])[0].sequence
    last = one.push("work", ["b"])[0].sequence
    one.conn.commit()
    other.conn.commit()
    assert first < between < last
    assert queue.pushed_between("work", first, last) == [first, last]


def test_what_a_filter_found_and_somebody_changed_since_is_left_out(
    open_queue: Callable[[], TaskQueue], queue: TaskQueue
) -> None:
    sequences = fail(queue, 4)
    queue.reassign("work", Result.SUCCESS, sequences=sequences[:1])
    other = open_queue()
    other.reassign("work", Result.FILTER, sequences=sequences[1:2])
    assert queue.hold_found("work", sequences, [State.FAILED]) == sequences[2:]
    assert queue.purge_named("work", sequences, [State.FAILED]) == 2
    other.conn.commit()
    assert [line.state for line in queue.browse_tasks("work", sequences)] == [State.SUCCEEDED, State.FILTERED]


def test_no_trail_without_a_name(queue: TaskQueue) -> None:
    with pytest.raises(TaskQueueError, match="acting"):
        queue.note_action("pause", "work", "topic work", 1)
    assert queue.audit_trail() == []


def test_a_reader_may_browse_and_see_the_trail_and_leaves_none(conn: psycopg.Connection) -> None:
    queue = TaskQueue(conn)
    queue.create_topic("work")
    queue.push("work", ["a"])
    role = sql.Identifier("taskq_page_reader")
    conn.execute(sql.SQL("CREATE ROLE {}").format(role))
    try:
        conn.execute("SELECT taskq.grant_access('taskq_page_reader', 'reader')")
        conn.execute(sql.SQL("SET ROLE {}").format(role))
        assert [topic.due for topic in queue.browse_topics()] == [1]
        (found,) = queue.find_tasks("work", TaskFilter()).sequences
        assert queue.browse_tasks("work", [found])[0].status == "ready"
        assert (queue.browse_owners(), queue.browse_locks(), queue.browse_readers()) == (([], None), [], [])
        assert (queue.browse_ticks("work"), queue.browse_holders("work"), queue.audit_trail()) == (([], False), [], [])
        for refused in (
            lambda: queue.note_action("pause", "work", "x", 1),
            lambda: queue.purge_named("work", [found], [State.READY]),
            lambda: queue.hold_found("work", [found], [State.FAILED]),
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                refused()
    finally:
        conn.execute("RESET ROLE")
        conn.execute("SELECT taskq.revoke_access('taskq_page_reader')")
        conn.execute(sql.SQL("DROP ROLE {}").format(role))
