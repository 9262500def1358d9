"""The views for people: states, results, ages, holders and reasons by name."""

import re
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from airflow_provider_taskq.queue import (
    Decision,
    Insertion,
    NewTask,
    Owner,
    Result,
    State,
    TaskQueue,
)
from tests.queue.conftest import RESULTS, numbered, task_in

pytestmark = pytest.mark.promise("Tasks, pages, counts and results are read as they are")


def rows(queue: TaskQueue, where: str = "true", source: str = "taskq.tasks") -> list[dict[str, Any]]:
    """Rows of a view, in order of sequence or topic."""
    order = "sequence" if source == "taskq.tasks" else "1"
    with queue.conn.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(f"SELECT * FROM {source} WHERE {where} ORDER BY {order}".encode()).fetchall()


def why(queue: TaskQueue, identifier: str = "a") -> str:
    """The reason why the first task of an identifier is not running."""
    return str(rows(queue, f"topic = 'work' AND identifier = '{identifier}'")[0]["why"])


@pytest.mark.parametrize("state", State)
def test_a_task_is_shown_with_its_state_and_result_by_name(queue: TaskQueue, owner: Owner, state: State) -> None:
    task = task_in(queue, owner, state)
    [row] = rows(queue, f"state = '{state.name}'")
    assert (row["topic"], row["sequence"], row["identifier"]) == ("work", task.sequence, "a")
    assert row["result"] == (RESULTS[state].name if state in RESULTS else None)
    assert rows(queue, f"state <> '{state.name}'") == []


def test_a_held_task_shows_its_owner_and_lease(queue: TaskQueue, owner: Owner) -> None:
    task_in(queue, owner, State.ACTIVE)
    [row] = rows(queue)
    assert (row["holder"], row["lease_until"], row["attempt"]) == ("owner", owner.lease_until, 1)


def test_the_view_names_the_dependency_that_a_task_waits_for(queue: TaskQueue, owner: Owner) -> None:
    [first] = queue.push("work", ["a"])
    queue.push("work", [NewTask("b", depends_on=[("work", "a")])])
    assert why(queue, "b") == f"it waits for a of topic work (sequence {first.sequence}, not ended)"
    queue.poll("work", owner)
    queue.complete(owner, {first: Result.FILTER})
    assert why(queue, "b") == f"it waits for a of topic work (sequence {first.sequence}, FILTERED)"
    queue.reassign("work", Result.SUCCESS, sequences=[first.sequence])
    assert why(queue, "b") == "it waits for the next poll: its dependencies are fulfilled"


def test_the_view_says_how_a_task_ended(queue: TaskQueue, owner: Owner) -> None:
    queue.push("work", ["a"])
    tasks = queue.poll("work", owner)
    queue.complete(owner, dict.fromkeys(tasks, Decision(Result.FAILURE, {"at": 3}, "first line\nsecond line")))
    [row] = rows(queue)
    assert re.fullmatch(r"it is FAILED since \d+ s: given up after 1 of 1 attempts: first line", row["why"])
    assert (row["output"], row["error"], row["holder"]) == ('{"at":3}', "first line", "owner")
    assert row["completed"] is not None
    queue.push("work", ["a"], Insertion.REPLACE)
    assert re.fullmatch(r"it is REDUNDANT since \d+ s: was FAILED", why(queue))


def test_ages_are_intervals_of_the_servers_clock(queue: TaskQueue) -> None:
    queue.push("work", [NewTask("a", delay=timedelta(hours=1))])
    [row] = rows(queue)
    assert timedelta() <= row["age"] < timedelta(minutes=1)
    assert timedelta(minutes=59) < row["due_in"] <= timedelta(hours=1)


def test_payloads_are_left_out_and_outputs_cut(queue: TaskQueue, owner: Owner) -> None:
    queue.push("work", [NewTask("a", {"secret": "payload"})])
    queue.complete(owner, dict.fromkeys(queue.poll("work", owner), Decision(Result.SUCCESS, "x" * 1000)))
    [row] = rows(queue)
    assert "payload" not in repr(row)
    assert len(row["output"]) == 120


QUESTIONS = {
    "SELECT * FROM taskq.tasks WHERE topic = 'work' AND sequence = {last}": (1, 250),
    "SELECT * FROM taskq.tasks WHERE topic = 'work' AND identifier = 'task-7777'": (1, 400),
    "SELECT * FROM taskq.tasks WHERE topic = 'work' AND state = 'ACTIVE'": (5, 300),
    "SELECT * FROM taskq.tasks WHERE topic = 'work' AND state = 'FAILED'": (1, 300),
    "SELECT * FROM taskq.tasks WHERE topic = 'work' AND state = 'SUSPENDED'": (0, 300),
}
"""Queries, the number of their rows, and the number of pages that they may touch."""


def test_a_query_for_few_tasks_reads_few_pages(own_queue: TaskQueue) -> None:
    queue = own_queue
    queue.create_topic("other")
    queue.push("other", ["x", "y"])
    owner = queue.register("owner")
    queue.push_stream("work", numbered(20_000))
    done = queue.poll("work", owner, 10_000)
    queue.complete(owner, {task: Result.SUCCESS if n else Result.FAILURE for n, task in enumerate(done)})
    [last, *_] = queue.poll("work", owner, 5)
    queue.conn.execute("VACUUM ANALYZE")
    for question, (found, most) in QUESTIONS.items():
        query = question.format(last=last.sequence)
        assert queue.conn.execute(query.encode()).rowcount == found, question
        assert pages(queue.conn, query) < most, question
    assert rows(queue, source="taskq.topic_summaries")[1]["ready"] == 1000, "counts at a glance are capped"


def pages(conn: psycopg.Connection, question: str) -> int:
    """The number of pages that a query touches."""
    row = conn.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {question}".encode()).fetchone()
    assert row is not None
    plan = row[0][0]["Plan"]
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


def test_the_view_of_topics_counts_due_waiting_and_held_tasks(queue: TaskQueue, owner: Owner) -> None:
    queue.create_topic("empty")
    queue.pause_topic("empty")
    queue.push("work", ["a", "b", "c", NewTask("later", delay=timedelta(days=1))])
    queue.push("work", [NewTask("d", depends_on=[("work", "c")])])
    queue.complete(owner, dict.fromkeys(queue.poll("work", owner), Result.SUCCESS))
    queue.poll("work", owner)
    empty, work = rows(queue, source="taskq.topic_summaries")
    assert [empty[name] for name in ("topic", "paused", "ready", "oldest", "last_end")] == [
        "empty",
        True,
        0,
        None,
        None,
    ]
    counts = [work[name] for name in ("paused", "ready", "scheduled", "retrying", "blocked", "running", "own_tables")]
    assert counts == [False, 1, 1, 0, 1, 1, False]
    assert timedelta() <= work["last_end"] <= work["oldest"] < timedelta(minutes=1)
