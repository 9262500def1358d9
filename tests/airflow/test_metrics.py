import os
import re
import sys
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from airflow.providers.common.compat.sdk import Stats

from airflow_provider_taskq import metrics
from airflow_provider_taskq.hooks import TaskQHook
from airflow_provider_taskq.operators import (
    TaskQCompleteOperator,
    TaskQExpireOperator,
    TaskQHealthOperator,
    TaskQPurgeOperator,
    TaskQPushOperator,
    TaskQReviveOperator,
)
from airflow_provider_taskq.queue import LeaseLost, Result, TaskQueue
from tests.airflow.conftest import context_of


class Receiver:
    """A receiver of metrics, in the place of Airflow's clients of StatsD and OpenTelemetry."""

    def __init__(self) -> None:
        self.told: list[tuple[str, Any, dict[str, Any]]] = []

    def incr(self, stat: str, count: int = 1, *, tags: dict[str, Any] | None = None) -> None:
        self.told.append((stat, count, tags or {}))

    def gauge(self, stat: str, value: float, *, tags: dict[str, Any] | None = None) -> None:
        self.told.append((stat, value, tags or {}))

    def timing(self, stat: str, dt: Any, *, tags: dict[str, Any] | None = None) -> None:
        self.told.append((stat, dt, tags or {}))


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Receiver:
    """What receives Airflow's metrics in this test: where Airflow keeps its client, which differs by release."""
    made = Receiver()
    monkeypatch.setenv("AIRFLOW__METRICS__STATSD_ON", "True")
    if "incr" in vars(Stats):
        monkeypatch.setattr(sys.modules[Stats.incr.__module__], "_backend", made)
    else:
        monkeypatch.setattr(Stats, "instance", made)
        monkeypatch.setattr(Stats, "_instance_pid", os.getpid(), raising=False)
    return made


def run(operator: Any) -> Any:
    operator.render_template_fields(context_of())
    return operator.execute(context_of())


@pytest.mark.usefixtures("airflow_connection", "queue")
class TestOperators:
    def test_count_what_they_did(self, receiver: Receiver, queue: TaskQueue) -> None:
        run(TaskQPushOperator(task_id="push", topic="work", tasks=["a", "b"]))
        queue.claim("work", queue.register("gate"), 2)
        run(TaskQCompleteOperator(task_id="complete", topic="work", owner="gate", result="FAILURE"))
        run(TaskQReviveOperator(task_id="revive", topic="work", state="FAILED"))
        run(TaskQPurgeOperator(task_id="purge", topic="work", state="READY"))
        assert receiver.told == [
            ("taskq.pushed", 2, {"topic": "work"}),
            ("taskq.completed", 2, {"topic": "work", "result": "FAILURE"}),
            ("taskq.revived", 2, {"topic": "work"}),
            ("taskq.purged", 2, {"topic": "work"}),
        ]

    def test_count_leases_that_are_lost_and_tasks_that_expired(
        self, receiver: Receiver, queue: TaskQueue, conn: psycopg.Connection
    ) -> None:
        with pytest.raises(LeaseLost):
            run(TaskQCompleteOperator(task_id="complete", topic="work", owner="nobody"))
        queue.push("work", ["a"])
        queue.claim("work", queue.register("gate"), 1)
        conn.execute("UPDATE taskq.owner SET lease_until = clock_timestamp() - interval '1 second'")
        run(TaskQExpireOperator(task_id="expire"))
        assert receiver.told == [("taskq.lease_lost", 1, {"topic": "work"}), ("taskq.expired", 1, {})]

    def test_gauge_health_and_depth(self, receiver: Receiver, queue: TaskQueue) -> None:
        queue.create_topic("other")
        queue.push("work", ["a", "b", "c"])
        run(TaskQHealthOperator(task_id="health"))
        assert ("taskq.depth", 3, {"topic": "work", "state": "ready"}) in receiver.told
        assert ("taskq.depth", 0, {"topic": "other", "state": "ready"}) in receiver.told
        assert ("taskq.health", 0, {"subject": "waiting_tasks"}) in receiver.told
        assert "taskq.dead_tuples" in {name for name, _, _ in receiver.told}

    def test_do_not_look_for_depths_that_nobody_receives(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("AIRFLOW__METRICS__STATSD_ON", "False")
        looked: list[str] = []
        monkeypatch.setattr(TaskQHealthOperator, "_gauge_depths", lambda *_: looked.append("depths"))
        run(TaskQHealthOperator(task_id="health"))
        monkeypatch.setenv("AIRFLOW__METRICS__OTEL_ON", "True")
        run(TaskQHealthOperator(task_id="health"))
        assert looked == ["depths"]


@pytest.mark.usefixtures("airflow_connection", "queue")
class TestTransactions:
    def test_of_the_hook_are_counted_by_topic_and_result(self, receiver: Receiver) -> None:
        with TaskQHook().transaction() as queue:
            queue.push("work", ["a", "b", "c"])
            owner = queue.register("worker")
            first, second = queue.poll("work", owner, 2)
            queue.complete(owner, {first: Result.SUCCESS, second.sequence: Result.FILTER})
            assert receiver.told == []
        assert receiver.told == [
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
        assert receiver.told == [
            ("taskq.pushed", 6, {"topic": "work"}),
            ("taskq.polled", 5, {"topic": "work"}),
            ("taskq.completed", 3, {"topic": "work", "result": "SUCCESS"}),
        ]

    def test_that_are_rolled_back_are_not(self, receiver: Receiver) -> None:
        def push_and_fail() -> None:
            with TaskQHook().transaction() as queue:
                queue.push("work", ["a"])
                raise RuntimeError("on purpose")

        with pytest.raises(RuntimeError, match="on purpose"):
            push_and_fail()
        assert receiver.told == []


def test_a_receiver_that_fails_fails_no_task(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch, queue: TaskQueue, airflow_connection: str
) -> None:
    """What is counted is committed: a task that failed now would push again in its next try."""

    def refuse(*_: Any, **__: Any) -> None:
        raise OSError("no route to host")

    monkeypatch.setattr(receiver, "incr", refuse)
    operator = TaskQPushOperator(task_id="push", topic="work", tasks=["a"], taskq_conn_id=airflow_connection)
    assert run(operator)["pushed"] == 1
    assert len(queue.page("work")) == 1


def test_topics_that_are_not_chosen_are_reported_as_others(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__TASKQ__METRIC_TOPICS", "orders, flights-*")
    for topic in ("orders", "flights-2013", "orders-2", "one"):
        metrics.count(metrics.PUSHED, 1, topic=topic)
    assert [tags["topic"] for _, _, tags in receiver.told] == ["orders", "flights-2013", "other", "other"]


def test_a_gates_wait_is_timed(receiver: Receiver) -> None:
    metrics.gate_opened("work", datetime.now(UTC) - timedelta(minutes=2))
    ((name, waited, tags),) = receiver.told
    assert (name, tags) == ("taskq.gate_wait", {"topic": "work"})
    assert timedelta(minutes=2) <= waited < timedelta(minutes=3)


def test_the_names_are_what_statsd_takes() -> None:
    names = {value for key, value in vars(metrics).items() if key.isupper() and isinstance(value, str)}
    assert metrics.PUSHED in names
    assert [name for name in names if not re.fullmatch(r"taskq\.[a-z_]+", name)] == []
