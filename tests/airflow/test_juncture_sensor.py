"""What TaskQJunctureSensor and its trigger add to what every sensor does (test_sensor_conformance.py): groups."""

import asyncio
from typing import Any

import pytest
from airflow.exceptions import AirflowRescheduleException  # common-compat lacks it
from airflow.providers.common.compat.sdk import AirflowSensorTimeout, TaskDeferred
from airflow.triggers.base import TriggerEvent

from airflow_provider_taskq.queue import NewTask, State, TaskQueue
from airflow_provider_taskq.sensors import TaskQJunctureSensor
from airflow_provider_taskq.triggers import TaskQJunctureTrigger
from tests.airflow.conftest import context_of, until

pytestmark = [
    pytest.mark.usefixtures("airflow_connection", "queue"),
    pytest.mark.promise("A juncture releases each group once under its name, also after a crash"),
]

OPEN = {"topic": "work", "groups": 2}
GROUPS: dict[str, Any] = {"topic": "work", "groups": [["a", "b"], ["c"]], "poke_interval": 0.05}


def gate(**arguments: Any) -> TaskQJunctureSensor:
    return TaskQJunctureSensor(**{"task_id": "gate", "timeout": 5, **GROUPS, **arguments})


async def fired() -> TriggerEvent:
    """Run a trigger, and return its only event."""
    (event,) = [event async for event in TaskQJunctureTrigger(**{"name": "gate", **GROUPS}).run()]
    return event


def suspend(queue: TaskQueue, *names: str) -> None:
    """Push suspended tasks."""
    queue.push("work", [NewTask(name, suspended=True) for name in names])


def states(queue: TaskQueue) -> dict[str, State]:
    return {task.identifier: task.state for task in queue.page("work")}


def closed(sensor: TaskQJunctureSensor, context: Any = None) -> Any:
    """Return the exception with which a closed gate waits on or ends."""
    with pytest.raises((TaskDeferred, AirflowRescheduleException, AirflowSensorTimeout)) as raised:
        sensor.execute(context or context_of())
    return raised.value


@pytest.mark.parametrize("mode", [{}, {"mode": "reschedule"}, {"deferrable": True}], ids=str)
def test_releases_each_group_as_soon_as_it_is_complete(queue: TaskQueue, mode: dict[str, Any]) -> None:
    suspend(queue, "a", "c", "d")
    closed(gate(timeout=0.1, **mode))
    assert states(queue) == {"a": State.SUSPENDED, "c": State.READY, "d": State.SUSPENDED}
    suspend(queue, "b")
    assert gate(**mode).execute(context_of()) == OPEN
    assert states(queue) == {"a": State.READY, "b": State.READY, "c": State.READY, "d": State.SUSPENDED}


def test_another_run_or_mapped_task_waits_for_tasks_of_its_own(queue: TaskQueue) -> None:
    suspend(queue, "a", "b", "c")
    gate().execute(context_of())
    closed(gate(deferrable=True), context_of(run_id="other"))
    closed(gate(deferrable=True), context_of(map_index=1))


def test_an_eternal_junction_accepts_tasks_in_any_state(queue: TaskQueue) -> None:
    queue.push("work", ["a"])
    suspend(queue, "b", "c")
    closed(gate(timeout=0.1))
    assert gate(junction="ETERNAL", groups=[["a", "b"]]).execute(context_of())["groups"] == 1
    assert set(states(queue).values()) == {State.READY}


def test_a_gate_without_groups_is_open_and_one_with_an_unknown_junction_is_refused() -> None:
    assert gate(groups=[]).execute(context_of()) == {"topic": "work", "groups": 0}
    with pytest.raises(ValueError, match="SOME"):
        gate(junction="SOME")


@pytest.mark.parametrize(
    "given",
    [
        [["{{ params.one }}", "b"], ("c",)],
        "{{ params.groups }}",
        "{{ params.groups | tojson }}",
        ["{{ params.groups[0] }}", ["c"]],
    ],
)
def test_groups_may_be_lists_or_rendered_text(given: Any) -> None:
    sensor = gate(groups=given, deferrable=True)
    context: Any = {**context_of(), "params": {"one": "a", "groups": [["a", "b"], ["c"]]}}
    sensor.render_template_fields(context)
    assert closed(sensor, context).trigger.serialize()[1]["groups"] == [["a", "b"], ["c"]]


@pytest.mark.parametrize("given", [None, "a", ["a", "b"], [["a", 1]], [["a"], None], [[["a"]]], {"a": ["b"]}])
def test_invalid_groups_do_not_open_the_gate(given: Any) -> None:
    with pytest.raises(ValueError, match=r"invalid (identifiers?|groups) "):
        gate(groups=given).execute(context_of())


async def test_another_triggerer_continues_where_the_first_one_stopped(queue: TaskQueue) -> None:
    suspend(queue, "a", "c")
    first = asyncio.create_task(fired())
    await until(lambda: states(queue)["c"] is State.READY)
    assert states(queue)["a"] is State.SUSPENDED
    first.cancel()
    suspend(queue, "c", "b")
    assert (await fired()).payload == {"status": "ready", **OPEN}
    assert [task.state for task in queue.page("work", identifier="c")] == [State.READY, State.SUSPENDED]
