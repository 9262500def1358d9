import asyncio
import os
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import psycopg
import pytest
from airflow.exceptions import AirflowRescheduleException  # common-compat lacks it
from airflow.providers.common.compat.sdk import Stats, TaskDeferred
from airflow.sdk import Asset
from airflow.triggers.base import TaskSuccessEvent

from airflow_provider_taskq import metrics
from airflow_provider_taskq.hooks import TaskQHook
from airflow_provider_taskq.operators import (
    TaskQCompleteOperator,
    TaskQExpireOperator,
    TaskQHealthOperator,
    TaskQProcessOperator,
    TaskQPurgeOperator,
    TaskQPushOperator,
    TaskQReviveOperator,
)
from airflow_provider_taskq.queue import LeaseLost, NewTask, Result, RetryPolicy, Task, TaskQueue, TopicPolicy
from airflow_provider_taskq.queue.metrics import PUSHED
from airflow_provider_taskq.sensors import TaskQJunctureSensor, TaskQSensor, TaskQStateSensor
from airflow_provider_taskq.triggers import TaskQTrigger
from tests.airflow.conftest import context_of, executed
from tests.internals import lapse_lease

pytestmark = pytest.mark.promise("A push emits the events of its assets, lineage and metrics")


class Receiver:
    """A receiver of metrics that replaces Airflow's clients of StatsD and OpenTelemetry."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, Any, dict[str, Any]]] = []

    def incr(self, stat: str, count: int = 1, *, tags: dict[str, Any] | None = None) -> None:
        self.sent.append((stat, count, tags or {}))

    def gauge(self, stat: str, value: float, *, tags: dict[str, Any] | None = None) -> None:
        self.sent.append((stat, value, tags or {}))

    def timing(self, stat: str, dt: Any, *, tags: dict[str, Any] | None = None) -> None:
        self.sent.append((stat, dt, tags or {}))

    def counted(self) -> list[tuple[str, Any, dict[str, Any]]]:
        """The counters and gauges, without the timings."""
        return [one for one in self.sent if not isinstance(one[1], timedelta)]


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Receiver:
    """Receive Airflow's metrics in this test. The place of Airflow's client differs by release."""
    made = Receiver()
    monkeypatch.setenv("AIRFLOW__METRICS__STATSD_ON", "True")
    receive(Stats, made, monkeypatch)
    return made


@pytest.fixture
def triggerers_receiver(monkeypatch: pytest.MonkeyPatch) -> Receiver:
    """Receive the metrics of a triggerer: since Airflow 3.2 it has another client than workers."""
    stats = pytest.importorskip("airflow.observability.stats", reason="Airflow 3.1 has one client for all").Stats
    assert stats is not Stats
    made = Receiver()
    receive(stats, made, monkeypatch)
    return made


def receive(stats: Any, receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the client behind one of Airflow's `Stats` by a receiver."""
    if "incr" in vars(stats):
        monkeypatch.setattr(sys.modules[stats.incr.__module__], "_backend", receiver)
    else:
        monkeypatch.setattr(stats, "instance", receiver)
        monkeypatch.setattr(stats, "_instance_pid", os.getpid(), raising=False)


