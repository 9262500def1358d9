"""What TaskQSensor adds to what every sensor does (test_sensor_conformance.py): claims, max_wait, and its start."""

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from airflow.exceptions import AirflowRescheduleException  # common-compat lacks it
from airflow.models.taskinstance import TaskInstance
from airflow.providers.common.compat.sdk import AirflowSensorTimeout, TaskDeferred
from airflow.sdk import DAG, Asset
from airflow.serialization.enums import Encoding
from airflow.triggers.base import StartTriggerArgs

from airflow_provider_taskq.hooks import TaskQHook
from airflow_provider_taskq.operators import TaskQCompleteOperator
from airflow_provider_taskq.queue import InvalidArgument, LeaseLost, NewTask, TaskQueue
from airflow_provider_taskq.sensors import TaskQSensor
from airflow_provider_taskq.sensors.base import RESUME_DELAY
from airflow_provider_taskq.triggers import TaskQTrigger
from airflow_provider_taskq.triggers.topic import ClaimRequest
from tests.airflow.conftest import context_of
from tests.airflow.release_marks import RENDERING
from tests.airflow.serialization import restored
from tests.internals import age_tasks

pytestmark = [
    pytest.mark.usefixtures("airflow_connection", "queue"),
    pytest.mark.promise("A gate opens when its topic is ready, in every mode"),
]

NAME = "dag/run/gate/-1"
MODES = pytest.mark.parametrize("mode", [{}, {"mode": "reschedule"}, {"deferrable": True}], ids=str)
CLOSED = (AirflowSensorTimeout, TaskDeferred, AirflowRescheduleException)


def gate(**arguments: Any) -> TaskQSensor:
    return TaskQSensor(**{"task_id": "gate", "topic": "work", "poke_interval": 0.05, "timeout": 60, **arguments})


def deferred(sensor: TaskQSensor) -> TaskDeferred:
    with pytest.raises(TaskDeferred) as raised:
        sensor.execute(context_of())
    return raised.value


