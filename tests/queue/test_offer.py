"""Offer and drop: at most one waiting task per identifier, also when transactions offer the same identifier at once."""

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from threading import Event, Lock
from typing import Any

import psycopg
import pytest

from airflow_provider_taskq.queue import (
    Decision,
    InvalidArgument,
    InvalidTask,
    NewTask,
    Offered,
    Outcome,
    Owner,
    Result,
    RetryPolicy,
    State,
    Task,
    TaskQueue,
    TopicPolicy,
    UnknownTopic,
    connect,
)
from tests.queue.conftest import deadlocks, everything, identifiers, known, states

pytestmark = pytest.mark.promise("An `offer` leaves at most one waiting task of an identifier")

CREATED, UPDATED, IGNORED = Outcome
HOUR = timedelta(hours=1)


def outcomes(offered: list[Offered]) -> list[Outcome]:
    """The outcome of each offer."""
    return [each.outcome for each in offered]


def test_an_offer_creates_a_task_then_updates_it_under_the_same_sequence(queue: TaskQueue, owner: Owner) -> None:
    queue.create_topic("other")
    first = queue.offer("work", "a", {"total": 12})
    assert first.outcome is CREATED
    assert queue.offer("work", "a", {"total": 13}) == Offered(UPDATED, first.sequence)
    assert queue.offer("other", "a").outcome is CREATED
    assert [(task.sequence, task.payload) for task in queue.poll("work", owner, 9)] == [(first.sequence, {"total": 13})]


def test_an_offer_that_changes_nothing_is_ignored(queue: TaskQueue) -> None:
    """And each offer with if_exists="ignore", which leaves the waiting task as it is."""
    first = queue.offer("work", "a", {"total": 12}, if_exists="ignore", reference="r", ttl=HOUR, priority=3)
    assert first.outcome is CREATED
    again = queue.offer("work", "a", {"total": 12}, reference="r", ttl=HOUR, priority=3)
    assert again == Offered(IGNORED, first.sequence)
    assert queue.offer("work", "a", 2, if_exists="ignore", delay=HOUR) == Offered(IGNORED, first.sequence)
    assert known(queue, first.sequence).payload == {"total": 12}


@pytest.mark.parametrize(
    "change",
    [{"payload": 2}, {"payload": None}, {"reference": "r"}, {"ttl": HOUR}, {"priority": 5}, {"delay": HOUR}],
    ids=str,
)
def test_every_part_of_a_waiting_task_is_replaced(queue: TaskQueue, change: dict[str, Any]) -> None:
    first = queue.offer("work", "a", 1)
    fields: dict[str, Any] = {"payload": 1} | change
    assert queue.offer("work", "a", **fields) == Offered(UPDATED, first.sequence)
    info = known(queue, first.sequence)
    assert (info.payload, info.reference, info.priority) == (
        fields["payload"],
        change.get("reference"),
        change.get("priority", 0),
    )
    assert info.status == ("scheduled" if "delay" in change else "ready")
    assert queue.offer("work", "a", 1).outcome is UPDATED, "what the next offer does not name gets its default again"


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
    queue.set_due("work", first.sequence, datetime.now(UTC) - HOUR)
    queue.poll("work", owner)
    queue.release(owner)
    assert known(queue, first.sequence).available_at == later, "release gives the place back that was offered last"
    assert queue.offer("work", "a") == Offered(UPDATED, first.sequence)
    assert known(queue, first.sequence).status == "ready", "without a schedule it is due at once"


@pytest.mark.promise("A failure with attempts left goes back to READY, due after the delay of the policy")
@pytest.mark.parametrize("result", list(Result))
def test_a_held_or_ended_task_is_not_a_waiting_one(queue: TaskQueue, owner: Owner, result: Result) -> None:
    first = queue.offer("work", "a", 1)
    [held] = queue.poll("work", owner)
    second = queue.offer("work", "a", 2)
    assert second.outcome is CREATED
    assert second.sequence > first.sequence
    queue.complete(owner, {held: result})
    assert queue.offer("work", "a", 2) == Offered(IGNORED, second.sequence)
    assert [task.payload for task in queue.poll("work", owner, 9)] == [2]


