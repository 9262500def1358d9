"""Transactions of several verbs during a drop of their topic: the drop gives way, and none ends in a deadlock."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial

import psycopg
import pytest

from airflow_provider_taskq.queue import (
    Cursor,
    NewTask,
    Owner,
    Result,
    RetryPolicy,
    Revival,
    State,
    TaskQueue,
    TaskQueueError,
    TopicPolicy,
    connect,
)
from tests.queue import drop_stress
from tests.queue.conftest import (
    InBackground,
    await_lock_wait,
    await_standstill,
    deadlocks,
    lapse,
    states,
    task_in,
)

HOUR = timedelta(hours=1)
NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
POLICY = TopicPolicy(RetryPolicy(max_attempts=9, base=HOUR, probe=True), keep_failed=timedelta(0))
Verb = Callable[[TaskQueue, Owner], object]


def complete_staged(queue: TaskQueue, owner: Owner) -> None:
    """Completes a held task as a driver does."""
    found = queue.conn.execute("SELECT taskq.open_stage(%s, %s)", (owner.name, owner.fence)).fetchone()
    assert found is not None
    queue.conn.execute(
        "INSERT INTO taskq.staged (stage, part, attempt, sequence, result) VALUES (%s, 0, 1, %s, 3)",
        (*found, queue.held(owner)[0].sequence),
    )
    queue.conn.execute(
        "SELECT taskq.complete_staged(%s, %s, %s, '{0}', '{1}', '{1}')", (owner.name, owner.fence, *found)
    )


# What both holds something of the topic and may wait for the drop.
USES: dict[str, Verb] = {
    "complete": lambda queue, owner: queue.complete(owner, {queue.held(owner)[0]: Result.SUCCESS}),
    "exchange": lambda queue, owner: queue.exchange(owner, {queue.held(owner)[0]: Result.SUCCESS}, "work"),
    "complete_staged": complete_staged,
    "expire": lambda queue, _owner: queue.expire(),
    "join_group": lambda queue, _owner: queue.join_group("new readers", "work", 2),
    "acquire_partition": lambda queue, _owner: queue.acquire_partition("free readers", "work", "consumer", HOUR),
    "advance": lambda queue, _owner: queue.advance("readers", "work", 0, Cursor(2)),
}
# What holds something of the topic until its transaction ends, and lets a drop begin.
FIRST: dict[str, Verb] = {
    "poll": lambda queue, owner: queue.poll("work", owner),
    **USES,
    "fail": lambda queue, owner: queue.complete(owner, {queue.held(owner)[0]: Result.FAILURE}),
    "maintain": lambda queue, _owner: queue.maintain(),
    "purge": lambda queue, _owner: queue.purge("work"),
    "purge all": lambda queue, _owner: queue.purge_all("work"),
    "reassign": lambda queue, _owner: queue.reassign("work", Result.FILTER, state=State.FAILED),
    "renew_partitions": lambda queue, _owner: queue.renew_partitions("readers", "work", "consumer"),
    "record_handling_times": lambda queue, _owner: queue.record_handling_times("work", [1.0]),
    "pause": lambda queue, _owner: queue.pause_topic("work"),
    "purge_group_releases": lambda queue, _owner: queue.purge_group_releases(timedelta(0)),
}
# What then waits for the drop.
SECOND: dict[str, Verb] = {
    **USES,
    "push": lambda queue, _owner: queue.push("work", ["pushed"]),
    "revive": lambda queue, _owner: queue.revive("work", State.FAILED, Revival.RESET),
    "junction": lambda queue, _owner: queue.junction("work", [["SUSPENDED"]]),
    "release_groups_once": lambda queue, _owner: queue.release_groups_once("another gate", "work", [["SUSPENDED"]]),
    "install ticks": lambda queue, _owner: queue.install_ticks("work", "tick", "hash", [(NOON, {"n": 1})]),
    "pause": lambda queue, _owner: queue.pause_topic("work"),
    "alter": lambda queue, _owner: queue.alter_topic("work", POLICY),
}
PAIRS = [(first, "push") for first in FIRST] + [("poll", second) for second in SECOND if second != "push"]


@pytest.fixture
def dropping(dsn: str) -> Iterator[TaskQueue]:
    """Another session in autocommit."""
    with connect(dsn, autocommit=True) as conn:
        yield TaskQueue(conn)


def fill(queue: TaskQueue, owner: Owner) -> None:
    """Stores each kind of row that a drop removes: tasks, dependencies, a failing probe, groups, a juncture."""
    queue.alter_topic("work", POLICY)
    for state in (State.FAILED, State.SUSPENDED, State.SUCCEEDED):
        queue.alter_topic("work", TopicPolicy())
        task_in(queue, owner, state, identifier=state.name)
    queue.alter_topic("work", POLICY)
    task_in(queue, owner, State.ACTIVE, identifier="failing")
    queue.complete(owner, {queue.held(owner)[0]: Result.FAILURE})
    task_in(queue, owner, State.ACTIVE, identifier="held")
    crashed = queue.register("crashed")
    task_in(queue, crashed, State.ACTIVE, identifier="crashed")
    lapse(queue, crashed)
    queue.push("work", ["ready", NewTask("dependent", depends_on=[("work", "ready")])])
    queue.advance("readers", "work", 0, Cursor(1))
    queue.join_group("readers", "work", 1)
    assert queue.acquire_partition("readers", "work", "consumer", HOUR)
    queue.join_group("free readers", "work", 1)
    queue.release_groups_once("gate", "work", [["SUSPENDED"]])
    queue.record_handling_times("work", [1.0])


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_a_drop_gives_way_to_a_transaction_that_holds_a_lock_it_needs_and_waits_for_it(
    queue: TaskQueue,
    owner: Owner,
    session: TaskQueue,
    dropping: TaskQueue,
    background: InBackground[bool],
    first: str,
    second: str,
) -> None:
    fill(queue, owner)
    ended = deadlocks(queue.conn)
    FIRST[first](session, owner)
    dropped = background(lambda: dropping.drop_topic("work"))
    await_standstill(queue.conn, dropping)
    SECOND[second](session, owner)
    session.conn.commit()
    assert dropped.result(60) is True
    assert queue.topics() == []
    assert deadlocks(queue.conn) == ended


@pytest.mark.parametrize("verb", ["drop", "purge"])
def test_emptying_the_own_tables_of_a_topic_gives_way_to_a_transaction_that_uses_them_and_waits_for_it(
    queue: TaskQueue,
    owner: Owner,
    session: TaskQueue,
    dropping: TaskQueue,
    background: InBackground[object],
    verb: str,
) -> None:
    queue.own_partition("work")
    queue.push("work", ["a", "b"])
    ended = deadlocks(queue.conn)
    session.poll("work", owner)
    emptied = background(lambda: dropping.drop_topic("work") if verb == "drop" else dropping.purge_all("work"))
    await_standstill(queue.conn, dropping)
    session.push("work", ["c"])
    session.conn.commit()
    assert emptied.result(60)
    assert deadlocks(queue.conn) == ended
    queue.drop_topic("work")
    assert queue.drop_vacant_partitions() == 1


def test_a_drop_in_a_longer_transaction_gives_up_at_once_if_it_would_end_in_a_deadlock(
    queue: TaskQueue, session: TaskQueue, open_queue: Callable[[], TaskQueue], background: InBackground[object]
) -> None:
    queue.create_topic("other")
    ended = deadlocks(queue.conn)
    dropping = open_queue()
    assert dropping.drop_topic("work")
    session.push("other", ["x"])
    pushed = background(lambda: session.push("work", ["a"]))
    await_lock_wait(queue.conn, session)
    pid = session.conn.info.backend_pid
    with pytest.raises(TaskQueueError, match=f"topic 'other' cannot be dropped: .* session {pid} among them"):
        dropping.drop_topic("other")
    dropping.conn.rollback()
    pushed.result(60)
    session.conn.commit()
    assert (states(queue, "work"), states(queue, "other")) == ([("a", State.READY)], [("x", State.READY)])
    assert deadlocks(queue.conn) == ended


@pytest.mark.parametrize("held_by", ["push", "poll"])
def test_a_drop_that_waited_for_long_enough_names_a_session_and_has_changed_nothing(
    queue: TaskQueue, owner: Owner, session: TaskQueue, held_by: str
) -> None:
    queue.push("work", ["a", "b"])
    before = states(queue)
    if held_by == "push":
        session.push("work", ["c"])
    else:
        session.poll("work", owner)
    pid = session.conn.info.backend_pid
    with pytest.raises(psycopg.Error, match=f"session {pid} among them"):
        queue.conn.execute("SELECT taskq.drop_topic('work', true, '300 ms')")
    assert states(queue) == before
    queue.conn.execute("SET lock_timeout = '300ms'")
    with pytest.raises(TaskQueueError, match=f"session {pid} among them"):
        queue.drop_topic("work")
    session.conn.rollback()
    assert queue.drop_topic("work")


def test_a_topic_that_workers_poll_and_complete_all_the_time_can_be_dropped(
    queue: TaskQueue, dsn: str, background: InBackground[int]
) -> None:
    """Each transaction of the workers is short, but one of them is open at any time."""
    queue.push("work", [f"{number}" for number in range(3000)])

    def work(name: str) -> int:
        done = 0
        with connect(dsn, autocommit=True) as conn:
            mine = TaskQueue(conn)
            owner = mine.register(name)
            while "work" in mine.topics():
                try:
                    polled = mine.poll("work", owner, 2)
                    mine.complete(owner, dict.fromkeys(polled, Result.SUCCESS))
                except TaskQueueError:  # dropped between the two
                    continue
                done += len(polled)
        return done

    workers = [background(partial(work, name)) for name in "abc"]
    assert queue.drop_topic("work")
    assert sum(worker.result(60) for worker in workers) < 3000
    assert queue.conn.execute("SELECT FROM taskq.task_info").rowcount == 0


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_transactions_of_several_verbs_and_drops_at_random_end_without_a_deadlock(queue: TaskQueue, dsn: str) -> None:
    for topic in drop_stress.TOPICS:
        queue.create_topic(topic, drop_stress.POLICY)
    ended = deadlocks(queue.conn)
    with ThreadPoolExecutor(8) as pool:
        workers = [pool.submit(drop_stress.work, dsn, f"worker {n}", n, 8) for n in range(6)]
        drops = [pool.submit(drop_stress.drop, dsn, seed, 8, alone=seed == 10) for seed in (10, 11)]
        done, dropped = (
            sum((each.result(120) for each in some), start=drop_stress.NOTHING) for some in (workers, drops)
        )
    print(done, dropped)  # noqa: T201 - for the reader of a failure
    assert deadlocks(queue.conn) == ended
    assert set(done) <= {"committed", "UnknownTopic", "LeaseLost"}
    assert set(dropped) <= {"dropped True", "dropped False", "TaskQueueError"}
    assert done["committed"] > 20
    assert dropped["dropped True"] >= 2
