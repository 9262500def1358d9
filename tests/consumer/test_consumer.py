"""Consumers: events, handlers and progress; errors are retried, skipped, or end a partition, as they say."""

import threading
from concurrent.futures import CancelledError
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from airflow_provider_taskq.consumer import Consumer, ConsumerConfig, Interrupted, MemoryTracker, NonTransient
from airflow_provider_taskq.consumer.progress import Progress
from airflow_provider_taskq.queue import Cursor, RetryPolicy, Task, TaskQueue, TaskQueueError
from tests.consumer.consumers import (
    NEVER,
    Heard,
    at_once,
    heard_all,
    place,
    quick,
    read_all,
    state,
    table,
    typed,
    until_at_end,
)
from tests.queue.conftest import until

pytestmark = [
    pytest.mark.promise("Progress is committed with the rows of the handler, or not at all"),
    pytest.mark.promise("An event that fails is retried, skipped, or ends its partition, as its error says"),
]


def test_a_consumer_handles_every_event_in_order_and_stores_its_progress(dsn: str, queue: TaskQueue) -> None:
    queue.push("work", ["a", "b", "a"])
    heard = heard_all()
    with Consumer(dsn, heard.group, "work", quick()):
        assert heard.wait(3) == ["a", "b", "a"]
        queue.push("work", ["c"])
        assert heard.wait(4)[-1] == "c"
        until_at_end(queue)
    assert queue.progress("readers", "work") == place(queue, 4)
    assert queue.ready("work", 10) == 4, "a consumer claims nothing"


def test_handlers_match_events_by_kind_by_predicate_or_all(dsn: str, queue: TaskQueue) -> None:
    heard = Heard()
    calls: list[tuple[str, str]] = []

    @heard.group.on("added", "changed")
    def of_kind(event: Task) -> None:
        calls.append(("kind", event.identifier))

    @heard.group.on(lambda event: event.identifier > "b")
    def by_predicate(event: Task) -> None:
        calls.append(("predicate", event.identifier))

    heard.group.on()(heard.hear)
    queue.push("work", [typed("a", "added"), typed("b", "removed"), typed("c", "changed"), "d"])
    with Consumer(dsn, heard.group, "work", quick()):
        assert heard.wait(4) == ["a", "b", "c", "d"]
    assert calls == [("kind", "a"), ("kind", "c"), ("predicate", "c"), ("predicate", "d")]
    named = Heard("named")
    named.group.kind = lambda event: event.identifier[0]  # a group may define the kind
    named.group.on("b")(named.hear)
    read_all(queue, Consumer(dsn, named.group, "work", quick()), "named")
    assert named.identifiers == ["b"]


@pytest.mark.parametrize(
    ("subject", "recursive", "expected"),
    [
        (None, True, ["/books", "/books/1", "/bookshop", "a"]),
        ("/books", True, ["/books", "/books/1"]),
        ("/books", False, ["/books"]),
        ("/", True, ["/books", "/books/1", "/bookshop"]),
    ],
)
def test_a_consumer_handles_a_subject_with_or_without_identifiers_below_it(
    dsn: str, queue: TaskQueue, subject: str | None, recursive: bool, expected: list[str]
) -> None:
    queue.push("work", ["/books", "/books/1", "/bookshop", "a"])
    heard = heard_all()
    read_all(queue, Consumer(dsn, heard.group, "work", quick(subject=subject, recursive=recursive)))
    assert heard.identifiers == expected


def test_each_partition_has_progress_of_its_own(dsn: str, queue: TaskQueue) -> None:
    queue.push("work", [f"id-{n}" for n in range(20)])
    heard = heard_all()
    blocked, go = threading.Event(), threading.Event()

    @heard.group.on(lambda event: event.identifier == "id-0")
    def blocks(_event: Task) -> None:
        blocked.set()
        assert go.wait(120)

    with Consumer(dsn, heard.group, "work", quick(partitions=2)):
        assert blocked.wait(120)
        end = place(queue, 20)
        until(lambda: max(each.cursor for each in queue.partition_states("work")) == end)
        assert min(each.cursor for each in queue.partition_states("work")) < place(queue, 1)
        go.set()
        heard.wait(20)


def test_an_operator_may_move_progress_back_while_the_consumer_runs(dsn: str, queue: TaskQueue) -> None:
    queue.push("work", ["a", "b"])
    heard = heard_all()
    with Consumer(dsn, heard.group, "work", quick()):
        heard.wait(2)
        until_at_end(queue)
        queue.advance("readers", "work", 0, place(queue, 1))
        assert heard.wait(3) == ["a", "b", "b"]