def test_a_task_that_waits_to_be_retried_is_updated_and_keeps_its_attempts_and_its_error(
    queue: TaskQueue, owner: Owner
) -> None:
    queue.alter_topic("work", TopicPolicy(retry=RetryPolicy(max_attempts=3, base=HOUR)))
    first = queue.offer("work", "a", "bad")
    queue.complete(owner, {queue.poll("work", owner)[0]: Decision(Result.FAILURE, error="broken")})
    assert queue.poll("work", owner) == []
    assert queue.offer("work", "a", "good") == Offered(UPDATED, first.sequence)
    [task] = queue.poll("work", owner)
    assert (task.sequence, task.payload, task.attempt) == (first.sequence, "good", 2)
    assert known(queue, task).error == "broken"


def test_a_paused_or_blocked_task_waits_on_and_is_due_as_it_was_offered_last(queue: TaskQueue, owner: Owner) -> None:
    first = queue.offer("work", "a", 1)
    [blocked] = queue.push("work", [NewTask("b", 1, depends_on=[("work", "a")])])
    queue.pause_task("work", first.sequence)
    assert queue.offer("work", "a", 1) == Offered(IGNORED, first.sequence)
    assert queue.offer("work", "a", 2) == Offered(UPDATED, first.sequence)
    later = queue.now() + HOUR
    assert queue.offer("work", "b", 2, available_at=later) == Offered(UPDATED, blocked.sequence)
    assert known(queue, blocked).available_at == later
    assert queue.poll("work", owner, 9) == []
    queue.resume_task("work", first.sequence)
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


@pytest.mark.promise("A `drop` removes the waiting tasks of an identifier and nothing else")
@pytest.mark.promise("A failure with attempts left goes back to READY, due after the delay of the policy")
def test_drop_removes_all_waiting_tasks_of_an_identifier_and_no_other(queue: TaskQueue, owner: Owner) -> None:
    queue.offer("work", "a")
    [held] = queue.poll("work", owner)
    assert not queue.drop("work", "a")
    queue.push("work", ["a", "b", NewTask("a", delay=HOUR), NewTask("dependent", depends_on=[("work", "a")])])
    assert queue.drop("work", "a")
    assert not queue.drop("work", "a")
    assert states(queue) == [("a", State.ACTIVE), ("b", State.READY), ("dependent", State.READY)]
    queue.complete(owner, {held: Result.SUCCESS})
    assert not queue.drop("work", "a")
    assert identifiers(queue.poll("work", owner, 5)) == ["b", "dependent"]


def test_a_batch_of_offers_returns_each_outcome_in_input_order(queue: TaskQueue, owner: Owner) -> None:
    """Of several waiting tasks of an identifier that were pushed, an offer updates the newest."""
    queue.push("work", ["held"])
    queue.poll("work", owner)
    queue.push("work", [NewTask("old", 0), NewTask("old", 1, priority=-5), NewTask("same", 1)])
    offered = queue.offer_many("work", ["new", NewTask("same", 1), NewTask("old", 2), "held", "b"])
    assert outcomes(offered) == [CREATED, IGNORED, UPDATED, CREATED, CREATED]
    waiting = {info.sequence: (info.identifier, info.payload) for info in everything(queue)}
    assert [waiting[each.sequence] for each in offered] == [
        *(("new", None), ("same", 1), ("old", 2), ("held", None), ("b", None))
    ]
    assert sorted(str(payload) for name, payload in waiting.values() if name == "old") == ["0", "2"]


