"""Complete and exchange: a call applies all decisions or none, to tasks held under its fence only."""

from collections.abc import Callable
from datetime import timedelta
from typing import cast

import psycopg
import pytest

from airflow_provider_taskq.queue import (
    Condition,
    Decision,
    LeaseLost,
    NotHeld,
    Owner,
    Result,
    RetryPolicy,
    State,
    Task,
    TaskQueue,
    TaskQueueError,
    TopicPolicy,
)
from tests.queue.conftest import (
    InBackground,
    await_lock_wait,
    identifiers,
    known,
    lapse,
    states,
    task_in,
)

pytestmark = pytest.mark.promise("A completion works until the lease is gone, also after it has lapsed")

HOUR = timedelta(hours=1)


def test_a_call_decides_tasks_and_sequences_of_several_topics(queue: TaskQueue, owner: Owner) -> None:
    queue.create_topic("other", max_attempts=5)
    queue.push("work", ["a", "b"])
    queue.push("other", ["x", "y"])
    (a, b), (x, y) = queue.poll("work", owner, 2), queue.poll("other", owner, 2)
    queue.complete(owner, {a: Result.SUCCESS, b.sequence: Result.FILTER, x: Result.FAILURE, y.sequence: Result.SUCCESS})
    assert states(queue) == [("a", State.SUCCEEDED), ("b", State.FILTERED)]
    assert states(queue, "other") == [("x", State.READY), ("y", State.SUCCEEDED)]


def test_a_failure_with_a_negative_delay_is_final_despite_attempts_and_ttl(queue: TaskQueue, owner: Owner) -> None:
    queue.alter_topic("work", TopicPolicy(retry=RetryPolicy(max_attempts=5), ttl=HOUR))
    queue.push("work", ["a"])
    final = Decision(Result.FAILURE, error="a mistake", delay=timedelta(seconds=-1))
    assert Decision(Result.FAILURE, error="first").merge(final).delay == final.delay
    queue.complete(owner, dict.fromkeys(queue.poll("work", owner), final))
    [task] = queue.page("work")
    assert (task.state, task.attempt, task.error) == (State.FAILED, 1, "a mistake")


def test_a_snooze_into_the_distant_past_gives_a_task_its_old_place_back(queue: TaskQueue, owner: Owner) -> None:
    queue.push("work", ["a", "b"])
    [task] = queue.poll("work", owner)
    queue.complete(owner, {task: Decision(Result.SUSPENSION, delay=timedelta.min)})
    assert [(each.identifier, each.attempt) for each in queue.poll("work", owner, 2)] == [("a", 1), ("b", 1)]


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


@pytest.mark.promise("Nothing is decided twice")
@pytest.mark.parametrize(
    ("first", "refusal"),
    [
        (lambda session, owner, task: session.complete(owner, {task: Result.SUCCESS}), NotHeld),
        (lambda session, owner, _task: session.register(owner.name), LeaseLost),
    ],
    ids=["a completion", "a takeover"],
)
def test_a_completion_during_a_completion_or_a_takeover_waits_and_is_refused(
    queue: TaskQueue,
    owner: Owner,
    session: TaskQueue,
    open_queue: Callable[[], TaskQueue],
    background: InBackground[None],
    first: Callable[[TaskQueue, Owner, Task], object],
    refusal: type[TaskQueueError],
) -> None:
    task = task_in(queue, owner, State.ACTIVE)
    second = open_queue()
    first(session, owner, task)
    late = background(lambda: second.complete(owner, {task: Result.FAILURE}))
    await_lock_wait(queue.conn, second)
    session.conn.commit()
    with pytest.raises(refusal):
        late.result()
    assert known(queue, task).state is (State.SUCCEEDED if refusal is NotHeld else State.ACTIVE)


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


# Exchanges: tasks are completed and the next ones polled, both or neither

SINGULAR = Condition.SINGULAR_BY_IDENTIFIER


def test_an_exchange_completes_and_polls(queue: TaskQueue, owner: Owner) -> None:
    queue.push("work", ["a", "b", "c"])
    first = queue.exchange(owner, {}, "work", 2)
    assert identifiers(first) == ["a", "b"]
    second = queue.exchange(owner, dict.fromkeys(first, Decision(Result.SUCCESS, {"n": 1})), "work", 2)
    assert identifiers(second) == ["c"]
    assert states(queue) == [("a", State.SUCCEEDED), ("b", State.SUCCEEDED), ("c", State.ACTIVE)]
    assert queue.exchange(owner, dict.fromkeys(second, Result.FAILURE), "work") == []


