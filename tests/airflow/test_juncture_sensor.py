from typing import Any

import pytest
from airflow.exceptions import AirflowRescheduleException  # common-compat lacks it
from airflow.providers.common.compat.sdk import AirflowSensorTimeout, AirflowSkipException, TaskDeferred
from airflow.sdk import DAG, Asset

from airflow_provider_taskq.queue import NewTask, State, TaskQueue, UnknownTopic
from airflow_provider_taskq.sensors import TaskQJunctureSensor
from airflow_provider_taskq.triggers import TaskQJunctureTrigger
from tests.airflow.conftest import context_of
from tests.airflow.serialization import restored

pytestmark = pytest.mark.usefixtures("airflow_connection", "queue")

NAME = "dag/run/gate/-1"
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


def resume(sensor: TaskQJunctureSensor, context: Any = None) -> Any:
    kwargs = {"deadline": "2999-01-01T00:00:00+00:00", "event": {"status": "ready"}}
    return sensor.resume_execution("execute_complete", kwargs, context or context_of())


@MODES
class TestEveryMode:
    def test_opens_immediately_when_all_groups_are_complete(self, queue: TaskQueue, mode: dict[str, Any]) -> None:
        suspend(queue, "a", "b", "c", "d")
        assert gate(**mode).execute(context_of()) == OPEN
        assert states(queue) == {"a": State.READY, "b": State.READY, "c": State.READY, "d": State.SUSPENDED}

    def test_releases_each_group_as_soon_as_it_is_complete(self, queue: TaskQueue, mode: dict[str, Any]) -> None:
        suspend(queue, "a", "c")
        closed(gate(timeout=0.1, **mode))
        assert states(queue) == {"a": State.SUSPENDED, "c": State.READY}
        suspend(queue, "b")
        assert gate(**mode).execute(context_of()) == OPEN
        assert set(states(queue).values()) == {State.READY}

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

    def test_an_unknown_topic_fails_the_gate(self, mode: dict[str, Any]) -> None:
        with pytest.raises(UnknownTopic, match="'nowhere' does not exist; create it with: taskq topics create nowhere"):
            gate(topic="nowhere", **mode).execute(context_of())

    def test_an_error_skips_a_gate_that_never_fails(self, mode: dict[str, Any]) -> None:
        with pytest.raises(AirflowSkipException, match="due to never_fail"):
            gate(topic="nowhere", never_fail=True, **mode).execute(context_of())

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


class TestDeferred:
    def test_a_gate_is_ended_by_its_trigger_and_has_no_result_before(self) -> None:
        context = context_of()
        trigger = closed(gate(deferrable=True, junction="ETERNAL"), context).trigger
        assert context["ti"].pushed == {}
        assert isinstance(trigger, TaskQJunctureTrigger)
        assert trigger.serialize()[1] == {
            "name": NAME,
            "topic": "work",
            "groups": [["a", "b"], ["c"]],
            "junction": "ETERNAL",
            "taskq_conn_id": "taskq_default",
            "poke_interval": 0.05,
            "ends_task": True,
            "stores": "each",
            "resume_after": 10.0,
        }

    def test_a_gate_with_outlets_is_resumed_and_checks_again(self, queue: TaskQueue) -> None:
        sensor = gate(deferrable=True, outlets=[Asset("flights")])
        assert closed(sensor).trigger.serialize()[1]["ends_task"] is False
        with pytest.raises(TaskDeferred):
            resume(sensor)
        suspend(queue, "a", "b", "c")
        assert resume(sensor) == OPEN

    def test_a_timeout_skips_if_requested(self) -> None:
        for mode in ({"timeout": 0.1}, {"timeout": 0, "deferrable": True}):
            with pytest.raises(AirflowSensorTimeout):
                gate(**mode).execute(context_of())
            with pytest.raises(AirflowSkipException):
                gate(soft_fail=True, **mode).execute(context_of())


def test_a_mapped_gate_can_be_stored() -> None:
    with DAG("dag", schedule=None) as dag:
        TaskQJunctureSensor.partial(task_id="gate", topic="work", junction="ETERNAL").expand(groups=[[["a"]], [["b"]]])
    assert restored(dag).task_ids == ["gate"]
