"""Health: old errors, stuck owners and consumers, the signal for lasting errors, and statistics."""

import threading
from datetime import timedelta

import psycopg
import pytest

from airflow_provider_taskq.consumer import Consumer, NonTransient
from airflow_provider_taskq.queue import (
    Decision,
    Owner,
    Result,
    RetryPolicy,
    Severity,
    State,
    Task,
    TaskQueue,
    TopicPolicy,
    connect,
)
from airflow_provider_taskq.worker.health import HealthMonitor, HealthSignal
from tests.consumer.consumers import Heard, quick
from tests.internals import age_tasks, space_ends
from tests.queue.conftest import lapse, pass_time, task_in

pytestmark = pytest.mark.promise("A worker reports its health, and serves its metrics to Prometheus")

SECOND, MINUTE, HOUR = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1)


HOUR_OF_ERRORS = [1] * 63


@pytest.mark.parametrize(
    ("errors", "calls"),
    [
        ([1, 2], []),
        ([1, 2, 3], [3]),
        ([1, 2, 3, 0, 0], [3]),
        ([1, 2, 3, 0, 0, 0, 0, 0, 0], [3, "recovered"]),
        ([1, 2, 3, 0, 0, 0, 1, 1, 1], [3, "recovered", 1]),
        ([1, 1, 0, 1, 1, 0, 0, 0], []),
        ([1, 1, 1, 0, 1, 0, 0, 1], [1]),
        (HOUR_OF_ERRORS, [1]),  # exactly one hour is not more than one
        ([*HOUR_OF_ERRORS, 7, *HOUR_OF_ERRORS[:60]], [1, 7]),
    ],
    ids=lambda value: f"{len(value)} {value[-3:]}",
)
def test_three_checks_with_errors_signal_and_three_without_recover(errors: list[int], calls: list[object]) -> None:
    """The signal is repeated after an hour of errors. Mixed checks keep the state."""
    now, called = [0.0], list[object]()
    signal = HealthSignal(called.append, lambda: called.append("recovered"), clock=lambda: now[0])
    for count in errors:
        now[0] += 60
        signal.observe(count)
    assert called == calls


def test_health_reports_the_age_of_retried_and_of_final_errors(queue: TaskQueue, owner: Owner) -> None:
    queue.create_topic("other", TopicPolicy(retry=RetryPolicy(max_attempts=2)))
    assert queue.topic_errors() == []
    failed = task_in(queue, owner, State.FAILED)
    pass_time(queue, HOUR)
    queue.push("other", ["a"])
    [retried] = queue.poll("other", owner)
    queue.complete(owner, {retried: Decision(Result.FAILURE, error="bad")})
    one, two = queue.topic_errors()
    assert (one.topic, one.sequence, one.failed, one.retrying) == ("work", failed.sequence, 1, 0)
    assert HOUR <= one.age < HOUR + MINUTE
    assert (two.topic, two.sequence, two.failed, two.retrying) == ("other", retried.sequence, 0, 1)
    assert [each.sequence for each in queue.topic_errors("other")] == [retried.sequence]
    queue.revive("work", State.FAILED)
    assert [each.topic for each in queue.topic_errors()] == ["other"]


def test_a_queue_is_healthy_until_an_error_is_too_old(dsn: str, queue: TaskQueue, owner: Owner) -> None:
    failed = task_in(queue, owner, State.FAILED)
    health = HealthMonitor(dsn, grace=SECOND * 0)
    assert (health.check(), health.is_healthy) == ([], True)
    pass_time(queue, timedelta(minutes=15))
    [finding] = health.check()
    assert not health.is_healthy
    assert (finding.subject, finding.topic, finding.sequence) == ("old errors", "work", failed.sequence)
    assert HealthMonitor(dsn, error_age=HOUR).check() == []
    young = HealthMonitor(dsn)  # the grace of a program that has just started
    assert (len(young.check()), young.is_healthy) == (1, True)


def test_an_owner_with_tasks_and_a_lapsed_lease_is_stuck(dsn: str, queue: TaskQueue) -> None:
    busy, dead, idle = (queue.register(name) for name in ("busy", "dead", "idle"))
    queue.push("work", ["a", "b", "c"])
    queue.poll("work", busy)
    queue.poll("work", dead, 2)
    for owner in (dead, idle):
        lapse(queue, owner, MINUTE)
    [stuck] = queue.stuck_owners()
    assert (stuck.name, stuck.fence, stuck.held) == ("dead", dead.fence, 2)
    assert MINUTE <= stuck.lapsed < 2 * MINUTE
    assert queue.stuck_owners(HOUR) == []
    [finding] = HealthMonitor(dsn).check()
    assert (finding.subject, finding.owner) == ("lapsed leases", "dead")
    assert HealthMonitor(dsn, patience=HOUR).check() == []
    queue.expire()
    assert HealthMonitor(dsn).check() == []


def test_a_partition_that_ended_by_an_error_is_reported(dsn: str, queue: TaskQueue) -> None:
    heard = Heard()

    @heard.group.on()
    def gives_up(_event: Task) -> None:
        raise NonTransient("never")

    queue.push("work", ["a"])
    consumer = Consumer(dsn, heard.group, "work", quick())
    consumer.start()
    with pytest.raises(NonTransient):
        consumer.wait(20)
    [finding] = HealthMonitor(dsn).check()
    assert (finding.subject, finding.topic) == ("ended partitions", "work")
    assert finding.detail.startswith("an error ended partition 0 of topic 'work' in group 'readers' ")


