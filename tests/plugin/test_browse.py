"""The verbs of the queue that the page reads with: caps, budgets, races and rights."""

from collections.abc import Callable
from datetime import timedelta

import pytest

from airflow_provider_taskq.queue import (
    Decision,
    NewTask,
    Result,
    RetryPolicy,
    State,
    TaskQueue,
    TopicPolicy,
)
from airflow_provider_taskq.queue.reports import STATE_OF_STATUS, TaskFilter

pytestmark = pytest.mark.promise("Tasks, pages, counts and results are read as they are")


def fail(queue: TaskQueue, number: int) -> list[int]:
    """Pushes tasks that fail, the first with another error."""
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
    assert (seen.ready, seen.scheduled) == (5, 5)
    (whole,) = queue.browse_topics(cap=100)
    assert (whole.ready, whole.scheduled) == (7, 6)


def test_a_search_stops_at_its_budget_and_continues_from_there(queue: TaskQueue) -> None:
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


def test_a_search_finds_held_tasks_within_and_beyond_its_budget(queue: TaskQueue) -> None:
    queue.push("work", [f"{n}" for n in range(6)])
    held = [task.sequence for task in queue.poll("work", queue.register("worker"), 6)]
    given = TaskFilter(state=State.ACTIVE)
    assert queue.find_tasks("work", given, newest=False).sequences == held
    first = queue.find_tasks("work", given, newest=False, budget=4)
    assert (first.sequences, first.looked_to) == (held[:4], held[3])
    assert queue.find_tasks("work", given, newest=False, budget=4, after=held[3]).sequences == held[4:]


def in_every_status(queue: TaskQueue) -> None:
    """Pushes tasks of `work` in each waiting status, with several priorities and reasons, and some in other states."""
    fail(queue, 1)
    queue.alter_topic("work", TopicPolicy(RetryPolicy(max_attempts=2)))
    owner = queue.register("worker")
    queue.push("work", ["retry due", "retry later", "retry paused", "held", "gone", NewTask("off", suspended=True)])
    due, later, paused, _, gone = queue.poll("work", owner, 5)
    queue.complete(owner, {**dict.fromkeys([due, later, paused], Result.FAILURE), gone: Result.SUCCESS})
    queue.change_waiting("work", [due.sequence], due=queue.now())
    asleep = queue.push("work", ["asleep", NewTask("asleep too", depends_on=[("work", "held")])])
    for task in (paused, *asleep):
        queue.change_waiting("work", [task.sequence], paused=True)
    soon = queue.push("work", [NewTask("soon", delay=timedelta(hours=1)), NewTask("soon too", delay=timedelta(days=1))])
    queue.push("work", ["a", NewTask("b", priority=9), NewTask("c", priority=-9)])
    queue.push("work", [NewTask(str(number), depends_on=[("work", "soon")]) for number in range(4)])
    assert len(soon) == 2


@pytest.mark.parametrize("topic_is", ["running", "paused"])
def test_a_filter_by_status_finds_exactly_the_tasks_that_are_counted_under_it(queue: TaskQueue, topic_is: str) -> None:
    in_every_status(queue)
    if topic_is == "paused":
        queue.pause_topic("work")
    summary = queue.browse_topic("work")
    assert summary is not None
    statuses = [status for status in STATE_OF_STATUS if status != "exhausted"]
    counts = {status: getattr(summary, {"paused": "paused_tasks"}.get(status, status), None) for status in statuses}
    found = {status: set(queue.find_tasks("work", TaskFilter(status=status)).sequences) for status in statuses}
    every = queue.browse_tasks("work", queue.find_tasks("work", TaskFilter(), size=100).sequences)
    for status in statuses:
        words = {status, "exhausted"} if status == "failed" else {status}
        assert found[status] == {line.sequence for line in every if line.status in words}, status
    listed = {status: len(sequences) for status, sequences in found.items()}
    assert {status: number for status, number in listed.items() if counts[status] is not None} == {
        status: number for status, number in counts.items() if number is not None
    }
    waiting = {status: listed[status] for status in ("ready", "scheduled", "retrying", "blocked", "paused")}
    expected = {"ready": 3, "scheduled": 2, "retrying": 2, "blocked": 4, "paused": 3}
    none = dict.fromkeys(expected, 0)
    assert waiting == (expected if topic_is == "running" else {**none, "paused": sum(expected.values())})
    assert (listed["running"], listed["succeeded"]) == (1, 1)


def test_retries_that_wait_for_a_probe_count_as_retrying(queue: TaskQueue) -> None:
    queue.alter_topic("work", TopicPolicy(RetryPolicy(max_attempts=5, probe=True)))
    owner = queue.register("worker")
    queue.push("work", ["a", "b"])
    queue.complete(owner, dict.fromkeys(queue.poll("work", owner, 2), Result.FAILURE))
    summary = queue.browse_topic("work")
    assert summary is not None
    assert (summary.retrying, summary.blocked, summary.ready) == (2, 0, 0)
    assert len(queue.find_tasks("work", TaskFilter(status="retrying")).sequences) == 2


def test_a_push_is_found_among_concurrent_pushes(open_queue: Callable[[], TaskQueue], queue: TaskQueue) -> None:
    one, other = open_queue(), open_queue()
    first = one.push("work", ["a"])[0].sequence
    between = other.push("work", ["x"])[0].sequence
    last = one.push("work", ["b"])[0].sequence
    one.conn.commit()
    other.conn.commit()
    assert first < between < last
    given = TaskFilter(pushed_with=first)
    assert queue.find_tasks("work", given, newest=False).sequences == [first, last]
    assert queue.find_tasks("work", given, after=first - 1, newest=False, budget=2).sequences == [first]


def test_an_action_leaves_out_tasks_that_another_session_changed(
    open_queue: Callable[[], TaskQueue], queue: TaskQueue
) -> None:
    sequences = fail(queue, 4)
    queue.reassign("work", Result.SUCCESS, sequences=sequences[:1])
    other = open_queue()
    other.reassign("work", Result.FILTER, sequences=sequences[1:2])
    assert queue.lock_tasks("work", sequences, [State.FAILED]) == sequences[2:]
    assert queue.purge("work", state=State.FAILED, sequences=sequences) == 2
    other.conn.commit()
    assert [line.state for line in queue.browse_tasks("work", sequences)] == [State.SUCCEEDED, State.FILTERED]
