"""Locks by name: a lease on the database's clock. A refused caller knows at once, and no call waits."""

from collections.abc import Callable
from concurrent.futures import Future
from datetime import timedelta
from threading import Barrier

import pytest

from airflow_provider_taskq.queue import TaskQueue, TaskQueueError
from tests.internals import age_leases
from tests.queue.conftest import hurry, until

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


def test_one_of_two_gets_a_lock_and_the_other_does_not(queue: TaskQueue) -> None:
    assert queue.lock("job", "a", HOUR) is True
    assert queue.lock("job", "b", HOUR) is False
    assert queue.lock("another job", "b", HOUR) is True


def test_a_released_lock_can_be_taken(queue: TaskQueue) -> None:
    queue.lock("job", "a", HOUR)
    assert queue.unlock("job", "a") is True
    assert queue.lock("job", "b", HOUR) is True
    assert queue.unlock("job", "a") is False
    assert queue.lock("job", "a", HOUR) is False


def test_only_its_holder_can_release_a_lock(queue: TaskQueue) -> None:
    queue.lock("job", "a", HOUR)
    assert queue.unlock("job", "b") is False
    assert queue.unlock("another job", "a") is False
    assert queue.lock("job", "b", HOUR) is False


def test_an_expired_lock_can_be_taken_by_others(queue: TaskQueue) -> None:
    queue.lock("job", "a", HOUR)
    pass_lock_time(queue, HOUR - MINUTE)
    assert queue.lock("job", "b", HOUR) is False
    pass_lock_time(queue, MINUTE)
    assert queue.unlock("job", "a") is False
    assert queue.lock("job", "b", HOUR) is True
    assert queue.unlock("job", "a") is False


def test_a_lock_expires_by_itself(queue: TaskQueue) -> None:
    queue.lock("job", "a", timedelta(milliseconds=50))
    until(lambda: queue.lock("job", "b", HOUR))
    assert queue.lock("job", "a", HOUR) is False


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
    assert queue.unlock("job", "a") is True
    assert left(queue) == 2 * MINUTE
    assert queue.unlock("job", "a") is False
    assert [queue.lock("job", by, HOUR) for by in ("b", "a")] == [False, False]
    pass_lock_time(queue, 2 * MINUTE)
    assert queue.lock("job", "b", HOUR) is True


def test_a_lock_released_later_than_at_least_is_free_at_once(queue: TaskQueue) -> None:
    queue.lock("job", "a", HOUR, at_least=MINUTE)
    pass_lock_time(queue, MINUTE)
    assert queue.unlock("job", "a") is True
    assert queue.lock("job", "b", HOUR) is True


def test_extending_a_lock_does_not_shorten_at_least(queue: TaskQueue) -> None:
    queue.lock("job", "a", HOUR, at_least=MINUTE)
    queue.lock("job", "a", HOUR)
    queue.unlock("job", "a")
    assert left(queue) == MINUTE
    pass_lock_time(queue, MINUTE)
    queue.lock("job", "a", HOUR)
    queue.unlock("job", "a")
    assert queue.lock("job", "b", HOUR) is True


@pytest.mark.parametrize("commits", [True, False], ids=["commits", "rolls back"])
def test_an_uncommitted_lock_keeps_others_out_without_waiting(
    queue: TaskQueue, session: TaskQueue, commits: bool
) -> None:
    assert session.lock("job", "a", HOUR) is True
    assert hurry(queue).lock("job", "b", HOUR) is False
    assert queue.unlock("job", "a") is False
    if commits:
        session.conn.commit()
    else:
        session.conn.rollback()
    assert queue.lock("job", "b", HOUR) is not commits


@pytest.mark.parametrize("at_least", [timedelta(0), MINUTE], ids=["free", "kept"])
def test_a_lock_never_waits_for_one_that_is_being_released_extended_or_taken_over(
    queue: TaskQueue, session: TaskQueue, at_least: timedelta
) -> None:
    queue.lock("job", "a", HOUR, at_least)
    hurry(queue)
    session.lock("job", "a", 2 * HOUR)
    assert [queue.lock("job", by, HOUR) for by in ("a", "b")] == [False, False]
    session.conn.rollback()
    session.unlock("job", "a")
    assert [queue.lock("job", by, HOUR) for by in ("a", "b")] == [False, False]
    session.conn.commit()
    assert queue.lock("job", "b", HOUR) is (at_least == timedelta(0))
    pass_lock_time(queue, HOUR)
    session.lock("job", "c", HOUR)
    assert [queue.lock("job", by, HOUR) for by in ("b", "d")] == [False, False]
    assert queue.unlock("job", "b") is False


def test_a_refused_lock_keeps_no_other_session_out(queue: TaskQueue, session: TaskQueue) -> None:
    """Although the refused transaction stays open."""
    queue.lock("job", "a", HOUR)
    assert session.lock("job", "b", HOUR) is False
    assert session.unlock("job", "b") is False
    assert hurry(queue).unlock("job", "a") is True
    assert queue.lock("job", "c", HOUR) is True


def test_one_of_many_concurrent_callers_gets_the_lock(
    queue: TaskQueue, open_queue: Callable[[], TaskQueue], background: Callable[[Callable[[], bool]], "Future[bool]"]
) -> None:
    sessions = [hurry(open_queue(), "30ms") for _ in range(8)]
    for turn in range(10):
        barrier = Barrier(len(sessions))

        def take(number: int, name: str = f"job {turn}", barrier: Barrier = barrier) -> bool:
            barrier.wait()
            taken = sessions[number].lock(name, f"{number}", HOUR)
            sessions[number].conn.commit()
            return taken

        calls = [background(lambda number=number: take(number)) for number in range(len(sessions))]  # type: ignore[misc]
        assert sum(call.result() for call in calls) == 1
    assert len(queue.browse_locks()) == 10


def test_one_transaction_can_take_many_locks(queue: TaskQueue, session: TaskQueue) -> None:
    assert all(session.lock(f"{number}", "a", HOUR) for number in range(500))
    assert not any(hurry(queue).lock(f"{number}", "b", HOUR) for number in range(0, 500, 50))
    session.conn.commit()
    assert all(queue.unlock(f"{number}", "a") for number in range(500))
    assert queue.browse_locks() == []


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