def test_progress_in_memory_starts_again_with_each_consumer_and_outlives_a_stop(dsn: str, queue: TaskQueue) -> None:
    queue.push("work", ["a", "b"])
    heard = heard_all()
    consumer = Consumer(dsn, heard.group, "work", quick(progress=MemoryTracker(), partitions=2))
    with consumer:
        assert sorted(heard.wait(2)) == ["a", "b"]
    queue.push("work", ["c"])
    with consumer:
        assert heard.wait(3)[2] == "c"
    with Consumer(dsn, heard.group, "work", quick(progress=MemoryTracker())):
        assert heard.wait(6)[3:] == ["a", "b", "c"]
    assert queue.partition_states() == []
    assert queue.progress("readers", "work") is None


def test_a_consumer_whose_tracker_is_ahead_of_the_database_ends_and_says_so(dsn: str, queue: TaskQueue) -> None:
    [task] = queue.push("work", ["a"])
    tracker = MemoryTracker()
    tracker.proceed("readers", "work", 0, lambda: None, Cursor(task.sequence + 1))
    consumer = Consumer(dsn, heard_all().group, "work", quick(progress=tracker))
    consumer.start()
    with pytest.raises(TaskQueueError, match="older copy"):
        consumer.wait(20)


def test_handlers_without_the_queue_run_outside_of_any_transaction_and_progress_follows(
    dsn: str, queue: TaskQueue
) -> None:
    queue.push("work", ["a"])
    heard = Heard()
    seen: list[object] = []

    @heard.group.on()
    def look(event: Task) -> None:
        seen.append(queue.progress("readers", "work"))
        open_ = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in tr%'"
        seen.append(queue.conn.execute(open_.encode()).fetchone())
        heard.hear(event)

    with Consumer(dsn, heard.group, "work", quick()):
        heard.wait(1)
        until_at_end(queue)
    assert seen == [None, (0,)]


def test_a_transactional_handler_commits_its_effects_with_the_progress(dsn: str, queue: TaskQueue) -> None:
    table(queue, "shelf", "book text")
    queue.push("work", ["a"])
    heard = Heard()
    inside, go = threading.Event(), threading.Event()

    @heard.group.on()
    def shelve(event: Task, queue: TaskQueue) -> None:
        queue.conn.execute("INSERT INTO shelf VALUES (%s)", (event.identifier,))
        if event.identifier == "a":
            queue.push("work", ["follow-up"])
        inside.set()
        assert go.wait(120)

    with Consumer(dsn, heard.group, "work", quick(transactional=True)):
        assert inside.wait(120)
        assert queue.conn.execute("SELECT FROM shelf").fetchall() == []
        assert queue.progress("readers", "work") is None
        go.set()
        until(lambda: len(queue.conn.execute("SELECT FROM shelf").fetchall()) == 2)
        until_at_end(queue)
    assert queue.progress("readers", "work") == place(queue, 2)


def test_events_share_a_transaction_unless_one_of_them_fails(dsn: str, queue: TaskQueue) -> None:
    table(queue, "shelf", "book text, tx xid8 DEFAULT pg_current_xact_id()")
    queue.push("work", [f"id-{n}" for n in range(9)])
    heard = Heard()

    @heard.group.on(lambda event: event.identifier != "id-1")
    def shelve(event: Task, queue: TaskQueue) -> None:
        queue.conn.execute("INSERT INTO shelf (book) VALUES (%s)", (event.identifier,))
        if event.identifier == "id-5":
            raise ValueError("bad")

    settings = quick(transactional=True, transaction_size=3, retry=NEVER)
    read_all(queue, Consumer(dsn, heard.group, "work", settings, on_failure=heard.fail))
    transaction_size = "SELECT array_agg(book ORDER BY book) FROM shelf GROUP BY tx ORDER BY 1"
    found = [row[0] for row in queue.conn.execute(transaction_size.encode())]
    assert found == [["id-0", "id-2"], ["id-3"], ["id-4"], ["id-6", "id-7", "id-8"]]
    assert [failure.event.identifier for failure in heard.failures] == ["id-5"]


def test_a_handler_that_ignores_the_error_of_its_transaction_fails(dsn: str, queue: TaskQueue) -> None:
    queue.push("work", ["a"])
    heard = Heard()

    @heard.group.on()
    def careless(_event: Task, queue: TaskQueue) -> None:
        with pytest.raises(psycopg.errors.UndefinedTable):
            queue.conn.execute("SELECT FROM nothing")

    with Consumer(dsn, heard.group, "work", quick(transactional=True, retry=NEVER), on_failure=heard.fail):
        [failure] = heard.wait_failures(1)
        assert "ignored the error" in str(failure.error)
        until_at_end(queue)


# Errors


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
        ({"retry": at_once(2)}, 1000, [(1, False), (2, False), (3, True)], ["a", "a", "a", "b"]),
        ({"retry": NEVER}, 1000, [(1, True)], ["a", "b"]),
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


