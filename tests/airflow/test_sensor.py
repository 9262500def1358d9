from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from airflow.exceptions import AirflowRescheduleException  # common-compat lacks it
from airflow.models.taskinstance import TaskInstance
from airflow.providers.common.compat.sdk import (
    AirflowSensorTimeout,
    AirflowSkipException,
    TaskDeferred,
)
from airflow.sdk import DAG, Asset
from airflow.serialization.enums import Encoding
from airflow.triggers.base import StartTriggerArgs

from airflow_provider_taskq.hooks import TaskQHook
from airflow_provider_taskq.operators import TaskQCompleteOperator
from airflow_provider_taskq.queue import InvalidArgument, LeaseLost, NewTask, State, TaskQueue
from airflow_provider_taskq.sensors import TaskQSensor
from airflow_provider_taskq.sensors.base import RESUME_DELAY
from airflow_provider_taskq.triggers import TaskQTrigger
from airflow_provider_taskq.triggers.topic import ClaimRequest
from tests.airflow.conftest import context_of
from tests.airflow.serialization import restored
from tests.internals import age_tasks, lapse_lease

pytestmark = [
    pytest.mark.usefixtures("airflow_connection", "queue"),
    pytest.mark.promise("A gate opens when its topic is ready, in every mode"),
]

NAME = "dag/run/gate/-1"


def gate(**arguments: Any) -> TaskQSensor:
    return TaskQSensor(**{"task_id": "gate", "topic": "work", "poke_interval": 0.05, "timeout": 60, **arguments})


def deferred(sensor: TaskQSensor, context: Any = None) -> TaskDeferred:
    with pytest.raises(TaskDeferred) as raised:
        sensor.execute(context or context_of())
    return raised.value


@pytest.mark.parametrize("arguments", [{}, {"mode": "reschedule"}, {"deferrable": True}])
class TestEveryMode:
    def test_a_gate_without_a_claim_leaves_its_tasks_ready(self, queue: TaskQueue, arguments: dict[str, Any]) -> None:
        queue.push("work", ["a", "b", "c"])
        gate(min_tasks=2, **arguments).execute(context_of())
        assert {task.state for task in queue.page("work")} == {State.READY}

    def test_a_claim_holds_tasks_under_the_logical_task(self, queue: TaskQueue, arguments: dict[str, Any]) -> None:
        queue.push("work", ["a", "b", "c"])
        claim = gate(claim=2, **arguments).execute(context_of())
        owner = queue.owner(NAME)
        assert owner is not None
        assert claim == {"topic": "work", "owner": NAME, "fence": owner.fence, "claimed": 2}
        assert [task.owner for task in queue.page("work")] == [NAME, NAME, None]

    def test_a_retry_finds_the_same_tasks_and_claims_no_more(self, queue: TaskQueue, arguments: dict[str, Any]) -> None:
        queue.push("work", ["a", "b", "c"])
        first = gate(claim=2, **arguments).execute(context_of())
        owner = queue.owner(NAME)
        again = gate(claim=2, **arguments).execute(context_of())
        assert again["fence"] > first["fence"]
        assert again == {**first, "fence": again["fence"]}
        assert [task.owner for task in queue.page("work")] == [NAME, NAME, None]
        assert owner is not None
        with pytest.raises(LeaseLost):
            queue.heartbeat(owner)  # the first try has lost its lease

    def test_a_retry_finds_its_tasks_although_its_lease_has_lapsed(
        self, queue: TaskQueue, conn: psycopg.Connection, arguments: dict[str, Any]
    ) -> None:
        queue.push("work", ["a"])
        first = gate(claim=1, **arguments).execute(context_of())
        lapse_lease(conn)
        assert gate(claim=1, **arguments).execute(context_of())["claimed"] == first["claimed"] == 1


MODES = pytest.mark.parametrize("arguments", [{}, {"mode": "reschedule"}, {"deferrable": True}])