def test_a_health_monitor_checks_periodically_and_calls_its_signal(dsn: str, queue: TaskQueue, owner: Owner) -> None:
    signaled, recovered = threading.Event(), threading.Event()
    signal = HealthSignal(lambda _errors: signaled.set(), recovered.set)
    task_in(queue, owner, State.FAILED)
    health = HealthMonitor(dsn, signal=signal, every=timedelta(milliseconds=20), error_age=SECOND * 0, grace=SECOND * 0)
    assert health.is_healthy, "no check has run yet"
    health.start()
    assert signaled.wait(20)
    assert health.findings
    kill = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
    queue.conn.execute(f"{kill} AND pid <> pg_backend_pid()".encode())
    queue.revive("work", State.FAILED)
    assert recovered.wait(20)
    assert health.is_healthy
    assert health.stop(20)


@pytest.mark.usefixtures("queue")
def test_an_unreachable_database_is_unhealthy_until_it_answers_again(dsn: str) -> None:
    answers, calls = [True], list[object]()
    signal = HealthSignal(calls.append, lambda: calls.append("recovered"), polls=1)
    health = HealthMonitor(
        lambda: connect(dsn if answers[0] else "host=127.0.0.1 port=1"), signal=signal, grace=SECOND * 0
    )
    assert (health.check(), health.is_healthy) == ([], True)
    answers[0] = False
    [finding] = health.check()
    assert (finding.severity, finding.subject) == (Severity.CRITICAL, "database")
    assert finding.detail.startswith("the database cannot be reached: ")
    assert (health.findings, health.is_healthy, calls) == ([finding], False, [1])
    answers[0] = True
    assert (health.check(), health.is_healthy, calls) == ([], True, [1, "recovered"])


def test_a_check_from_another_thread_does_not_use_the_connection_of_the_service(dsn: str, queue: TaskQueue) -> None:
    checked = threading.Event()
    opened: list[psycopg.Connection] = []

    def open_connection() -> psycopg.Connection:
        opened.append(connect(dsn))
        return opened[-1]

    task_in(queue, queue.register("someone"), State.FAILED)
    signal = HealthSignal(lambda _: checked.set(), lambda: None, polls=1)
    with HealthMonitor(open_connection, signal=signal, every=HOUR) as health:
        assert checked.wait(60)
        health.check()
        assert [conn.closed for conn in opened] == [False, True]
    assert [conn.closed for conn in opened] == [True, True]


def test_retry_statistics_count_tasks_attempts_and_their_share(queue: TaskQueue, owner: Owner) -> None:
    queue.alter_topic("work", TopicPolicy(retry=RetryPolicy(max_attempts=3, base=timedelta(0))))
    queue.push("work", ["a", "b", "c", "d"])
    bad = {"a": 1, "b": 5}
    while tasks := queue.poll("work", owner, 4):
        for task in tasks:
            fails = task.attempt <= bad.get(task.identifier, 0)
            queue.complete(owner, {task: Result.FAILURE if fails else Result.SUCCESS})
    [ends] = queue.statistics()
    assert (ends.topic, ends.ended, ends.succeeded, ends.failed) == ("work", 4, 3, 1)
    assert (ends.retried, ends.retries, ends.retried_share) == (2, 3, 0.5)


def test_statistics_have_the_seconds_from_due_to_end(queue: TaskQueue, owner: Owner) -> None:
    tasks = queue.push("work", [f"id-{n}" for n in range(100)])
    queue.poll("work", owner, 100)
    queue.complete(owner, dict.fromkeys(tasks, Result.SUCCESS))
    space_ends(queue.conn, waited=f"make_interval(secs => sequence - {tasks[0].sequence - 1})")
    [ends] = queue.statistics(topic="work")
    took = [round(each, 2) for each in (ends.took.shortest, ends.took.mean, ends.took.longest)]
    assert took == [1, 50.5, 100]
    percentiles = (ends.took.p50, ends.took.p90, ends.took.p95, ends.took.p99)
    assert [round(each, 2) for each in percentiles] == [50.5, 90.1, 95.05, 99.01]
    pass_time(queue, 2 * HOUR)
    assert queue.statistics() == []
    assert len(queue.statistics(3 * HOUR)) == 1


def test_handling_times_are_recorded_by_handlers_and_reported_by_hour(queue: TaskQueue) -> None:
    assert queue.handling_times() == []
    queue.record_handling_times("work", [n / 100 for n in range(1, 51)])
    queue.record_handling_times("work", [n / 100 for n in range(51, 101)])
    [times] = queue.handling_times(topic="work")
    assert times.count == 100
    assert (times.took.shortest, round(times.took.mean, 4), times.took.longest) == (0.01, 0.505, 1)
    percentiles = (times.took.p50, times.took.p90, times.took.p95, times.took.p99)
    for percentile, expected in zip(percentiles, (0.5, 0.9, 0.95, 0.99), strict=True):
        assert expected <= percentile <= expected * 1.05
    age_tasks(queue.conn, 3 * HOUR)
    assert queue.handling_times() == []
    assert queue.handling_times(6 * HOUR)[0].count == 100
    age_tasks(queue.conn, timedelta(days=8))
    queue.record_handling_times("work", [1.0])
    assert queue.handling_times(timedelta(days=30))[0].count == 1, "times older than 8 days are deleted"