@pytest.mark.parametrize("level", [None, lambda event: event.identifier], ids=["identifier", "function"])
def test_a_skipped_event_is_kept_with_its_error_and_handled_in_a_replay(
    dsn: str, queue: TaskQueue, level: object
) -> None:
    tasks = queue.push("work", [f"id-{n}" for n in range(6)])
    bad = [tasks[1].sequence, tasks[4].sequence]
    heard = Heard()
    repaired: list[int] = []

    @heard.group.on()
    def handle(event: Task) -> None:
        if event.sequence in bad and event.sequence not in repaired:
            raise ValueError(f"cannot handle {event.identifier}")
        heard.hear(event)

    with Consumer(dsn, heard.group, "work", quick(retry=NEVER, partitions=2, level=level), on_failure=heard.fail):
        heard.wait(4)
        until_at_end(queue)
        [first, second] = queue.skipped_events("readers", "work")
        assert ([first.sequence, second.sequence], first.identifier) == (bad, "id-1")
        assert "cannot handle id-1" in first.error
        repaired.extend(bad)
        for partition in range(2):
            queue.advance("readers", "work", partition, Cursor(0))
        assert set(heard.wait(10)[4:]) == {task.identifier for task in tasks}
    assert queue.skipped_events("readers", "work") == []
    assert len(heard.failures) == 2


def test_a_predicate_that_raises_fails_its_event(dsn: str, queue: TaskQueue) -> None:
    queue.push("work", ["a", "b"])
    heard = Heard()
    heard.group.on(lambda event: 1 // (event.identifier == "b"))(heard.hear)
    read_all(queue, Consumer(dsn, heard.group, "work", quick(retry=at_once(1)), on_failure=heard.fail))
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
    assert consumer.wait(120), "its only partition has ended"
    assert (heard.failures, consumer.errors) == ([], {})
    assert queue.progress("readers", "work") is None
    assert (state(queue).member, state(queue).error) == (None, None)


def test_a_stop_during_a_retry_delay_ends_at_once_without_progress(dsn: str, queue: TaskQueue) -> None:
    queue.push("work", ["a"])
    heard = Heard()
    failing(heard, "a", 1000)
    consumer = Consumer(dsn, heard.group, "work", quick(retry=["1h"]), on_failure=heard.fail)
    consumer.start()
    heard.wait_failures(1)
    assert consumer.stop(120)
    assert queue.progress("readers", "work") is None


@pytest.mark.parametrize(
    ("retry", "expected"),
    [
        (ConsumerConfig().retry, [2.0, 3.0, 4.5, 6.75, 10.125, 15.1875, 22.78125, 30.0, 30.0]),
        (RetryPolicy.event_handling(max_attempts=2), [2, 3, None]),
        (RetryPolicy.event_handling(max_elapsed=timedelta(seconds=9)), [2, 3, 4.5, None]),
        (RetryPolicy.event_handling(multiplier=1, max_attempts=3), [2, 2, 2, None]),
        (NEVER, [None]),
    ],
    ids=["of OpenCQRS", "number", "time", "fixed", "none"],
)
def test_the_delays_of_retries_grow_to_their_limit(retry: RetryPolicy, expected: list[float | None]) -> None:
    found = [ConsumerConfig(retry=retry).retry_delay(number) for number in range(1, len(expected) + 1)]
    assert [None if delay is None else delay.total_seconds() for delay in found] == expected


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
        AND datname = current_database() AND query LIKE ANY ('{%taskq.heartbeat(%,%taskq.acquire_partition(%}')"""
    settings = quick(transactional=True, retry=NEVER)
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
    skip = Progress.skip

    @heard.group.on()
    def shelve(event: Task, queue: TaskQueue) -> None:
        queue.conn.execute("INSERT INTO shelf VALUES (%s)", (event.identifier,))

    def stand_still(progress: Progress, *said: Any) -> None:
        skip(progress, *said)
        if not stood_still:
            stood_still.append(progress.conn.info.backend_pid)
            if limit == "the server's":
                progress.conn.execute("SET LOCAL transaction_timeout = '200ms'")
            until(lambda: not has_session(queue, stood_still[0]))

    monkeypatch.setattr(Progress, "skip", stand_still)
    settings = quick(transactional=True, retry=NEVER)
    with Consumer(dsn, heard.group, "work", settings, on_failure=heard.fail) as consumer:
        until_at_end(queue)
    assert queue.conn.execute("SELECT book FROM shelf ORDER BY book").fetchall() == [("a",), ("b",)]
    assert (heard.failures, consumer.errors, len(stood_still)) == ([], {}, 1)


def test_a_consumer_that_loses_its_connection_at_its_start_opens_another(
    dsn: str, queue: TaskQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.push("work", ["a"])
    heard = heard_all()
    lost: list[Consumer] = []
    renew = Consumer._renew

    def lose(consumer: Consumer) -> None:
        if not lost:
            lost.append(consumer)
            with consumer._leases.session.queue() as theirs:
                end_session(queue, theirs.conn)
        renew(consumer)

    monkeypatch.setattr(Consumer, "_renew", lose)
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
