"""The history of a task, the explanation why it is not running, and the audit of actions."""

import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from airflow_provider_taskq.queue import (
    Condition,
    Decision,
    NewTask,
    Order,
    Owner,
    Result,
    RetryPolicy,
    Revival,
    State,
    Task,
    TaskQueue,
    TaskQueueError,
    TopicPolicy,
    connect,
)
from tests.internals import private_rights
from tests.queue.conftest import complete_staged, known, lapse, pass_time, task_in
from tests.roles import logged_in

pytestmark = pytest.mark.promise("The history of a task has each recorded failure with time, holder and reason")

HOUR = timedelta(hours=1)
SINGULAR = Condition.SINGULAR_BY_IDENTIFIER


def whats(queue: TaskQueue, task: Task) -> list[str]:
    """The kinds of a task's events."""
    return [happening.what for happening in queue.timeline("work", task.sequence)]


def test_each_recorded_failure_has_its_time_holder_and_reason(queue: TaskQueue, owner: Owner) -> None:
    """The last one and a success are the end of the task."""
    queue.alter_topic("work", TopicPolicy(retry=RetryPolicy(max_attempts=3, base=timedelta(0))))
    [task] = queue.push("work", ["a"])
    for reason in ("first", "second", "third"):
        queue.complete(owner, dict.fromkeys(queue.poll("work", owner), Decision(Result.FAILURE, error=reason)))
    pushed, *failures = queue.timeline("work", task.sequence)
    assert (pushed.what, pushed.state, pushed.holder) == ("pushed", None, None)
    assert [(one.what, one.state, one.attempt, one.error, one.holder) for one in failures] == [
        ("failed", State.ACTIVE, 1, "first", owner.name),
        ("failed", State.ACTIVE, 2, "second", owner.name),
        ("ended", State.FAILED, 3, "third", owner.name),
    ]
    done = task_in(queue, owner, State.SUCCEEDED, "b")
    _, ended = queue.timeline("work", done.sequence)
    assert (ended.what, ended.state, ended.holder, ended.attempt) == ("ended", State.SUCCEEDED, owner.name, 1)


def test_a_snooze_and_a_failure_within_the_time_to_live_are_not_recorded_as_failures(
    queue: TaskQueue, owner: Owner
) -> None:
    [task] = queue.push("work", [NewTask("a", ttl=HOUR)])
    for decision in (Decision(Result.FAILURE), Decision(Result.SUSPENSION, delay=timedelta(0))):
        queue.complete(owner, dict.fromkeys(queue.poll("work", owner), decision))
    assert whats(queue, task) == ["pushed"]


def test_a_task_that_is_retried_forever_does_not_fill_the_history(queue: TaskQueue, owner: Owner) -> None:
    queue.alter_topic("work", TopicPolicy(retry=RetryPolicy(max_attempts=1000, base=timedelta(0))))
    [task] = queue.push("work", ["a"])
    for _ in range(220):
        queue.complete(owner, dict.fromkeys(queue.poll("work", owner), Result.FAILURE))
    assert [one.attempt for one in queue.timeline("work", task.sequence)] == [0, *range(1, 101), 200]


def test_the_history_has_an_event_for_a_lapsed_lease(queue: TaskQueue, owner: Owner) -> None:
    [task] = queue.push("work", ["a"])
    queue.poll("work", owner)
    assert whats(queue, task) == ["pushed", "held"]
    lapse(queue, owner)
    queue.expire()
    _, lapsed = queue.timeline("work", task.sequence)
    assert (lapsed.what, lapsed.holder) == ("lapsed", owner.name)


def test_a_purged_task_has_no_history_and_no_explanation(queue: TaskQueue, owner: Owner) -> None:
    task = task_in(queue, owner, State.FAILED)
    queue.reassign("work", Result.SUCCESS, sequences=[task.sequence])
    queue.purge("work")
    assert (queue.timeline("work", task.sequence), queue.explain("work", task.sequence)) == ([], None)


Scene = Callable[[TaskQueue, Owner], Task]


def retried(queue: TaskQueue, owner: Owner) -> Task:
    task = task_in(queue, owner, State.ACTIVE)
    retry(queue, owner)
    return task


def paused(queue: TaskQueue, _owner: Owner) -> Task:
    queue.pause_topic("work")
    return queue.push("work", ["a"])[0]


def blocked(queue: TaskQueue, owner: Owner) -> Task:
    _, task = queue.push("work", ["a", "a"])
    queue.poll("work", owner, condition=SINGULAR)
    return task


def dependent(queue: TaskQueue, owner: Owner) -> Task:
    task_in(queue, owner, State.FAILED, "b")
    return queue.push("work", [NewTask("a", depends_on=[("work", "b")])])[0]


