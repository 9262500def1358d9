from typing import Any

import pytest

from airflow_provider_taskq.operators import TaskQReviveOperator
from airflow_provider_taskq.queue import InvalidArgument, InvalidState, Result, State, TaskQueue
from tests.airflow.conftest import context_of

pytestmark = [
    pytest.mark.usefixtures("airflow_connection", "queue"),
    pytest.mark.promise("An operator does what its call of the queue does, in one transaction"),
]


def ended(queue: TaskQueue, *identifiers: str, result: Result = Result.FAILURE) -> list[int]:
    """Push tasks, end them with a result, and return their sequences."""
    tasks = queue.push("work", identifiers)
    owner = queue.register("worker")
    queue.complete(owner, dict.fromkeys(queue.poll("work", owner, len(tasks)), result))
    return [task.sequence for task in tasks]


def revive(topic: str = "work", **arguments: Any) -> dict[str, Any]:
    operator = TaskQReviveOperator(task_id="revive", topic=topic, **arguments)
    operator.render_template_fields(context_of())
    return operator.execute(context_of())


def states(queue: TaskQueue) -> list[State]:
    return [task.state for task in queue.page("work")]


def test_revives_tasks_of_a_state_in_their_old_place(queue: TaskQueue) -> None:
    ended(queue, "a", "b")
    ended(queue, "c", result=Result.SUCCESS)
    assert revive(state="FAILED") == {"topic": "work", "revival": "RESET", "revived": 2}
    assert states(queue) == [State.READY, State.READY, State.SUCCEEDED]


def test_pushes_copies_if_requested(queue: TaskQueue) -> None:
    ended(queue, "a")
    assert revive(state=State.FAILED, revival="APPEND")["revived"] == 1
    assert states(queue) == [State.RECREATED, State.READY]


@pytest.mark.parametrize(
    ("chosen", "revived"),
    [({"from_": 1}, {1, 2, 3}), ({"to": "1"}, {0, 1}), ({"from_": "1", "to": 2}, {1, 2}), ({"size": "2"}, {0, 1})],
)
def test_a_range_and_a_size_choose_among_the_tasks_of_a_state(
    queue: TaskQueue, chosen: dict[str, Any], revived: set[int]
) -> None:
    sequences = ended(queue, "a", "b", "c", "d")
    bounds: dict[str, Any] = {key: value if key == "size" else sequences[int(value)] for key, value in chosen.items()}
    assert revive(state="FAILED", **bounds)["revived"] == len(revived)
    assert {place for place, state in enumerate(states(queue)) if state is State.READY} == revived


def test_sequences_may_be_rendered_text(queue: TaskQueue) -> None:
    first, _, third = ended(queue, "a", "b", "c")
    assert revive(sequences=f"[{first}, {third}]")["revived"] == 2
    assert states(queue) == [State.READY, State.FAILED, State.READY]


def test_revives_all_of_the_sequences_or_none(queue: TaskQueue) -> None:
    (failed,) = ended(queue, "a")
    (ready,) = queue.push("work", ["b"])
    with pytest.raises(InvalidState, match=str(ready.sequence)):
        revive(sequences=[failed, ready.sequence])
    assert states(queue) == [State.FAILED, State.READY]


def test_a_second_try_by_state_revives_nothing_twice(queue: TaskQueue) -> None:
    ended(queue, "a")
    assert [revive(state="FAILED", revival="APPEND")["revived"] for _ in range(2)] == [1, 0]


def test_every_field_is_a_template(queue: TaskQueue) -> None:
    ended(queue, "a")
    result = revive(topic="{{ 'work' }}", state="{{ 'FAILED' }}", revival="{{ 'SUPERSEDE' }}", to="{{ none }}")
    assert result == {"topic": "work", "revival": "SUPERSEDE", "revived": 1}


def test_an_unknown_state_is_refused_with_the_list_of_states() -> None:
    with pytest.raises(InvalidArgument, match="unknown state 'DONE': expected one of ACTIVE, READY, EXPIRED"):
        revive(state="DONE")
    with pytest.raises(InvalidArgument, match="unknown revival 'AGAIN': expected one of RESET"):
        revive(state="FAILED", revival="AGAIN")
