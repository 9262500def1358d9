"""Fronts of identifiers: polls under a condition stay flat and pass no task (sql/order/identifier_fronts.sql)."""

from collections.abc import Callable
from datetime import timedelta
from functools import partial

import pytest

from airflow_provider_taskq.queue import Condition, Owner, Result, Task, TaskQueue
from tests.internals import advance_identifiers, identifier_fronts, passed_tasks, set_fronts_ahead
from tests.queue.conftest import identifiers, pass_time
from tests.queue.explained import Explained, explain
from tests.queue.test_fronts import DOWN, RETRIES, long_snapshot

pytestmark = pytest.mark.promise("A poll passes no due task, however transactions interleave")

HOUR = timedelta(hours=1)
SINGULAR = Condition.SINGULAR_BY_IDENTIFIER


def poll(queue: TaskQueue, owner: Owner, size: int = 9) -> list[Task]:
    """Polls one task of each identifier, and advances the fronts of these identifiers."""
    with queue.conn.transaction():
        tasks = queue.poll("work", owner, size, condition=SINGULAR)
        advance_identifiers(queue.conn, tasks)
    return tasks


def drain(queue: TaskQueue, owner: Owner) -> list[str]:
    """Polls and completes all tasks in turn, and returns their identifiers."""
    done: list[str] = []
    while tasks := poll(queue, owner):
        queue.complete(owner, dict.fromkeys(tasks, Result.SUCCESS))
        done += identifiers(tasks)
    return done


# Flat under a snapshot

CALLS: dict[str, Callable[[TaskQueue, Owner], object]] = {
    "poll": lambda queue, owner: queue.poll("work", owner, 50, condition=SINGULAR),
    "poll of one task": lambda queue, owner: queue.poll("work", owner, condition=SINGULAR),
    "poll of groups": lambda queue, owner: queue.poll_batch("work", owner, 50, 1),
    "poll of whole groups": lambda queue, owner: queue.poll_batch("work", owner, 2),
    "ready": lambda queue, _owner: queue.ready("work", 50, SINGULAR),
}


def visited(queue: TaskQueue, owner: Owner, name: str) -> Explained:
    """What a call reads. The call is undone."""
    with queue.conn.transaction(force_rollback=True):
        return explain(queue.conn, partial(CALLS[name], queue, owner))


@pytest.mark.parametrize("backlog", [True, False], ids=["with a backlog", "as they arrive"])
def test_a_call_under_a_condition_visits_as_many_pages_however_many_tasks_were_claimed_under_a_snapshot(
    own_queue: TaskQueue, own_dsn: str, backlog: bool
) -> None:
    """Vacuum cannot remove an index entry while the snapshot is open, and no claimed task of it counts twice."""
    queue, owner = own_queue, own_queue.register("owner")
    names = [f"customer-{number}" for number in range(10)]
    queue.push("work", names * (500 if backlog else 1))
    pages: dict[str, list[int]] = {name: [] for name in CALLS}
    with long_snapshot(own_dsn):
        for _ in range(2):
            for _ in range(200):
                tasks = queue.poll("work", owner, 50, condition=SINGULAR)
                queue.complete(owner, dict.fromkeys(tasks, Result.SUCCESS))
                if not backlog:
                    queue.push("work", names)
            poll(queue, owner)
            queue.release(owner)
            owner = queue.register("owner")
            for name in CALLS:
                pages[name].append(visited(queue, owner, name).pages)
    assert {name: each for name, each in pages.items() if each[1] >= 1.2 * each[0] + 40} == {}


def test_a_call_under_a_condition_searches_only_the_partition_of_its_topic(own_queue: TaskQueue) -> None:
    queue, owner = own_queue, own_queue.register("owner")
    queue.push("work", [f"customer-{number}" for number in range(10)] * 300)
    for _ in range(10):
        queue.complete(owner, dict.fromkeys(poll(queue, owner), Result.SUCCESS))
    alone = {name: visited(queue, owner, name).scans for name in CALLS}
    for number in range(4):
        queue.create_topic(f"own-{number}", own_tables=True)
    assert {name: visited(queue, owner, name).scans for name in CALLS} == alone


