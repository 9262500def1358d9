"""What every sensor does in every mode, and its trigger: each kind of gate with what opens it."""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from airflow.exceptions import AirflowRescheduleException  # common-compat lacks it
from airflow.providers.common.compat.sdk import (
    AirflowException,
    AirflowSensorTimeout,
    AirflowSkipException,
    TaskDeferred,
)
from airflow.sdk import Asset
from airflow.sdk.bases.sensor import TaskDeferralTimeout  # type: ignore[attr-defined]  # 3.1 has it elsewhere
from airflow.triggers.base import TaskSuccessEvent, TriggerEvent

from airflow_provider_taskq.queue import NewTask, Owner, Result, State, TaskQueue, UnknownTopic
from airflow_provider_taskq.sensors import TaskQJunctureSensor, TaskQSensor, TaskQStateSensor
from airflow_provider_taskq.sensors.base import RESUME_DELAY
from airflow_provider_taskq.triggers import TaskQJunctureTrigger, TaskQStateTrigger, TaskQTrigger
from tests.airflow.conftest import Connect, context_of
from tests.internals import lapse_lease


@dataclass(frozen=True)
class Kind:
    """A sensor, the arguments of a gate, the tasks that open it, its result, and what it gives its trigger.

    `opening` are tasks to push, and the results end them in order. `leaves` are their states after the gate.
    """

    sensor: type[Any]
    arguments: Mapping[str, Any]
    opening: tuple[NewTask, ...]
    result: Mapping[str, Any]
    leaves: tuple[State, ...]
    trigger: type[Any]
    gives: Mapping[str, Any]
    results: tuple[Result, ...] = field(default=())

    def gate(self, **arguments: Any) -> Any:
        """Return a gate."""
        given = {"task_id": "gate", "topic": "work", "poke_interval": 0.05, "timeout": 60}
        return self.sensor(**{**given, **self.arguments, **arguments})

    def fires(self, **arguments: Any) -> TriggerEvent:
        """Run the trigger of a gate in an event loop of its own, and return its only event."""

        async def fired() -> TriggerEvent:
            given = {"topic": "work", "poke_interval": 0.05, **self.gives, **arguments}
            async with asyncio.timeout(60):
                events: list[TriggerEvent] = [event async for event in self.trigger(**given).run()]
                assert len(events) == 1
                return events[0]

        return asyncio.run(fired())

    def open(self, queue: TaskQueue, owner: Owner) -> None:
        """Make the tasks that open the gate."""
        queue.push("work", self.opening)
        if self.results:
            queue.complete(owner, dict(zip(queue.poll("work", owner, len(self.results)), self.results, strict=True)))


KINDS = {
    "tasks": Kind(
        TaskQSensor,
        {"min_tasks": 2},
        (NewTask("a"), NewTask("b"), NewTask("c")),
        {"topic": "work", "ready": 2},
        (State.READY, State.READY, State.READY),
        TaskQTrigger,
        {"min_tasks": 2, "condition": "NONE", "max_wait": None, "claim": None, "claim_as": None, "lease": 3600.0}
        | {"order": "FIRST_IN_FIRST_OUT"},
    ),
    "claim": Kind(
        TaskQSensor,
        {"claim": 2, "min_tasks": 2, "claim_as": "loader"},
        (NewTask("a"), NewTask("b"), NewTask("c")),
        {"topic": "work", "owner": "loader", "claimed": 2},
        (State.ACTIVE, State.ACTIVE, State.READY),
        TaskQTrigger,
        {"min_tasks": 2, "condition": "NONE", "max_wait": None, "claim": 2, "claim_as": "loader", "lease": 3600.0}
        | {"order": "FIRST_IN_FIRST_OUT"},
    ),
    "claim by identifier, the last first": Kind(
        TaskQSensor,
        {"claim": 9, "min_tasks": 2, "condition": "SINGULAR_BY_IDENTIFIER"}
        | {"order": "LAST_IN_FIRST_OUT", "claim_as": "loader"},
        (NewTask("a"), NewTask("a"), NewTask("b")),
        {"topic": "work", "owner": "loader", "claimed": 2},
        (State.READY, State.ACTIVE, State.ACTIVE),
        TaskQTrigger,
        {"min_tasks": 2, "condition": "SINGULAR_BY_IDENTIFIER", "max_wait": None, "claim": 9, "claim_as": "loader"}
        | {"lease": 3600.0, "order": "LAST_IN_FIRST_OUT"},
    ),
    "states": Kind(
        TaskQStateSensor,
        {"identifiers": ["a", "b"]},
        (NewTask("a"), NewTask("b"), NewTask("c")),
        {"topic": "work", "states": {"SUCCEEDED": 2}},
        (State.SUCCEEDED, State.SUCCEEDED, State.FAILED),
        TaskQStateTrigger,
        {"identifiers": ["a", "b"], "states": ["SUCCEEDED"], "failed_states": ["FAILED"]},
        (Result.SUCCESS, Result.SUCCESS, Result.FAILURE),
    ),
    "junctures": Kind(
        TaskQJunctureSensor,
        {"groups": [["a", "b"], ["c"]], "junction": "ETERNAL"},
        tuple(NewTask(name, suspended=True) for name in "abcd"),
        {"topic": "work", "groups": 2},
        (State.READY, State.READY, State.READY, State.SUSPENDED),
        TaskQJunctureTrigger,
        {"name": "dag/run/gate/-1", "groups": [["a", "b"], ["c"]], "junction": "ETERNAL"},
    ),
}
WAITING = ({"mode": "reschedule"}, {"deferrable": True})

