"""Health: findings name each problem of the queue, and the session that causes it."""

import re
import shlex
from collections.abc import Callable, Iterator
from datetime import timedelta
from uuid import uuid4

import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from airflow_provider_taskq.queue import (
    Decision,
    HealthFinding,
    NewTask,
    Owner,
    Result,
    Severity,
    State,
    TaskQueue,
    connect,
    install,
)
from tests.internals import age_leases, plant_change, store_tasks
from tests.queue.conftest import (
    keeps_expired,
    lapse,
    numbered,
    pass_time,
    task_in,
)

pytestmark = pytest.mark.promise("Health names each problem of the queue, and the session that causes it")

SUBJECTS = {
    "dependencies",
    "ended partitions",
    "failures",
    "lapsed leases",
    "long leases",
    "notifications",
    "open transactions",
    "upkeep",
    "waiting tasks",
}


def found(queue: TaskQueue, subject: str) -> HealthFinding:
    """The worst finding on a subject. It has a remedy unless it is fine."""
    finding = next(finding for finding in queue.health() if finding.subject == subject)
    assert (finding.remedy is None) is (finding.severity is Severity.FINE)
    return finding


def test_health_reports_every_subject_of_an_idle_queue_as_fine(own_queue: TaskQueue) -> None:
    findings = own_queue.health()
    assert {finding.subject for finding in findings} == SUBJECTS
    assert {finding.severity for finding in findings} == {Severity.FINE}


def test_findings_are_sorted_by_severity_and_name_their_topic_task_or_owner(queue: TaskQueue, owner: Owner) -> None:
    (task,) = queue.push("work", ["a"])
    pass_time(queue, timedelta(days=1))
    lapse(queue, owner, timedelta(minutes=6))
    severities = [finding.severity for finding in queue.health()]
    assert severities == sorted(severities, reverse=True)
    assert severities[0] is Severity.CRITICAL
    assert severities[-1] is Severity.FINE
    waiting, lease = found(queue, "waiting tasks"), found(queue, "lapsed leases")
    assert (waiting.topic, waiting.sequence, waiting.owner) == ("work", task.sequence, None)
    assert (lease.topic, lease.sequence, lease.owner) == (None, None, owner.name)


def test_an_open_transaction_is_named_with_its_pid_state_and_application(queue: TaskQueue, dsn: str) -> None:
    with connect(make_conninfo(dsn, application_name="a report")) as reader:
        reader.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        reader.execute("SELECT FROM taskq.migrations")
        named = found(queue, "open transactions")
        assert named.pid == reader.info.backend_pid
        assert "a report" in named.detail
        assert re.search(r"idle in transaction since \d+ s$", named.detail)
    assert found(queue, "open transactions").pid is None


def test_a_prepared_transaction_is_reported_with_the_commands_that_end_it(queue: TaskQueue, dsn: str) -> None:
    row = queue.conn.execute("SHOW max_prepared_transactions").fetchone()
    if row == ("0",):
        pytest.skip("this server takes no prepared transactions")
    name = f"forgotten {uuid4()}"
    with connect(dsn) as other:
        TaskQueue(other).push("work", ["a"])
        other.execute(sql.SQL("PREPARE TRANSACTION {}").format(name))
        other.commit()
    named = found(queue, "open transactions")
    queue.conn.execute(sql.SQL("ROLLBACK PREPARED {}").format(name))
    assert name in named.detail
    assert "ROLLBACK PREPARED" in named.detail
    assert named.detail.endswith("readers of the log wait for its push to topic 'work'")


def test_a_lease_that_lapsed_long_ago_and_holds_tasks_is_reported(queue: TaskQueue, owner: Owner) -> None:
    queue.push("work", ["a", "b"])
    assert found(queue, "lapsed leases").value == 0
    lapse(queue, owner, timedelta(minutes=4))
    assert found(queue, "lapsed leases").severity is Severity.FINE
    lapse(queue, owner, timedelta(minutes=6))
    assert found(queue, "lapsed leases").severity is Severity.NOTICE
    owner = queue.heartbeat(owner)
    queue.poll("work", owner, 2)
    lapse(queue, owner, timedelta(minutes=6))
    reported = found(queue, "lapsed leases")
    assert reported.severity is Severity.WARNING
    assert "'owner'" in reported.detail
    assert "some 2 tasks" in reported.detail
    queue.expire()
    assert found(queue, "lapsed leases").value == 0


