from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from airflow.exceptions import AirflowRescheduleException  # common-compat lacks it
from airflow.providers.common.compat.sdk import (
    AirflowFailException,
    AirflowSensorTimeout,
    AirflowSkipException,
    TaskDeferred,
)
from airflow.sdk import DAG

from airflow_provider_taskq.queue import NewTask, Owner, Result, State, TaskQueue
from airflow_provider_taskq.sensors import TaskQStateSensor
from tests.airflow.conftest import Connect, context_of
from tests.airflow.serialization import restored

pytestmark = [
    pytest.mark.usefixtures("airflow_connection", "queue"),
    pytest.mark.promise("A gate on task states opens once all are reached, and fails at a failed state"),
]

MODES = pytest.mark.parametrize("mode", [{}, {"mode": "reschedule"}, {"deferrable": True}], ids=str)
MESSAGE = "1 of 2 tasks of topic 'work' are in a failed state: 'b' is FAILED"
OPEN = {"topic": "work", "states": {"SUCCEEDED": 2}}


def gate(**arguments: Any) -> TaskQStateSensor:
    given = {"task_id": "gate", "topic": "work", "identifiers": ["a", "b"], "poke_interval": 0.05, "timeout": 60}
    return TaskQStateSensor(**{**given, **arguments})


def end(queue: TaskQueue, owner: Owner, **results: Result) -> None:
    """Push tasks and end them."""
    for identifier, result in results.items():
        queue.push("work", [identifier])
        queue.complete(owner, dict.fromkeys(queue.poll("work", owner), result))


def waits_on(sensor: TaskQStateSensor, context: Any = None) -> TaskDeferred | AirflowRescheduleException:
    """Return the exception with which a closed gate waits on without a worker."""
    with pytest.raises((TaskDeferred, AirflowRescheduleException)) as raised:
        sensor.execute(context or context_of())
    assert isinstance(raised.value, TaskDeferred | AirflowRescheduleException)
    return raised.value


def deferred(sensor: TaskQStateSensor, context: Any = None) -> TaskDeferred:
    waiting = waits_on(sensor, context)
    assert isinstance(waiting, TaskDeferred)
    return waiting


def resume(sensor: TaskQStateSensor, status: str = "ready", context: Any = None, **kwargs: Any) -> Any:
    """Resume a deferred sensor as Airflow does."""
    event = {"status": status, "message": "the trigger's message"}
    kwargs = {"deadline": "2999-01-01T00:00:00+00:00", "event": event} | kwargs
    return sensor.resume_execution("execute_complete", kwargs, context or context_of())


@MODES
class TestEveryMode:
    def test_fails_without_a_retry_and_names_the_failed_tasks(
        self, queue: TaskQueue, owner: Owner, mode: dict[str, Any]
    ) -> None:
        end(queue, owner, b=Result.FAILURE)
        with pytest.raises(AirflowFailException) as raised:
            gate(**mode).execute(context_of())
        assert str(raised.value) == MESSAGE

    @pytest.mark.parametrize("option", ["soft_fail", "never_fail"])
    def test_skips_instead_if_requested(
        self, queue: TaskQueue, owner: Owner, mode: dict[str, Any], option: str
    ) -> None:
        end(queue, owner, b=Result.FAILURE)
        with pytest.raises(AirflowSkipException, match=f"due to {option}") as raised:
            gate(**mode, **{option: True}).execute(context_of())
        assert str(raised.value.__cause__) == MESSAGE

    def test_a_failure_is_not_silenced(self, queue: TaskQueue, owner: Owner, mode: dict[str, Any]) -> None:
        end(queue, owner, b=Result.FAILURE)
        with pytest.raises(AirflowFailException):
            gate(silent_fail=True, **mode).execute(context_of())

    def test_only_the_newest_task_of_an_identifier_counts(
        self, queue: TaskQueue, owner: Owner, mode: dict[str, Any]
    ) -> None:
        end(queue, owner, b=Result.FAILURE)
        end(queue, owner, a=Result.SUCCESS, b=Result.SUCCESS)
        assert gate(**mode).execute(context_of()) == OPEN

    def test_a_gate_without_identifiers_is_open(self, mode: dict[str, Any]) -> None:
        assert gate(identifiers=[], **mode).execute(context_of()) == {"topic": "work", "states": {}}

    def test_counts_each_identifier_once(self, queue: TaskQueue, owner: Owner, mode: dict[str, Any]) -> None:
        end(queue, owner, a=Result.SUCCESS, b=Result.SUCCESS)
        assert gate(identifiers=["a", "b", "a"], **mode).execute(context_of()) == OPEN