class TestClaims:
    def test_are_held_under_the_logical_task_and_a_retry_locks_the_first_try_out(self, queue: TaskQueue) -> None:
        queue.push("work", ["a", "b", "c"])
        claim = gate(claim=2).execute(context_of())
        owner = queue.owner(NAME)
        assert owner is not None
        assert claim == {"topic": "work", "owner": NAME, "fence": owner.fence, "claimed": 2}
        assert [task.owner for task in queue.page("work")] == [NAME, NAME, None]
        assert gate(claim=2).execute(context_of())["fence"] > owner.fence
        with pytest.raises(LeaseLost):
            queue.heartbeat(owner)

    def test_mapped_gates_and_other_runs_claim_tasks_of_their_own(self, queue: TaskQueue) -> None:
        queue.push("work", ["a", "b", "c"])
        for run_id, map_index in (("one", -1), ("two", 0), ("two", 1)):
            claim = gate(claim=1, owner="data-team").execute(context_of(run_id=run_id, map_index=map_index))
            assert (claim["owner"], claim["claimed"]) == (f"dag/{run_id}/gate/{map_index}", 1)

    @pytest.mark.parametrize("other", ["work", "other"])
    def test_a_second_gate_with_the_same_claim_as_logs_the_takeover(
        self, queue: TaskQueue, capsys: pytest.CaptureFixture[str], other: str
    ) -> None:
        queue.create_topic("other")
        queue.push("work", ["a", "b"])
        queue.push("other", ["c"])
        first = gate(claim=2, claim_as="loader").execute(context_of())
        second = gate(topic=other, claim=5, claim_as="loader").execute(context_of("second"))
        assert second["claimed"] == (2 if other == "work" else 1)
        of_topic = 2 if other == "work" else 0
        taken = f"Took over 2 tasks ({of_topic} of topic {other}) that owner 'loader' held under fence {first['fence']}"
        log = capsys.readouterr().out
        assert taken in log
        assert "give each gate a claim_as of its own" in log
        with pytest.raises(LeaseLost, match="a later registration of the same owner"):
            TaskQCompleteOperator(task_id="complete", claim=first).execute(context_of("complete"))

    def test_a_retry_of_a_gate_does_not_warn(self, queue: TaskQueue, capsys: pytest.CaptureFixture[str]) -> None:
        queue.push("work", ["a"])
        for _ in range(2):
            gate(claim=1).execute(context_of())
        log = capsys.readouterr().out
        assert "Took over 1 tasks that an earlier run of this task instance claimed" in log
        assert "claim_as" not in log

    @pytest.fixture
    def quicker(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Another consumer polls a task between each check and its claim."""
        ready = ClaimRequest._count_ready

        def others_are_quicker(self: ClaimRequest, *arguments: Any) -> int | None:
            found = ready(self, *arguments)
            with TaskQHook().transaction() as other:
                other.poll("work", other.register("other"), 1)
            return found

        monkeypatch.setattr(ClaimRequest, "_count_ready", others_are_quicker)

    @pytest.mark.usefixtures("quicker")
    def test_a_claim_that_finds_too_few_tasks_claims_none(self, queue: TaskQueue) -> None:
        queue.push("work", ["a", "b"])
        deferred(gate(claim=2, min_tasks=2, deferrable=True))
        assert sorted(str(task.owner) for task in queue.page("work")) == ["None", "other"]

    @pytest.mark.usefixtures("quicker")
    def test_a_gate_claims_the_remaining_tasks_after_max_wait(self, queue: TaskQueue, conn: psycopg.Connection) -> None:
        queue.push("work", ["a", "b"])
        age_tasks(conn, timedelta(minutes=1))
        assert gate(min_tasks=3, claim=3, max_wait=10).execute(context_of())["claimed"] == 1


@MODES
@pytest.mark.parametrize("claim", [None, 5])
def test_max_wait_limits_how_long_the_oldest_task_waits(
    queue: TaskQueue, conn: psycopg.Connection, mode: dict[str, Any], claim: int | None
) -> None:
    queue.push("work", ["a", "b"])
    # A gate that pokes ends by its timeout only. In the other modes a short timeout could end a slow check.
    sensor = gate(min_tasks=3, max_wait=timedelta(seconds=50), claim=claim, timeout=60 if mode else 0.1, **mode)
    with pytest.raises(CLOSED):
        sensor.execute(context_of())
    age_tasks(conn, timedelta(minutes=1))
    found = sensor.execute(context_of())
    assert found["ready" if claim is None else "claimed"] == 2


def test_an_old_task_that_is_held_or_not_due_does_not_open_the_gate(queue: TaskQueue, conn: psycopg.Connection) -> None:
    queue.push("work", ["a"])
    queue.poll("work", queue.register("other"))
    queue.push("work", [NewTask("later", delay=timedelta(hours=1))])
    age_tasks(conn, timedelta(minutes=1))
    deferred(gate(min_tasks=2, max_wait=10, deferrable=True))


class TestTemplates:
    def test_numbers_and_durations_are_templates(self, queue: TaskQueue) -> None:
        queue.push("work", ["a", "b", "c"])
        sensor = gate(
            min_tasks="{{ params.least }}",
            claim="{{ params.size }}",
            claim_as="loader-{{ ds }}",
            lease="{{ params.minutes }}m",
            max_wait="{{ params.minutes * 60 }}",
        )
        context: Any = {**context_of(), "params": {"least": 2, "size": 2, "minutes": 3}}
        sensor.render_template_fields(context)
        claim = sensor.execute(context)
        assert (claim["owner"], claim["claimed"]) == ("loader-2013-01-01", 2)
        assert sensor.max_wait == timedelta(minutes=3)
        assert queue.owners()[0].lease == timedelta(minutes=3)

    def test_a_template_may_render_none(self, queue: TaskQueue) -> None:
        queue.push("work", ["a"])
        sensor = gate(claim="{{ none }}", max_wait="{{ none }}", claim_as="{{ '' }}")
        sensor.render_template_fields(context_of())
        assert sensor.execute(context_of()) == {"topic": "work", "ready": 1}

    @pytest.mark.parametrize("name", ["min_tasks", "claim", "lease", "max_wait"])
    def test_an_invalid_number_is_refused_with_the_parameter_name(self, name: str) -> None:
        with pytest.raises(InvalidArgument, match="'many'"):
            gate(**{"claim": 1, name: "many"}).execute(context_of())

    @pytest.mark.parametrize("name", ["min_tasks", "claim"])
    def test_numbers_below_one_are_refused_when_the_dag_is_parsed(self, name: str) -> None:
        with pytest.raises(ValueError, match="at least 1"):
            gate(**{name: 0})


class TestTrigger:
    @pytest.mark.parametrize(
        ("arguments", "stores"),
        [({}, "each"), ({"multiple_outputs": False}, "result"), ({"do_xcom_push": False}, "nothing")],
        ids=str,
    )
    def test_stores_the_requested_xcoms(self, arguments: dict[str, Any], stores: str) -> None:
        assert deferred(gate(deferrable=True, **arguments)).trigger.serialize()[1]["stores"] == stores

    def test_has_the_poke_interval_of_its_sensor(self) -> None:
        def interval(**arguments: Any) -> float:
            sensor = TaskQSensor(task_id="gate", topic="work", deferrable=True, **arguments)
            found: float = deferred(sensor).trigger.serialize()[1]["poke_interval"]
            return found

        assert interval(poke_interval=7) == interval(poke_interval=timedelta(seconds=7)) == 7.0
        assert interval() == 1.0
        assert TaskQSensor(task_id="gate", topic="work").poke_interval == 60
        with DAG("dag", schedule=None, default_args={"poke_interval": 5}):
            assert interval() == 5.0


class TestStartFromTrigger:
    @RENDERING
    def test_the_scheduler_gets_the_arguments_of_the_trigger(self) -> None:
        with DAG("dag", schedule=None) as dag:
            output: Any = gate(task_id="upstream").output
            sensor = gate(
                deferrable=True,
                start_from_trigger=True,
                topic="{{ params.topic }}",
                claim=output["ready"],
                claim_as="loader",
                lease=timedelta(minutes=5),
                max_wait="{{ params.seconds }}",
            )
        assert sensor.start_from_trigger
        assert sensor.upstream_task_ids == {"upstream"}
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
            "claim": str(output["ready"]),
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
        stored = restored(dag).get_task("gate")
        assert (stored.start_from_trigger, stored.start_trigger_args.trigger_cls) == (True, started.trigger_cls)

    def test_a_gate_with_outlets_is_resumed_in_a_worker(self) -> None:
        started: Any = gate(deferrable=True, start_from_trigger=True, outlets=[Asset("flights")]).start_trigger_args
        assert started.trigger_kwargs["ends_task"] is False

    def test_is_off_unless_chosen_and_needs_a_deferrable_gate(self) -> None:
        assert (gate(deferrable=True).start_trigger_args, gate(deferrable=True).start_from_trigger) == (None, False)
        with pytest.raises(ValueError, match="start_from_trigger needs deferrable=True"):
            gate(start_from_trigger=True)

    def test_a_mapped_gate_starts_in_a_worker(self) -> None:
        with DAG("dag", schedule=None) as dag:
            TaskQSensor.partial(task_id="gate", deferrable=True, start_from_trigger=True).expand(topic=["a", "b"])
        assert restored(dag).get_task("gate").start_trigger_args is None

    @RENDERING
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


def rescheduled(**arguments: Any) -> float:
    """Return after how many seconds a closed gate, which has waited for ten minutes, checks again."""
    context = context_of()
    now = datetime.now(UTC)
    context["ti"].get_first_reschedule_date = lambda _: now - timedelta(seconds=600)
    with pytest.raises(AirflowRescheduleException) as raised:
        gate(mode="reschedule", timeout=9999, **arguments).execute(context)
    seconds: float = (raised.value.reschedule_date - now).total_seconds()
    return seconds


def test_a_gate_with_a_short_interval_is_not_rescheduled_too_soon() -> None:
    """Airflow fails a task that runs again before the end of the process that rescheduled it is known."""
    assert rescheduled(poke_interval=2) > RESUME_DELAY - 1


def test_checks_less_often_with_exponential_backoff_but_at_least_every_max_wait() -> None:
    given: dict[str, Any] = {"poke_interval": 10, "exponential_backoff": True}
    assert rescheduled(**given) >= 120
    assert 59 <= rescheduled(**given, min_tasks=9, max_wait=60) <= 70
