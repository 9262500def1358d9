"""TaskQPurgeOperator: what it passes on to the queue, and its batches. The rules of a purge are the queue's."""

from datetime import timedelta
from typing import Any

import psycopg
import pytest

from airflow_provider_taskq.operators import TaskQPurgeOperator
from airflow_provider_taskq.queue import NewTask, Result, TaskQueue
from tests.airflow.conftest import executed
from tests.internals import age_tasks, interrupted

pytestmark = [
    pytest.mark.usefixtures("airflow_connection", "queue"),
    pytest.mark.promise("An operator does what its call of the queue does, in one transaction"),
]

DAY = timedelta(days=1)


def ended(queue: TaskQueue, *identifiers: str, topic: str = "work") -> list[int]:
    """Push tasks, let them succeed, and return their sequences."""
    tasks = queue.push(topic, identifiers)
    owner = queue.register("worker")
    queue.complete(owner, dict.fromkeys(queue.poll(topic, owner, len(tasks)), Result.SUCCESS))
    queue.release(owner)
    return [task.sequence for task in tasks]


def purge(**arguments: Any) -> dict[str, Any]:
    done: dict[str, Any] = executed(TaskQPurgeOperator(task_id="purge", **arguments))
    return done


def identifiers(queue: TaskQueue, topic: str = "work") -> list[str]:
    return [task.identifier for task in queue.page(topic)]


@pytest.mark.parametrize("older_than", [30 * DAY, 30 * 86400, "{{ 30 * 86400 }}"])
def test_purges_ended_tasks_that_were_pushed_long_ago(
    queue: TaskQueue, conn: psycopg.Connection, older_than: Any
) -> None:
    old = ended(queue, "old", "older")
    assert purge(topic="work", older_than=older_than)["purged"] == 0
    waiting = queue.push("work", [NewTask("waits", delay=40 * DAY)])[0].sequence
    age_tasks(conn, 31 * DAY, [*old, waiting])
    ended(queue, "new")
    assert purge(topic="work", older_than=older_than) == {"purged": 2, "owners": 0}
    assert identifiers(queue) == ["waits", "new"]


def test_purges_all_topics_without_a_topic(queue: TaskQueue, conn: psycopg.Connection) -> None:
    queue.create_topic("other")
    age_tasks(conn, 2 * DAY, ended(queue, "a", "b") + ended(queue, "c", topic="other"))
    ended(queue, "d")
    assert purge(older_than=DAY)["purged"] == 3
    assert (identifiers(queue), identifiers(queue, "other")) == (["d"], [])


def test_purges_a_range_or_a_state_within_an_age(queue: TaskQueue, conn: psycopg.Connection) -> None:
    first, *middle, _ = ended(queue, "a", "b", "c", "d")
    assert purge(topic="work", from_=str(middle[0]), to=middle[1])["purged"] == 2
    queue.push("work", ["ready"])
    assert purge(topic="work", state="READY")["purged"] == 1
    age_tasks(conn, 2 * DAY)
    assert [purge(topic="work", older_than=DAY, to=first)["purged"] for _ in range(2)] == [1, 0]
    assert identifiers(queue) == ["d"]


def test_each_batch_is_committed_on_its_own(queue: TaskQueue, conn: psycopg.Connection) -> None:
    """The third batch fails. The tasks of the first two stay removed."""
    sequences = ended(queue, *map(str, range(10)))
    refuse_one = f"IF OLD.sequence = {sequences[7]} THEN RAISE EXCEPTION 'not this one'; END IF;"
    with interrupted(conn, "removal", refuse_one), pytest.raises(psycopg.errors.RaiseException):
        purge(topic="work", state="SUCCEEDED", batch=3)
    assert identifiers(queue) == ["6", "7", "8", "9"]
    assert purge(topic="work", state="SUCCEEDED", batch=3)["purged"] == 4


def test_purges_owners_and_group_releases_on_request(queue: TaskQueue) -> None:
    queue.release(queue.register("gone"))
    queue.push("work", [NewTask("a", suspended=True)])
    assert queue.release_groups_once("wait", "work", [["a"]]) == []
    for age, number, left in ((DAY, 0, []), (0, 1, [0])):
        assert purge(owners_older_than=age) == {"purged": 0, "owners": number}
        assert queue.release_groups_once("wait", "work", [["a"]]) == left
    assert identifiers(queue) == ["a"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, "nothing to purge"),
        ({"topic": "work"}, "no tasks of topic 'work' are selected"),
        ({"state": "FAILED"}, "need a topic"),
        ({"from_": 1, "older_than": 5}, "need a topic"),
        ({"topic": "work", "older_than": 5, "batch": 0}, "at least 1"),
    ],
)
def test_a_purge_without_a_choice_is_refused(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        TaskQPurgeOperator(task_id="purge", **arguments)