def test_a_poll_searches_the_tasks_of_each_identifier_once_also_those_of_a_thousand(own_queue: TaskQueue) -> None:
    queue, owner = own_queue, own_queue.register("owner")
    scans = []
    for count in (990, 1000):
        names = [f"customer-{number:04}" for number in range(count)]
        queue.push("work", [name for name in names for _ in range(20)])
        with queue.conn.transaction(force_rollback=True):
            scans.append(explain(queue.conn, lambda: queue.poll("work", owner, 100, condition=SINGULAR)).scans)
        queue.purge_all("work")
        queue.conn.execute("VACUUM")
    assert scans[1] < 1.1 * scans[0]


# No task is passed


def test_an_identifier_is_not_polled_if_its_task_was_claimed_after_the_clock_was_set_back(
    queue: TaskQueue, owner: Owner
) -> None:
    queue.push("work", ["a", "a"])
    poll(queue, owner)
    queue.release(owner)
    set_fronts_ahead(queue.conn, HOUR, claims_only=True)
    [_first] = queue.poll("work", queue.register("other"))
    assert passed_tasks(queue.conn) == []
    assert poll(queue, queue.register("third")) == []


@pytest.mark.parametrize("pushed", [["a"], ["a", "b"]], ids=["one task", "a list"])
def test_a_task_is_polled_under_a_condition_although_the_clock_of_the_server_was_set_back(
    queue: TaskQueue, owner: Owner, pushed: list[str]
) -> None:
    queue.alter_topic("work", RETRIES)
    queue.push("work", ["a", "retried"])
    done, retried = poll(queue, owner)
    queue.complete(owner, {done: Result.SUCCESS})
    set_fronts_ahead(queue.conn, HOUR)
    queue.complete(owner, {retried: DOWN})
    queue.push("work", pushed)
    assert passed_tasks(queue.conn) == []
    assert sorted(drain(queue, owner)) == [*pushed, "retried"]


def test_a_poll_of_a_topic_that_had_few_identifiers_finds_those_that_came_later(queue: TaskQueue, owner: Owner) -> None:
    queue.push("work", ["a", "b"])
    drain(queue, owner)
    names = [f"customer-{number:04}" for number in range(1500)]
    queue.push("work", names)
    assert queue.ready("work", 9999, SINGULAR) == 1500
    assert drain(queue, owner) == names


def test_polled_order_does_not_depend_on_identifiers_whose_tasks_have_all_ended(queue: TaskQueue, owner: Owner) -> None:
    """A poll keeps the order among a thousand identifiers with READY tasks, however many others have a front."""
    names = [f"{chr(48 + number // 20)}-{number:04}" for number in range(1200)]
    queue.push("work", names)
    with queue.conn.transaction():
        tasks = queue.poll("work", owner, 1200, condition=SINGULAR)
        for start in range(0, 1200, 20):
            advance_identifiers(queue.conn, tasks[start : start + 20])
    queue.complete(owner, dict.fromkeys(tasks, Result.SUCCESS))
    busy = names[::-24]
    queue.push("work", [name for name in busy for _ in range(100)])
    for _ in range(5):  # a poll that goes from identifier to identifier begins at a random one
        with queue.conn.transaction(force_rollback=True):
            assert identifiers(queue.poll("work", owner, 100, condition=SINGULAR)) == busy


# The rows


def test_polls_make_fronts_for_identifiers_with_many_tasks(queue: TaskQueue, owner: Owner) -> None:
    names = ["busy"] * 800 + [f"customer-{number}" for number in range(800)]
    queue.push("work", names)
    for _ in range(3):
        tasks = queue.poll("work", owner, 1000, condition=SINGULAR)  # a poll of a thousand tasks always advances
        queue.complete(owner, dict.fromkeys(tasks, Result.SUCCESS))
    found = set(identifier_fronts(queue.conn))
    assert found <= {"", "busy"}
    for _ in range(790):
        tasks = queue.poll("work", owner, 10, condition=SINGULAR)
        queue.complete(owner, dict.fromkeys(tasks, Result.SUCCESS))
    found = set(identifier_fronts(queue.conn))
    assert found == {"", "busy"}


def test_rows_of_identifiers_are_removed_once_they_no_longer_count(queue: TaskQueue, owner: Owner) -> None:
    queue.push("work", ["a", "b", "a", "a"])
    poll(queue, owner)
    queue.release(owner)
    owner = queue.register("owner")
    poll(queue, owner)
    assert len(identifier_fronts(queue.conn)) == 6
    pass_time(queue, timedelta(minutes=11))
    queue.maintain()
    assert identifier_fronts(queue.conn) == ["a", ""]
    queue.drop_topic("work")
    assert identifier_fronts(queue.conn) == []
