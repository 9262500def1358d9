"""Consumers: events, handlers and progress."""

import threading

import psycopg
import pytest

from airflow_provider_taskq.consumer import Consumer
from airflow_provider_taskq.queue import Task, TaskQueue
from tests.consumer.consumers import Heard, heard_all, place, quick, read_all, table, typed, until_at_end
from tests.queue.conftest import until

pytestmark = pytest.mark.promise("Progress is committed with the rows of the handler, or not at all")


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
        assert go.wait(20)

    with Consumer(dsn, heard.group, "work", quick(partitions=2)):
        assert blocked.wait(20)
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
    consumer = Consumer(dsn, heard.group, "work", quick(progress="memory", partitions=2))
    with consumer:
        assert sorted(heard.wait(2)) == ["a", "b"]
    queue.push("work", ["c"])
    with consumer:
        assert heard.wait(3)[2] == "c"
    with Consumer(dsn, heard.group, "work", quick(progress="memory")):
        assert heard.wait(6)[3:] == ["a", "b", "c"]
    assert queue.partition_states() == []
    assert queue.progress("readers", "work") is None


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
        assert go.wait(20)

    with Consumer(dsn, heard.group, "work", quick(transactional=True)):
        assert inside.wait(20)
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

    settings = quick(transactional=True, transaction_size=3, retry="none")
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

    with Consumer(dsn, heard.group, "work", quick(transactional=True, retry="none"), on_failure=heard.fail):
        [failure] = heard.wait_failures(1)
        assert "ignored the error" in str(failure.error)
        until_at_end(queue)