def abandoned(queue: TaskQueue, owner: Owner) -> Task:
    task = task_in(queue, owner, State.ACTIVE)
    lapse(queue, owner, HOUR)
    return task


def in_line(queue: TaskQueue, owner: Owner, before: int) -> Task:
    task_in(queue, owner, State.SUCCEEDED, "done")
    return queue.push("work", [str(number) for number in range(before + 1)])[-1]


SCENES: dict[str, tuple[Scene, str]] = {
    "scheduled": (
        lambda queue, _: queue.push("work", [NewTask("a", delay=timedelta(minutes=4, seconds=30))])[0],
        r"it is due in 4 min",
    ),
    "retried": (retried, r"it is to be tried again in 59 min"),
    "paused": (paused, r"its topic is paused"),
    "blocked": (blocked, r"one at a time per identifier, it comes after sequence \d+, held by '.*'"),
    "dependent": (dependent, r"it waits for b of topic work \(sequence \d+, FAILED\)"),
    "running": (
        lambda queue, owner: task_in(queue, owner, State.ACTIVE),
        r"it is running: held by owner, whose lease goes on for another \d+ (s|min)",
    ),
    "abandoned": (
        abandoned,
        r"it was claimed by owner, whose lease lapsed 60 min ago: the next upkeep gives it back",
    ),
    "unserved": (
        lambda queue, _: queue.push("work", ["a"])[0],
        r"no worker seems to poll its topic: none of its tasks has ended yet; it is ready, and the next in line",
    ),
    "next in line": (partial(in_line, before=0), r"it is ready, and the next in line"),
    "third in line": (partial(in_line, before=2), r"it is ready, with 2 before it"),
    "failed": (
        lambda queue, owner: task_in(queue, owner, State.FAILED),
        r"it is FAILED since \d+ s: given up after 1 of 1 attempts",
    ),
}


@pytest.mark.promise("One sentence says why a task is not running")
@pytest.mark.parametrize(("scene", "sentence"), SCENES.values(), ids=SCENES)
def test_one_sentence_says_why_a_task_is_not_running(
    queue: TaskQueue, owner: Owner, scene: Scene, sentence: str
) -> None:
    task = scene(queue, owner)
    explained = queue.explain("work", task.sequence)
    assert explained is not None
    assert re.fullmatch(sentence, explained.reason), explained
    waits = re.match(r"it is (ready|due in)", explained.reason) is not None
    assert bool(explained.waits_normally) is waits, explained
    [shown] = queue.conn.execute("SELECT why FROM taskq.tasks WHERE sequence = %s", (task.sequence,)).fetchone() or [""]
    assert re.fullmatch("it is ready" if "it is ready" in sentence else sentence, shown), shown


def test_throughput_counts_ended_tasks_by_span_and_state(queue: TaskQueue, owner: Owner) -> None:
    task_in(queue, owner, State.SUCCEEDED)
    task_in(queue, owner, State.FAILED, "b")
    pass_time(queue, HOUR)
    task_in(queue, owner, State.SUCCEEDED, "c")
    counted = {(one.span, one.state): one.count for one in queue.throughput(HOUR, 3)}
    assert counted == {(0, State.SUCCEEDED): 1, (1, State.SUCCEEDED): 1, (1, State.FAILED): 1}
    assert queue.throughput(HOUR, 1, "work")[0].sampled == 1
    assert queue.throughput(HOUR, 1, "other") == []


def test_throughput_of_much_history_is_estimated_from_a_share_of_it(queue: TaskQueue, owner: Owner) -> None:
    queue.push_stream("work", (NewTask(f"task {number}") for number in range(20_000)))
    while polled := queue.poll("work", owner, 5000):
        queue.complete(owner, dict.fromkeys(polled, Result.SUCCESS))
    rows = queue.conn.execute("SELECT * FROM taskq.throughput('1 hour', 1, NULL, 30)").fetchall()
    [(_, _, _, count, sampled)] = rows
    assert 0 < sampled < 0.5
    assert 4_000 < count < 80_000


# Queue time and run time of an attempt: each way to claim records the poll, each way to complete keeps it

Step = Callable[[TaskQueue, Owner], object]


CLAIMS: dict[str, Step] = {
    "poll": lambda queue, owner: queue.poll("work", owner),
    "poll last in first out": lambda queue, owner: queue.poll("work", owner, order=Order.LAST_IN_FIRST_OUT),
    "poll one by identifier": lambda queue, owner: queue.poll("work", owner, condition=SINGULAR),
    "poll_batch": lambda queue, owner: queue.poll_batch("work", owner),
    "exchange": lambda queue, owner: queue.exchange(owner, {}, "work"),
    "claim": lambda queue, owner: queue.claim("work", owner, 10),
    "claim one by identifier": lambda queue, owner: queue.claim("work", owner, 10, condition=SINGULAR),
    "claim_batch": lambda queue, owner: queue.conn.execute(
        "SELECT taskq.claim_batch('work', %s, %s, 10, 'SINGULAR_BY_IDENTIFIER')", (owner.name, owner.fence)
    ),
}


