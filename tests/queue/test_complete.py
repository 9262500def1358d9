"""Complete: a decision ends a task. A call applies all decisions or none, to tasks held under its fence only."""

from collections.abc import Callable
from datetime import timedelta
from typing import cast

import psycopg
import pytest

from airflow_provider_taskq.queue import (
    Decision,
    LeaseLost,
    NotHeld,
    Owner,
    Result,
    RetryPolicy,
    State,
    TaskQueue,
    TaskQueueError,
    TopicPolicy,
)
from tests.queue.conftest import (
    RESULTS,
    InBackground,
    await_lock_wait,
    image,
    known,
    lapse,
    pass_time,
    states,
    task_in,
)

pytestmark = pytest.mark.promise("A completion works until the lease is gone, also after it has lapsed")

HOUR = timedelta(hours=1)


@pytest.mark.parametrize("state", RESULTS)
def test_a_result_ends_a_task_in_its_state(queue: TaskQueue, owner: Owner, state: State) -> None:
    task = task_in(queue, owner, State.ACTIVE)
    queue.complete(owner, {task: RESULTS[state]})
    info = known(queue, task)
    assert (info.state, info.descent, info.owner, info.attempt) == (state, None, owner.name, 1)
    assert info.completed is not None
    assert info.completed >= info.created
    assert queue.held(owner) == []
    assert queue.poll("work", owner) == []


def test_decisions_are_keyed_by_task_or_sequence_and_may_span_topics(queue: TaskQueue, owner: Owner) -> None:
    queue.create_topic("other", TopicPolicy(RetryPolicy(max_attempts=5)))
    queue.push("work", ["a", "b", "c"])
    queue.push("other", ["x", "y"])
    first, second, third = queue.poll("work", owner, 3)
    retried, done = queue.poll("other", owner, 2)
    queue.complete(owner, {})
    queue.complete(
        owner,
        {
            first: Decision(Result.SUCCESS),
            second.sequence: Result.FILTER,
            third: Result.SUSPENSION,
            retried: Result.FAILURE,
            done: Result.SUCCESS,
        },
    )
    assert states(queue) == [("a", State.SUCCEEDED), ("b", State.FILTERED), ("c", State.SUSPENDED)]
    assert states(queue, "other") == [("x", State.READY), ("y", State.SUCCEEDED)]


@pytest.mark.parametrize("state", [state for state in State if state is not State.ACTIVE])
@pytest.mark.parametrize("result", [Result.FAILURE, Result.SUCCESS])
def test_a_task_that_is_not_active_cannot_be_completed(
    queue: TaskQueue, owner: Owner, state: State, result: Result
) -> None:
    queue.alter_topic("work", TopicPolicy(RetryPolicy(max_attempts=9)))
    held = task_in(queue, owner, State.ACTIVE, "held")
    queue.alter_topic("work", TopicPolicy())
    task = task_in(queue, owner, state)
    queue.alter_topic("work", TopicPolicy(RetryPolicy(max_attempts=9)))
    before = image(queue)
    with pytest.raises(NotHeld, match=rf"{task.sequence}\b") as refusal:
        queue.complete(owner, {held: result, task: result})
    assert not isinstance(refusal.value, LeaseLost)
    assert owner.name in str(refusal.value)
    assert image(queue) == before


@pytest.mark.promise("Nothing is decided twice")
@pytest.mark.parametrize("result", list(Result))
def test_a_task_of_another_owner_cannot_be_completed(queue: TaskQueue, owner: Owner, result: Result) -> None:
    other = queue.register("other")
    theirs = task_in(queue, other, State.ACTIVE)
    for other_task in (theirs.sequence, 2**60):  # held by another, and none at all
        with pytest.raises(NotHeld, match=rf"{other_task}\b"):
            queue.complete(owner, {other_task: result})
    assert queue.held(other) == [theirs]


def test_a_task_and_its_sequence_are_not_two_tasks(queue: TaskQueue, owner: Owner) -> None:
    task = task_in(queue, owner, State.ACTIVE)
    with pytest.raises(TaskQueueError, match=rf"{task.sequence}\b"):
        queue.complete(owner, {task: Result.SUCCESS, task.sequence: Result.FAILURE})
    assert queue.held(owner) == [task]


def test_a_lapsed_lease_still_completes(queue: TaskQueue, owner: Owner) -> None:
    task = task_in(queue, owner, State.ACTIVE)
    lapse(queue, owner)
    queue.complete(owner, {task: Result.SUCCESS})
    assert known(queue, task).state is State.SUCCEEDED


def test_an_exception_is_kept_as_its_trace(queue: TaskQueue, owner: Owner) -> None:
    task = task_in(queue, owner, State.ACTIVE)
    try:
        cast("list[int]", [])[3]
    except IndexError as error:
        queue.complete(owner, {task: Decision(Result.FAILURE, {"row": 3}, error)})
    info = known(queue, task)
    assert info.error is not None
    assert "IndexError: list index out of range" in info.error
    assert "test_an_exception_is_kept_as_its_trace" in info.error
    assert info.output == {"row": 3}


