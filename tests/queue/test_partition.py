"""Own tables for busy topics: the same guarantees, and emptied at once."""

import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from threading import Event
from typing import Any
from uuid import uuid4

import pytest

from airflow_provider_taskq.queue import (
    Condition,
    Cursor,
    Insertion,
    NewTask,
    Owner,
    Result,
    Revival,
    State,
    TaskQueue,
    TaskQueueError,
    UnknownTopic,
    connect,
)
from tests.internals import SCHEMAS, plant_change, stored_rows
from tests.queue.conftest import (
    InBackground,
    await_lock_wait,
    await_standstill,
    everything,
    hurry,
    identifiers,
    image,
    known,
    lapse,
    numbered,
    states,
    task_in,
    until,
)

pytestmark = pytest.mark.promise("A topic moves to tables of its own and back with all its tasks")

IN_A_MOMENT = timedelta(milliseconds=300)


@pytest.fixture
def queue(dsn: str) -> Iterator[TaskQueue]:
    """A queue with a topic `work`. At the end no topic has tables of its own."""
    with connect(dsn, autocommit=True) as conn:
        queue = TaskQueue(conn)
        queue.create_topic("work")
        yield queue
        conn.execute("RESET ALL")
        for topic in queue.topics():
            queue.shared_partition(topic, most=10**9)
            queue.drop_topic(topic)
        queue.drop_vacant_partitions()


def tables_of_topics(queue: TaskQueue) -> list[str]:
    """The own tables of topics."""
    query = "SELECT oid::regclass::text FROM pg_class WHERE relnamespace = ANY (%s::regnamespace[]) AND relkind = 'r'"
    return [row[0] for row in queue.conn.execute(f"{query} AND relname ~ '_[0-9]+$' ORDER BY 1".encode(), (SCHEMAS,))]


def number_of(queue: TaskQueue, topic: str = "work") -> int:
    """The number of a topic."""
    query = "SELECT topic_id FROM taskq.topic_summaries WHERE topic = %s"
    [number] = queue.conn.execute(query, (topic,)).fetchone() or [0]
    return int(number)


def rows_of(queue: TaskQueue, number: int) -> list[int]:
    """The numbers of rows in the own tables of a topic, in ascending order."""
    tables = [table for table in tables_of_topics(queue) if table.endswith(f"_{number}")]
    return sorted(queue.conn.execute(f"SELECT FROM {table}".encode()).rowcount for table in tables)


def apart(queue: TaskQueue) -> int:
    """The number of tasks that the topic `work` has in tables of its own."""
    return rows_of(queue, number_of(queue))[-1]


def in_all_states(queue: TaskQueue, owner: Owner) -> None:
    """Makes a task in each state but ACTIVE."""
    for state in sorted(set(State) - {State.ACTIVE}, key=lambda state: state is State.READY):
        task_in(queue, owner, state, identifier=state.name)


def test_a_topic_moves_to_tables_of_its_own_with_all_that_it_has(queue: TaskQueue, owner: Owner) -> None:
    in_all_states(queue, owner)
    queue.push("work", [NewTask("p", {"x": 1}, "r", delay=timedelta(days=1), priority=7, ttl=timedelta(hours=1))])
    before = image(queue)
    assert queue.own_partition("work") is True
    assert image(queue) == before
    assert rows_of(queue, number_of(queue)) == [2, 7, 9]
    assert queue.own_partition("work") is False
    assert image(queue) == before


def test_own_tables_are_named_by_the_number_of_the_topic_and_never_by_its_name(queue: TaskQueue) -> None:
    name = 'a "topic"; DROP TABLE task; --'
    queue.create_topic(name)
    queue.push(name, ["a"])
    queue.own_partition(name)
    number = number_of(queue, name)
    assert [table.endswith(f"_{number}") for table in tables_of_topics(queue)] == [True] * 3
    assert states(queue, name) == [("a", State.READY)]


def test_own_tables_have_the_indexes_and_settings_of_the_shared_ones(queue: TaskQueue) -> None:
    queue.own_partition("work")
    for table in tables_of_topics(queue):
        shape = """SELECT c.reloptions, (SELECT count(*) FROM pg_index WHERE indrelid = c.oid),
            (SELECT count(*) FROM pg_index x JOIN pg_inherits h ON h.inhrelid = x.indexrelid WHERE x.indrelid = c.oid),
            ARRAY(SELECT pg_get_constraintdef(o.oid) FROM pg_constraint o WHERE o.conrelid = c.oid ORDER BY 1)
            FROM pg_class c WHERE c.oid = %s::regclass"""
        own, shared = (
            queue.conn.execute(shape.encode(), (name,)).fetchone()
            for name in (table, f"{table.rpartition('_')[0]}_default")
        )
        assert own == shared