@pytest.mark.usefixtures("airflow_connection", "queue")
class TestOperators:
    def test_count_the_verbs_of_a_transaction(self, receiver: Receiver, queue: TaskQueue) -> None:
        executed(TaskQPushOperator(task_id="push", topic="work", tasks=["a", "b"]))
        claim = {"topic": "work", "owner": "gate", "fence": (owner := queue.register("gate")).fence}
        queue.claim("work", owner, 2)
        executed(TaskQCompleteOperator(task_id="complete", claim=claim, result="FAILURE"))
        executed(TaskQReviveOperator(task_id="revive", topic="work", state="FAILED"))
        executed(TaskQPurgeOperator(task_id="purge", topic="work", state="READY"))
        assert receiver.sent == [
            ("taskq.pushed", 2, {"topic": "work"}),
            ("taskq.completed", 2, {"topic": "work", "result": "FAILURE"}),
            ("taskq.revived", 2, {"topic": "work"}),
            ("taskq.purged", 2, {"topic": "work"}),
        ]

    def test_count_leases_that_are_lost_and_tasks_that_expired(
        self, receiver: Receiver, queue: TaskQueue, conn: psycopg.Connection
    ) -> None:
        with pytest.raises(LeaseLost):
            executed(TaskQCompleteOperator(task_id="complete", claim={"topic": "work", "owner": "gate", "fence": 0}))
        queue.push("work", ["a"])
        queue.claim("work", queue.register("gate"), 1)
        lapse_lease(conn)
        executed(TaskQExpireOperator(task_id="expire"))
        assert receiver.sent == [("taskq.lease_lost", 1, {"topic": "work"}), ("taskq.expired", 1, {})]

    def test_count_the_batches_and_the_lost_leases_of_their_worker(self, receiver: Receiver, queue: TaskQueue) -> None:
        def handle(_: Task) -> None:
            if not receiver.counted()[1:]:
                receiver.incr("lost by the handler")
                queue.release(queue.owners()[0])

        queue.push("work", ["a"])
        executed(TaskQProcessOperator(task_id="drain", topic="work", python_callable=handle))
        assert receiver.counted() == [
            ("taskq.polled", 1, {"topic": "work"}),
            ("lost by the handler", 1, {}),
            ("taskq.lease_lost", 1, {"topic": "work"}),
            ("taskq.polled", 1, {"topic": "work"}),
            ("taskq.completed", 1, {"topic": "work", "result": "SUCCESS"}),
        ]
        assert [name for name, _, _ in receiver.sent].count("taskq.run_ms") == 2

    def test_gauge_health_and_depth(self, receiver: Receiver, queue: TaskQueue) -> None:
        queue.create_topic("other")
        queue.push("work", ["a", "b", "c", "d", NewTask("e", delay=HOUR)])
        queue.poll("work", queue.register("worker"))
        executed(TaskQHealthOperator(task_id="health"))
        assert ("taskq.depth", 3, {"topic": "work", "state": "ready"}) in receiver.sent
        assert ("taskq.depth", 1, {"topic": "work", "state": "scheduled"}) in receiver.sent
        assert ("taskq.active", 1, {"topic": "work"}) in receiver.sent
        assert "taskq.oldest_ready_seconds" in {name for name, _, tags in receiver.sent if tags == {"topic": "work"}}
        assert ("taskq.depth", 0, {"topic": "other", "state": "ready"}) in receiver.sent
        assert ("taskq.health", 0, {"subject": "waiting_tasks"}) in receiver.sent


@pytest.mark.usefixtures("airflow_connection", "queue")
class TestTransactions:
    def test_of_the_hook_are_counted_by_topic_and_result(self, receiver: Receiver) -> None:
        with TaskQHook().transaction() as queue:
            queue.push("work", ["a", "b", "c"])
            owner = queue.register("worker")
            first, second = queue.poll("work", owner, 2)
            queue.complete(owner, {first: Result.SUCCESS, second.sequence: Result.FILTER})
            assert receiver.sent == []
        assert receiver.counted() == [
            ("taskq.pushed", 3, {"topic": "work"}),
            ("taskq.polled", 2, {"topic": "work"}),
            ("taskq.completed", 1, {"topic": "work", "result": "SUCCESS"}),
            ("taskq.completed", 1, {"result": "FILTER"}),
        ]

    def test_all_ways_to_poll_and_push_are_counted(self, receiver: Receiver) -> None:
        with TaskQHook().transaction() as queue:
            queue.push_stream("work", iter("abcdef"))
            owner = queue.register("worker")
            assert queue.claim("work", owner, 1) == 1
            assert len(queue.poll_batch("work", owner, 2)) == 2
            queue.exchange(owner, dict.fromkeys(queue.held(owner), Result.SUCCESS), "work", 2)
        assert receiver.counted() == [
            ("taskq.pushed", 6, {"topic": "work"}),
            ("taskq.polled", 5, {"topic": "work"}),
            ("taskq.completed", 3, {"topic": "work", "result": "SUCCESS"}),
        ]
        timed = [(name, tags) for name, value, tags in receiver.sent if isinstance(value, timedelta)]
        assert timed == [("taskq.poll_ms", {"topic": "work"})] * 3

    @pytest.mark.parametrize("again", ["redelivered", "retried"])
    def test_count_redelivered_and_retried_tasks(
        self, receiver: Receiver, conn: psycopg.Connection, again: str
    ) -> None:
        with TaskQHook().transaction() as queue:
            queue.alter_topic("work", TopicPolicy(retry=RetryPolicy(max_attempts=2, base=timedelta(0))))
            queue.push("work", ["a", "b"])
            owner = queue.register("worker")
            polled = queue.poll("work", owner)
            if again == "retried":
                queue.complete(owner, dict.fromkeys(polled, Result.FAILURE))
        lapse_lease(conn)
        receiver.sent.clear()
        with TaskQHook().transaction() as queue:
            queue.expire()
            others = [queue.register("other"), queue.register("another")]  # after a crash, a task comes alone
            assert sum(len(queue.poll("work", other, 2)) for other in others) == 2
        assert receiver.counted() == [
            ("taskq.polled", 2, {"topic": "work"}),
            (f"taskq.{again}", 1, {"topic": "work"}),
        ]

    def test_that_are_rolled_back_are_not(self, receiver: Receiver) -> None:
        def push_and_fail() -> None:
            with TaskQHook().transaction() as queue:
                queue.push("work", ["a"])
                raise RuntimeError("on purpose")

        with pytest.raises(RuntimeError, match="on purpose"):
            push_and_fail()
        assert receiver.sent == []


