from typing import Any

import pytest
from airflow.exceptions import AirflowRescheduleException  # common-compat lacks it
from airflow.providers.common.compat.sdk import AirflowSensorTimeout, TaskDeferred

from airflow_provider_taskq.queue import NewTask, State, TaskQueue
from airflow_provider_taskq.sensors import TaskQJunctureSensor
from tests.airflow.conftest import context_of

pytestmark = [
    pytest.mark.usefixtures("airflow_connection", "queue"),
    pytest.mark.promise("A juncture releases each group once under its name, also after a crash"),
]

MODES = pytest.mark.parametrize("mode", [{}, {"mode": "reschedule"}, {"deferrable": True}], ids=str)
OPEN = {"topic": "work", "groups": 2}


def gate(**arguments: Any) -> TaskQJunctureSensor:
    given = {"task_id": "gate", "topic": "work", "groups": [["a", "b"], ["c"]], "poke_interval": 0.05, "timeout": 5}
    return TaskQJunctureSensor(**{**given, **arguments})


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


@MODES
class TestEveryMode:
    def test_releases_each_group_as_soon_as_it_is_complete(self, queue: TaskQueue, mode: dict[str, Any]) -> None:
        suspend(queue, "a", "c", "d")
        closed(gate(timeout=0.1, **mode))
        assert states(queue) == {"a": State.SUSPENDED, "c": State.READY, "d": State.SUSPENDED}
        suspend(queue, "b")
        assert gate(**mode).execute(context_of()) == OPEN
        assert states(queue) == {"a": State.READY, "b": State.READY, "c": State.READY, "d": State.SUSPENDED}

    def test_a_retry_knows_the_released_groups_and_releases_nothing_twice(
        self, queue: TaskQueue, mode: dict[str, Any]
    ) -> None:
        suspend(queue, "a", "b", "c")
        gate(**mode).execute(context_of())
        suspend(queue, "c")
        assert gate(**mode).execute(context_of()) == OPEN
        assert [task.state for task in queue.page("work", identifier="c")] == [State.READY, State.SUSPENDED]

    def test_another_run_or_mapped_task_waits_for_tasks_of_its_own(
        self, queue: TaskQueue, mode: dict[str, Any]
    ) -> None:
        suspend(queue, "a", "b", "c")
        gate(**mode).execute(context_of())
        closed(gate(timeout=0.1, **mode), context_of(run_id="other"))
        closed(gate(timeout=0.1, **mode), context_of(map_index=1))

    def test_a_gate_without_groups_is_open(self, mode: dict[str, Any]) -> None:
        assert gate(groups=[], **mode).execute(context_of()) == {"topic": "work", "groups": 0}


def test_an_eternal_junction_accepts_tasks_in_any_state(queue: TaskQueue) -> None:
    queue.push("work", ["a"])
    suspend(queue, "b", "c")
    closed(gate(timeout=0.1))
    assert gate(junction="ETERNAL", groups=[["a", "b"]]).execute(context_of())["groups"] == 1
    assert set(states(queue).values()) == {State.READY}


def test_an_unknown_junction_is_refused_when_the_dag_is_parsed() -> None:
    with pytest.raises(ValueError, match="SOME"):
        gate(junction="SOME")


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ([["{{ params.one }}", "b"], ("c",)], [["a", "b"], ["c"]]),
        ("{{ params.groups }}", [["a", "b"], ["c"]]),
        ("{{ params.groups | tojson }}", [["a", "b"], ["c"]]),
        (["{{ params.groups[0] }}", ["c"]], [["a", "b"], ["c"]]),
    ],
)
def test_groups_may_be_lists_or_rendered_text(given: Any, meant: list[list[str]]) -> None:
    sensor = gate(groups=given, deferrable=True)
    context: Any = {**context_of(), "params": {"one": "a", "groups": [["a", "b"], ["c"]]}}
    sensor.render_template_fields(context)
    assert closed(sensor, context).trigger.serialize()[1]["groups"] == meant


@pytest.mark.parametrize("given", [None, "a", ["a", "b"], [["a", 1]], [["a"], None], [[["a"]]], {"a": ["b"]}])
def test_invalid_groups_do_not_open_the_gate(given: Any) -> None:
    with pytest.raises(ValueError, match=r"invalid (identifiers?|groups) "):
        gate(groups=given).execute(context_of())