def test_every_verb_works_on_a_topic_with_tables_of_its_own(queue: TaskQueue, owner: Owner) -> None:
    queue.own_partition("work")
    first, second, third = queue.push("work", ["a", "b", "a"])
    assert queue.ready("work", 9) == 3
    assert identifiers(queue.poll("work", owner, 2, condition=Condition.SINGULAR_BY_IDENTIFIER)) == ["a", "b"]
    queue.complete(owner, {first: Result.FAILURE, second: Result.SUCCESS})
    assert queue.revive("work", State.FAILED, Revival.RESET) == {first.sequence: first.sequence}
    assert identifiers(queue.poll("work", owner, 5)) == ["a", "a"]
    lapse(queue, owner)
    assert queue.expire() == 2
    queue.push("work", ["a"], Insertion.REPLACE)
    assert [state for _, state in states(queue)] == [
        *(State.REDUNDANT, State.SUCCEEDED, State.REDUNDANT, State.READY),
    ]
    assert queue.purge("work", state=State.REDUNDANT) == 2
    assert known(queue, second).state is State.SUCCEEDED
    assert known(queue, second).polled is not None
    assert queue.task("work", third.sequence) is None
    assert apart(queue) == 2


def test_a_topic_goes_back_to_the_shared_tables(queue: TaskQueue, owner: Owner) -> None:
    in_all_states(queue, owner)
    queue.own_partition("work")
    [held] = queue.poll("work", owner)
    before = image(queue)
    assert queue.shared_partition("work") is True
    assert image(queue) == before
    assert tables_of_topics(queue) == []
    assert queue.shared_partition("work") is False
    queue.complete(owner, {held: Result.SUCCESS})


def test_a_topic_of_many_tasks_cannot_move_back_as_all_sessions_would_wait(queue: TaskQueue) -> None:
    queue.push("work", ["a", "b", "c"])
    queue.own_partition("work")
    with pytest.raises(TaskQueueError, match="'work' has more than 2 tasks"):
        queue.shared_partition("work", most=2)
    assert apart(queue) == 3
    assert queue.shared_partition("work", most=3)
    assert identifiers(list(everything(queue))) == ["a", "b", "c"]


def test_a_dropped_topic_leaves_empty_tables_which_are_dropped_later(queue: TaskQueue, owner: Owner) -> None:
    queue.create_topic("other")
    queue.push("other", ["x"])
    queue.own_partition("work")
    queue.push("work", ["a", "b"])
    queue.poll("work", owner)
    number = number_of(queue)
    assert queue.drop_topic("work")
    assert rows_of(queue, number) == [0, 0, 0]
    queue.create_topic("work")
    queue.own_partition("work")
    assert len(tables_of_topics(queue)) == 6
    assert queue.drop_vacant_partitions() == 1
    assert len(tables_of_topics(queue)) == 3
    assert queue.drop_vacant_partitions() == 0
    assert queue.count("other")["other"][State.READY].count == 1


def test_a_drop_in_a_transaction_of_its_own_truncates_the_topics_own_tables(queue: TaskQueue) -> None:
    queue.push_stream("work", numbered(3000))
    queue.own_partition("work")
    number = number_of(queue)
    queue.drop_topic("work")
    assert sizes_of(queue, number) == [0, 0, 0]


@pytest.mark.parametrize("verb", ["drop", "purge"])
def test_in_a_longer_transaction_a_topic_is_emptied_row_by_row_without_waits(
    queue: TaskQueue, session: TaskQueue, verb: str
) -> None:
    queue.create_topic("other")
    queue.push("work", ["a"])
    queue.own_partition("work")
    if verb == "drop":
        session.drop_topic("work")
    else:
        assert session.purge_all("work") == 1
    queue.conn.execute("SET lock_timeout = '3s'")
    queue.push("other", ["x"])
    owner = queue.register("owner")
    polled = queue.poll("other", owner)
    queue.complete(owner, dict.fromkeys(polled, Result.SUCCESS))
    assert queue.poll("work", owner) == []
    session.conn.rollback()
    assert states(queue) == [("a", State.READY)]