@MODES
@pytest.mark.parametrize("claim", [None, 5])
def test_max_wait_limits_how_long_the_oldest_task_waits(
    queue: TaskQueue, conn: psycopg.Connection, arguments: dict[str, Any], claim: int | None
) -> None:
    queue.push("work", ["a", "b"])
    # A gate that pokes ends by its timeout only. In the other modes a short timeout could end a slow check.
    timeout = 60 if arguments else 0.1
    sensor = gate(min_tasks=3, max_wait=timedelta(seconds=50), claim=claim, timeout=timeout, **arguments)
    closed = {"reschedule": AirflowRescheduleException}.get(sensor.mode, AirflowSensorTimeout)
    with pytest.raises(TaskDeferred if sensor.deferrable else closed):
        sensor.execute(context_of())
    age_tasks(conn, timedelta(minutes=1))
    found = sensor.execute(context_of())
    assert found["ready" if claim is None else "claimed"] == 2


@MODES
def test_an_old_task_that_is_held_or_not_due_does_not_open_the_gate(
    queue: TaskQueue, conn: psycopg.Connection, arguments: dict[str, Any]
) -> None:
    queue.push("work", ["a"])
    queue.poll("work", queue.register("other"))
    queue.push("work", [NewTask("later", delay=timedelta(hours=1))])
    age_tasks(conn, timedelta(minutes=1))
    with pytest.raises((AirflowSensorTimeout, TaskDeferred, AirflowRescheduleException)):
        gate(min_tasks=2, max_wait=10, timeout=0.1, **arguments).execute(context_of())