def complete(result: Result) -> Step:
    """Completes the tasks of the owner."""
    return lambda queue, owner: queue.complete(owner, dict.fromkeys(queue.held(owner), result))


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
    "complete_staged": lambda queue, owner: complete_staged(queue, owner, queue.held(owner)[0], Result.SUCCESS),
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
    assert held.ran >= timedelta(0)


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


# The audit: the client names the actor, the database knows the role, and no access changes a row


@pytest.fixture
def other(queue: TaskQueue, dsn: str) -> Iterator[str]:
    """The name of another operator."""
    with logged_in(queue.conn, dsn, "operator") as other:
        yield str(conninfo_to_dict(other)["user"])


@pytest.fixture
def operator(queue: TaskQueue, dsn: str) -> Iterator[TaskQueue]:
    """The queue on a connection that logged in as an operator."""
    with logged_in(queue.conn, dsn, "operator") as own, connect(own, autocommit=True) as conn:
        yield TaskQueue(conn)


@pytest.mark.promise("The audit names the actor and the database role of each action")
@pytest.mark.parametrize("pretense", ["SET ROLE {}", "SET taskq.role = {}", "SET application_name = {}"])
def test_an_action_has_the_role_that_logged_in_and_no_client_can_choose_it(
    queue: TaskQueue, operator: TaskQueue, other: str, pretense: str
) -> None:
    queue.conn.execute(sql.SQL("GRANT {} TO {}").format(sql.Identifier(other), sql.Identifier(operator.conn.info.user)))
    operator.conn.execute(sql.SQL(pretense).format(sql.Identifier(other)))
    with operator.conn.transaction():
        operator.set_actor("ann")
        operator.record_action("purge", "work", "everything", 7)
    (line,) = queue.audit_trail()
    assert (line.actor, line.role, line.action, line.count) == ("ann", operator.conn.info.user, "purge", 7)
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        operator.conn.execute(sql.SQL("SET SESSION AUTHORIZATION {}").format(sql.Identifier(other)))


@pytest.mark.promise("The audit names the actor and the database role of each action")
def test_an_action_needs_an_actor(queue: TaskQueue, operator: TaskQueue) -> None:
    with pytest.raises(TaskQueueError, match="set_actor"):
        operator.record_action("purge", "work", "everything", 7)
    assert queue.audit_trail() == []


@pytest.mark.promise("The audit names the actor and the database role of each action")
def test_the_history_names_the_actor_and_the_role_of_each_action(
    queue: TaskQueue, operator: TaskQueue, owner: Owner
) -> None:
    task = task_in(queue, owner, State.FAILED)
    with operator.conn.transaction():
        operator.set_actor("ann")
        operator.reassign("work", Result.SUSPENSION, sequences=[task.sequence])
        operator.revive("work", sequences=[task.sequence])
        operator.change_waiting("work", [task.sequence], paused=True)
    operator.change_waiting("work", [task.sequence], paused=False)  # an operator that names no actor
    queue.complete(owner, dict.fromkeys(queue.poll("work", owner), Result.FAILURE))
    [(_, copy)] = queue.revive("work", revival=Revival.APPEND, sequences=[task.sequence]).items()
    happened, role = queue.timeline("work", task.sequence), operator.conn.info.user
    assert [(one.what, one.state, one.actor, one.role) for one in happened if one.what != "ended"] == [
        ("pushed", None, None, None),
        ("reassigned", State.FAILED, "ann", role),
        ("reset", State.SUSPENDED, "ann", role),
        ("paused", State.READY, "ann", role),
        ("resumed", State.READY, None, role),
        ("recreated", State.FAILED, None, queue.conn.info.user),
    ]
    assert happened[-2].other == copy


@pytest.mark.promise("The audit names the actor and the database role of each action")
def test_no_verb_of_an_operator_removes_or_changes_the_audit(operator: TaskQueue, queue: TaskQueue) -> None:
    with operator.conn.transaction():
        operator.set_actor("ann")
        operator.record_action("pause", "work", "", 1)
    before = queue.audit_trail()
    (task,) = operator.push("work", [NewTask("a", suspended=True)])
    operator.purge("work", state=State.SUSPENDED)
    operator.purge("work", sequences=[task.sequence])
    operator.purge_all("work")
    operator.drop_topic("work")
    assert queue.audit_trail() == before
    assert private_rights(queue.conn, operator.conn.info.user) == []
