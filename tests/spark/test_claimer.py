"""A large claim on several connections (spark/claimer.py)."""

import psycopg
import pytest

from airflow_provider_taskq.queue import Order, Owner, TaskQueue
from airflow_provider_taskq.spark import claimer
from airflow_provider_taskq.spark.claimer import ClaimAhead, ParallelClaimer
from airflow_provider_taskq.spark.connection import ConnectionInfo
from tests.internals import interrupted
from tests.spark.conftest import Connection

pytestmark = pytest.mark.promise("A poll never takes more tasks than requested")


@pytest.fixture
def connection_info(dsn: str, monkeypatch: pytest.MonkeyPatch) -> ConnectionInfo:
    """The way to the test's database; chunks are of ten."""
    monkeypatch.setattr(claimer, "CHUNK", 10)
    return ConnectionInfo.resolve(dsn, executors_may_override=False)


@pytest.fixture
def pushed(queue: TaskQueue) -> list[int]:
    """A hundred tasks."""
    return [task.sequence for task in queue.push("work", [f"item-{number}" for number in range(100)])]


@pytest.mark.parametrize("connections", [1, 4])
@pytest.mark.parametrize(("size", "expected"), [(1, 1), (10, 10), (73, 73), (2**31 - 1, 100)])
def test_parallel_connections_claim_the_first_tasks_and_never_more_than_the_size(
    connection_info: ConnectionInfo,
    queue: TaskQueue,
    owner: Owner,
    pushed: list[int],
    connections: int,
    size: int,
    expected: int,
) -> None:
    claim = ParallelClaimer(connection_info, "work", owner, Order.FIRST_IN_FIRST_OUT, size)
    assert claim.claim(lambda: connections) == expected
    assert sorted(task.sequence for task in queue.held(owner)) == pushed[:expected]


def test_last_in_first_out_reverses_the_order(
    connection_info: ConnectionInfo, queue: TaskQueue, owner: Owner, pushed: list[int]
) -> None:
    assert ParallelClaimer(connection_info, "work", owner, Order.LAST_IN_FIRST_OUT, 35).claim(lambda: 2) == 35
    assert sorted(task.sequence for task in queue.held(owner)) == pushed[-35:]


@pytest.mark.usefixtures("pushed")
def test_claimed_tasks_stay_held_if_a_later_chunk_fails(
    connection_info: ConnectionInfo, conn: Connection, queue: TaskQueue, owner: Owner
) -> None:
    trip = "IF NEW.identifier = 'item-47' THEN RAISE division_by_zero; END IF;"
    with interrupted(conn, "claim", trip), pytest.raises(psycopg.errors.DivisionByZero):
        ParallelClaimer(connection_info, "work", owner, Order.FIRST_IN_FIRST_OUT, 100).claim(lambda: 3)
    held = [task.identifier for task in queue.held(owner)]
    assert "item-0" in held
    assert "item-47" not in held
    assert len(held) % 10 == 0


def test_a_claim_ahead_that_is_stopped_or_cancelled_ends_after_the_current_chunk(
    connection_info: ConnectionInfo, queue: TaskQueue, owner: Owner, pushed: list[int]
) -> None:
    def begin() -> ClaimAhead:
        return ClaimAhead(ParallelClaimer(connection_info, "work", owner, Order.FIRST_IN_FIRST_OUT, 50), 2)

    stopped = begin().stop()
    assert len(queue.held(owner)) == stopped
    cancelled = begin()
    cancelled.cancel()
    held = [task.sequence for task in queue.held(owner)]
    assert len(held) % 10 == 0
    total = min(len(pushed), len(held) + 50)
    assert begin().result() == total - len(held)
    assert sorted(task.sequence for task in queue.held(owner)) == pushed[:total]