def test_purge_all_truncates_own_tables_and_returns_the_number_of_tasks(queue: TaskQueue) -> None:
    queue.push_stream("work", numbered(3000))
    queue.own_partition("work")
    assert queue.purge_all("work") == 3000
    assert sizes_of(queue, number_of(queue)) == [0, 0, 0]
    assert identifiers(queue.push("work", ["a"])) == ["a"]


def test_purge_all_spares_tasks_that_another_transaction_holds(
    queue: TaskQueue, owner: Owner, session: TaskQueue
) -> None:
    queue.push("work", ["a", "b"])
    queue.own_partition("work")
    session.poll("work", owner)
    assert queue.purge_all("work") == 1
    session.conn.commit()
    assert states(queue) == [("a", State.ACTIVE)]


def sizes_of(queue: TaskQueue, number: int) -> list[int]:
    """The bytes of the own tables of a topic, without their indexes."""
    tables = [table for table in tables_of_topics(queue) if table.endswith(f"_{number}")]
    sizes = [queue.conn.execute("SELECT pg_relation_size(%s::regclass)", (table,)).fetchone() for table in tables]
    return [size for (size,) in filter(None, sizes)]


@pytest.mark.promise("A dropped topic leaves nothing behind")
@pytest.mark.parametrize("own", [True, False], ids=["own tables", "shared tables"])
def test_a_dropped_topic_leaves_nothing_behind(queue: TaskQueue, owner: Owner, own: bool) -> None:
    queue.drop_topic("work")
    before = stored_rows(queue.conn).keys()
    queue.create_topic("work")
    if own:
        queue.own_partition("work")
    in_all_states(queue, owner)
    queue.push("work", [NewTask("dependent", depends_on=[("work", "READY")])])
    assert queue.release_groups_once("gate", "work", [["SUSPENDED"]]) == []
    queue.drop_topic("work")
    assert stored_rows(queue.conn).keys() == before


def test_a_topic_that_does_not_exist_cannot_move(queue: TaskQueue) -> None:
    with pytest.raises(UnknownTopic):
        queue.own_partition("missing")
    with pytest.raises(UnknownTopic):
        queue.shared_partition("missing")


@pytest.mark.parametrize(
    "move",
    [
        lambda queue: queue.own_partition("work"),
        lambda queue: queue.shared_partition("work"),
        lambda queue: queue.drop_vacant_partitions(),
    ],
    ids=["own", "shared", "drop vacant"],
)
def test_a_move_needs_a_connection_in_autocommit(session: TaskQueue, move: Callable[[TaskQueue], object]) -> None:
    with pytest.raises(TaskQueueError, match="autocommit"):
        move(session)


def test_a_move_waits_until_held_tasks_are_completed(
    queue: TaskQueue, owner: Owner, open_queue: Callable[[], TaskQueue], background: InBackground[Any]
) -> None:
    task = task_in(queue, owner, State.ACTIVE)
    mover = open_queue()
    mover.conn.autocommit = True
    moved = background(lambda: mover.own_partition("work"))
    until(lambda: queue.conn.execute("SELECT FROM taskq.topic_summaries WHERE paused").rowcount)
    queue.push("work", ["b"])
    assert queue.poll("work", owner) == []
    queue.complete(owner, {task: Result.SUCCESS})
    assert moved.result(60)
    assert identifiers(queue.poll("work", owner)) == ["b"]


def test_a_move_gives_up_if_tasks_stay_held_and_changes_nothing(queue: TaskQueue, owner: Owner) -> None:
    task_in(queue, owner, State.ACTIVE)
    queue.push("work", ["b"])
    with pytest.raises(TaskQueueError, match="are still held after"):
        queue.own_partition("work", IN_A_MOMENT)
    assert identifiers(queue.poll("work", owner)) == ["b"]
    assert tables_of_topics(queue) == []


def test_a_move_gives_up_if_a_push_stays_open(queue: TaskQueue, owner: Owner, session: TaskQueue) -> None:
    session.push("work", ["a"])
    with pytest.raises(TaskQueueError, match="pushes to topic 'work' have been open for longer than 0 s"):
        queue.own_partition("work", IN_A_MOMENT)
    session.conn.commit()
    assert identifiers(queue.poll("work", owner)) == ["a"]


