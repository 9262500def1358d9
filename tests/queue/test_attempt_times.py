"""Queue time and run time of an attempt: each way to claim records the poll, each way to complete keeps it."""

from collections.abc import Callable
from datetime import timedelta

import pytest
from psycopg.rows import scalar_row

from airflow_provider_taskq.queue import (
    Condition,
    Decision,
    NewTask,
    Order,
    Owner,
    Result,
    RetryPolicy,
    State,
    TaskQueue,
    TopicPolicy,
)
from tests.queue.conftest import known, lapse, pass_time, task_in

pytestmark = pytest.mark.promise("The history of a task has each recorded failure with time, holder and reason")

Step = Callable[[TaskQueue, Owner], object]

HOUR = timedelta(hours=1)
ZERO = timedelta(0)
SINGULAR = Condition.SINGULAR_BY_IDENTIFIER


def call(query: str) -> Step:
    """Calls a function that only Spark's drain uses, for the owner of the test."""
    return lambda queue, owner: queue.conn.execute(query.encode(), (owner.name, owner.fence)).fetchall()


CLAIMS: dict[str, Step] = {
    "poll": lambda queue, owner: queue.poll("work", owner),
    "poll last in first out": lambda queue, owner: queue.poll("work", owner, order=Order.LAST_IN_FIRST_OUT),
    "poll one by identifier": lambda queue, owner: queue.poll("work", owner, condition=SINGULAR),
    "poll_batch": lambda queue, owner: queue.poll_batch("work", owner),
    "exchange": lambda queue, owner: queue.exchange(owner, {}, "work"),
    "claim": lambda queue, owner: queue.claim("work", owner, 10),
    "claim one by identifier": lambda queue, owner: queue.claim("work", owner, 10, condition=SINGULAR),
    "claim_batch": call("SELECT taskq.claim_batch('work', %s, %s, 10, 'SINGULAR_BY_IDENTIFIER')"),
}


def complete(result: Result) -> Step:
    """Completes the tasks of the owner."""
    return lambda queue, owner: queue.complete(owner, dict.fromkeys(queue.held(owner), result))


def stage(queue: TaskQueue, owner: Owner) -> str:
    """A stage with a decision on each held task."""
    with queue.conn.cursor(row_factory=scalar_row) as cursor:
        number = cursor.execute("SELECT taskq.open_stage(%s, %s)::text", (owner.name, owner.fence)).fetchone()
    queue.conn.execute(
        "INSERT INTO taskq.staged (stage, part, attempt, sequence, result)"
        " SELECT %s, 0, 0, sequence, 3 FROM taskq.tasks WHERE state = 'ACTIVE'",
        (number,),
    )
    return str(number)


def complete_staged(queue: TaskQueue, owner: Owner) -> None:
    """Commits a stage, as Spark's driver does."""
    query = "SELECT taskq.complete_staged(%s, %s, %s, '{0}', '{0}', '{1}')"
    queue.conn.execute(query, (owner.name, owner.fence, stage(queue, owner)))


def expire(queue: TaskQueue, owner: Owner) -> None:
    """Expires the owner's lapsed lease."""
    lapse(queue, owner)
    assert queue.expire() == 1


def expire_for_good(queue: TaskQueue, owner: Owner) -> None:
    """Expires the owner's lease at the last permitted crash."""
    queue.alter_topic("work", max_crashes=1)
    expire(queue, owner)


COMPLETIONS: dict[str, Step] = {
    **{f"complete as {result.name}": complete(result) for result in Result},
    "exchange": lambda queue, owner: queue.exchange(owner, dict.fromkeys(queue.held(owner), Result.SUCCESS), "work"),
    "complete_staged": complete_staged,
    "expire for good": expire_for_good,
}


def retry(queue: TaskQueue, owner: Owner) -> None:
    """Fails a task that has attempts left."""
    queue.alter_topic("work", TopicPolicy(RetryPolicy(max_attempts=2, base=HOUR)))
    complete(Result.FAILURE)(queue, owner)


