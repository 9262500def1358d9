"""Offer and drop: at most one waiting task per identifier, also when transactions offer the same identifier at once."""

from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from airflow_provider_taskq.queue import (
    InvalidArgument,
    InvalidTask,
    NewTask,
    Offered,
    Outcome,
    Owner,
    Result,
    TaskQueue,
    UnknownTopic,
    connect,
)
from tests.queue.conftest import everything, identifiers, known

pytestmark = pytest.mark.promise("An `offer` leaves at most one waiting task of an identifier")

CREATED, UPDATED, IGNORED = Outcome
HOUR = timedelta(hours=1)


def outcomes(offered: list[Offered]) -> list[Outcome]:
    """The outcome of each offer."""
    return [each.outcome for each in offered]


@pytest.mark.parametrize("change", [{"payload": None}, {"reference": "r"}, {"ttl": HOUR}, {"priority": 5}], ids=str)
def test_a_change_of_one_part_is_an_update_and_what_an_offer_does_not_name_gets_its_default(
    queue: TaskQueue, change: dict[str, Any]
) -> None:
    first = queue.offer("work", "a", 1)
    given: dict[str, Any] = {"payload": 1, **change}
    offered = [queue.offer("work", "a", **fields) for fields in (given, given, {"payload": 1})]
    assert offered == [Offered(outcome, first.sequence) for outcome in (UPDATED, IGNORED, UPDATED)]


def test_the_schedule_is_replaced_and_stays_the_tasks_place(queue: TaskQueue, owner: Owner) -> None:
    later = datetime.now(UTC) + HOUR
    first = queue.offer("work", "a")
    queue.offer("work", "b")
    assert queue.offer("work", "a", "new") == Offered(UPDATED, first.sequence)
    with queue.conn.transaction(force_rollback=True):
        assert identifiers(queue.poll("work", owner, 2)) == ["a", "b"], "a task that is due keeps its place"
    assert queue.offer("work", "a", available_at=later) == Offered(UPDATED, first.sequence)
    assert queue.offer("work", "a", available_at=later) == Offered(IGNORED, first.sequence)
    assert known(queue, first.sequence).available_at == later
    queue.change_waiting("work", [first.sequence], due=datetime.now(UTC) - HOUR)
    queue.poll("work", owner)
    queue.release(owner)
    assert known(queue, first.sequence).available_at == later, "release gives the place back that was offered last"
    assert queue.offer("work", "a") == Offered(UPDATED, first.sequence)
    assert known(queue, first.sequence).status == "ready", "without a schedule it is due at once"


def test_an_offer_that_counts_held_tasks_creates_none_until_the_task_has_ended(
    dsn: str, queue: TaskQueue, owner: Owner
) -> None:
    first = queue.offer("work", "a", if_exists="ignore_held")
    assert queue.offer("work", "a", 1, if_exists="ignore_held") == Offered(IGNORED, first.sequence)
    with connect(dsn) as conn:
        [held] = TaskQueue(conn).poll("work", owner)
        assert queue.offer("work", "a", if_exists="ignore_held") == Offered(IGNORED, first.sequence), "an open poll"
    assert queue.offer_many("work", ["a", "b", "a"], if_exists="ignore_held")[0] == Offered(IGNORED, held.sequence)
    queue.complete(owner, {held: Result.SUCCESS})
    assert queue.offer("work", "a", if_exists="ignore_held").outcome is CREATED
    assert queue.offer("work", "a", if_exists="ignore").outcome is IGNORED


def test_a_paused_or_blocked_task_waits_on_and_is_due_as_it_was_offered_last(queue: TaskQueue, owner: Owner) -> None:
    first = queue.offer("work", "a", 1)
    [blocked] = queue.push("work", [NewTask("b", 1, depends_on=[("work", "a")])])
    queue.change_waiting("work", [first.sequence], paused=True)
    assert queue.offer("work", "a", 1) == Offered(IGNORED, first.sequence)
    assert queue.offer("work", "a", 2) == Offered(UPDATED, first.sequence)
    later = queue.now() + HOUR
    assert queue.offer("work", "b", 2, available_at=later) == Offered(UPDATED, blocked.sequence)
    assert known(queue, blocked).available_at == later
    assert queue.poll("work", owner, 9) == []
    queue.change_waiting("work", [first.sequence], paused=False)
    [task] = queue.poll("work", owner, 9)
    assert task.payload == 2
    queue.complete(owner, {task: Result.SUCCESS})
    assert queue.poll("work", owner) == []
    assert queue.offer("work", "b", 2).outcome is UPDATED
    assert queue.poll("work", owner) == [blocked]


def test_an_updated_task_ahead_of_a_reader_is_read_once_with_the_new_payload(queue: TaskQueue) -> None:
    first = queue.offer("work", "a", 1)
    [(cursor, event)] = queue.events("work", None)
    assert event.payload == 1
    queue.offer("work", "a", 2)
    assert list(queue.events("work", cursor)) == [], "an update is no new task"
    assert [(task.sequence, task.payload) for _, task in queue.events("work", None)] == [(first.sequence, 2)]


def test_a_batch_of_several_calls_is_all_or_nothing(queue: TaskQueue) -> None:
    names = [f"task-{number % 10_500}" for number in range(21_000)]
    offered = queue.offer_many("work", names)
    assert outcomes(offered) == [CREATED] * 10_500 + [IGNORED] * 10_500
    assert [each.sequence for each in offered[:10_500]] == [each.sequence for each in offered[10_500:]]
    assert queue.offer_many("work", []) == []


