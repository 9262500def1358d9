"""Errors of handlers: retried, skipped, ending a partition, or ending it quietly."""

from concurrent.futures import CancelledError
from datetime import timedelta

import psycopg
import pytest

from airflow_provider_taskq.consumer import Consumer, ConsumerConfig, Interrupted, NonTransient
from airflow_provider_taskq.consumer.partition_loop import AttemptCounter
from airflow_provider_taskq.consumer.progress import DatabaseProgress
from airflow_provider_taskq.consumer.runtime import ConsumerRuntime
from airflow_provider_taskq.queue import Cursor, Task, TaskQueue
from tests.consumer.consumers import Heard, heard_all, place, quick, read_all, state, table, until_at_end
from tests.queue.conftest import until

pytestmark = pytest.mark.promise("An event that fails is retried, skipped, or ends its partition, as its error says")

TRANSACTION_TIMEOUTS = 170_000  # the first server version with transaction_timeout


class OutOfOrder(NonTransient):
    """A subclass of NonTransient in a program."""


def failing(heard: Heard, identifier: str, times: int, error: BaseException | None = None) -> None:
    """Makes the group fail this many times with one event."""

    @heard.group.on(lambda event: event.identifier == identifier)
    def fails(_event: Task) -> None:
        if len(heard.failures) < times:
            raise error or ValueError("not yet")


@pytest.mark.parametrize(
    ("said", "times", "failures", "heard_events"),
    [
        ({}, 3, [(1, False), (2, False), (3, False)], ["a", "a", "a", "a", "b"]),
        ({"retry_max_attempts": 2}, 1000, [(1, False), (2, False), (3, True)], ["a", "a", "a", "b"]),
        ({"retry": "none"}, 1000, [(1, True)], ["a", "b"]),
    ],
    ids=["succeeds", "without attempts left", "without retries"],
)
def test_a_failed_event_is_retried_with_all_its_handlers_until_it_succeeds_or_is_skipped(
    dsn: str,
    queue: TaskQueue,
    said: dict[str, object],
    times: int,
    failures: list[tuple[int, bool]],
    heard_events: list[str],
) -> None:
    queue.push("work", ["a", "b"])
    heard = heard_all()
    failing(heard, "a", times)
    read_all(queue, Consumer(dsn, heard.group, "work", quick(**said), on_failure=heard.fail))
    assert heard.identifiers == heard_events
    assert [(each.failures, each.delay is None) for each in heard.failures] == failures
    assert queue.progress("readers", "work") == place(queue, 2)


def test_a_predicate_that_raises_fails_its_event(dsn: str, queue: TaskQueue) -> None:
    queue.push("work", ["a", "b"])
    heard = Heard()
    heard.group.on(lambda event: 1 // (event.identifier == "b"))(heard.hear)
    read_all(queue, Consumer(dsn, heard.group, "work", quick(retry_max_attempts=1), on_failure=heard.fail))
    assert [type(each.error) for each in heard.failures] == [ZeroDivisionError] * 2
    assert heard.identifiers == ["b"]


@pytest.mark.parametrize("error", [NonTransient("never"), OutOfOrder("never")], ids=["itself", "of a program"])
def test_a_non_transient_error_ends_the_consumer_with_its_reason(
    dsn: str, queue: TaskQueue, error: NonTransient
) -> None:
    queue.push("work", ["a", "b", "c"])
    heard = heard_all()
    failing(heard, "b", 1000, error)
    consumer = Consumer(dsn, heard.group, "work", quick(), on_failure=heard.fail)
    consumer.start()
    with pytest.raises(NonTransient, match="never"):
        consumer.wait(20)
    assert not consumer.is_running
    assert heard.failures[0].stopped
    assert queue.progress("readers", "work") == place(queue, 1)
    found = state(queue)
    assert found.member is None, "another consumer may acquire it at once"
    assert "never" in str(found.error)
    assert found.failed is not None


def test_other_partitions_continue_and_another_consumer_may_acquire_the_ended_one(dsn: str, queue: TaskQueue) -> None:
    queue.push("work", [f"id-{n}" for n in range(20)])
    broken, whole = Heard(), heard_all()
    failing(broken, "id-0", 1000, NonTransient("never"))
    broken.group.on()(broken.hear)
    with Consumer(dsn, broken.group, "work", quick(partitions=2), on_failure=broken.fail) as consumer:
        broken.wait_failures(1)
        until(lambda: consumer.errors != {})
        until(lambda: sum(each.behind_since is None for each in queue.partition_states()) == 1)
        assert consumer.is_running
        assert len(consumer.partitions) == 1
        with Consumer(dsn, whole.group, "work", quick(partitions=2)):
            until_at_end(queue)
            assert len(broken.failures) == 1, "a consumer does not acquire a partition again that its handler ended"
        assert "id-0" in whole.identifiers
        assert all(each.error is None for each in queue.partition_states())


@pytest.mark.parametrize(
    "error",
    [
        Interrupted("enough"),
        CancelledError(),
        KeyboardInterrupt(),
        SystemExit(),
        RuntimeError("cannot schedule new futures after shutdown"),  # of an executor
    ],
    ids=lambda e: type(e).__name__,
)
def test_an_interruption_ends_the_loop_quietly_without_progress(
    dsn: str, queue: TaskQueue, error: BaseException
) -> None:
    queue.push("work", ["a"])
    heard = Heard()
    failing(heard, "a", 1, error)
    consumer = Consumer(dsn, heard.group, "work", quick(), on_failure=heard.fail)
    consumer.start()
    assert consumer.wait(20), "its only partition has ended"
    assert (heard.failures, consumer.errors) == ([], {})
    assert queue.progress("readers", "work") is None
    assert (state(queue).member, state(queue).error) == (None, None)


def test_a_stop_during_a_retry_delay_ends_at_once_without_progress(dsn: str, queue: TaskQueue) -> None:
    queue.push("work", ["a"])
    heard = Heard()
    failing(heard, "a", 1000)
    consumer = Consumer(dsn, heard.group, "work", quick(retry_initial=timedelta(hours=1)), on_failure=heard.fail)
    consumer.start()
    heard.wait_failures(1)
    assert consumer.stop(10)
    assert queue.progress("readers", "work") is None


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (ConsumerConfig(), [2.0, 3.0, 4.5, 6.75, 10.125, 15.1875, 22.78125, 30.0, 30.0]),
        (ConsumerConfig(retry_max_attempts=2), [2, 3, None]),
        (ConsumerConfig(retry_max_elapsed=timedelta(seconds=9)), [2, 3, 4.5, None]),
        (ConsumerConfig(retry="fixed", retry_max_attempts=3), [2, 2, 2, None]),
        (ConsumerConfig(retry="none"), [None]),
    ],
    ids=["of OpenCQRS", "number", "time", "fixed", "none"],
)
def test_the_delays_of_retries_grow_to_their_limit_and_start_again_after_a_success_or_a_skip(
    config: ConsumerConfig, expected: list[float | None]
) -> None:
    attempts = AttemptCounter(config.retry_delay)
    for event in (1, 2):
        for _ in range(2):
            found = [attempts.failed(event) for _ in expected]
            assert [None if delay is None else delay.total_seconds() for delay in found] == expected
            attempts.reset()
        attempts.failed(event)  # and another event starts again