def test_a_completed_task_makes_way_for_the_next_of_its_identifier(queue: TaskQueue, owner: Owner) -> None:
    pushed = queue.push("work", ["a", "a", "a"])
    done: list[Task] = []
    for _ in pushed:
        done += queue.exchange(owner, dict.fromkeys(done[-1:], Result.SUCCESS), "work", 3, condition=SINGULAR)
    assert done == pushed


def test_an_exchange_that_is_refused_completes_and_polls_nothing(queue: TaskQueue, owner: Owner) -> None:
    """Of a task that is not held, and under a lapsed lease, under which completing alone works."""
    held, waiting = queue.push("work", ["a", "b"])
    queue.poll("work", owner)
    with pytest.raises(NotHeld):
        queue.exchange(owner, {held: Result.SUCCESS, waiting: Result.SUCCESS}, "work")
    lapse(queue, owner)
    with pytest.raises(LeaseLost):
        queue.exchange(owner, {held: Result.SUCCESS}, "work")
    assert states(queue) == [("a", State.ACTIVE), ("b", State.READY)]
    queue.complete(owner, {held: Result.SUCCESS})
    assert states(queue) == [("a", State.SUCCEEDED), ("b", State.READY)]


@pytest.mark.promise("Nothing is decided twice")
@pytest.mark.parametrize(
    "late",
    [
        Decision(Result.SUCCESS, {"n": 1}),
        Decision(Result.FAILURE, error="late"),
        Decision(Result.SUSPENSION, delay=HOUR),
        Decision(Result.FILTER),
    ],
    ids=lambda decision: decision.result.name,
)
@pytest.mark.parametrize("verb", ["exchange", "complete"])
def test_a_late_call_never_decides_on_a_later_attempt_under_the_same_fence(
    queue: TaskQueue, owner: Owner, open_queue: Callable[[], TaskQueue], verb: str, late: Decision
) -> None:
    queue.alter_topic("work", base=0, max_attempts=3)
    queue.push("work", ["a", "b"])
    lost, other = queue.poll("work", owner, 2)
    queue.complete(owner, {lost: Decision(Result.FAILURE, error="in time")})
    [again] = queue.poll("work", owner)
    assert (again, again.attempt) == (lost, 2)
    queue.push("work", ["c"])
    before = queue.page("work")

    session = open_queue()
    decisions: dict[Task | int, Decision | Result | str] = {lost: late, other: Result.SUCCESS}
    with pytest.raises(NotHeld, match=rf"does not hold 1 of 2 tasks: sequence {lost.sequence}$"):
        session.exchange(owner, decisions, "work") if verb == "exchange" else session.complete(owner, decisions)
    session.conn.rollback()
    assert queue.page("work") == before

    queue.complete(owner, {again: late, other: Result.SUCCESS})
    assert lost not in queue.held(owner)


def test_a_decision_on_a_sequence_or_on_a_task_just_pushed_or_read_is_for_any_attempt(
    queue: TaskQueue, owner: Owner
) -> None:
    queue.alter_topic("work", base=0, max_attempts=9)
    [pushed] = queue.push("work", ["a"])
    queue.complete(owner, {queue.poll("work", owner)[0]: Result.FAILURE})
    read = known(queue, pushed)
    for key in (pushed, read, pushed.sequence):
        [polled] = queue.poll("work", owner)
        assert polled.attempt > 1
        queue.complete(owner, {key: Result.FAILURE})
    assert known(queue, pushed).state is State.READY


@pytest.mark.parametrize("attempts", ["{1,2}", "{NULL,2}", "{1}", "{}", None])
def test_a_decision_in_sql_names_the_attempt_or_leaves_it_out(
    queue: TaskQueue, owner: Owner, attempts: str | None
) -> None:
    queue.alter_topic("work", base=0, max_attempts=3)
    queue.push("work", ["a", "b"])
    first, second = queue.poll("work", owner, 2)
    queue.complete(owner, {second: Result.FAILURE})
    queue.poll("work", owner)

    def complete(attempts: str | None) -> int:
        row = queue.conn.execute(
            "SELECT taskq.complete(%s, %s, %s::bigint[], '{3,3}', p_attempts => %s::int[])",
            (owner.name, owner.fence, [first.sequence, second.sequence], attempts),
        ).fetchone()
        assert row is not None
        return int(row[0])

    with pytest.raises(psycopg.Error) as refusal:
        complete("{1,1}")
    assert refusal.value.sqlstate == "TQ004"
    assert complete(attempts) == 2
