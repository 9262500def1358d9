"""What TaskQStateSensor and its trigger add to what every sensor does (test_sensor_conformance.py): failures."""

import asyncio
from typing import Any

import pytest
from airflow.exceptions import AirflowRescheduleException  # common-compat lacks it
from airflow.providers.common.compat.sdk import (
    AirflowFailException,
    AirflowSkipException,
    TaskDeferred,
)

from airflow_provider_taskq.queue import Owner, Result, State, TaskQueue
from airflow_provider_taskq.sensors import TaskQStateSensor
from airflow_provider_taskq.triggers import TaskQStateTrigger
from tests.airflow.conftest import Connect, context_of

pytestmark = [
    pytest.mark.usefixtures("airflow_connection", "queue"),
    pytest.mark.promise("A gate on task states opens once all are reached, and fails at a failed state"),
]

MODES = pytest.mark.parametrize("mode", [{}, {"mode": "reschedule"}, {"deferrable": True}], ids=str)
MESSAGE = "1 of 2 tasks of topic 'work' are in a failed state: 'b' is FAILED"


def gate(**arguments: Any) -> TaskQStateSensor:
    given = {"task_id": "gate", "topic": "work", "identifiers": ["a", "b"], "poke_interval": 0.05, "timeout": 60}
    return TaskQStateSensor(**{**given, **arguments})


def end(queue: TaskQueue, owner: Owner, **results: Result) -> None:
    """Push tasks and end them."""
    for identifier, result in results.items():
        queue.push("work", [identifier])
        queue.complete(owner, dict.fromkeys(queue.poll("work", owner), result))


def waits_on(sensor: TaskQStateSensor, context: Any = None) -> Any:
    """Return the exception with which a closed gate waits on without a worker."""
    with pytest.raises((TaskDeferred, AirflowRescheduleException)) as raised:
        sensor.execute(context or context_of())
    return raised.value


def resume(sensor: TaskQStateSensor, status: str) -> Any:
    """Resume a deferred sensor as Airflow does."""
    event = {"status": status, "message": "the trigger's message"}
    kwargs = {"deadline": "2999-01-01T00:00:00+00:00", "event": event}
    return sensor.resume_execution("execute_complete", kwargs, context_of())


@MODES
class TestFailures:
    @pytest.mark.parametrize("silent", [False, True])
    def test_fails_without_a_retry_and_names_the_failed_tasks(
        self, queue: TaskQueue, owner: Owner, mode: dict[str, Any], silent: bool
    ) -> None:
        end(queue, owner, b=Result.FAILURE)
        with pytest.raises(AirflowFailException) as raised:
            gate(silent_fail=silent, **mode).execute(context_of())
        assert str(raised.value) == MESSAGE

    @pytest.mark.parametrize("option", ["soft_fail", "never_fail"])
    def test_skips_instead_if_requested(
        self, queue: TaskQueue, owner: Owner, mode: dict[str, Any], option: str
    ) -> None:
        end(queue, owner, b=Result.FAILURE)
        with pytest.raises(AirflowSkipException, match=f"due to {option}") as raised:
            gate(**mode, **{option: True}).execute(context_of())
        assert str(raised.value.__cause__) == MESSAGE


def test_a_failure_that_the_trigger_found_fails_or_skips_the_gate_in_a_worker(queue: TaskQueue, owner: Owner) -> None:
    end(queue, owner, b=Result.FAILURE)
    with pytest.raises(AirflowFailException) as raised:
        resume(gate(deferrable=True), "failed")
    assert str(raised.value) == MESSAGE
    for option in ("soft_fail", "never_fail"):
        with pytest.raises(AirflowSkipException, match=f"due to {option}"):
            resume(gate(deferrable=True, **{option: True}), "failed")
    queue.revive("work", State.FAILED)
    with pytest.raises(TaskDeferred):  # it was repaired meanwhile
        resume(gate(deferrable=True), "failed")


def test_the_message_about_many_failures_is_bounded(queue: TaskQueue, owner: Owner) -> None:
    names = [f"task-{number:03}" for number in range(200)]
    queue.push("work", names)
    queue.complete(owner, dict.fromkeys(queue.poll("work", owner, 200), Result.FAILURE))
    with pytest.raises(AirflowFailException) as raised:
        gate(identifiers=[*names, "other"]).execute(context_of())
    message = str(raised.value)
    assert message.startswith("200 of 201 tasks of topic 'work' are in a failed state: 'task-000' is FAILED, ")
    assert message.endswith(", 'task-009' is FAILED and 190 more")