@pytest.mark.parametrize("mode", [{"mode": "reschedule"}, {"deferrable": True}], ids=str)
class TestClosed:
    def test_waits_for_identifiers_that_have_no_task_yet(
        self, queue: TaskQueue, owner: Owner, mode: dict[str, Any]
    ) -> None:
        end(queue, owner, a=Result.SUCCESS)
        waits_on(gate(**mode))

    def test_waits_for_other_states(self, queue: TaskQueue, owner: Owner, mode: dict[str, Any]) -> None:
        end(queue, owner, a=Result.SUCCESS, b=Result.FILTER)
        waits_on(gate(**mode))
        assert gate(states=["SUCCEEDED", State.FILTERED], **mode).execute(context_of()) == {
            "topic": "work",
            "states": {"FILTERED": 1, "SUCCEEDED": 1},
        }

    def test_claims_and_changes_nothing(self, queue: TaskQueue, mode: dict[str, Any]) -> None:
        queue.push("work", [NewTask("a", payload={"private": True}), "b"])
        waits_on(gate(**mode))
        assert {task.state for task in queue.page("work")} == {State.READY}
        assert queue.owners() == []


class TestStates:
    def test_failed_states_can_be_chosen(self, queue: TaskQueue, owner: Owner) -> None:
        end(queue, owner, a=Result.FAILURE, b=Result.SUSPENSION)
        waits_on(gate(failed_states=[], mode="reschedule"))
        with pytest.raises(AirflowFailException, match="failed state: 'a' is FAILED, 'b' is SUSPENDED"):
            gate(failed_states={"FAILED", State.SUSPENDED}).execute(context_of())

    def test_a_failed_state_in_states_opens_the_gate(self, queue: TaskQueue, owner: Owner) -> None:
        end(queue, owner, a=Result.FAILURE, b=Result.SUCCESS)
        states = {"FAILED": 1, "SUCCEEDED": 1}
        assert gate(states={"SUCCEEDED", "FAILED"}).execute(context_of()) == {"topic": "work", "states": states}

    def test_states_may_be_one_state(self, queue: TaskQueue) -> None:
        queue.push("work", ["a", "b"])
        for state in ("READY", State.READY):
            assert gate(states=state).execute(context_of())["states"] == {"READY": 2}

    @pytest.mark.parametrize("argument", ["states", "failed_states"])
    @pytest.mark.parametrize("state", ["SUCCESS", "done", 9, None])
    def test_an_unknown_state_is_refused_when_the_dag_is_parsed(self, argument: str, state: Any) -> None:
        with pytest.raises(ValueError, match=r"unknown state .*: expected one of ACTIVE, .*SUCCEEDED"):
            gate(**{argument: [state]})

    def test_names_of_states_are_accepted_in_any_case(self, queue: TaskQueue) -> None:
        queue.push("work", ["a"])
        assert gate(states="ready", identifiers=["a"]).execute(context_of())["states"] == {"READY": 1}

    def test_empty_states_are_refused_when_the_dag_is_parsed(self) -> None:
        with pytest.raises(ValueError, match="would never open"):
            gate(states=[])

    def test_the_message_about_many_failures_is_bounded(self, queue: TaskQueue, owner: Owner) -> None:
        names = [f"task-{number:03}" for number in range(200)]
        queue.push("work", names)
        queue.complete(owner, dict.fromkeys(queue.poll("work", owner, 200), Result.FAILURE))
        with pytest.raises(AirflowFailException) as raised:
            gate(identifiers=[*names, "other"]).execute(context_of())
        message = str(raised.value)
        assert message.startswith("200 of 201 tasks of topic 'work' are in a failed state: 'task-000' is FAILED, ")
        assert message.endswith(", 'task-009' is FAILED and 190 more")


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
    def test_may_be_a_list_or_rendered_text(self, given: Any, meant: list[str]) -> None:
        sensor = gate(identifiers=given, deferrable=True)
        context: Any = {**context_of(), "params": {"one": "a", "both": ["a", "b"]}}
        sensor.render_template_fields(context)
        assert deferred(sensor, context).trigger.serialize()[1]["identifiers"] == meant

    @pytest.mark.parametrize("given", [None, "", "  ", ["a", ""], ["a", 1], [["a"]], {"a": 1}, 3, "[a", b"a"])
    def test_invalid_identifiers_do_not_open_the_gate(self, given: Any) -> None:
        with pytest.raises(ValueError, match=r"invalid (identifier|identifiers|list) "):
            gate(identifiers=given).execute(context_of())

    def test_of_other_tasks_output_make_those_tasks_upstream(self) -> None:
        with DAG("dag", schedule=None):
            upstream = gate(task_id="upstream")
            downstream = gate(task_id="downstream", identifiers=upstream.output)
        assert downstream.upstream_task_ids == {"upstream"}

    def test_topic_and_connection_are_templates_too(self, connect_airflow: Connect) -> None:
        connect_airflow("other")
        sensor = gate(topic="wo{{ 'rk' }}", taskq_conn_id="oth{{ 'er' }}", deferrable=True)
        sensor.render_template_fields(context_of())
        arguments = deferred(sensor).trigger.serialize()[1]
        assert (arguments["topic"], arguments["taskq_conn_id"]) == ("work", "other")