def test_a_consumer_replaces_a_lost_connection_and_handles_each_event_once(dsn: str, queue: TaskQueue) -> None:
    table(queue, "shelf", "book text")
    heard = Heard()

    @heard.group.on()
    def shelve(event: Task, queue: TaskQueue) -> None:
        queue.conn.execute("INSERT INTO shelf VALUES (%s)", (event.identifier,))
        if event.identifier in ("id-3", "id-7") and event.identifier not in heard.identifiers:
            heard.hear(event)
            queue.conn.execute("SELECT pg_terminate_backend(pg_backend_pid())")

    kill = """SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()
        AND datname = current_database() AND query LIKE ANY
            ('{%taskq.renew_partitions(%,%taskq.acquire_partition(%}')"""
    settings = quick(transactional=True, retry="none")
    with Consumer(dsn, heard.group, "work", settings, on_failure=heard.fail) as consumer:
        queue.push("work", [f"id-{n}" for n in range(10)])
        heard.wait(2)
        assert queue.conn.execute(kill.encode()).fetchall() == [(True,)], "the session that renews the lease"
        until_at_end(queue)
    assert consumer.errors == {}
    found = [row[0] for row in queue.conn.execute("SELECT book FROM shelf")]
    assert found == [f"id-{n}" for n in range(10)]
    assert heard.failures == []


@pytest.mark.promise("a worker stalls and continues")
@pytest.mark.parametrize("limit", ["the lease's", "the server's"])
def test_a_suspended_program_loses_its_transaction_and_continues_afterwards(
    dsn: str, queue: TaskQueue, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    if limit == "the server's" and queue.conn.info.server_version < TRANSACTION_TIMEOUTS:
        pytest.skip("this server bounds no transaction")
    table(queue, "shelf", "book text")
    queue.push("work", ["a", "b"])
    heard = Heard()
    stood_still: list[int] = []
    skip = DatabaseProgress.skip

    @heard.group.on()
    def shelve(event: Task, queue: TaskQueue) -> None:
        queue.conn.execute("INSERT INTO shelf VALUES (%s)", (event.identifier,))

    def stand_still(progress: DatabaseProgress, after: Cursor, cursor: Cursor) -> None:
        skip(progress, after, cursor)
        if not stood_still:
            stood_still.append(progress.conn.info.backend_pid)
            if limit == "the server's":
                progress.conn.execute("SET LOCAL transaction_timeout = '200ms'")
            until(lambda: not has_session(queue, stood_still[0]))

    monkeypatch.setattr(DatabaseProgress, "skip", stand_still)
    settings = quick(transactional=True, retry="none")
    with Consumer(dsn, heard.group, "work", settings, on_failure=heard.fail) as consumer:
        until_at_end(queue)
    assert queue.conn.execute("SELECT book FROM shelf ORDER BY book").fetchall() == [("a",), ("b",)]
    assert (heard.failures, consumer.errors, len(stood_still)) == ([], {}, 1)


def test_a_consumer_that_loses_its_connection_at_its_start_opens_another(
    dsn: str, queue: TaskQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.push("work", ["a"])
    heard = heard_all()
    lost: list[ConsumerRuntime] = []
    renew = ConsumerRuntime._renew

    def lose(runtime: ConsumerRuntime) -> None:
        if not lost:
            lost.append(runtime)
            end_session(queue, runtime._leases.queue.conn)
        renew(runtime)

    monkeypatch.setattr(ConsumerRuntime, "_renew", lose)
    with Consumer(dsn, heard.group, "work", quick()) as consumer:
        assert heard.wait(1) == ["a"]
        assert len(lost) == 1
    assert consumer.errors == {}


def has_session(queue: TaskQueue, pid: int) -> bool:
    """Whether the session exists on the server."""
    return queue.conn.execute("SELECT FROM pg_stat_activity WHERE pid = %s", (pid,)).rowcount == 1


def end_session(queue: TaskQueue, conn: psycopg.Connection) -> None:
    """Lets the server end a session, and waits for its end."""
    queue.conn.execute("SELECT pg_terminate_backend(%s, 20000)", (conn.info.backend_pid,))
