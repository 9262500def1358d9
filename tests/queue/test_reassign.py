"""Reassign: an operator changes the result of an ended task."""

import pytest

from airflow_provider_taskq.queue import (
    Decision,
    InvalidState,
    NewTask,
    Owner,
    Result,
    State,
    TaskQueue,
    TaskQueueError,
    UnknownTopic,
)
from tests.queue.conftest import hurry, image, known, numbered, states, task_in
from tests.queue.test_revive import ENDED, NOT_ENDED, failed
from tests.queue.test_sessions import pages_of

pytestmark = pytest.mark.promise("A reassignment changes the result of an ended task, and nothing else")

BECOMES = {
    Result.FAILURE: State.FAILED,
    Result.SUSPENSION: State.SUSPENDED,
    Result.FILTER: State.FILTERED,
    Result.SUCCESS: State.SUCCEEDED,
}


@pytest.mark.parametrize("by", ["sequences", "state"])
@pytest.mark.parametrize("result", list(Result))
@pytest.mark.parametrize("state", ENDED)
def test_a_task_that_has_ended_gets_any_result(
    queue: TaskQueue, owner: Owner, state: State, result: Result, by: str
) -> None:
    task = task_in(queue, owner, state)
    changed = state is not BECOMES[result]
    if by == "sequences":
        assert queue.reassign("work", result, sequences=[task.sequence]) == 1
    else:
        assert queue.reassign("work", result, state=state) == int(changed)
    info = known(queue, task)
    assert (info.state, info.descent) == (BECOMES[result], None)
    assert (info.completed is None) is (state is State.EXPIRED and not changed)


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


@pytest.mark.parametrize("by", ["sequences", "state"])
def test_completed_is_set_if_it_is_empty(queue: TaskQueue, owner: Owner, by: str) -> None:
    [pushed] = queue.push("work", [NewTask("pushed suspended", suspended=True)])
    ended = task_in(queue, owner, State.SUSPENDED)
    before = known(queue, ended).completed
    if by == "sequences":
        assert queue.reassign("work", Result.FILTER, sequences=[ended.sequence, pushed.sequence]) == 2
    else:
        assert queue.reassign("work", Result.FILTER, state=State.SUSPENDED) == 2
    assert known(queue, ended).completed == before is not None
    assert known(queue, pushed).completed is not None
    assert queue.results()["work"] == {Result.FILTER: 2}


def test_reassigning_by_state_in_a_range_includes_both_ends(queue: TaskQueue, owner: Owner) -> None:
    at = [task.sequence for task in failed(queue, owner, *"abcde")]
    assert queue.reassign("work", Result.SUCCESS, state=State.FAILED, from_=at[1], to=at[2]) == 2
    assert queue.reassign("work", Result.FILTER, state=State.FAILED, from_=at[4], to=at[3]) == 0
    assert queue.reassign("work", Result.FILTER, state=State.FAILED, from_=at[4]) == 1
    assert [state.name[:2] for _, state in states(queue)] == ["FA", "SU", "SU", "FA", "FI"]


def test_tasks_that_have_the_result_already_are_not_counted(queue: TaskQueue, owner: Owner) -> None:
    failed(queue, owner, *"abc")
    before = image(queue)
    assert queue.reassign("work", Result.FAILURE, state=State.FAILED) == 0
    assert image(queue) == before


@pytest.mark.parametrize("state", NOT_ENDED)
def test_a_named_task_that_has_not_ended_is_refused_and_nothing_changed(
    queue: TaskQueue, owner: Owner, state: State
) -> None:
    ended = task_in(queue, owner, State.FAILED)
    task = task_in(queue, owner, state, "b")
    before = image(queue)
    with pytest.raises(InvalidState, match=rf"'work': 1 of 2 tasks.* {task.sequence} \({state.name}\)"):
        queue.reassign("work", Result.SUCCESS, sequences=[ended.sequence, task.sequence])
    assert image(queue) == before
    with pytest.raises(InvalidState, match=f"state {state.name} have not ended"):
        queue.reassign("work", Result.SUCCESS, state=state)


def test_an_invalid_reassignment_is_refused(queue: TaskQueue) -> None:
    with pytest.raises(InvalidState, match=r"7654321 \(unknown\)"):
        queue.reassign("work", Result.SUCCESS, sequences=[7654321])
    with pytest.raises(InvalidState, match="either by their state or by their sequences"):
        queue.reassign("work", Result.SUCCESS)
    with pytest.raises(UnknownTopic, match="'nowhere'"):
        queue.reassign("nowhere", Result.SUCCESS, state=State.FAILED)
    with pytest.raises(TaskQueueError, match="unknown result 9"):
        queue.reassign("work", 9, state=State.FAILED)  # type: ignore[arg-type]
    assert queue.reassign("work", Result.SUCCESS, sequences=[]) == 0


def test_reassigning_by_state_leaves_out_tasks_that_another_transaction_holds(
    queue: TaskQueue, owner: Owner, session: TaskQueue
) -> None:
    failed(queue, owner, *"abc")
    session.revive("work", State.FAILED, size=2)
    assert hurry(queue).reassign("work", Result.SUCCESS, state=State.FAILED) == 1
    session.conn.rollback()
    assert [state for _, state in states(queue)] == [State.FAILED, State.FAILED, State.SUCCEEDED]


def test_a_dependent_may_run_once_its_dependency_is_reassigned_to_success(queue: TaskQueue, owner: Owner) -> None:
    task = task_in(queue, owner, State.FAILED)
    [dependent] = queue.push("work", [NewTask("dependent", depends_on=[("work", "a")])])
    assert queue.poll("work", owner) == []
    queue.reassign("work", Result.FILTER, sequences=[task.sequence])
    assert queue.poll("work", owner) == []
    queue.reassign("work", Result.SUCCESS, sequences=[task.sequence])
    assert queue.poll("work", owner) == [dependent]


def test_reassigning_few_of_many_tasks_reads_few_pages(own_queue: TaskQueue) -> None:
    queue = own_queue
    owner = queue.register("owner")
    queue.push_stream("work", numbered(20_000))
    queue.complete(owner, dict.fromkeys(queue.poll("work", owner, 20_000), Result.SUCCESS))
    tasks = failed(queue, owner, *"abcd")
    queue.conn.execute("VACUUM")
    queue.reassign("work", Result.FILTER, sequences=[tasks[0].sequence])  # as a first call it reads the catalogue
    queue.reassign("work", Result.FILTER, state=State.EXPIRED)
    assert pages_of(queue, lambda: queue.reassign("work", Result.SUCCESS, sequences=[tasks[1].sequence])) < 200
    assert pages_of(queue, lambda: queue.reassign("work", Result.SUCCESS, state=State.FAILED)) < 200
    assert queue.count("work")["work"][State.SUCCEEDED].count == 20_003
