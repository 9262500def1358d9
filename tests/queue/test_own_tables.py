"""Own tables of busy topics: the same guarantees, made and dropped during all other work."""

from collections.abc import Iterator
from uuid import uuid4

import pytest

from airflow_provider_taskq.queue import (
    Condition,
    Insertion,
    NewTask,
    Owner,
    Result,
    Revival,
    State,
    TaskQueue,
    TaskQueueError,
    connect,
)
from tests.internals import SCHEMAS, stored_rows
from tests.queue.conftest import (
    InBackground,
    await_standstill,
    hurry,
    identifiers,
    known,
    lapse,
    states,
    task_in,
)

pytestmark = pytest.mark.promise("A topic can have tables of its own")


@pytest.fixture
def queue(dsn: str) -> Iterator[TaskQueue]:
    """A queue with a topic `work` with tables of its own. At the end there is no topic."""
    with connect(dsn, autocommit=True) as conn:
        queue = TaskQueue(conn)
        queue.create_topic("work", own_tables=True)
        yield queue
        conn.execute("RESET ALL")
        for topic in queue.topics():
            queue.drop_topic(topic)


def tables_of_topics(queue: TaskQueue) -> list[str]:
    """The own tables of topics."""
    query = "SELECT oid::regclass::text FROM pg_class WHERE relnamespace = ANY (%s::regnamespace[]) AND relkind = 'r'"
    return [row[0] for row in queue.conn.execute(f"{query} AND relname ~ '_[0-9]+$' ORDER BY 1".encode(), (SCHEMAS,))]


def rows_of_tables(queue: TaskQueue) -> list[int]:
    """The numbers of rows in the own tables of topics: ended, live, task."""
    return [queue.conn.execute(f"SELECT FROM {table}".encode()).rowcount for table in tables_of_topics(queue)]


def test_own_tables_have_the_indexes_and_settings_of_the_shared_ones(queue: TaskQueue) -> None:
    assert len(tables_of_topics(queue)) == 3
    for table in tables_of_topics(queue):
        shape = """SELECT c.reloptions, (SELECT count(*) FROM pg_index WHERE indrelid = c.oid),
            (SELECT count(*) FROM pg_index x JOIN pg_inherits h ON h.inhrelid = x.indexrelid WHERE x.indrelid = c.oid),
            ARRAY(SELECT pg_get_constraintdef(o.oid) FROM pg_constraint o WHERE o.conrelid = c.oid ORDER BY 1)
            FROM pg_class c WHERE c.oid = %s::regclass"""
        own, shared = (
            queue.conn.execute(shape.encode(), (name,)).fetchone()
            for name in (table, f"{table.rpartition('_')[0]}_shared")
        )
        assert own == shared


def test_every_verb_works_on_a_topic_with_tables_of_its_own(queue: TaskQueue, owner: Owner) -> None:
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
    assert rows_of_tables(queue) == [3, 1, 4]
    assert queue.purge("work", state=State.REDUNDANT) == 2
    assert known(queue, second).polled is not None
    assert queue.task("work", third.sequence) is None
    assert queue.purge_all("work") == 2
    assert rows_of_tables(queue) == [0, 0, 0]


def test_a_topic_that_exists_keeps_its_tables(queue: TaskQueue) -> None:
    tables = tables_of_topics(queue)
    queue.create_topic("shared")
    assert not queue.create_topic("shared", own_tables=True)
    assert not queue.create_topic("work")
    assert tables_of_topics(queue) == tables


def test_no_call_waits_for_the_creation_of_own_tables_and_the_creation_waits_for_none(
    queue: TaskQueue, session: TaskQueue, owner: Owner, dsn: str
) -> None:
    queue.create_topic("other")
    session.push("other", ["a"])
    hurry(queue).create_topic("new", own_tables=True)
    with connect(dsn) as conn:
        TaskQueue(conn).create_topic("newer", own_tables=True)
        for topic in ("work", "other", "new"):
            queue.push(topic, ["b"])
            queue.complete(owner, dict.fromkeys(queue.poll(topic, owner), Result.SUCCESS))
        assert identifiers(session.push("work", ["c"])) == ["c"]
    assert len(tables_of_topics(queue)) == 9


