"""Junctures: a caller that waits for groups releases each of them once, also after a crash."""

from datetime import timedelta

import pytest

from airflow_provider_taskq.queue import (
    Junction,
    NewTask,
    Owner,
    Result,
    State,
    TaskQueue,
    TaskQueueError,
    UnknownTopic,
)
from tests.queue.conftest import states

pytestmark = pytest.mark.promise("A juncture releases each group once under its name, also after a crash")

BOTH = list(Junction)


def suspend(queue: TaskQueue, *names: str) -> None:
    """Pushes suspended tasks."""
    queue.push("work", [NewTask(name, suspended=True) for name in names])


@pytest.mark.parametrize("junction", BOTH)
def test_a_juncture_returns_the_groups_that_it_still_waits_for(queue: TaskQueue, junction: Junction) -> None:
    groups = [["a", "b"], ["c"], ["d", "e"]]
    suspend(queue, "a", "c", "d")
    assert queue.release_groups_once("gate", "work", groups, junction) == [0, 2]
    suspend(queue, "b")
    assert queue.release_groups_once("gate", "work", groups, junction) == [2]
    assert states(queue) == [("a", State.READY), ("c", State.READY), ("d", State.SUSPENDED), ("b", State.READY)]
    suspend(queue, "e")
    assert queue.release_groups_once("gate", "work", groups, junction) == []


def test_a_repeated_call_gets_the_same_answer_and_releases_nothing_twice(queue: TaskQueue, owner: Owner) -> None:
    suspend(queue, "a")
    assert queue.release_groups_once("gate", "work", [["a"]]) == []
    queue.complete(owner, dict.fromkeys(queue.poll("work", owner), Result.SUSPENSION))
    assert queue.release_groups_once("gate", "work", [["a"]]) == []
    assert states(queue) == [("a", State.SUSPENDED)]
    assert queue.release_groups_once("another gate", "work", [["a"]]) == []
    assert states(queue) == [("a", State.READY)]


def test_a_group_is_known_by_its_identifiers_in_any_order(queue: TaskQueue) -> None:
    suspend(queue, "a", "b")
    assert queue.release_groups_once("gate", "work", [["a", "b"], ["c"]]) == [1]
    assert queue.release_groups_once("gate", "work", [["c"], ["b", "a", "b"]]) == [0]
    assert queue.release_groups_once("gate", "work", [["a"]]) == [0]


def test_a_juncture_that_is_rolled_back_still_waits(queue: TaskQueue, session: TaskQueue) -> None:
    suspend(queue, "a")
    assert session.release_groups_once("gate", "work", [["a"]]) == []
    session.conn.rollback()
    assert states(queue) == [("a", State.SUSPENDED)]
    assert queue.release_groups_once("gate", "work", [["a"]]) == []


def test_a_juncture_without_groups_waits_for_nothing(queue: TaskQueue) -> None:
    assert queue.release_groups_once("gate", "work", []) == []


def test_records_of_old_releases_are_purged(queue: TaskQueue) -> None:
    suspend(queue, "a")
    queue.release_groups_once("gate", "work", [["a"]])
    assert queue.purge_group_releases(timedelta(hours=1)) == 0
    assert queue.purge_group_releases(timedelta(0)) == 1
    assert queue.release_groups_once("gate", "work", [["a"]]) == [0]


def test_a_juncture_refuses_an_unknown_topic_or_junction(queue: TaskQueue) -> None:
    with pytest.raises(UnknownTopic):
        queue.release_groups_once("gate", "missing", [["a"]])
    with pytest.raises(TaskQueueError, match="junction"):
        queue.release_groups_once("gate", "work", [["a"]], "SOME")
