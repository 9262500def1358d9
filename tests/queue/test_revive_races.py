"""Two revivals in opposite order, dependencies of revived tasks, and the cost. Others are in revive.spec."""

from collections.abc import Callable

import pytest

from airflow_provider_taskq.queue import (
    NewTask,
    Owner,
    Result,
    Revival,
    State,
    TaskQueue,
)
from tests.queue.conftest import InBackground, await_lock_wait, known, numbered
from tests.queue.test_revive import failed
from tests.queue.test_sessions import pages_of

pytestmark = pytest.mark.promise("A revived task starts again as it was pushed")


def test_two_revivals_of_the_same_tasks_in_opposite_order_never_deadlock(
    queue: TaskQueue,
    owner: Owner,
    session: TaskQueue,
    open_queue: Callable[[], TaskQueue],
    background: InBackground[dict[int, int]],
) -> None:
    at = [task.sequence for task in failed(queue, owner, *"abcdef")]
    other = open_queue()
    session.lock_tasks("work", at[:1], [State.FAILED])
    revived = background(lambda: other.revive("work", sequences=at[::-1]))
    await_lock_wait(queue.conn, other)
    session.revive("work", sequences=at)
    session.conn.rollback()
    assert list(revived.result()) == at


def test_a_task_that_depends_on_another_waits_for_it_again_after_a_reset(queue: TaskQueue, owner: Owner) -> None:
    [first] = queue.push("work", ["first"])
    [second] = queue.push("work", [NewTask("second", depends_on=[("work", "first")], suspended=True)])
    queue.revive("work", State.SUSPENDED)
    assert queue.poll("work", owner, 5) == [first]
    assert known(queue, second).available_at == known(queue, second).created
    queue.complete(owner, {first: Result.SUCCESS})
    assert queue.poll("work", owner, 5) == [second]


@pytest.mark.parametrize("revival", [Revival.APPEND, Revival.SUPERSEDE, Revival.REPLACE])
def test_a_copy_has_the_dependencies_of_the_old_task(queue: TaskQueue, owner: Owner, revival: Revival) -> None:
    [first] = queue.push("work", ["first"])
    queue.push("work", [NewTask("second", depends_on=[("work", "first")], suspended=True)])
    [new] = queue.revive("work", State.SUSPENDED, revival).values()
    assert queue.poll("work", owner, 5) == [first]
    queue.complete(owner, {first: Result.SUCCESS})
    assert [task.sequence for task in queue.poll("work", owner, 5)] == [new]


@pytest.mark.slow
@pytest.mark.parametrize("revival", list(Revival))
@pytest.mark.parametrize("hot", [True, False], ids=["of one identifier", "each of its own"])
def test_one_call_revives_ten_thousand_tasks(own_queue: TaskQueue, revival: Revival, hot: bool) -> None:
    queue, count = own_queue, 10_000
    owner = queue.register("owner")
    queue.push_stream("work", (NewTask("hot") for _ in range(count)) if hot else numbered(count))
    while tasks := queue.poll("work", owner, 20_000):
        queue.complete(owner, dict.fromkeys(tasks, Result.SUSPENSION))
    queue.conn.execute("SET statement_timeout = '60s'")
    assert len(queue.revive("work", State.SUSPENDED, revival)) == count
    kept = 1 if hot and revival in (Revival.SUPERSEDE, Revival.REPLACE) else count
    assert queue.ready("work", count) == kept


@pytest.mark.parametrize("analysed", [False, True], ids=["never analysed", "analysed"])
@pytest.mark.parametrize("revival", list(Revival))
def test_a_revival_costs_the_same_behind_any_number_of_ended_tasks(
    own_queue: TaskQueue, revival: Revival, analysed: bool
) -> None:
    queue = own_queue
    owner = queue.register("owner")
    queue.push_stream("work", numbered(20_000))
    queue.complete(owner, dict.fromkeys(queue.poll("work", owner, 20_000), Result.SUCCESS))
    tasks = failed(queue, owner, *(f"failed {number}" for number in range(20)))
    queue.conn.execute("VACUUM ANALYZE" if analysed else "VACUUM")
    queue.revive("work", State.FAILED, revival, size=1)  # as a first call it reads the catalogue
    assert pages_of(queue, lambda: queue.revive("work", State.FAILED, revival, size=5)) < 400
    named = [task.sequence for task in tasks[10:15]]
    assert pages_of(queue, lambda: queue.revive("work", revival=revival, sequences=named)) < 400
    assert queue.count("work", state=State.FAILED)["work"][State.FAILED].count == 9
