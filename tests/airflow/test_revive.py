"""TaskQReviveOperator: what it passes on to the queue. The rules of a revival are the queue's."""

from typing import Any

import pytest

from airflow_provider_taskq.operators import TaskQReviveOperator
from airflow_provider_taskq.queue import InvalidArgument, Result, State, TaskQueue
from tests.airflow.conftest import executed

pytestmark = [
    pytest.mark.usefixtures("airflow_connection", "queue"),
    pytest.mark.promise("An operator does what its call of the queue does, in one transaction"),
]


@pytest.fixture
def failed(queue: TaskQueue) -> list[int]:
    """The sequences of four failed tasks."""
    tasks = queue.push("work", ["a", "b", "c", "d"])
    owner = queue.register("worker")
    queue.complete(owner, dict.fromkeys(queue.poll("work", owner, 4), Result.FAILURE))
    return [task.sequence for task in tasks]


def revive(**arguments: Any) -> dict[str, Any]:
    done: dict[str, Any] = executed(TaskQReviveOperator(**{"task_id": "revive", "topic": "work", **arguments}))
    return done


def ready(queue: TaskQueue, failed: list[int]) -> set[int]:
    """The places of the failed tasks that are READY."""
    return {failed.index(task.sequence) for task in queue.page("work", state=State.READY)}


@pytest.mark.parametrize(
    ("chosen", "revived"),
    [
        ({}, {0, 1, 2, 3}),
        ({"from_": 1}, {1, 2, 3}),
        ({"to": "1"}, {0, 1}),
        ({"from_": "1", "to": 2}, {1, 2}),
        ({"size": "2"}, {0, 1}),
    ],
)
def test_a_range_and_a_size_choose_among_the_tasks_of_a_state(
    queue: TaskQueue, failed: list[int], chosen: dict[str, Any], revived: set[int]
) -> None:
    bounds: dict[str, Any] = {key: value if key == "size" else failed[int(value)] for key, value in chosen.items()}
    done = revive(state=State.FAILED, **bounds)
    assert done == {"topic": "work", "revival": "RESET", "revived": len(revived)}
    assert ready(queue, failed) == revived


def test_revives_chosen_sequences(queue: TaskQueue, failed: list[int]) -> None:
    assert revive(sequences=f"[{failed[0]}, {failed[2]}]")["revived"] == 2
    assert ready(queue, failed) == {0, 2}


@pytest.mark.usefixtures("failed")
def test_every_field_is_a_template_and_a_second_try_revives_nothing_twice(queue: TaskQueue) -> None:
    given = {"topic": "{{ 'work' }}", "state": "{{ 'FAILED' }}", "revival": "{{ 'SUPERSEDE' }}", "to": "{{ none }}"}
    done = [revive(**given) for _ in range(2)]
    assert done == [{"topic": "work", "revival": "SUPERSEDE", "revived": number} for number in (4, 0)]
    assert [task.state for task in queue.page("work")] == [State.RECREATED] * 4 + [State.READY] * 4


def test_an_unknown_state_is_refused_with_the_list_of_states() -> None:
    with pytest.raises(InvalidArgument, match="unknown state 'DONE': expected one of ACTIVE, READY, EXPIRED"):
        revive(state="DONE")
    with pytest.raises(InvalidArgument, match="unknown revival 'AGAIN': expected one of RESET"):
        revive(state="FAILED", revival="AGAIN")