pytestmark = [
    pytest.mark.usefixtures("airflow_connection", "queue"),
    pytest.mark.parametrize("kind", [pytest.param(kind, id=name) for name, kind in KINDS.items()]),
    pytest.mark.promise("A gate opens when its topic is ready, in every mode"),
]


def states(queue: TaskQueue) -> tuple[State, ...]:
    return tuple(task.state for task in queue.page("work"))


def checked(gate: Any) -> Any:
    """Execute a gate. Return its result without the fence of a claim, which is a new one for each try."""
    found = dict(gate.execute(context_of()))
    found.pop("fence", None)
    return found


def resume(gate: Any, status: str = "ready", **kwargs: Any) -> Any:
    """Resume a deferred gate as Airflow does."""
    event = {"status": status, "message": "the trigger's message", "topic": "work", "ready": 1}
    kwargs = {"deadline": "2999-01-01T00:00:00+00:00", "event": event} | kwargs
    return gate.resume_execution("execute_complete", kwargs, context_of())


def deferred(gate: Any, context: Any = None) -> TaskDeferred:
    """Return the exception with which a closed gate defers itself."""
    with pytest.raises(TaskDeferred) as raised:
        gate.execute(context or context_of())
    return raised.value


@pytest.mark.parametrize("mode", [{}, *WAITING], ids=str)
class TestEveryMode:
    def test_opens_at_once(self, queue: TaskQueue, owner: Owner, kind: Kind, mode: dict[str, Any]) -> None:
        kind.open(queue, owner)
        assert checked(kind.gate(**mode)) == kind.result
        assert states(queue) == kind.leaves

    def test_a_retry_has_the_same_result_and_takes_or_releases_no_more(
        self, queue: TaskQueue, owner: Owner, kind: Kind, mode: dict[str, Any]
    ) -> None:
        kind.open(queue, owner)
        checked(kind.gate(**mode))
        kind.open(queue, owner)
        again = states(queue)
        lapse_lease(queue.conn)  # of a try that died long ago
        assert checked(kind.gate(**mode)) == kind.result
        assert states(queue) == again

    def test_an_unknown_topic_fails_the_gate(self, kind: Kind, mode: dict[str, Any]) -> None:
        with pytest.raises(UnknownTopic, match="'nowhere' does not exist; create it with: taskq topics create nowhere"):
            kind.gate(topic="nowhere", **mode).execute(context_of())

    def test_an_error_skips_a_gate_that_never_fails(
        self, connect_airflow: Connect, empty_dsn: str, kind: Kind, mode: dict[str, Any]
    ) -> None:
        connect_airflow(dsn=empty_dsn)
        with pytest.raises(AirflowSkipException, match="due to never_fail"):
            kind.gate(never_fail=True, **mode).execute(context_of())

    def test_a_gate_that_is_not_open_in_time_fails_or_is_skipped(self, kind: Kind, mode: dict[str, Any]) -> None:
        context = context_of()
        long_ago = datetime.now(UTC) - timedelta(hours=1)
        context["ti"].get_first_reschedule_date = lambda _: long_ago
        with pytest.raises(AirflowSensorTimeout, match="was not open within 0 seconds"):
            kind.gate(timeout=0, **mode).execute(context)
        with pytest.raises(AirflowSkipException, match="was not open within 0 seconds"):
            kind.gate(timeout=0, soft_fail=True, **mode).execute(context)


@pytest.mark.parametrize("mode", WAITING, ids=str)
def test_waits_after_an_error_with_silent_fail(
    connect_airflow: Connect, empty_dsn: str, kind: Kind, mode: dict[str, Any]
) -> None:
    connect_airflow(dsn=empty_dsn)
    with pytest.raises((TaskDeferred, AirflowRescheduleException)):
        kind.gate(silent_fail=True, **mode).execute(context_of())