def snooze(queue: TaskQueue, owner: Owner) -> None:
    """Suspends a task for an hour."""
    queue.complete(owner, dict.fromkeys(queue.held(owner), Decision(Result.SUSPENSION, delay=HOUR)))


def fail_young(queue: TaskQueue, owner: Owner) -> None:
    """Fails a task within its time to live."""
    queue.alter_topic("work", ttl=HOUR)
    complete(Result.FAILURE)(queue, owner)


RETURNS: dict[str, Step] = {
    "a failure that is tried again": retry,
    "a failure within the time to live": fail_young,
    "a snooze": snooze,
    "release": lambda queue, owner: queue.release(owner),
    "release_tasks": lambda queue, owner: queue.release_tasks(owner, queue.held(owner)),
    "redelivery": expire,
}
"""Ways in which a held task becomes READY again."""


@pytest.mark.parametrize("claim", CLAIMS.values(), ids=CLAIMS)
def test_each_way_to_claim_records_when_it_polled(queue: TaskQueue, owner: Owner, claim: Step) -> None:
    """The queue time begins when the task was due, and not before its push."""
    [task] = queue.push("work", [NewTask("a", available_at=queue.now() - HOUR)])
    assert known(queue, task).polled is None
    before = queue.now()
    claim(queue, owner)
    polled = known(queue, task).polled
    assert known(queue, task).state is State.ACTIVE
    assert polled is not None
    assert before <= polled <= queue.now()
    _, held = queue.timeline("work", task.sequence)
    assert (held.what, held.happened, held.waited) == ("held", polled, polled - known(queue, task).created)
    assert held.ran is not None
    assert held.ran >= ZERO


@pytest.mark.parametrize("finish", COMPLETIONS.values(), ids=COMPLETIONS)
def test_each_way_to_complete_keeps_when_the_task_was_polled(queue: TaskQueue, owner: Owner, finish: Step) -> None:
    task = task_in(queue, owner, State.ACTIVE)
    polled = known(queue, task).polled
    assert polled is not None
    finish(queue, owner)
    info = known(queue, task)
    assert info.state not in (State.ACTIVE, State.READY)
    assert info.polled == polled
    assert info.completed is not None
    *_, ended = queue.timeline("work", task.sequence)
    [line] = queue.browse_tasks("work", [task.sequence])
    assert queue.conn.execute("SELECT polled FROM taskq.tasks").fetchone() == (polled,)
    assert (ended.waited, ended.ran) == (polled - info.available_at, info.completed - polled)
    assert (line.waited, line.ran) == (ended.waited, ended.ran)


@pytest.mark.parametrize("give_back", RETURNS.values(), ids=RETURNS)
def test_a_task_that_is_ready_again_was_not_polled(queue: TaskQueue, owner: Owner, give_back: Step) -> None:
    task = task_in(queue, owner, State.ACTIVE)
    give_back(queue, owner)
    assert (known(queue, task).state, known(queue, task).polled) == (State.READY, None)
    [line] = queue.browse_tasks("work", [task.sequence])
    assert (line.waited, line.ran) == (None, None)
    queue.cancel("work", [task.sequence])
    *_, ended = queue.timeline("work", task.sequence)
    assert (ended.what, ended.waited, ended.ran) == ("ended", None, None)


def test_the_queue_time_of_a_retry_begins_when_it_is_due_again(queue: TaskQueue, owner: Owner) -> None:
    queue.alter_topic("work", TopicPolicy(RetryPolicy(max_attempts=2, base=HOUR, jitter=0)))
    task = task_in(queue, owner, State.ACTIVE)
    queue.complete(owner, {task: Result.FAILURE})
    pass_time(queue, 3 * HOUR)
    [again] = queue.poll("work", owner)
    queue.complete(owner, {again: Result.SUCCESS})
    _, failed, ended = queue.timeline("work", task.sequence)
    assert failed.waited is not None
    assert failed.ran is not None
    assert ended.waited is not None
    assert 2 * HOUR <= ended.waited < 3 * HOUR  # pushed three hours ago, and due again an hour after the failure