@pytest.mark.parametrize(
    "error",
    [f"{'x' * 5_000_000} the cause", ValueError("é" * 5_000_000), ValueError("a\x00b\ud800"), "a\x00b\ud800"],
    ids=["long text", "long exception", "odd exception", "odd text"],
)
@pytest.mark.parametrize("attempts", [1, 2], ids=["ended", "retried"])
def test_a_trace_is_bounded_and_always_storable(
    queue: TaskQueue, owner: Owner, error: BaseException | str, attempts: int
) -> None:
    queue.alter_topic("work", TopicPolicy(RetryPolicy(max_attempts=attempts)))
    task = task_in(queue, owner, State.ACTIVE)
    queue.complete(owner, {task: Decision(Result.FAILURE, error=error)})
    kept = known(queue, task).error
    assert kept
    assert len(kept) <= 20_000
    assert "the cause" not in str(error) or kept.endswith("the cause"), "the end of a long trace is kept"


def test_a_snooze_puts_the_task_back_for_later_with_no_attempt_counted(queue: TaskQueue, owner: Owner) -> None:
    task = task_in(queue, owner, State.ACTIVE)
    queue.complete(owner, {task: Decision(Result.SUSPENSION, delay=HOUR)})
    info = known(queue, task)
    row = queue.conn.execute("SELECT clock_timestamp()").fetchone()
    assert row is not None
    assert (info.state, info.status, info.attempt, info.owner) == (State.READY, "scheduled", 0, None)
    assert timedelta(0) < row[0] + HOUR - info.available_at < timedelta(minutes=1)
    assert queue.poll("work", owner) == []
    pass_time(queue, HOUR)
    [again] = queue.poll("work", owner)
    assert again.attempt == 1


def test_snoozes_and_ends_mix_in_one_call(queue: TaskQueue, owner: Owner) -> None:
    queue.push("work", ["a", "b", "c", "d"])
    a, b, c, d = queue.poll("work", owner, 4)
    queue.complete(
        owner,
        {
            a: Decision(Result.SUSPENSION, delay=HOUR),
            b: Result.SUSPENSION,
            c: Result.FAILURE,
            d: Decision(Result.SUSPENSION, delay=2 * HOUR),
        },
    )
    assert states(queue) == [
        ("a", State.READY),
        ("b", State.SUSPENDED),
        ("c", State.FAILED),
        ("d", State.READY),
    ]
    assert known(queue, d).available_at - known(queue, a).available_at == HOUR


def test_a_completion_is_undone_with_its_transaction(queue: TaskQueue, owner: Owner, session: TaskQueue) -> None:
    queue.push("work", ["a", "b"])
    first, second = queue.poll("work", owner, 2)
    before = image(queue)
    session.complete(owner, {first: Result.SUCCESS, second: Decision(Result.SUSPENSION, delay=HOUR)})
    session.conn.rollback()
    assert image(queue) == before
    queue.complete(owner, {first: Result.FAILURE})


@pytest.mark.promise("Nothing is decided twice")
def test_of_two_concurrent_completions_the_first_to_commit_decides(
    queue: TaskQueue,
    owner: Owner,
    session: TaskQueue,
    open_queue: Callable[[], TaskQueue],
    background: InBackground[None],
) -> None:
    task = task_in(queue, owner, State.ACTIVE)
    second = open_queue()
    session.complete(owner, {task: Result.SUCCESS})
    late = background(lambda: second.complete(owner, {task: Result.FAILURE}))
    await_lock_wait(queue.conn, second)
    session.conn.commit()
    with pytest.raises(NotHeld):
        late.result()
    assert known(queue, task).state is State.SUCCEEDED


def test_a_completion_waits_for_a_takeover_and_is_then_refused(
    queue: TaskQueue,
    owner: Owner,
    session: TaskQueue,
    open_queue: Callable[[], TaskQueue],
    background: InBackground[None],
) -> None:
    task = task_in(queue, owner, State.ACTIVE)
    old = open_queue()
    successor = session.register(owner.name)
    late = background(lambda: old.complete(owner, {task: Result.FAILURE}))
    await_lock_wait(queue.conn, old)
    session.conn.commit()
    with pytest.raises(LeaseLost):
        late.result()
    assert queue.held(successor) == [task]


@pytest.mark.parametrize(
    ("sequences", "results", "words"),
    [("{%s}", "{4}", "an invalid result"), ("{%s}", "{}", "an invalid result"), ("{%s,%s}", "{3,3}", "decided twice")],
)
def test_a_decision_made_in_sql_keeps_the_same_rules(
    queue: TaskQueue, owner: Owner, sequences: str, results: str, words: str
) -> None:
    queue.push("work", ["a"])
    [task] = queue.poll("work", owner)
    named = sequences.replace("%s", str(task.sequence))
    with pytest.raises(psycopg.Error, match=words) as refusal:
        queue.conn.execute("SELECT taskq.complete(%s, %s, %s, %s)", (owner.name, owner.fence, named, results))
    assert refusal.value.sqlstate == "TQ002"
    assert queue.held(owner) == [task]