def test_a_move_gives_up_if_a_session_keeps_the_tables_in_use_and_names_it(
    queue: TaskQueue, owner: Owner, session: TaskQueue
) -> None:
    queue.push("work", ["a"])
    session.conn.execute("SELECT FROM taskq.task_info")
    with pytest.raises(TaskQueueError, match=f"by session {session.conn.info.backend_pid} among others"):
        queue.own_partition("work", IN_A_MOMENT)
    session.conn.rollback()
    assert tables_of_topics(queue) == []
    assert identifiers(queue.push("work", ["b"])) == ["b"]
    assert queue.own_partition("work")
    assert identifiers(queue.poll("work", owner, 5)) == ["a", "b"]


def test_a_drop_that_waits_for_a_reader_of_its_topic_keeps_no_other_topic_waiting(
    queue: TaskQueue, dsn: str, session: TaskQueue, open_queue: Callable[[], TaskQueue], background: InBackground[bool]
) -> None:
    queue.create_topic("other")
    queue.push("other", ["x"])
    queue.push("work", ["a"])
    queue.own_partition("work")
    queue.advance("readers", "work", 0, Cursor(1))
    session.advance("readers", "work", 0, Cursor(2))
    with connect(dsn, autocommit=True) as conn:
        dropping = TaskQueue(conn)
        dropped = background(lambda: dropping.drop_topic("work"))
        await_standstill(queue.conn, dropping)
        other = hurry(open_queue())
        owner = other.register("owner")
        other.complete(owner, dict.fromkeys(other.poll("other", owner), Result.SUCCESS))
        other.conn.commit()
        session.conn.commit()
        assert dropped.result(60)


def test_a_purge_that_cannot_lock_the_tables_keeps_no_push_waiting(
    queue: TaskQueue, session: TaskQueue, open_queue: Callable[[], TaskQueue]
) -> None:
    queue.push("work", ["a"])
    queue.own_partition("work")
    reading = open_queue()
    reading.page("work")
    assert session.conn.execute("SELECT taskq.purge_all('work', true)").fetchone() == (1,)
    assert identifiers(hurry(queue).push("work", ["b"])) == ["b"]
    reading.conn.rollback()
    session.conn.commit()
    assert states(queue) == [("b", State.READY)]


@pytest.mark.parametrize(
    "poll",
    [
        lambda queue, owner: queue.poll("work", owner),
        lambda queue, owner: queue.poll("work", owner, condition=Condition.SINGULAR_BY_IDENTIFIER),
        lambda queue, owner: list(queue.poll_batch("work", owner)),
    ],
    ids=["none", "singular", "batch"],
)
def test_a_poll_that_started_before_a_move_finds_nothing_and_raises_no_error(
    own_queue: TaskQueue, own_dsn: str, background: InBackground[Any], poll: Callable[[TaskQueue, Owner], list[object]]
) -> None:
    """The poll is stopped between its read of the topic and its first read of tasks."""
    plant_change(own_queue.conn, "polls stop before their first read of tasks")
    own_queue.push("work", ["a"])
    owner = own_queue.register("owner")
    with connect(own_dsn, autocommit=True) as conn:
        early = TaskQueue(conn)
        conn.execute("SET tests.stop = '4711'")
        own_queue.conn.execute("SELECT pg_advisory_lock(4711)")
        found = background(lambda: poll(early, owner))
        await_lock_wait(own_queue.conn, early)
        move = own_queue.conn.execute("SELECT taskq.begin_partition_move('work', '1 second')").fetchone()
        assert move is not None
        own_queue.conn.execute("SELECT taskq.create_own_tables('work', %s, '1 second')", move)
        closed = own_queue.conn.execute("SELECT taskq.close_shared_tables('work', %s, '1 second')", move).fetchone()
        assert closed == (True,)
        own_queue.conn.execute("SELECT pg_advisory_unlock(4711)")
        assert found.result(60) == []
        assert own_queue.own_partition("work")
        assert len(poll(early, owner)) == 1


@pytest.fixture
def traffic(dsn: str, background: InBackground[Any]) -> Iterator[list[float]]:
    """The durations of each push, poll and completion of another topic, in a second session."""
    took: list[float] = []
    stop = Event()

    def work() -> None:
        with connect(dsn, autocommit=True) as conn:
            queue = TaskQueue(conn)
            queue.create_topic("other")
            owner = queue.register("bystander")
            while not stop.is_set():
                start = time.monotonic()
                queue.push("other", ["x"])
                polled = queue.poll("other", owner)
                queue.complete(owner, dict.fromkeys(polled, Result.SUCCESS))
                took.append(time.monotonic() - start)

    done = background(work)
    until(lambda: len(took) > 10)
    yield took
    stop.set()
    done.result(60)