@pytest.mark.parametrize("if_exists", ["update", "ignore", "ignore_held"])
def test_offers_of_one_call_do_what_the_same_offers_do_one_after_the_other(queue: TaskQueue, if_exists: str) -> None:
    given = [NewTask(each[0], each[1]) for each in ("a1", "b1", "a1", "a2", "c1", "a2", "b1", "d1", "d2", "a1")]
    given[6:7] = [NewTask("b", "1", delay=HOUR), NewTask("b", "1"), NewTask("b", "1", priority=3)]
    for topic in ("once", "often"):
        queue.create_topic(topic)
        queue.offer_many(topic, [NewTask("c", "0"), NewTask("d", "1")])
    once = queue.offer_many("once", given, if_exists=if_exists)
    often = [offered for task in given for offered in queue.offer_many("often", [task], if_exists=if_exists)]
    assert outcomes(once) == outcomes(often)
    for topic, offered in (("once", once), ("often", often)):
        assert [known(queue, each.sequence, topic).identifier for each in offered] == [
            task.identifier for task in given
        ]
    stored = [
        [(t.identifier, t.payload, t.priority, t.status) for t in queue.page(topic)] for topic in ("once", "often")
    ]
    assert stored[0] == stored[1]


INVALID: dict[str, tuple[NewTask | dict[str, Any], str]] = {
    "blank": (NewTask(" "), "blank"),
    "priority": (NewTask("x", priority=101), "priority"),
    "payload": (NewTask("x", object()), "JSON"),  # type: ignore[arg-type]
    "suspended": (NewTask("x", suspended=True), "suspended"),
    "depends": (NewTask("x", depends_on=[("work", "a")]), "depends"),
    "both": (NewTask("x", available_at=datetime.now(UTC), delay=HOUR), "both"),
    "a list for a delay": ({"delay": [30]}, "invalid delay .* expected a timedelta, a number of seconds, or a text"),
    "a text for a priority": ({"priority": "high"}, "invalid priority 'high' .*: expected an integer"),
    "a number for a time": ({"available_at": 30}, "its available_at is a int, not a datetime or a text in ISO 8601"),
    "a number for a reference": ({"reference": 7}, "its reference is a int, not a text"),
}


@pytest.mark.parametrize("name", INVALID)
def test_an_invalid_offer_is_refused_by_its_position_and_nothing_is_stored(queue: TaskQueue, name: str) -> None:
    task, reason = INVALID[name]
    if isinstance(task, dict):
        with pytest.raises(InvalidTask, match=reason):
            queue.offer("work", "a", **task)
    else:
        with pytest.raises(InvalidTask, match=f"position 1.*{reason}"):
            queue.offer_many("work", ["fine", task])
    assert everything(queue) == []


def test_an_unknown_topic_and_an_unknown_if_exists_are_refused(queue: TaskQueue) -> None:
    with pytest.raises(UnknownTopic, match="nowhere"):
        queue.offer("nowhere", "a")
    with pytest.raises(UnknownTopic, match="nowhere"):
        queue.drop("nowhere", "a")
    with pytest.raises(InvalidArgument, match="if_exists is update, ignore or ignore_held, not 'replace'"):
        queue.offer("work", "a", if_exists="replace")
    with pytest.raises(InvalidTask, match="tasks is one str"):
        queue.offer_many("work", "abc")


def test_a_producer_offers_from_sql_with_named_arguments(conn: psycopg.Connection, queue: TaskQueue) -> None:
    queue.create_topic("orders")
    offer = """SELECT outcome, sequence FROM taskq.offer('orders', 'customer-17', '{"total": 12}')"""
    [(outcome, sequence)] = conn.execute(offer).fetchall()
    assert outcome == "CREATED"
    assert conn.execute(offer).fetchall() == [("IGNORED", sequence)]
    named = """SELECT outcome FROM taskq.offer('orders', 'customer-17', priority => 5, delay => '1 hour',
                                               reference => 'r', if_exists => 'update')"""
    assert conn.execute(named.encode()).fetchall() == [("UPDATED",)]
    assert conn.execute("SELECT taskq.drop('orders', 'customer-17')").fetchall() == [(True,)]


# Steps of several connections.


def test_an_offer_takes_seconds_and_texts_as_a_push_of_dicts_does(queue: TaskQueue) -> None:
    offered = queue.offer("work", "a", delay=3600, ttl="2h", available_at=None)
    found = known(queue, offered.sequence)
    assert timedelta(minutes=59) < found.available_at - found.created <= HOUR


def test_an_option_that_does_not_exist_is_refused_with_those_that_do(queue: TaskQueue) -> None:
    wrong: Any = {"dealy": HOUR}
    with pytest.raises(InvalidArgument, match=r"offer\(\) has no option 'dealy': it has if_exists, reference, avail"):
        queue.offer("work", "a", **wrong)
    with pytest.raises(InvalidArgument, match=r"offer_many\(\) has no option 'dealy': it has if_exists"):
        queue.offer_many("work", ["a"], **wrong)
    wrong = {"delay": HOUR}
    for push in (queue.push, queue.push_stream):
        with pytest.raises(InvalidArgument, match=r"has no option 'delay': it has insertion; a task is a dict or a Ne"):
            push("work", ["a"], **wrong)
    with pytest.raises(InvalidTask, match=r"position 0: invalid delay \[30\] \(a list\): expected a timedelta"):
        queue.push("work", [NewTask("a", delay=[30])])  # type: ignore[arg-type]
    assert everything(queue) == []
