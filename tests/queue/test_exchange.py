"""Exchange: completes tasks and polls the next ones, both or neither."""

from collections.abc import Callable
from datetime import timedelta

import psycopg
import pytest

from airflow_provider_taskq.queue import Condition, Decision, LeaseLost, NotHeld, Owner, Result, State, Task, TaskQueue
from tests.queue.conftest import identifiers, known, lapse, states

pytestmark = pytest.mark.promise("A completion works until the lease is gone, also after it has lapsed")

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
        Decision(Result.SUSPENSION, delay=timedelta(hours=1)),
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