def test_a_creation_that_is_rolled_back_leaves_no_tables(queue: TaskQueue, session: TaskQueue) -> None:
    session.create_topic("new", own_tables=True)
    session.push("new", ["a"])
    session.conn.rollback()
    assert queue.topics() == ["work"]
    assert len(tables_of_topics(queue)) == 3


def test_sessions_that_create_topics_at_once_each_get_their_tables(
    queue: TaskQueue, session: TaskQueue, dsn: str, background: InBackground[list[bool]]
) -> None:
    session.create_topic("new", own_tables=True)
    with connect(dsn, autocommit=True) as conn:
        creating = TaskQueue(conn)
        created = background(lambda: [creating.create_topic(name, own_tables=True) for name in ("newer", "new")])
        await_standstill(queue.conn, creating)
        session.conn.commit()
        assert created.result(60) == [True, False]
    assert len(tables_of_topics(queue)) == 9


def test_a_drop_that_waits_for_a_transaction_keeps_no_other_call_waiting(
    queue: TaskQueue, owner: Owner, dsn: str, session: TaskQueue, background: InBackground[bool]
) -> None:
    queue.create_topic("other")
    queue.push("other", ["x"])
    session.page("other")
    with connect(dsn, autocommit=True) as conn:
        dropping = TaskQueue(conn)
        dropped = background(lambda: dropping.drop_topic("work"))
        await_standstill(queue.conn, dropping)
        queue.complete(owner, dict.fromkeys(hurry(queue).poll("other", owner), Result.SUCCESS))
        session.conn.commit()
        assert dropped.result(60)


def test_a_drop_gives_up_if_a_session_keeps_the_tables_in_use(queue: TaskQueue, session: TaskQueue) -> None:
    queue.push("work", ["a"])
    session.conn.execute("SELECT FROM taskq.task_info")
    queue.conn.execute("SET lock_timeout = '300ms'")
    with pytest.raises(TaskQueueError, match="transactions have used it for longer than"):
        queue.drop_topic("work")
    assert states(queue) == [("a", State.READY)]


def test_a_drop_that_is_rolled_back_keeps_the_tables(queue: TaskQueue, session: TaskQueue) -> None:
    queue.push("work", ["a"])
    assert session.drop_topic("work")
    session.conn.rollback()
    assert states(queue) == [("a", State.READY)]


@pytest.mark.promise("A dropped topic leaves nothing behind")
@pytest.mark.parametrize("own_tables", [True, False])
def test_a_dropped_topic_leaves_nothing_behind(queue: TaskQueue, owner: Owner, own_tables: bool) -> None:
    queue.drop_topic("work")
    before = stored_rows(queue.conn).keys()
    queue.create_topic("work", own_tables=own_tables)
    for state in sorted(set(State) - {State.ACTIVE}, key=lambda state: state is State.READY):
        task_in(queue, owner, state, identifier=state.name)
    queue.push("work", [NewTask("dependent", depends_on=[("work", "READY")])])
    assert queue.release_groups_once("gate", "work", [["SUSPENDED"]]) == []
    queue.drop_topic("work")
    assert stored_rows(queue.conn).keys() == before
    assert tables_of_topics(queue) == []


def test_an_operator_creates_and_drops_own_tables_without_a_right_on_any_table(queue: TaskQueue) -> None:
    role = f"operator_{uuid4().hex[:8]}"
    queue.conn.execute(f"CREATE ROLE {role}".encode())
    queue.conn.execute("SELECT taskq.grant_access(%s, 'operator')", (role,))
    try:
        queue.conn.execute(f"SET ROLE {role}".encode())
        assert queue.create_topic("new", own_tables=True)
        assert queue.drop_topic("new")
    finally:
        queue.conn.execute("RESET ROLE")
        queue.conn.execute(f"DROP OWNED BY {role}; DROP ROLE {role}".encode())