def test_other_topics_wait_only_for_a_moment_while_a_topic_moves(queue: TaskQueue, traffic: list[float]) -> None:
    queue.push_stream("work", numbered(10_000))
    traffic.clear()
    assert queue.own_partition("work")
    assert len(traffic) > 3
    assert max(traffic) < 10
    assert apart(queue) == 10_000


def test_a_move_under_load_loses_and_repeats_no_task(queue: TaskQueue, dsn: str, background: InBackground[Any]) -> None:
    stop = Event()

    def produce() -> int:
        with connect(dsn, autocommit=True) as conn:
            pushed = 0
            while not stop.is_set():
                pushed += len(TaskQueue(conn).push("work", [f"{pushed}", f"{pushed + 1}"]))
        return pushed

    def consume(name: str) -> list[int]:
        done: list[int] = []
        with connect(dsn, autocommit=True) as conn:
            consumer = TaskQueue(conn)
            owner = consumer.register(name)
            while not (produced.done() and not consumer.ready("work")):
                polled = consumer.poll("work", owner, 3, condition=Condition.SINGULAR_BY_IDENTIFIER)
                consumer.complete(owner, dict.fromkeys(polled, Result.SUCCESS))
                done += [task.sequence for task in polled]
        return done

    produced = background(produce)
    workers = [produced, background(lambda: consume("one")), background(lambda: consume("two"))]
    try:
        for _ in range(3):
            assert queue.own_partition("work")
            assert queue.shared_partition("work", most=10**6)
    finally:
        stop.set()
    pushed, first, second = (worker.result(120) for worker in workers)
    assert sorted(first + second) == sorted({*first, *second})
    assert len(first) + len(second) == pushed == queue.count("work")["work"][State.SUCCEEDED].count


def test_a_reader_of_the_log_misses_nothing_while_its_topic_moves(
    queue: TaskQueue, dsn: str, background: InBackground[Any]
) -> None:
    stop = Event()

    def produce() -> int:
        with connect(dsn, autocommit=True) as conn:
            pushed = 0
            while not stop.is_set():
                pushed += len(TaskQueue(conn).push("work", [f"{pushed}"]))
        return pushed

    def read() -> list[str]:
        seen: list[str] = []
        with connect(dsn, autocommit=True) as conn:
            cursor, complete = None, False
            while not complete:
                produced_all = produced.done()
                found = TaskQueue(conn).events("work", cursor, 7)
                cursor = found.cursor
                seen += [task.identifier for _, task in found]
                complete = produced_all and not found
        return seen

    produced = background(produce)
    seen = background(read)
    for _ in range(4):
        assert queue.own_partition("work")
        assert queue.shared_partition("work", most=10**6)
    stop.set()
    assert seen.result(120) == [f"{number}" for number in range(produced.result(120))]


def test_pushes_wait_while_their_topic_moves(
    queue: TaskQueue, session: TaskQueue, open_queue: Callable[[], TaskQueue], background: InBackground[Any]
) -> None:
    mover = open_queue()
    mover.conn.autocommit = True
    number = mover.conn.execute("SELECT taskq.lock_pushes('work', '1 second')").fetchone()
    pushed = background(lambda: session.push("work", ["a"]))
    await_lock_wait(queue.conn, session)
    mover.conn.execute("SELECT taskq.unlock_pushes(%s)", number)
    assert identifiers(pushed.result(60)) == ["a"]


def test_an_operator_may_move_topics_without_a_right_on_any_table(queue: TaskQueue) -> None:
    role = f"operator_{uuid4().hex[:8]}"
    queue.conn.execute(f"CREATE ROLE {role}".encode())
    queue.conn.execute("SELECT taskq.grant_access(%s, 'operator')", (role,))
    try:
        queue.conn.execute(f"SET ROLE {role}".encode())
        assert queue.own_partition("work")
        assert queue.shared_partition("work")
        assert queue.own_partition("work")
        assert queue.purge_all("work") == 0
        assert queue.drop_topic("work")
        assert queue.drop_vacant_partitions() == 1
    finally:
        queue.conn.execute("RESET ROLE")
        queue.conn.execute(f"DROP OWNED BY {role}; DROP ROLE {role}".encode())
