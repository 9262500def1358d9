"""Revive: ended tasks are reset or copied, and other tasks of their identifier change as under a push."""

from datetime import timedelta

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
from tests.internals import damage_task, make_due, set_ended_state
from tests.queue.conftest import (
    everything,
    identifiers,
    image,
    known,
    lapse,
    states,
    task_in,
)
from tests.queue.test_push import BECOMES

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


def test_a_reset_gives_the_old_place_back(queue: TaskQueue, owner: Owner) -> None:
    queue.alter_topic("work", TopicPolicy(RetryPolicy(max_attempts=2, base=timedelta(hours=1))))
    [task] = queue.push("work", [NewTask("a", priority=1)])
    queue.poll("work", owner)
    queue.complete(owner, {task: Result.FAILURE})  # due in an hour
    make_due(queue.conn)
    queue.poll("work", owner)
    queue.complete(owner, {task: Result.FAILURE})
    queue.push("work", ["b", NewTask("c", priority=1), NewTask("d", priority=2)])
    queue.revive("work", State.FAILED)
    assert identifiers(queue.poll("work", owner, 4)) == ["d", "a", "c", "b"]


def test_a_task_that_was_pushed_suspended_keeps_its_place_too(queue: TaskQueue, owner: Owner) -> None:
    queue.push("work", [NewTask("a", suspended=True), "b"])
    queue.revive("work", State.SUSPENDED)
    assert identifiers(queue.poll("work", owner, 2)) == ["a", "b"]


@pytest.mark.parametrize("revival", RECREATING)
@pytest.mark.parametrize("state", ENDED)
def test_a_recreated_task_is_marked_with_its_descent_and_a_copy_goes_to_the_end(
    queue: TaskQueue, owner: Owner, state: State, revival: Revival
) -> None:
    task = task_in(queue, owner, state)
    before = known(queue, task)
    [between] = queue.push("work", ["b"])
    [(old, new)] = queue.revive("work", state, revival).items()
    assert old == task.sequence
    assert new > between.sequence
    after = known(queue, old)
    assert (after.state, after.descent, after.status) == (State.RECREATED, state, "recreated")
    assert (after.owner, after.completed, after.output) == (before.owner, before.completed, before.output)
    assert known(queue, new).state is State.READY
    assert identifiers(queue.poll("work", owner, 2)) == ["b", "a"]


@pytest.mark.parametrize("revival", RECREATING)
def test_a_copy_has_payload_reference_priority_and_ttl_of_the_old_and_nothing_else(
    queue: TaskQueue, owner: Owner, revival: Revival
) -> None:
    new = NewTask("a", {"b": 1}, "r", priority=7, ttl=timedelta(hours=1), delay=timedelta(days=1), suspended=True)
    queue.push("work", [new])
    [(old, sequence)] = queue.revive("work", State.SUSPENDED, revival).items()
    copy = known(queue, sequence)
    assert (copy.identifier, copy.payload, copy.reference, copy.priority) == ("a", {"b": 1}, "r", 7)
    assert copy.available_at == copy.created > known(queue, old).created
    assert (copy.attempt, copy.crashes, copy.redelivered, copy.descent) == (0, 0, False, None)
    assert (copy.owner, copy.completed, copy.output, copy.error) == (None, None, None, None)
    [task] = queue.poll("work", owner)
    queue.complete(owner, {task: Result.FAILURE})
    assert known(queue, task).state is State.READY  # as it is younger than its ttl


@pytest.mark.parametrize("revival", list(Revival))
@pytest.mark.parametrize("state", list(State))
def test_a_revival_changes_other_tasks_of_the_identifier_as_a_push_does(
    queue: TaskQueue, owner: Owner, state: State, revival: Revival
) -> None:
    revived = task_in(queue, owner, State.FAILED)
    other = task_in(queue, owner, state)
    queue.revive("work", revival=revival, sequences=[revived.sequence])
    becomes = state if revival is Revival.RESET else BECOMES[state, Insertion[revival.name]]
    assert known(queue, other).state is becomes
    if becomes is not state:
        assert known(queue, other).descent is state


def test_tasks_of_other_identifiers_and_topics_are_left_alone(queue: TaskQueue, owner: Owner) -> None:
    queue.create_topic("other")
    task = task_in(queue, owner, State.FAILED)
    others = [task_in(queue, owner, State.SUCCEEDED, "b"), *queue.push("work", ["b"])]
    elsewhere = queue.push("other", ["a"])
    before = [repr(known(queue, other)) for other in others], image(queue, "other")
    queue.revive("work", revival=Revival.REPLACE, sequences=[task.sequence])
    assert ([repr(known(queue, other)) for other in others], image(queue, "other")) == before
    assert len(elsewhere) == 1