class TestStates:
    @pytest.mark.parametrize("mode", [{"mode": "reschedule"}, {"deferrable": True}], ids=str)
    def test_waits_for_other_states_and_for_identifiers_without_a_task(
        self, queue: TaskQueue, owner: Owner, mode: dict[str, Any]
    ) -> None:
        end(queue, owner, a=Result.SUCCESS)
        waits_on(gate(**mode))
        end(queue, owner, b=Result.FILTER)
        waits_on(gate(**mode))
        opened = gate(states=["SUCCEEDED", State.FILTERED], **mode).execute(context_of())
        assert opened == {"topic": "work", "states": {"FILTERED": 1, "SUCCEEDED": 1}}

    def test_the_newest_task_of_each_identifier_counts_once(self, queue: TaskQueue, owner: Owner) -> None:
        end(queue, owner, b=Result.FAILURE)
        end(queue, owner, a=Result.SUCCESS, b=Result.SUCCESS)
        opened = gate(identifiers=["a", "b", "a"]).execute(context_of())
        assert opened == {"topic": "work", "states": {"SUCCEEDED": 2}}

    def test_failed_states_can_be_chosen(self, queue: TaskQueue, owner: Owner) -> None:
        end(queue, owner, a=Result.FAILURE, b=Result.SUSPENSION)
        waits_on(gate(failed_states=[], mode="reschedule"))
        with pytest.raises(AirflowFailException, match="failed state: 'a' is FAILED, 'b' is SUSPENDED"):
            gate(failed_states={"FAILED", State.SUSPENDED}).execute(context_of())

    def test_a_failed_state_in_states_opens_the_gate(self, queue: TaskQueue, owner: Owner) -> None:
        end(queue, owner, a=Result.FAILURE, b=Result.SUCCESS)
        states = {"FAILED": 1, "SUCCEEDED": 1}
        assert gate(states={"SUCCEEDED", "FAILED"}).execute(context_of()) == {"topic": "work", "states": states}

    @pytest.mark.parametrize("states", ["ready", "READY", State.READY], ids=repr)
    def test_states_may_be_one_state_in_any_case(self, queue: TaskQueue, states: Any) -> None:
        queue.push("work", ["a", "b"])
        assert gate(states=states).execute(context_of())["states"] == {"READY": 2}

    @pytest.mark.parametrize("argument", ["states", "failed_states"])
    @pytest.mark.parametrize("state", ["SUCCESS", "done", 9, None])
    def test_an_unknown_state_is_refused_when_the_dag_is_parsed(self, argument: str, state: Any) -> None:
        with pytest.raises(ValueError, match=r"unknown state .*: expected one of ACTIVE, .*SUCCEEDED"):
            gate(**{argument: [state]})

    def test_empty_states_are_refused_when_the_dag_is_parsed(self) -> None:
        with pytest.raises(ValueError, match="would never open"):
            gate(states=[])


class TestIdentifiers:
    @pytest.mark.parametrize(
        ("given", "meant"),
        [
            ("{{ params.one }}", ["a"]),
            (["{{ params.one }}", "b"], ["a", "b"]),
            ("{{ params.both }}", ["a", "b"]),
            ("{{ params.both | tojson }}", ["a", "b"]),
            (("a", "b"), ["a", "b"]),
            (["[a"], ["[a"]),
        ],
    )
    def test_may_be_a_list_or_rendered_text(self, connect_airflow: Connect, given: Any, meant: list[str]) -> None:
        connect_airflow("other")
        sensor = gate(identifiers=given, topic="wo{{ 'rk' }}", taskq_conn_id="oth{{ 'er' }}", deferrable=True)
        context: Any = {**context_of(), "params": {"one": "a", "both": ["a", "b"]}}
        sensor.render_template_fields(context)
        passed = waits_on(sensor, context).trigger.serialize()[1]
        assert (passed["identifiers"], passed["topic"], passed["taskq_conn_id"]) == (meant, "work", "other")

    @pytest.mark.parametrize("given", [None, "", "  ", ["a", ""], ["a", 1], [["a"]], {"a": 1}, 3, "[a", b"a"])
    def test_invalid_identifiers_do_not_open_the_gate(self, given: Any) -> None:
        with pytest.raises(ValueError, match=r"invalid (identifier|identifiers|list) "):
            gate(identifiers=given).execute(context_of())

    def test_a_gate_without_identifiers_is_open(self) -> None:
        assert gate(identifiers=[]).execute(context_of()) == {"topic": "work", "states": {}}


async def test_a_failed_task_ends_the_wait_before_the_others_end_no_sooner_than_resume_after(
    queue: TaskQueue, owner: Owner
) -> None:
    began = asyncio.get_running_loop().time()
    trigger = TaskQStateTrigger(topic="work", identifiers=["a", "b"], poke_interval=0.05, resume_after=0.5)
    waiting = asyncio.ensure_future(anext(trigger.run()))
    await asyncio.sleep(0)
    end(queue, owner, b=Result.FAILURE)
    assert (await waiting).payload == {"status": "failed", "message": MESSAGE}
    assert asyncio.get_running_loop().time() - began >= 0.5