def test_a_repeated_identifier_in_a_batch_updates_the_task_of_the_first_offer(queue: TaskQueue) -> None:
    batch = [NewTask("a", 1), NewTask("b", 1), NewTask("a", 2), NewTask("a", 2), NewTask("b", 1)]
    offered = queue.offer_many("work", batch)
    assert outcomes(offered) == [CREATED, CREATED, UPDATED, IGNORED, IGNORED]
    assert [(info.identifier, info.payload) for info in everything(queue)] == [("a", 2), ("b", 1)]
    assert len({each.sequence for each in offered}) == 2
    assert outcomes(queue.offer_many("work", ["c", NewTask("c", 5)], if_exists="ignore")) == [CREATED, IGNORED]


def test_a_batch_of_several_calls_is_all_or_nothing(queue: TaskQueue) -> None:
    names = [f"task-{number % 10_500}" for number in range(21_000)]
    offered = queue.offer_many("work", names)
    assert outcomes(offered) == [CREATED] * 10_500 + [IGNORED] * 10_500
    assert [each.sequence for each in offered[:10_500]] == [each.sequence for each in offered[10_500:]]
    assert queue.offer_many("work", []) == []


INVALID: dict[str, tuple[NewTask | dict[str, Any], str]] = {
    "blank": (NewTask(" "), "blank"),
    "priority": (NewTask("x", priority=101), "priority"),
    "payload": (NewTask("x", object()), "JSON"),  # type: ignore[arg-type]
    "suspended": (NewTask("x", suspended=True), "suspended"),
    "depends": (NewTask("x", depends_on=[("work", "a")]), "depends"),
    "both": (NewTask("x", available_at=datetime.now(UTC), delay=HOUR), "both"),
    "a list for a delay": ({"delay": [30]}, "its delay is a list, not a timedelta, a number of seconds or a text"),
    "a text for a priority": ({"priority": "high"}, "its priority is a str, not an integer"),
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
    with pytest.raises(InvalidArgument, match="if_exists is update or ignore, not 'replace'"):
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


def test_concurrent_offers_in_any_order_do_not_deadlock_and_leave_one_waiting_task_each(
    queue: TaskQueue, dsn: str
) -> None:
    """Also while a consumer takes them. Each task is handed out once."""
    names = [f"key-{number}" for number in range(20)]
    before = deadlocks(queue.conn)
    done, no_open_poll = Event(), Lock()

    def offering(number: int) -> None:
        with connect(dsn) as conn:
            for turn in range(25):
                batch = [NewTask(name, [number, turn]) for name in names[:: -1 if number % 2 else 1]]
                TaskQueue(conn).offer_many("work", batch)
                conn.commit()

    def consuming() -> list[Task]:
        with connect(dsn, autocommit=True) as conn:
            mine = TaskQueue(conn)
            me = mine.register("consumer")
            taken: list[Task] = []
            while not done.is_set() or mine.ready("work"):
                with no_open_poll:
                    tasks = mine.poll("work", me, 5)
                mine.complete(me, dict.fromkeys(tasks, Result.SUCCESS))
                taken += tasks
            return taken

    with ThreadPoolExecutor(5) as pool:
        consumer = pool.submit(consuming)
        try:
            for future in [pool.submit(offering, number) for number in range(4)]:
                future.result(300)
            with no_open_poll:  # a task that an open poll has claimed is still seen as READY
                waiting = [info.identifier for info in everything(queue) if info.state is State.READY]
        finally:
            done.set()
        taken = consumer.result(300)
    assert len(waiting) == len(set(waiting))
    assert len(taken) == len(set(taken)) == len(everything(queue)) >= len(names)
    assert {info.state for info in everything(queue)} == {State.SUCCEEDED}
    assert deadlocks(queue.conn) == before


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
    with pytest.raises(InvalidTask, match="position 0: its delay is a int, not a timedelta"):
        queue.push("work", [NewTask("a", delay=wrong and 30)])  # type: ignore[arg-type]
    assert everything(queue) == []
