"""Locks by name: a lease on the database's clock. A refused caller knows at once, and no call waits."""

from datetime import timedelta

import pytest

from airflow_provider_taskq.queue import TaskQueue, TaskQueueError
from tests.internals import age_leases

pytestmark = pytest.mark.promise("A lock by name keeps others out, and makes none wait")

HOUR = timedelta(hours=1)
MINUTE = timedelta(minutes=1)


def pass_lock_time(queue: TaskQueue, duration: timedelta) -> None:
    """Lets time pass for all locks, by moving their stored times back."""
    age_leases(queue.conn, duration)


def left(queue: TaskQueue, name: str = "job") -> timedelta:
    """The remaining time of a lock, to the minute."""
    [until] = [lock.until for lock in queue.browse_locks() if lock.name == name]
    return timedelta(minutes=round((until - queue.now()) / MINUTE))


def test_an_expired_lock_can_be_taken_by_others(queue: TaskQueue) -> None:
    queue.lock("job", "a", HOUR)
    pass_lock_time(queue, HOUR - MINUTE)
    assert queue.lock("job", "b", HOUR) is False
    pass_lock_time(queue, MINUTE)
    assert queue.unlock("job", "a") is False
    assert queue.lock("job", "b", HOUR) is True
    assert queue.unlock("job", "a") is False


def test_a_holder_that_locks_again_extends(queue: TaskQueue) -> None:
    queue.lock("job", "a", HOUR)
    pass_lock_time(queue, HOUR / 2)
    assert queue.lock("job", "a", HOUR) is True
    assert left(queue) == HOUR
    assert queue.lock("job", "a", MINUTE) is True
    assert left(queue) == HOUR
    assert queue.lock("job", "b", HOUR) is False


def test_a_lock_released_early_is_kept_until_at_least_is_over(queue: TaskQueue) -> None:
    queue.lock("job", "a", HOUR, at_least=2 * MINUTE)
    queue.lock("job", "a", HOUR)  # which does not shorten at_least
    assert queue.unlock("job", "a") is True
    assert left(queue) == 2 * MINUTE
    assert queue.unlock("job", "a") is False
    assert [queue.lock("job", by, HOUR) for by in ("b", "a")] == [False, False]
    pass_lock_time(queue, 2 * MINUTE)
    assert queue.lock("job", "b", HOUR, at_least=MINUTE) is True
    pass_lock_time(queue, MINUTE)
    assert queue.unlock("job", "b") is True
    assert queue.lock("job", "c", HOUR) is True, "free at once"


@pytest.mark.parametrize(
    ("name", "by", "at_most", "at_least", "reason"),
    [
        (" ", "a", HOUR, MINUTE, "name is out of its range"),
        ("job", " ", HOUR, MINUTE, "the holder needs a name"),
        ("job", "a", timedelta(0), timedelta(0), "at_most 00:00:00 has to be more than 0"),
        ("job", "a", -HOUR, timedelta(0), "at_most -01:00:00 has to be more than 0"),
        ("job", "a", HOUR, 2 * HOUR, "at_least 02:00:00 between 0 and at_most"),
        ("job", "a", HOUR, -HOUR, "at_least -01:00:00 between 0 and at_most"),
    ],
)
def test_a_lock_without_a_holder_or_a_duration_is_refused(
    queue: TaskQueue, name: str, by: str, at_most: timedelta, at_least: timedelta, reason: str
) -> None:
    with pytest.raises(TaskQueueError, match=reason):
        queue.lock(name, by, at_most, at_least)
    assert queue.browse_locks() == []