HOUR = timedelta(hours=1)


def waited(receiver: Receiver) -> timedelta:
    """Return how long the only reported gate waited."""
    ((name, length, tags),) = receiver.sent
    assert (name, tags) == ("taskq.gate_wait_ms", {"topic": "work"})
    assert isinstance(length, timedelta)
    return length


def fill(queue: TaskQueue) -> None:
    """Open the gates of GATES."""
    queue.push("work", [NewTask("suspended", suspended=True), "ready"])


GATES = pytest.mark.parametrize(
    "gate",
    [
        partial(TaskQSensor, task_id="gate", topic="work"),
        partial(TaskQStateSensor, task_id="gate", topic="work", identifiers=["ready"], states="READY"),
        partial(TaskQJunctureSensor, task_id="gate", topic="work", groups=[["suspended"]]),
    ],
    ids=["topic", "state", "juncture"],
)


@pytest.mark.usefixtures("airflow_connection", "queue")
class TestGates:
    @GATES
    @pytest.mark.parametrize("how", [{}, {"mode": "reschedule"}, {"deferrable": True}], ids=str)
    def test_that_are_open_have_hardly_waited(
        self, receiver: Receiver, queue: TaskQueue, gate: Callable[..., Any], how: dict[str, Any]
    ) -> None:
        fill(queue)
        executed(gate(**how))
        assert timedelta(0) <= waited(receiver) < HOUR

    @GATES
    def test_that_are_closed_send_nothing_until_they_open(
        self, receiver: Receiver, queue: TaskQueue, gate: Callable[..., Any]
    ) -> None:
        with pytest.raises(AirflowRescheduleException):
            executed(gate(mode="reschedule"))
        assert receiver.sent == []
        fill(queue)
        context = context_of()
        context["ti"].get_first_reschedule_date = lambda _: datetime.now(UTC) - HOUR
        gate(mode="reschedule").execute(context)
        assert HOUR <= waited(receiver) < 2 * HOUR

    @GATES
    def test_that_are_resumed_have_waited_since_their_first_check(
        self, receiver: Receiver, queue: TaskQueue, gate: Callable[..., Any]
    ) -> None:
        fill(queue)
        deadline = datetime.now(UTC) + timedelta(seconds=60) - HOUR
        gate(deferrable=True, timeout=60).execute_complete(context_of(), {"status": "ready"}, deadline.isoformat())
        assert HOUR <= waited(receiver) < 2 * HOUR

    @GATES
    def test_that_their_trigger_ends_are_reported_by_the_triggerers_client(
        self, receiver: Receiver, triggerers_receiver: Receiver, queue: TaskQueue, gate: Callable[..., Any]
    ) -> None:
        before = datetime.now(UTC)
        with pytest.raises(TaskDeferred) as deferral:
            executed(gate(deferrable=True))
        path, arguments = deferral.value.trigger.serialize()
        assert before <= datetime.fromisoformat(arguments["since"]) <= datetime.now(UTC)
        fill(queue)
        long_ago = (datetime.now(UTC) - HOUR).isoformat()
        trigger = type(deferral.value.trigger)(**{**arguments, "since": long_ago})
        assert path.endswith(type(trigger).__name__)
        assert isinstance(asyncio.run(fired(trigger)), TaskSuccessEvent)
        assert HOUR <= waited(triggerers_receiver) < 2 * HOUR
        assert receiver.sent == []

    def test_that_a_worker_resumes_are_not_reported_twice(
        self, receiver: Receiver, triggerers_receiver: Receiver, queue: TaskQueue
    ) -> None:
        with pytest.raises(TaskDeferred) as deferral:
            executed(TaskQSensor(task_id="gate", topic="work", claim=1, deferrable=True, outlets=[Asset("flights")]))
        assert "since" not in deferral.value.trigger.serialize()[1]
        queue.push("work", ["a"])
        event = asyncio.run(fired(TaskQTrigger(topic="work")))
        assert event.payload["status"] == "ready"
        assert receiver.sent == triggerers_receiver.sent == []

    def test_count_the_claims_of_their_trigger(
        self, receiver: Receiver, triggerers_receiver: Receiver, queue: TaskQueue
    ) -> None:
        queue.push("work", ["a", "b"])
        trigger = TaskQTrigger(topic="work", claim=2, claim_as="gate", ends_task=True, stores="nothing")
        assert isinstance(asyncio.run(fired(trigger)), TaskSuccessEvent)
        assert triggerers_receiver.counted() == [("taskq.polled", 2, {"topic": "work"})]
        assert receiver.sent == []

    def test_count_claimed_tasks_once(self, receiver: Receiver, queue: TaskQueue) -> None:
        queue.push("work", ["a", "b", "c"])
        for _ in range(2):
            gate = TaskQSensor(task_id="gate", topic="work", claim=2, claim_as="gate")
            assert executed(gate)["claimed"] == 2
        assert receiver.counted() == [("taskq.polled", 2, {"topic": "work"})]


