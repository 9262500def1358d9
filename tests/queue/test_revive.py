"""Revive and reassign: ended tasks are reset, copied, or given another result. Steps of two are in revive.spec."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from airflow_provider_taskq.queue import (
    Decision,
    Insertion,
    InvalidState,
    NewTask,
    Owner,
    Result,
    RetryPolicy,
    Revival,
    State,
    Task,
    TaskInfo,
    TaskQueue,
    TaskQueueError,
    TopicPolicy,
    UnknownTopic,
)
from tests.internals import damage_task, set_ended_state
from tests.queue.conftest import everything, image, known, lapse, numbered, task_in

pytestmark = pytest.mark.promise("A revived task starts again as it was pushed")

ENDED = [State.EXPIRED, State.FAILED, State.SUSPENDED, State.FILTERED, State.SUCCEEDED]
NOT_ENDED = [state for state in State if state not in ENDED]
RECREATING = [Revival.APPEND, Revival.SUPERSEDE, Revival.REPLACE]


def failed(queue: TaskQueue, owner: Owner, *new: str | NewTask) -> list[Task]:
    """FAILED tasks in order. The topic must have no READY task."""
    tasks = queue.push("work", new)
    assert len(queue.poll("work", owner, len(new))) == len(new)
    queue.complete(owner, dict.fromkeys(tasks, Decision(Result.FAILURE, "message", "error")))
    return tasks


@pytest.mark.parametrize("state", ENDED)
def test_a_reset_starts_a_task_again(queue: TaskQueue, owner: Owner, state: State) -> None:
    new = NewTask("a", {"b": 1}, "r", priority=7)
    queue.alter_topic("work", TopicPolicy(RetryPolicy(max_attempts=2)))
    [task] = queue.push("work", [new])
    before = known(queue, task)
    queue.poll("work", owner)
    lapse(queue, owner)
    queue.expire()  # a crash, and marked redelivered
    if state is State.EXPIRED:
        queue.alter_topic("work", TopicPolicy(on_expiry="expire"))
    last = queue.register("last")
    queue.poll("work", last)
    if state is State.EXPIRED:
        lapse(queue, last)
        queue.expire()
    else:
        queue.alter_topic("work", TopicPolicy())
        queue.complete(last, {task: Decision(Result(state - 3), "m", "e")})
    assert (known(queue, task).state, known(queue, task).crashes > 0) == (state, True)
    assert queue.revive("work", state) == {task.sequence: task.sequence}
    assert repr(known(queue, task)) == repr(before)
    [polled] = queue.poll("work", queue.register("next"))
    assert (polled.attempt, polled.redelivered, polled.payload, polled.reference) == (1, False, {"b": 1}, "r")


@pytest.mark.parametrize("revival", RECREATING)
def test_a_copy_has_payload_reference_priority_ttl_and_dependencies_of_the_old_and_nothing_else(
    queue: TaskQueue, owner: Owner, revival: Revival
) -> None:
    [first] = queue.push("work", ["first"])
    new = NewTask("a", {"b": 1}, "r", priority=7, ttl=timedelta(hours=1), delay=timedelta(days=1), suspended=True)
    queue.push("work", [replace(new, depends_on=[("work", "first")])])
    [(old, sequence)] = queue.revive("work", State.SUSPENDED, revival).items()
    copy = known(queue, sequence)
    assert (copy.identifier, copy.payload, copy.reference, copy.priority) == ("a", {"b": 1}, "r", 7)
    assert copy.available_at == copy.created > known(queue, old).created
    assert (copy.attempt, copy.crashes, copy.redelivered, copy.descent) == (0, 0, False, None)
    assert (copy.owner, copy.completed, copy.output, copy.error) == (None, None, None, None)
    assert queue.poll("work", owner, 5) == [first]
    queue.complete(owner, {first: Result.SUCCESS})
    [task] = queue.poll("work", owner)
    queue.complete(owner, {task: Result.FAILURE})
    assert known(queue, task).state is State.READY  # as it is younger than its ttl


@pytest.mark.parametrize("revival", RECREATING)
def test_recreating_many_tasks_at_once_equals_one_push_for_each(
    queue: TaskQueue, owner: Owner, session: TaskQueue, revival: Revival
) -> None:
    for number in range(36):
        task_in(queue, owner, ENDED[number % 5], "abcd"[number % 4])
    queue.push("work", [*"abcd", NewTask("a", suspended=True)])
    queue.push("work", ["a", "b"])
    queue.poll("work", owner, 2)
    chosen = [info for info in everything(queue) if info.state in ENDED][3:27:2]
    named = [info.sequence for info in chosen]
    for info in everything(queue):
        damage_task(queue.conn, info.sequence, payload=str(info.sequence))
    session.revive("work", revival=revival, sequences=named)
    at_once = [look(info) for info in everything(session)]
    session.conn.rollback()
    set_ended_state(session.conn, State.RECREATED, *named)
    for info in chosen:
        session.push("work", [NewTask(info.identifier, info.sequence)], Insertion[revival.name])
    assert [look(info) for info in everything(session)] == at_once
    assert len(at_once) == len(everything(queue)) + len(named)


def look(info: TaskInfo) -> tuple[object, ...]:
    """The fields of a task that do not depend on the time of its push."""
    return info.identifier, info.state, info.descent, info.payload, info.attempt, info.owner, info.output


def test_recreating_ignores_limits_that_the_topic_got_later(queue: TaskQueue, owner: Owner) -> None:
    failed(queue, owner, NewTask("a", "x" * 1000))
    queue.alter_topic("work", TopicPolicy(max_payload_bytes=10))
    [new] = queue.revive("work", State.FAILED, Revival.APPEND).values()
    assert known(queue, new).payload == "x" * 1000


def test_reviving_by_state_takes_the_lowest_sequences_first(queue: TaskQueue, owner: Owner) -> None:
    at = [task.sequence for task in failed(queue, owner, *"abcde")]
    assert queue.revive("work", State.FAILED, size=0) == {}
    assert list(queue.revive("work", State.FAILED, size=2)) == at[:2]
    assert list(queue.revive("work", State.FAILED, from_=at[3], to=at[3])) == [at[3]]
    assert queue.revive("work", State.FAILED, from_=at[4], to=at[3]) == {}
    assert queue.revive("work", sequences=[]) == {}
    assert list(queue.revive("work", sequences=[at[4], at[4]])) == at[4:]
    assert list(queue.revive("work", State.FAILED)) == [at[2]]
    assert queue.revive("work", State.FAILED) == {}


@pytest.mark.parametrize("state", NOT_ENDED)
def test_a_named_task_that_has_not_ended_is_refused_and_nothing_changed(
    queue: TaskQueue, owner: Owner, state: State
) -> None:
    ended = task_in(queue, owner, State.FAILED)
    task = task_in(queue, owner, state, "b")
    before = image(queue)
    named = [ended.sequence, task.sequence]
    calls: list[Callable[..., object]] = [partial(queue.revive, "work", revival=revival) for revival in Revival]
    calls.append(partial(queue.reassign, "work", Result.SUCCESS))
    for call in calls:
        with pytest.raises(InvalidState, match=rf"'work': 1 of 2 tasks.* {task.sequence} \({state.name}\)"):
            call(sequences=named)
    with pytest.raises(InvalidState, match=f"state {state.name} have not ended"):
        queue.reassign("work", Result.SUCCESS, state=state)
    assert image(queue) == before


IMPOSSIBLE: dict[str, tuple[dict[str, Any], type[TaskQueueError], str]] = {
    **{f"{each.name}": ({"state": each}, InvalidState, f"state {each.name} have not ended") for each in NOT_ENDED},
    "neither": ({}, InvalidState, "either by their state or by their sequences"),
    "both": ({"state": State.FAILED, "sequences": [1]}, InvalidState, "either by their state or by their sequences"),
    **{
        f"sequences with {bound}": ({"sequences": [1], bound: 1}, InvalidState, "a range and a size go with a state")
        for bound in ("from_", "to", "size")
    },
    "unknown tasks": ({"sequences": [7654321, 123]}, InvalidState, r"sequence 123 \(unknown\), 7654321 \(unknown\)"),
    "many": ({"sequences": range(1000, 1300)}, InvalidState, r"300 of 300 .* 1009 \(unknown\), \.\.\.$"),
    "unknown revival": ({"state": State.FAILED, "revival": "SIDEWAYS"}, TaskQueueError, "unknown revival 'SIDEWAYS'"),
    "unknown topic": ({"topic": "nowhere", "state": State.FAILED}, UnknownTopic, "'nowhere'"),
}


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_an_impossible_revival_is_refused(queue: TaskQueue, name: str) -> None:
    arguments, error, message = IMPOSSIBLE[name]
    with pytest.raises(error, match=message):
        queue.revive(**{"topic": "work", **arguments})


@pytest.mark.slow
@pytest.mark.parametrize("revival", list(Revival))
@pytest.mark.parametrize("hot", [True, False], ids=["of one identifier", "each of its own"])
def test_one_call_revives_ten_thousand_tasks(own_queue: TaskQueue, revival: Revival, hot: bool) -> None:
    queue, count = own_queue, 10_000
    owner = queue.register("owner")
    queue.push_stream("work", (NewTask("hot") for _ in range(count)) if hot else numbered(count))
    while tasks := queue.poll("work", owner, 20_000):
        queue.complete(owner, dict.fromkeys(tasks, Result.SUSPENSION))
    queue.conn.execute("SET statement_timeout = '60s'")
    assert len(queue.revive("work", State.SUSPENDED, revival)) == count
    kept = 1 if hot and revival in (Revival.SUPERSEDE, Revival.REPLACE) else count
    assert queue.ready("work", count) == kept


# Reassign


@pytest.mark.promise("A reassignment changes the result of an ended task, and nothing else")
def test_a_reassignment_keeps_output_error_owner_attempt_and_completion(queue: TaskQueue, owner: Owner) -> None:
    [task] = queue.push("work", [NewTask("a", {"b": 1}, "r", priority=3)])
    queue.poll("work", owner)
    queue.complete(owner, {task: Decision(Result.FAILURE, {"m": 1}, "error")})
    [before] = image(queue)
    queue.reassign("work", Result.SUCCESS, sequences=[task.sequence])
    assert image(queue) == [
        before.replace("<State.FAILED: 3>", "<State.SUCCEEDED: 6>").replace("'exhausted'", "'succeeded'")
    ]
    assert (known(queue, task).output, known(queue, task).error) == ({"m": 1}, "error")


@pytest.mark.promise("A reassignment changes the result of an ended task, and nothing else")
def test_an_impossible_reassignment_is_refused(queue: TaskQueue) -> None:
    with pytest.raises(InvalidState, match=r"7654321 \(unknown\)"):
        queue.reassign("work", Result.SUCCESS, sequences=[7654321])
    with pytest.raises(InvalidState, match="either by their state or by their sequences"):
        queue.reassign("work", Result.SUCCESS)
    with pytest.raises(UnknownTopic, match="'nowhere'"):
        queue.reassign("nowhere", Result.SUCCESS, state=State.FAILED)
    with pytest.raises(TaskQueueError, match="unknown result 9"):
        queue.reassign("work", 9, state=State.FAILED)  # type: ignore[arg-type]