def test_a_gate_claims_the_remaining_tasks_after_max_wait(
    queue: TaskQueue, conn: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.push("work", ["a", "b"])
    age_tasks(conn, timedelta(minutes=1))
    ready = ClaimRequest._count_ready

    def others_are_quicker(self: ClaimRequest, *arguments: Any) -> int | None:
        found = ready(self, *arguments)
        queue.poll("work", queue.register("other"), 1)
        return found

    monkeypatch.setattr(ClaimRequest, "_count_ready", others_are_quicker)
    assert gate(min_tasks=3, claim=3, max_wait=10).execute(context_of())["claimed"] == 1


def test_checks_less_often_but_at_least_every_max_wait() -> None:
    def waits(**arguments: Any) -> list[float]:
        sensor = gate(poke_interval=1, timeout=10_000, exponential_backoff=True, **arguments)
        return [sensor._get_next_poke_interval(0.0, lambda: 0.0, poke) for poke in range(1, 9)]

    assert waits()[-1] >= 64
    assert max(waits(min_tasks=9, max_wait=20)) == 20


def test_the_order_decides_which_tasks_are_claimed(queue: TaskQueue) -> None:
    queue.push("work", ["a", "b", "c"])
    gate(claim=1, order="LAST_IN_FIRST_OUT").execute(context_of())
    assert [task.owner for task in queue.page("work")] == [None, None, NAME]


@MODES
def test_the_condition_decides_which_tasks_count(queue: TaskQueue, arguments: dict[str, Any]) -> None:
    queue.push("work", ["a", "a", "b"])
    sensor = gate(min_tasks=2, claim=3, condition="SINGULAR_BY_IDENTIFIER", **arguments)
    assert sensor.execute(context_of())["claimed"] == 2
    with pytest.raises((AirflowSensorTimeout, TaskDeferred, AirflowRescheduleException)):
        gate(condition="SINGULAR_BY_IDENTIFIER", timeout=0.1, **arguments).execute(context_of())


def test_waits_by_poking() -> None:
    with pytest.raises(AirflowSensorTimeout):
        gate(timeout=0.1).execute(context_of())
    with pytest.raises(AirflowSkipException):
        gate(timeout=0.1, soft_fail=True).execute(context_of())


def test_each_mapped_task_claims_its_own_tasks(queue: TaskQueue) -> None:
    queue.push("work", ["a", "b"])
    owners = [gate(claim=1).execute(context_of(map_index=index))["owner"] for index in range(2)]
    assert owners == ["dag/run/gate/0", "dag/run/gate/1"]


def test_claims_under_another_name_if_requested(queue: TaskQueue) -> None:
    queue.push("work", ["a"])
    sensor = gate(claim=1, claim_as="loader-{{ ds }}", lease=timedelta(minutes=2))
    sensor.render_template_fields(context_of())
    assert sensor.execute(context_of())["owner"] == "loader-2013-01-01"
    (owner,) = queue.owners()
    assert owner.lease == timedelta(minutes=2)


def test_a_closed_gate_leaves_no_lease_behind(queue: TaskQueue) -> None:
    queue.push("work", ["a"])
    deferred(gate(claim=5, min_tasks=2, deferrable=True))
    assert queue.owners() == []
    assert queue.page("work")[0].state is State.READY


def test_a_claim_that_finds_too_few_tasks_claims_none(queue: TaskQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another consumer polls tasks between the check and the claim."""
    queue.push("work", ["a", "b"])
    ready = ClaimRequest._count_ready

    def others_are_quicker(self: ClaimRequest, *arguments: Any) -> int | None:
        found = ready(self, *arguments)
        with TaskQHook().transaction() as other:
            other.poll("work", other.register("other"), 1)
        return found

    monkeypatch.setattr(ClaimRequest, "_count_ready", others_are_quicker)
    deferred(gate(claim=2, min_tasks=2, deferrable=True))
    assert sorted(str(task.owner) for task in queue.page("work")) == ["None", "other"]


class TestDeferred:
    @pytest.mark.parametrize(
        ("arguments", "stores"),
        [({}, "each"), ({"multiple_outputs": False}, "result"), ({"do_xcom_push": False}, "nothing")],
    )
    def test_its_trigger_stores_the_requested_xcoms(self, arguments: dict[str, Any], stores: str) -> None:
        assert deferred(gate(deferrable=True, **arguments)).trigger.serialize()[1]["stores"] == stores


def test_owner_is_airflows_own() -> None:
    """Two DAGs with the same Airflow owner claim under different names."""
    with DAG("dag", schedule=None, default_args={"owner": "data-team"}):
        plain = TaskQSensor(task_id="plain", topic="work", claim=1)
        named = TaskQSensor(task_id="named", topic="work", claim=1, owner="loaders", claim_as="loader")
        mapped = TaskQSensor.partial(task_id="mapped", claim=1).expand(topic=["work"])
    assert (plain.owner, plain.claim_as) == ("data-team", None)
    assert (named.owner, named.claim_as) == ("loaders", "loader")
    one = mapped.unmap({"topic": "work"})
    assert isinstance(one, TaskQSensor)
    assert (one.owner, one.claim_as) == ("data-team", None)


def test_gates_with_the_same_airflow_owner_claim_tasks_of_their_own(queue: TaskQueue) -> None:
    queue.push("work", ["a", "b", "c"])
    claims = [gate(claim=2, owner="data-team").execute(context_of(run_id=run)) for run in ("one", "two")]
    assert [(claim["owner"], claim["claimed"]) for claim in claims] == [("dag/one/gate/-1", 2), ("dag/two/gate/-1", 1)]


@pytest.mark.parametrize("other", ["work", "other"])
def test_a_second_gate_with_the_same_claim_as_logs_the_takeover(
    queue: TaskQueue, capsys: pytest.CaptureFixture[str], other: str
) -> None:
    queue.create_topic("other")
    queue.push("work", ["a", "b"])
    queue.push("other", ["c"])
    first = gate(claim=2, claim_as="loader").execute(context_of())
    second = gate(topic=other, claim=5, claim_as="loader").execute(context_of("second"))
    assert second["claimed"] == (2 if other == "work" else 1)
    of_topic = 2 if other == "work" else 0
    log = capsys.readouterr().out
    assert (
        f"Took over 2 tasks ({of_topic} of topic {other}) that owner 'loader' held under fence {first['fence']}" in log
    )
    assert "give each gate a claim_as of its own" in log
    with pytest.raises(LeaseLost, match="a later registration of the same owner"):
        TaskQCompleteOperator(task_id="complete", claim=first).execute(context_of("complete"))


def test_a_retry_of_a_gate_does_not_warn(queue: TaskQueue, capsys: pytest.CaptureFixture[str]) -> None:
    queue.push("work", ["a"])
    for _ in range(2):
        gate(claim=1).execute(context_of())
    log = capsys.readouterr().out
    assert "Took over 1 tasks that an earlier run of this task instance claimed" in log
    assert "claim_as" not in log


class TestTemplates:
    def test_numbers_and_durations_are_templates(self, queue: TaskQueue) -> None:
        queue.push("work", ["a", "b", "c"])
        sensor = gate(
            min_tasks="{{ params.least }}",
            claim="{{ params.size }}",
            lease="{{ params.minutes }}m",
            max_wait="{{ params.minutes * 60 }}",
        )
        context: Any = {**context_of(), "params": {"least": 2, "size": 2, "minutes": 3}}
        sensor.render_template_fields(context)
        assert sensor.execute(context)["claimed"] == 2
        assert sensor.max_wait == timedelta(minutes=3)
        assert queue.owners()[0].lease == timedelta(minutes=3)

    def test_a_template_may_render_none(self, queue: TaskQueue) -> None:
        queue.push("work", ["a"])
        sensor = gate(claim="{{ none }}", max_wait="{{ none }}", claim_as="{{ '' }}")
        sensor.render_template_fields(context_of())
        assert sensor.execute(context_of()) == {"topic": "work", "ready": 1}

    def test_outputs_of_other_tasks_make_those_tasks_upstream(self) -> None:
        with DAG("dag", schedule=None):
            upstream = gate(task_id="upstream")
            given: Any = dict.fromkeys(("min_tasks", "claim", "lease", "max_wait"), upstream.output)
            downstream = gate(task_id="downstream", **given)
        assert downstream.upstream_task_ids == {"upstream"}

    @pytest.mark.parametrize("name", ["min_tasks", "claim", "lease", "max_wait"])
    def test_an_invalid_number_is_refused_with_the_parameter_name(self, name: str) -> None:
        with pytest.raises(InvalidArgument, match="'many'"):
            gate(**{"claim": 1, name: "many"}).execute(context_of())


def test_the_poke_interval_is_the_triggers_too() -> None:
    def interval(**arguments: Any) -> float:
        sensor = TaskQSensor(task_id="gate", topic="work", deferrable=True, **arguments)
        found: float = deferred(sensor).trigger.serialize()[1]["poke_interval"]
        return found

    assert interval(poke_interval=7) == interval(poke_interval=timedelta(seconds=7)) == 7.0
    assert interval() == 1.0
    assert TaskQSensor(task_id="gate", topic="work").poke_interval == 60
    with DAG("dag", schedule=None, default_args={"poke_interval": 5}):
        assert interval() == 5.0


@pytest.mark.parametrize("arguments", [{"min_tasks": 0}, {"claim": 0}])
def test_bounds_below_one_are_refused(arguments: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        gate(**arguments)


class TestStartFromTrigger:
    def test_the_scheduler_gets_the_arguments_of_the_trigger(self) -> None:
        sensor = gate(
            deferrable=True,
            start_from_trigger=True,
            topic="{{ params.topic }}",
            claim=5,
            claim_as="loader",
            lease=timedelta(minutes=5),
            max_wait="{{ params.seconds }}",
        )
        assert sensor.start_from_trigger
        started = sensor.start_trigger_args
        assert started is not None
        assert (started.next_method, started.timeout) == ("execute_complete", timedelta(seconds=60))
        trigger = TaskQTrigger(**(started.trigger_kwargs or {}))
        assert trigger.serialize()[0] == started.trigger_cls
        assert trigger.serialize()[1] == {
            "topic": "{{ params.topic }}",
            "min_tasks": 1,
            "condition": "NONE",
            "max_wait": "{{ params.seconds }}",
            "claim": 5,
            "claim_as": "loader",
            "order": "FIRST_IN_FIRST_OUT",
            "lease": 300.0,
            "taskq_conn_id": "taskq_default",
            "poke_interval": 0.05,
            "ends_task": True,
            "stores": "each",
            "resume_after": 0.0,
        }
        assert {name for name in sensor.template_fields if hasattr(trigger, name)} == set(sensor.template_fields)

    def test_outputs_of_other_tasks_become_templates(self) -> None:
        with DAG("dag", schedule=None):
            output: Any = gate(task_id="upstream").output
            sensor = gate(deferrable=True, start_from_trigger=True, claim=output["ready"])
        assert sensor.start_trigger_args is not None
        assert sensor.start_trigger_args.trigger_kwargs is not None
        assert sensor.start_trigger_args.trigger_kwargs["claim"] == str(output["ready"])
        assert sensor.upstream_task_ids == {"upstream"}

    def test_a_gate_with_outlets_is_resumed_in_a_worker(self) -> None:
        sensor = gate(deferrable=True, start_from_trigger=True, outlets=[Asset("flights")])
        assert sensor.start_trigger_args is not None
        assert sensor.start_trigger_args.trigger_kwargs is not None
        assert sensor.start_trigger_args.trigger_kwargs["ends_task"] is False

    def test_is_off_unless_chosen_and_needs_a_deferrable_gate(self) -> None:
        assert gate(deferrable=True).start_trigger_args is None
        assert not gate(deferrable=True).start_from_trigger
        with pytest.raises(ValueError, match="start_from_trigger needs deferrable=True"):
            gate(start_from_trigger=True)

    def test_airflow_does_not_expand_the_trigger_of_a_mapped_gate(self) -> None:
        """Evidence for docs/why/evidence/decisions.md: the trigger of the scheduler lacks the mapped values."""

        class StartsAtOnce(TaskQSensor):
            start_from_trigger = True
            start_trigger_args = StartTriggerArgs("a.Trigger", "execute_complete", {"topic": "of the class"})

        with DAG("dag", schedule=None) as dag:
            StartsAtOnce.partial(task_id="gate", deferrable=True, start_from_trigger=True).expand(topic=["a", "b"])
        instance: Any = SimpleNamespace(task=restored(dag).get_task("gate"))
        started = vars(TaskInstance)["start_trigger_args"].fget(instance)
        assert Encoding.TYPE in started.trigger_kwargs
        assert started.trigger_kwargs[Encoding.VAR] == {"topic": "of the class"}

    def test_a_mapped_gate_starts_in_a_worker(self) -> None:
        with DAG("dag", schedule=None) as dag:
            TaskQSensor.partial(task_id="gate", deferrable=True, start_from_trigger=True).expand(topic=["a", "b"])
        assert restored(dag).get_task("gate").start_trigger_args is None

    def test_can_be_stored(self) -> None:
        with DAG("dag", schedule=None) as dag:
            gate(deferrable=True, start_from_trigger=True, topic="{{ params.topic }}", claim=2)
            TaskQSensor.partial(task_id="mapped", deferrable=True, start_from_trigger=True).expand(topic=["a", "b"])
        stored = restored(dag).get_task("gate")
        assert stored.start_from_trigger is True
        assert stored.start_trigger_args.trigger_cls == "airflow_provider_taskq.triggers.topic.TaskQTrigger"


def test_a_gate_with_a_short_interval_is_not_rescheduled_too_soon() -> None:
    """Airflow fails a task that runs again before the end of the process that rescheduled it is known."""
    with pytest.raises(AirflowRescheduleException) as raised:
        gate(mode="reschedule", poke_interval=2).execute(context_of())
    assert (raised.value.reschedule_date - datetime.now(UTC)).total_seconds() > RESUME_DELAY - 1