def test_leases_and_locks_of_a_time_when_the_clock_was_ahead_are_reported(queue: TaskQueue, owner: Owner) -> None:
    assert queue.lock("report", "me", timedelta(minutes=1))
    assert found(queue, "long leases").severity is Severity.FINE
    age_leases(queue.conn, -timedelta(hours=2))
    reported = [finding for finding in queue.health() if finding.subject == "long leases"]
    assert {finding.severity for finding in reported} == {Severity.WARNING}
    assert {finding.detail.partition(" reaches 119 min further")[0] for finding in reported} == {
        "the lease of owner 'owner'",
        "the lock 'report'",
    }
    queue.heartbeat(owner)
    assert queue.unlock("report", "me")
    assert queue.lock("report", "another", timedelta(minutes=1))


def hold_under_a_lapsed_lease(queue: TaskQueue, owner: Owner) -> None:
    queue.poll("work", owner)
    lapse(queue, owner)


UNSERVED = (Severity.WARNING, "no worker seems to poll it")
BUSY = (Severity.NOTICE, "workers poll it, but tasks arrive faster than they end")
# What happened to the tasks of a topic, and the finding on those that are due.
WAITING: dict[str, tuple[Callable[[TaskQueue, Owner], object], Severity, str]] = {
    "nothing": (lambda queue, _: queue.register("idle elsewhere"), *UNSERVED),
    "one is held": (lambda queue, owner: queue.poll("work", owner), *BUSY),
    "one has ended": (
        lambda queue, owner: queue.complete(owner, dict.fromkeys(queue.poll("work", owner), Result.SUCCESS)),
        *BUSY,
    ),
    "one is held under a lapsed lease": (hold_under_a_lapsed_lease, *UNSERVED),
    "they are paused": (lambda queue, _: queue.pause_topic("work"), Severity.NOTICE, "it is paused"),
}


@pytest.mark.parametrize(("happened", "severity", "reason"), WAITING.values(), ids=WAITING)
def test_a_topic_is_reported_by_its_oldest_due_task_with_the_reason_why_it_waits(
    queue: TaskQueue, owner: Owner, happened: Callable[[TaskQueue, Owner], object], severity: Severity, reason: str
) -> None:
    first, second, _ = queue.push("work", ["a", "b", NewTask("later", delay=timedelta(days=9))])
    assert found(queue, "waiting tasks").severity is Severity.FINE
    pass_time(queue, timedelta(minutes=6))
    happened(queue, owner)
    reported = found(queue, "waiting tasks")
    oldest = first if queue.ready("work", 9) == 2 or reason == "it is paused" else second
    assert f"topic 'work', sequence {oldest.sequence} has been due for 6 min: {reason}" in reported.detail
    assert reported.severity is severity
    assert reported.value is not None
    assert 360 <= reported.value < 420


def test_health_names_the_task_that_blocks_an_identifier(queue: TaskQueue, owner: Owner) -> None:
    first, second, *_ = queue.push("work", ["a", "b", "a", "b"])
    queue.poll("work", owner, 2)
    queue.complete(owner, {second: Result.FAILURE})
    pass_time(queue, timedelta(minutes=6))
    assert f"it comes after sequence {first.sequence}, held by 'owner'" in found(queue, "waiting tasks").detail
    queue.complete(owner, {first: Result.SUCCESS})
    polled = queue.poll("work", owner)
    queue.complete(owner, dict.fromkeys(polled, Result.SUCCESS))
    assert (
        f"sequence {second.sequence} of its identifier blocks it, which is FAILED"
        in found(queue, "waiting tasks").detail
    )


