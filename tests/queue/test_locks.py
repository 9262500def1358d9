"""Locks by name: a lease on the database's clock. A refused caller knows at once, and no call waits."""

from datetime import timedelta

import pytest

from airflow_provider_taskq.queue import TaskQueue, TaskQueueError
from tests.internals import age_leases

pytestmark = pytest.mark.promise("A lock by name keeps others out, and makes none wait")

HOUR = timedelta(hours=1)
MINUTE = timedelta(minutes=1)


def test_a_second_call_of_the_holder_only_extends_a_lock_and_its_release_keeps_at_least(queue: TaskQueue) -> None:
    queue.lock("job", "a", HOUR, at_least=2 * MINUTE)
    assert queue.lock("job", "a", MINUTE) is True
    age_leases(queue.conn, MINUTE)
    assert queue.lock("job", "b", HOUR) is False
    assert queue.unlock("job", "a") is True
    assert [queue.lock("job", by, HOUR) for by in ("b", "a")] == [False, False]
    age_leases(queue.conn, MINUTE)
    assert queue.unlock("job", "a") is False
    assert queue.lock("job", "b", HOUR) is True


@pytest.mark.parametrize(
    ("name", "by", "at_most", "at_least", "reason"),
    [
        (" ", "a", HOUR, MINUTE, "the name of a lock is blank"),
        ("job", " ", HOUR, MINUTE, "the name of the holder of a lock is blank"),
        ("job", "a", timedelta(0), timedelta(0), "at_most has to be more than 0"),
        ("job", "a", -HOUR, timedelta(0), "invalid duration -3600 s: expected at least 0"),
        ("job", "a", HOUR, 2 * HOUR, "at_least 02:00:00 is longer than at_most 01:00:00"),
        ("job", "a", HOUR, -HOUR, "invalid duration -3600 s: expected at least 0"),
    ],
)
def test_a_lock_without_a_holder_or_a_duration_is_refused(
    queue: TaskQueue, name: str, by: str, at_most: timedelta, at_least: timedelta, reason: str
) -> None:
    with pytest.raises(TaskQueueError, match=reason):
        queue.lock(name, by, at_most, at_least)
    assert queue.browse_locks() == []