class TestDeferred:
    def test_fails_in_a_worker_as_the_other_modes_do(self, queue: TaskQueue, owner: Owner) -> None:
        end(queue, owner, b=Result.FAILURE)
        with pytest.raises(AirflowFailException) as raised:
            resume(gate(deferrable=True), "failed")
        assert str(raised.value) == MESSAGE
        for option in ("soft_fail", "never_fail"):
            with pytest.raises(AirflowSkipException, match=f"due to {option}"):
                resume(gate(deferrable=True, **{option: True}), "failed")

    def test_a_failure_that_was_repaired_meanwhile_does_not_fail_the_gate(self, queue: TaskQueue, owner: Owner) -> None:
        end(queue, owner, b=Result.FAILURE)
        queue.revive("work", State.FAILED)
        with pytest.raises(TaskDeferred):
            resume(gate(deferrable=True), "failed")


class TestTimeouts:
    def test_a_gate_that_pokes_times_out_or_is_skipped(self) -> None:
        message = (
            r"was not open within 0.1 seconds. Waits for 2 tasks of topic 'work' to be SUCCEEDED; 0 done, 'a' has no"
        )
        with pytest.raises(AirflowSensorTimeout, match=message):
            gate(timeout=0.1).execute(context_of())
        with pytest.raises(AirflowSkipException, match=message):
            gate(timeout=0.1, soft_fail=True).execute(context_of())

    def test_pokes_less_often_with_exponential_backoff(self) -> None:
        context = context_of()
        now = datetime.now(UTC)
        context["ti"].get_first_reschedule_date = lambda _: now - timedelta(seconds=600)
        arguments = {"mode": "reschedule", "poke_interval": 10, "timeout": 9999, "exponential_backoff": True}
        for more, least, most in (({}, 120, 9999), ({"max_wait": 60}, 59, 70)):
            later = waits_on(gate(**arguments, **more), context)
            assert isinstance(later, AirflowRescheduleException)
            assert least <= (later.reschedule_date - now).total_seconds() <= most


def test_a_mapped_gate_can_be_serialized_and_restored() -> None:
    with DAG("dag", schedule=None) as dag:
        mapped = TaskQStateSensor.partial(
            task_id="gate", topic="work", states={"SUCCEEDED", "FILTERED"}, failed_states=[State.FAILED]
        ).expand(identifiers=[["a"], ["b"]])
    assert restored(dag).task_ids == ["gate"]
    sensor = mapped.unmap({"identifiers": ["a"]})
    assert isinstance(sensor, TaskQStateSensor)
    assert (sorted(sensor.states), sorted(sensor.failed_states)) == (["FILTERED", "SUCCEEDED"], ["FAILED"])