def test_of_many_waiting_topics_the_worst_ten_and_the_number_are_reported(queue: TaskQueue) -> None:
    for number in range(12):
        queue.create_topic(f"topic {number}")
        queue.push(f"topic {number}", ["a"])
    pass_time(queue, timedelta(minutes=6))
    reported = [finding for finding in queue.health() if finding.subject == "waiting tasks"]
    assert len(reported) == 11
    assert reported[-1].detail.startswith("12 topics have tasks that have been due for longer than 5 min")


def test_a_dependency_that_ended_without_success_is_reported(queue: TaskQueue, owner: Owner) -> None:
    [first] = queue.push("work", ["a"])
    [second] = queue.push("work", [NewTask("b", depends_on=[("work", "a")])])
    assert found(queue, "dependencies").severity is Severity.FINE
    queue.poll("work", owner)
    queue.complete(owner, {first: Result.FAILURE})
    reported = found(queue, "dependencies")
    assert reported.severity is Severity.WARNING
    expected = (
        f"sequence {second.sequence} of topic 'work' waits for a of topic work (sequence {first.sequence}, FAILED)"
    )
    assert expected in reported.detail
    queue.reassign("work", Result.SUCCESS, sequences=[first.sequence])
    assert found(queue, "dependencies").severity is Severity.FINE
    queue.create_topic("other")
    queue.push("other", ["c"])
    [third] = queue.push("work", [NewTask("d", depends_on=[("other", "c")])])
    queue.drop_topic("other")
    removed = found(queue, "dependencies")
    assert "waits for c of a topic that was dropped" in removed.detail
    assert removed.remedy == f"taskq cancel work {third.sequence}"


def test_a_push_that_stays_open_is_reported_with_its_topic_and_pid(queue: TaskQueue, session: TaskQueue) -> None:
    queue.create_topic("other")
    session.push("work", ["a"])
    session.push("other", ["a"])
    with queue.conn.transaction(force_rollback=True):
        plant_change(queue.conn, "health judges young transactions")
        reported = found(queue, "open transactions")
    assert (reported.severity, reported.pid) == (Severity.WARNING, session.conn.info.backend_pid)
    assert re.search(r"readers of the log wait for its push to topic '(work|other)' and 1 others$", reported.detail)


@pytest.mark.parametrize(
    ("name", "word"), [("a.b/c-1", "a.b/c-1"), ("-x", "'-x'"), ("a b; rm", "'a b; rm'"), ("it's", "'it'\\''s'")]
)
def test_a_remedy_quotes_names_for_a_shell(queue: TaskQueue, owner: Owner, name: str, word: str) -> None:
    queue.create_topic(name)
    task_in(queue, owner, State.FAILED, topic=name)
    remedy = found(queue, "failures").remedy or ""
    assert remedy.endswith(f" {word}")
    assert shlex.split(remedy)[-1] == name


@pytest.fixture
def plain_owner(empty_dsn: str) -> Iterator[str]:
    """The DSN of a role that owns the schema and has no rights on the server."""
    name = f"plain_{uuid4().hex[:8]}"
    role = sql.Identifier(name)
    with connect(empty_dsn, autocommit=True) as conn:
        database = sql.Identifier(conn.info.dbname)
        conn.execute(sql.SQL("CREATE ROLE {} LOGIN PASSWORD 'plain'").format(role))
        conn.execute(sql.SQL("GRANT CREATE ON DATABASE {} TO {}").format(database, role))
        dsn = make_conninfo(empty_dsn, user=name, password="plain")
        with connect(dsn) as owner:
            install(owner)
        yield dsn
        conn.execute(sql.SQL("DROP OWNED BY {} CASCADE").format(role))
        conn.execute(sql.SQL("DROP ROLE {}").format(role))


def test_health_reports_which_sessions_the_owner_of_the_schema_may_not_see(empty_dsn: str, plain_owner: str) -> None:
    with connect(plain_owner, autocommit=True) as conn, connect(empty_dsn) as stranger:
        TaskQueue(conn).create_topic("work")
        TaskQueue(stranger).push("work", ["a"])
        reported = {finding.pid: finding.detail for finding in TaskQueue(conn).health()}
        assert "GRANT pg_read_all_stats TO" in reported[stranger.info.backend_pid]