@pytest.mark.parametrize(
    ("revival", "after"),
    [
        (Revival.APPEND, [State.READY] * 3),
        (Revival.SUPERSEDE, [State.REDUNDANT, State.REDUNDANT, State.READY]),
        (Revival.REPLACE, [State.REDUNDANT, State.REDUNDANT, State.READY]),
    ],
)
def test_recreating_several_tasks_of_an_identifier_pushes_one_after_the_other(
    queue: TaskQueue, owner: Owner, revival: Revival, after: list[State]
) -> None:
    tasks = failed(queue, owner, *(NewTask("a", {"n": number}) for number in range(3)))
    revived = queue.revive("work", revival=revival, sequences=[task.sequence for task in reversed(tasks)])
    old, new = everything(queue)[:3], everything(queue)[3:]
    assert revived == {task.sequence: copy.sequence for task, copy in zip(tasks, new, strict=True)}
    assert [info.state for info in old] == [State.RECREATED] * 3
    assert [(info.state, info.payload) for info in new] == [(after[n], {"n": n}) for n in range(3)]
    assert [info.descent for info in new if info.state is State.REDUNDANT] == [State.READY] * after.count(
        State.REDUNDANT
    )


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
    tasks = failed(queue, owner, *"abcde")
    at = [task.sequence for task in tasks]
    assert queue.revive("work", State.FAILED, size=0) == {}
    assert list(queue.revive("work", State.FAILED, size=2)) == at[:2]
    assert list(queue.revive("work", State.FAILED, from_=at[3], to=at[3])) == [at[3]]
    assert queue.revive("work", State.FAILED, from_=at[4], to=at[3]) == {}
    assert list(queue.revive("work", State.FAILED)) == [at[2], at[4]]
    assert queue.revive("work", State.FAILED) == {}


@pytest.mark.parametrize("state", [State.FAILED, State.SUCCEEDED])
def test_reviving_by_state_in_a_range_includes_both_ends(queue: TaskQueue, owner: Owner, state: State) -> None:
    at = [task_in(queue, owner, state, identifier).sequence for identifier in "abcd"]
    task_in(queue, owner, State.FILTERED, "e")
    assert queue.revive("work", state, from_=at[1], to=at[2]) == {at[1]: at[1], at[2]: at[2]}
    assert queue.revive("work", state, from_=at[1], size=5) == {at[3]: at[3]}


@pytest.mark.parametrize("state", NOT_ENDED)
def test_a_named_task_that_has_not_ended_is_refused_and_nothing_changed(
    queue: TaskQueue, owner: Owner, state: State
) -> None:
    ended = task_in(queue, owner, State.FAILED)
    task = task_in(queue, owner, state, "b")
    before = image(queue)
    for revival in Revival:
        with pytest.raises(InvalidState, match=rf"'work': 1 of 2 tasks.* {task.sequence} \({state.name}\)"):
            queue.revive("work", revival=revival, sequences=[ended.sequence, task.sequence])
    assert image(queue) == before


def test_a_named_task_that_is_unknown_or_of_another_topic_is_refused(queue: TaskQueue, owner: Owner) -> None:
    queue.create_topic("other")
    elsewhere = task_in(queue, owner, State.FAILED, topic="other")
    with pytest.raises(InvalidState, match=rf"sequence {elsewhere.sequence} \(unknown\), 123456789 \(unknown\)"):
        queue.revive("work", sequences=[123456789, elsewhere.sequence])
    assert known(queue, elsewhere, "other").state is State.FAILED


def test_a_refusal_of_many_names_the_first_ten(queue: TaskQueue) -> None:
    with pytest.raises(InvalidState, match=r"300 of 300 .* 1009 \(unknown\), \.\.\.$"):
        queue.revive("work", sequences=range(1000, 1300))


def test_a_sequence_named_twice_is_revived_once(queue: TaskQueue, owner: Owner) -> None:
    [task] = failed(queue, owner, "a")
    assert len(queue.revive("work", revival=Revival.APPEND, sequences=[task.sequence] * 2)) == 1
    assert states(queue) == [("a", State.RECREATED), ("a", State.READY)]


def test_naming_no_task_does_nothing(queue: TaskQueue, owner: Owner) -> None:
    failed(queue, owner, "a")
    assert queue.revive("work", sequences=[]) == {}
    assert states(queue) == [("a", State.FAILED)]


@pytest.mark.parametrize("state", NOT_ENDED)
def test_a_state_that_is_not_ended_is_refused(queue: TaskQueue, state: State) -> None:
    with pytest.raises(InvalidState, match=f"state {state.name} have not ended"):
        queue.revive("work", state)


def test_a_revival_needs_either_a_state_or_sequences(queue: TaskQueue) -> None:
    with pytest.raises(InvalidState, match="either by their state or by their sequences"):
        queue.revive("work")
    with pytest.raises(InvalidState, match="either by their state or by their sequences"):
        queue.revive("work", State.FAILED, sequences=[1])


@pytest.mark.parametrize("bounds", [{"from_": 1}, {"to": 5}, {"size": 1}])
def test_a_range_goes_with_a_state_only(queue: TaskQueue, bounds: dict[str, int]) -> None:
    with pytest.raises(InvalidState, match="a range and a size go with a state"):
        queue.revive("work", sequences=[1], **bounds)  # type: ignore[arg-type]


def test_an_unknown_topic_or_revival_is_refused(queue: TaskQueue) -> None:
    with pytest.raises(UnknownTopic, match="'nowhere'"):
        queue.revive("nowhere", State.FAILED)
    with pytest.raises(TaskQueueError, match="unknown revival 'SIDEWAYS'"):
        queue.revive("work", State.FAILED, "SIDEWAYS")