class TestDeferred:
    def test_a_gate_is_ended_by_its_trigger_and_has_no_result_before(self, queue: TaskQueue, kind: Kind) -> None:
        context = context_of()
        trigger = deferred(kind.gate(deferrable=True), context).trigger
        assert context["ti"].pushed == {}, "the gate is closed"
        assert queue.owners() == [], "it holds no lease"
        assert isinstance(trigger, kind.trigger)
        assert trigger.serialize()[1] == {
            "topic": "work",
            **kind.gives,
            "taskq_conn_id": "taskq_default",
            "poke_interval": 0.05,
            "ends_task": True,
            "stores": "each",
            "resume_after": 10.0,
        }

    def test_a_gate_with_outlets_is_resumed_and_checks_again(self, queue: TaskQueue, owner: Owner, kind: Kind) -> None:
        gate = kind.gate(deferrable=True, outlets=[Asset("flights")])
        kwargs = deferred(gate).trigger.serialize()[1]
        assert (kwargs["ends_task"], kwargs["resume_after"]) == (False, 10.0)
        with pytest.raises(TaskDeferred):
            resume(gate)
        kind.open(queue, owner)
        result = resume(gate)
        assert result == {**result, **kind.result}

    def test_defers_again_within_its_first_deadline(self, kind: Kind) -> None:
        first = deferred(kind.gate(deferrable=True, timeout=100))
        assert first.timeout is not None
        assert first.kwargs is not None
        with pytest.raises(TaskDeferred) as again:
            resume(kind.gate(deferrable=True, timeout=100), **first.kwargs)
        assert again.value.kwargs == first.kwargs
        assert again.value.timeout < first.timeout <= timedelta(seconds=100)

    def test_is_not_resumed_too_soon_if_its_timeout_is_short(self, kind: Kind) -> None:
        assert deferred(kind.gate(deferrable=True, timeout=5)).timeout == timedelta(seconds=RESUME_DELAY)

    @pytest.mark.parametrize("option", ["soft_fail", "never_fail"])
    def test_does_not_defer_again_after_its_deadline(self, kind: Kind, option: str) -> None:
        late = {"deadline": "2013-01-01T00:00:00+00:00"}
        with pytest.raises(AirflowSensorTimeout, match="was not open within 5"):
            resume(kind.gate(deferrable=True, timeout=5), **late)
        with pytest.raises(AirflowSkipException):
            resume(kind.gate(deferrable=True, **{option: True}), **late)

    def test_a_timeout_in_the_triggerer_is_a_sensor_timeout_without_a_result(self, kind: Kind) -> None:
        context = context_of()
        timeout = {"error": "Trigger timeout"}
        with pytest.raises(AirflowSensorTimeout, match="was not open within 60 seconds") as raised:
            kind.gate(deferrable=True).resume_execution("__fail__", timeout, context)
        assert isinstance(raised.value.__cause__, TaskDeferralTimeout)
        assert context["ti"].pushed == {}
        with pytest.raises(AirflowSkipException):
            kind.gate(deferrable=True, soft_fail=True).resume_execution("__fail__", timeout, context)

    def test_fails_or_skips_with_the_message_of_the_trigger_if_it_cannot_wait(self, kind: Kind) -> None:
        with pytest.raises(AirflowException, match="the trigger's message"):
            resume(kind.gate(deferrable=True), "error")
        with pytest.raises(AirflowSkipException):
            resume(kind.gate(deferrable=True, soft_fail=True), "error")


class TestTrigger:
    def test_can_be_serialized_and_restored(self, kind: Kind) -> None:
        path, arguments = kind.trigger(topic="work", ends_task=True, resume_after=10, **kind.gives).serialize()
        assert path == f"{kind.trigger.__module__}.{kind.trigger.__name__}"
        assert kind.trigger(**arguments).serialize() == (path, arguments)

    def test_ends_the_task_with_success_at_once(self, queue: TaskQueue, owner: Owner, kind: Kind) -> None:
        kind.open(queue, owner)
        assert isinstance(kind.fires(ends_task=True, resume_after=3600, stores="nothing"), TaskSuccessEvent)
        assert states(queue) == kind.leaves

    def test_resumes_the_task_no_sooner_than_resume_after(self, queue: TaskQueue, owner: Owner, kind: Kind) -> None:
        kind.open(queue, owner)
        began = time.monotonic()
        event = kind.fires(resume_after=0.5)
        assert time.monotonic() - began >= 0.5
        assert event.payload["status"] == "ready"

    def test_an_unknown_topic_or_a_missing_connection_ends_the_wait(self, kind: Kind) -> None:
        unknown = kind.fires(topic="nowhere", ends_task=True).payload
        assert unknown["status"] == "error"
        assert "'nowhere' does not exist; create it" in unknown["message"]
        missing = kind.fires(taskq_conn_id="missing_connection", ends_task=True).payload
        assert missing["status"] == "error"
        assert "missing_connection" in missing["message"]