def test_health_changes_and_locks_nothing(queue: TaskQueue, owner: Owner, session: TaskQueue) -> None:
    queue.push("work", ["a", "b"])
    queue.poll("work", owner)
    session.conn.execute("SET TRANSACTION READ ONLY")
    assert session.health()
    queue.complete(owner, dict.fromkeys(queue.held(owner), Result.SUCCESS))


def test_health_costs_the_same_with_any_number_of_waiting_tasks(own_queue: TaskQueue) -> None:
    queue = own_queue
    queue.push_stream("work", numbered(30_000))
    queue.conn.execute("VACUUM ANALYZE")
    owner = queue.register("owner")
    queue.claim("work", owner, 10_000)
    queue.alter_topic("work", keeps_expired())
    row = queue.conn.execute(
        "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) SELECT * FROM taskq.health('1 second')"
    ).fetchone()
    assert row is not None
    plan = row[0][0]["Plan"]
    assert plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] < 5000


def test_health_calls_no_function_for_each_topic(queue: TaskQueue) -> None:
    queue.conn.execute("SELECT taskq.create_topic(format('topic %s', n)) FROM generate_series(1, 400) n")
    queue.conn.execute("SELECT taskq.push(format('topic %s', n), 'a') FROM generate_series(1, 400) n")
    pass_time(queue, timedelta(minutes=6))
    with queue.conn.transaction():
        queue.conn.execute("SET LOCAL track_functions = 'all'")
        [*_, waiting] = (finding for finding in queue.health() if finding.subject == "waiting tasks")
        [(calls,)] = queue.conn.execute("SELECT sum(calls) FROM pg_stat_xact_user_functions").fetchall()
    assert waiting.value == 400
    assert calls < 400


def fail_tasks(queue: TaskQueue, owner: Owner, errors: list[str]) -> None:
    """Fails a task with each error."""
    queue.push("work", [f"customer-{number}" for number in range(len(errors))])
    tasks = queue.poll("work", owner, len(errors))
    made = (Decision(Result.FAILURE, error=error) for error in errors)
    queue.complete(owner, dict(zip(tasks, made, strict=True)))


def test_failures_of_the_last_hour_are_reported_with_their_share_and_errors(queue: TaskQueue, owner: Owner) -> None:
    fail_tasks(queue, owner, [*(f"ValueError: no mailbox for {number}" for number in range(4)), "A", "B", "C", "D"])
    finding = found(queue, "failures")
    assert (finding.severity, finding.value) == (Severity.CRITICAL, 8)
    assert finding.detail == (
        "topic 'work': 8 of 8 tasks that ended in the last hour FAILED (100.0 %), most often by:"
        " ValueError: no mailbox for #"
    )
    queue.push("work", [str(number) for number in range(24)])
    queue.complete(owner, dict.fromkeys(queue.poll("work", owner, 24), Result.SUCCESS))
    finding = found(queue, "failures")
    assert (finding.severity, finding.value) == (Severity.WARNING, 8)
    assert "8 of 32 tasks that ended in the last hour FAILED (25.0 %)" in finding.detail


def test_few_failures_are_found_behind_a_long_history(own_queue: TaskQueue) -> None:
    """The history has more pages than a sample reads."""
    queue = own_queue
    queue.create_topic("history")
    day, long = timedelta(days=1), "x" * 1900
    store_tasks(queue.conn, 1, 20_000, topic="history", states=[State.SUCCEEDED], age=day, error=long)
    fail_tasks(queue, queue.register("owner"), ["A"] * 8)
    finding = found(queue, "failures")
    assert (finding.severity, finding.value) == (Severity.CRITICAL, 8)
    assert "8 of 8 tasks that ended in the last hour FAILED (100.0 %), most often by: A" in finding.detail


def test_few_failures_and_old_ones_are_no_warning(queue: TaskQueue, owner: Owner) -> None:
    fail_tasks(queue, owner, ["A"])
    assert found(queue, "failures").severity is Severity.NOTICE
    pass_time(queue, timedelta(hours=2))
    finding = found(queue, "failures")
    assert (finding.severity, finding.detail) == (Severity.FINE, "no task has FAILED in the last hour")
