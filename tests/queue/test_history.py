"""The history of a task, and the explanation why it is not running."""

import re
from collections.abc import Callable
from datetime import timedelta
from functools import partial

import pytest

from airflow_provider_taskq.queue import (
    Condition,
    Decision,
    NewTask,
    Owner,
    Result,
    RetryPolicy,
    Revival,
    State,
    Task,
    TaskQueue,
    TopicPolicy,
)
from tests.queue.conftest import lapse, pass_time, task_in

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


def test_the_history_names_the_actor_of_each_action(queue: TaskQueue, owner: Owner) -> None:
    task = task_in(queue, owner, State.FAILED)
    with queue.conn.transaction():
        queue.set_actor("ann")
        queue.reassign("work", Result.SUSPENSION, sequences=[task.sequence])
        queue.revive("work", sequences=[task.sequence])
    queue.complete(owner, dict.fromkeys(queue.poll("work", owner), Result.FAILURE))
    [(_, copy)] = queue.revive("work", revival=Revival.APPEND, sequences=[task.sequence]).items()
    happened = queue.timeline("work", task.sequence)
    assert [(one.what, one.state, one.actor) for one in happened] == [
        ("pushed", None, None),
        ("reassigned", State.FAILED, "ann"),
        ("reset", State.SUSPENDED, "ann"),
        ("recreated", State.FAILED, None),
        ("ended", State.RECREATED, None),
    ]
    assert happened[3].other == copy


def test_a_purge_removes_the_history_of_a_task(queue: TaskQueue, owner: Owner) -> None:
    task = task_in(queue, owner, State.FAILED)
    queue.reassign("work", Result.SUCCESS, sequences=[task.sequence])
    queue.purge("work")
    assert queue.timeline("work", task.sequence) == []


Scene = Callable[[TaskQueue, Owner], Task]


def retried(queue: TaskQueue, owner: Owner) -> Task:
    queue.alter_topic("work", TopicPolicy(retry=RetryPolicy(max_attempts=3, base=HOUR)))
    queue.push("work", ["a"])
    [task] = queue.poll("work", owner)
    queue.complete(owner, {task: Result.FAILURE})
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


# Scenes, the sentence of `explain`, and that of the view for people.
SCENES: dict[str, tuple[Scene, str, str]] = {
    "scheduled": (
        lambda queue, _: queue.push("work", [NewTask("a", delay=timedelta(minutes=4, seconds=30))])[0],
        r"it is due in 4 min",
        r"due in 4 min",
    ),
    "retried": (retried, r"it is to be tried again in 59 min", r"tried again in 59 min"),
    "paused": (paused, r"its topic is paused", r"the topic is paused"),
    "blocked": (
        blocked,
        r"one at a time per identifier, it comes after sequence \d+, held by '.*'",
        r"may be polled; one at a time per identifier, it comes after sequence \d+, held by 'owner'",
    ),
    "dependent": (
        dependent,
        r"it waits for b of topic work \(sequence \d+, FAILED\)",
        r"waits for b of topic work \(sequence \d+, FAILED\)",
    ),
    "running": (
        lambda queue, owner: task_in(queue, owner, State.ACTIVE),
        r"it is running: held by .*, whose lease goes on for another \d+ (s|min)",
        r"held by owner for another 4 min at least",
    ),
    "abandoned": (
        abandoned,
        r"it was claimed by .*, whose lease lapsed 60 min ago: the next upkeep gives it back",
        r"held by owner, whose lease lapsed 60 min ago",
    ),
    "unserved": (
        lambda queue, _: queue.push("work", ["a"])[0],
        r"no worker seems to poll its topic: none of its tasks has ended yet; it is ready, and the next in line",
        r"may be polled",
    ),
    "next in line": (partial(in_line, before=0), r"it is ready, and the next in line", r"may be polled"),
    "third in line": (partial(in_line, before=2), r"it is ready, with 2 before it", r"may be polled"),
    "failed": (
        lambda queue, owner: task_in(queue, owner, State.FAILED),
        r"it is FAILED since \d+ s: given up after 1 of 1 attempts",
        r"given up after 1 of 1 attempts",
    ),
}


@pytest.mark.promise("One sentence says why a task is not running")
@pytest.mark.parametrize(("scene", "sentence", "why"), SCENES.values(), ids=SCENES)
def test_one_sentence_says_why_a_task_is_not_running(
    queue: TaskQueue, owner: Owner, scene: Scene, sentence: str, why: str
) -> None:
    task = scene(queue, owner)
    explained = queue.explain("work", task.sequence)
    assert explained is not None
    assert re.fullmatch(sentence, explained.reason), explained
    waits = re.match(r"it is (ready|due in)", explained.reason) is not None
    assert bool(explained.waits_normally) is waits, explained
    [shown] = queue.conn.execute("SELECT why FROM taskq.tasks WHERE sequence = %s", (task.sequence,)).fetchone() or [""]
    assert re.fullmatch(why, shown), shown


def test_a_missing_task_has_no_history_and_no_explanation(queue: TaskQueue) -> None:
    assert queue.explain("work", 1) is None
    assert queue.timeline("work", 1) == []


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