async def fired(trigger: Any) -> Any:
    """Return the event of a trigger."""
    return await anext(trigger.run())


def test_a_receiver_that_fails_fails_no_task(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch, queue: TaskQueue, airflow_connection: str
) -> None:
    """The push is committed. If the metric failed the task, its retry would push again."""

    def refuse(*_: Any, **__: Any) -> None:
        raise OSError("no route to host")

    monkeypatch.setattr(receiver, "incr", refuse)
    operator = TaskQPushOperator(task_id="push", topic="work", tasks=["a"], taskq_conn_id=airflow_connection)
    assert executed(operator)["pushed"] == 1
    assert len(queue.page("work")) == 1


def test_topics_that_are_not_chosen_are_reported_as_others(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__TASKQ__METRIC_TOPICS", "orders, flights-*")
    for topic in ("orders", "flights-2013", "orders-2", "one"):
        metrics.record(PUSHED, 1, topic=topic)
    assert [tags["topic"] for _, _, tags in receiver.sent] == ["orders", "flights-2013", "other", "other"]


def test_tasks_drained_in_the_session_of_an_airflow_task_are_counted(receiver: Receiver) -> None:
    pytest.importorskip("pyspark")
    from airflow_provider_taskq.spark import DrainResult, StopReason

    completed = {Result.FAILURE: 2, Result.SUCCESS: 5}
    metrics.drained(DrainResult("work", "me", 8, 1, 7, completed, 1, 4, 2, 0, 1, StopReason.EMPTY, 1.5))
    assert receiver.sent == [
        ("taskq.polled", 8, {"topic": "work"}),
        ("taskq.completed", 2, {"topic": "work", "result": "FAILURE"}),
        ("taskq.completed", 5, {"topic": "work", "result": "SUCCESS"}),
        ("taskq.pushed", 4, {}),
    ]
