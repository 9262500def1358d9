"""Roles that hold locks of the queue or set its settings: they can neither stop work nor hide tasks from readers.

A role with CONNECT alone can take any advisory lock, and sees in pg_locks which ones the queue uses.
"""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from airflow_provider_taskq.queue import (
    Insertion,
    NewTask,
    Result,
    Revival,
    State,
    TaskQueue,
    TaskQueueError,
    TopicPolicy,
    UnknownTopic,
    connect,
    install,
    verify,
)
from tests.internals import SCHEMAS
from tests.queue.conftest import InBackground, Reader, await_standstill, hurry

pytestmark = pytest.mark.promise("A role without rights can neither stop work nor hide a task from readers")

NOON = datetime(2031, 5, 4, 12, tzinfo=UTC)
STAGE = "00000000-0000-4000-8000-000000000001"
TOPIC_LOCKS, TICK_LOCKS, INSTALL_LOCK, FLOOR_LOCKS = 8275717, 8275718, 8275717, 32327

Login = Callable[[str], psycopg.Connection]


@pytest.fixture
def login(own_queue: TaskQueue, own_dsn: str) -> Iterator[Login]:
    """Opens a session of a new role that may connect, and has the access of a kind if one is named."""
    roles: list[str] = []
    conns: list[psycopg.Connection] = []

    def login(kind: str = "") -> psycopg.Connection:
        roles.append(f"taskq_login_{uuid4().hex[:8]}")
        own_queue.conn.execute(sql.SQL("CREATE ROLE {} LOGIN PASSWORD 'plain'").format(sql.Identifier(roles[-1])))
        if kind:
            own_queue.conn.execute("SELECT taskq.grant_access(%s, %s)", (roles[-1], kind))
        conns.append(connect(make_conninfo(own_dsn, user=roles[-1], password="plain"), autocommit=True))
        conns[-1].execute("SET lock_timeout = '1min'")  # a test that fails does so before its time is over
        return conns[-1]

    yield login
    for conn in conns:
        conn.close()
    for role in map(sql.Identifier, roles):
        own_queue.conn.execute(sql.SQL("DROP OWNED BY {}").format(role))
        own_queue.conn.execute(sql.SQL("DROP ROLE {}").format(role))


@pytest.fixture
def outsider(login: Login) -> psycopg.Connection:
    """A session of a role that may connect to the database, and nothing else."""
    return login("")


@pytest.fixture
def producer(work: TaskQueue, own_dsn: str) -> Iterator[TaskQueue]:
    """One more session of the queue, whose transaction stays open; it fails instead of waiting for long."""
    with connect(own_dsn) as conn:
        assert work.topics() == ["work"]
        queue = hurry(TaskQueue(conn))
        conn.commit()
        yield queue
        conn.rollback()


@pytest.fixture
def work(own_queue: TaskQueue) -> TaskQueue:
    """The queue with the topic `work`, in a session that fails instead of waiting for long."""
    return hurry(own_queue)


def topic_number(queue: TaskQueue, topic: str = "work") -> int:
    row = queue.conn.execute("SELECT topic_id FROM taskq.topic_summaries WHERE topic = %s", (topic,)).fetchone()
    assert row is not None
    return int(row[0])


def take_topics(outsider: psycopg.Connection, mode: str) -> None:
    """Holds the advisory locks of topics 1 to 50, exclusively ('') or shared ('_shared')."""
    query = f"SELECT pg_advisory_lock{mode}(%s, n) FROM generate_series(1, 50) n"
    outsider.execute(query.encode(), (TOPIC_LOCKS,))


def take_floors(outsider: psycopg.Connection, mode: str, upto: int) -> None:
    """Holds the advisory locks of the floors 0 to `upto`."""
    query = f"SELECT pg_advisory_lock{mode}((%s::bigint << 48) | n) FROM generate_series(0, %s) n"
    outsider.execute(query.encode(), (FLOOR_LOCKS, upto))


def take_known(outsider: psycopg.Connection, mode: str, queue: TaskQueue) -> None:
    """Holds every key that the queue has ever used: topics, floors, ticks, names, stages, pruning, installing."""
    take_topics(outsider, mode)
    take_floors(outsider, mode, 500)
    prefix = f"{topic_number(queue)}/tick"
    outsider.execute(f"SELECT pg_advisory_lock{mode}(%s, hashtext(%s))".encode(), (TICK_LOCKS, prefix))
    for name in ("nightly", STAGE, "taskq.prune_stages"):
        outsider.execute(f"SELECT pg_advisory_lock{mode}(hashtextextended(%s, %s))".encode(), (name, TOPIC_LOCKS))
    outsider.execute(f"SELECT pg_advisory_lock{mode}(%s)".encode(), (INSTALL_LOCK,))


def take_visible(outsider: psycopg.Connection, mode: str) -> int:
    """Tries to take every advisory lock that any session holds in this database; returns their number."""
    query = f"""SELECT CASE l.objsubid
            WHEN 1 THEN pg_try_advisory_lock{mode}(l.classid::bigint << 32 | l.objid::bigint)
            ELSE pg_try_advisory_lock{mode}(l.classid::int, l.objid::int) END
        FROM pg_locks l WHERE l.locktype = 'advisory' AND l.pid <> pg_backend_pid()
          AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())"""
    return len(outsider.execute(query.encode()).fetchall())


MODES = pytest.mark.parametrize("mode", ["", "_shared"], ids=["exclusively", "shared"])

VERBS: dict[str, Callable[[TaskQueue], object]] = {
    "push": lambda queue: queue.push("work", ["a"]),
    "push many": lambda queue: queue.push("work", ["b", "c"], Insertion.REPLACE),
    "push_stream": lambda queue: queue.push_stream("work", ["d", "e"]),
    "offer": lambda queue: queue.offer_many("work", ["a", "f"]),
    "drop": lambda queue: queue.drop("work", "f"),
    "push to another": lambda queue: queue.push("other", ["x"]),
    "junction": lambda queue: queue.junction("work", [["a"]]),
    "release_groups_once": lambda queue: queue.release_groups_once("gate", "work", [["a"]]),
    "install_ticks": lambda queue: queue.install_ticks("work", "tick", "hash", [(NOON, None)]),
    "uninstall_ticks": lambda queue: queue.uninstall_ticks("work", "tick", "hash"),
    "purge": lambda queue: queue.purge_all("work"),
    "expire": lambda queue: queue.expire(),
    "maintain": lambda queue: queue.maintain(),
    "check_push": lambda queue: queue.conn.execute("SELECT taskq.check_push(%s::uuid)", (STAGE,)),
    "abandon_push": lambda queue: queue.conn.execute("SELECT taskq.abandon_push(%s::uuid)", (STAGE,)),
}


@MODES
@pytest.mark.parametrize("verb", VERBS.values(), ids=VERBS.keys())
def test_no_verb_waits_for_an_outsider(
    work: TaskQueue, outsider: psycopg.Connection, mode: str, verb: Callable[[TaskQueue], object]
) -> None:
    work.create_topic("other")
    take_known(outsider, mode, work)
    verb(work)


@MODES
def test_a_session_continues_when_an_outsider_takes_all_locks_that_it_uses(
    work: TaskQueue, producer: TaskQueue, outsider: psycopg.Connection, mode: str
) -> None:
    producer.push("work", ["a"])
    assert take_visible(outsider, mode) >= 2
    for verb in VERBS.values():
        work.create_topic("other")
        if verb is not VERBS["purge"]:
            verb(producer)
        take_visible(outsider, mode)
    work.push("work", ["b"])


@MODES
def test_a_named_lock_can_be_taken_while_an_outsider_holds_its_advisory_lock(
    work: TaskQueue, outsider: psycopg.Connection, mode: str
) -> None:
    take_known(outsider, mode, work)
    assert work.lock("nightly", "me", timedelta(minutes=1))
    assert not work.lock("nightly", "another", timedelta(minutes=1))
    assert work.unlock("nightly", "me")


@MODES
def test_groups_are_released_while_an_outsider_holds_the_lock_of_the_topic(
    work: TaskQueue, outsider: psycopg.Connection, mode: str
) -> None:
    take_topics(outsider, mode)
    watched = (
        "SELECT number FROM taskq.watch('{}', '{}', '{}', '{}', '{}', '{}',"
        " '{gate}', '{work}', '{SINGULAR}', '{1}', '{1}', '{a}')"
    )
    assert work.conn.execute(watched.encode()).fetchall() == [(1,)]


@MODES
def test_stages_of_dead_jobs_are_pruned_while_an_outsider_holds_the_lock_of_pruning(
    work: TaskQueue, outsider: psycopg.Connection, mode: str
) -> None:
    work.conn.execute(
        "INSERT INTO taskq.staged_task (stage, part, attempt, place, identifier, staged)"
        " VALUES (%s, 0, 0, 0, 'a', now() - interval '2 days')",
        (STAGE,),
    )
    take_known(outsider, mode, work)
    work.conn.execute("SELECT taskq.prune_stages()")
    assert work.conn.execute("SELECT FROM taskq.staged_task").rowcount == 0


def test_stages_are_pruned_by_one_session_at_a_time(work: TaskQueue, producer: TaskQueue) -> None:
    producer.conn.execute("SELECT taskq.prune_stages()")
    owner = work.register("gone")
    work.conn.execute(
        "INSERT INTO taskq.staged (stage, part, attempt, sequence, result)"
        " VALUES (taskq.open_stage(%s, %s), 0, 0, 1, 3)",
        (owner.name, owner.fence),
    )
    work.release(owner)
    assert work.conn.execute("SELECT taskq.prune_stages()").fetchone() == (0,)
    producer.conn.commit()
    assert work.conn.execute("SELECT taskq.prune_stages()").fetchone() == (1,)


def test_an_install_does_not_wait_for_an_outsider(empty_dsn: str, outsider: psycopg.Connection) -> None:
    role = outsider.info.user
    with connect(make_conninfo(empty_dsn, user=role, password="plain"), autocommit=True) as blocking:
        blocking.execute("SELECT pg_advisory_lock(%s)", (INSTALL_LOCK,))
        with connect(empty_dsn, autocommit=True) as conn:
            conn.execute("SET lock_timeout = '3s'")
            install(conn)
            install(conn)
            verify(conn)


@MODES
def test_a_forged_push_does_not_hold_the_log_back(work: TaskQueue, outsider: psycopg.Connection, mode: str) -> None:
    """An outsider holds a floor, the lock of a topic, and every table lock that it can get by an object number."""
    outsider.execute("BEGIN")
    tables = "SELECT oid::int FROM pg_class WHERE relnamespace = ANY (%s::regnamespace[]) AND relkind = 'r'"
    for (oid,) in work.conn.execute(tables, (SCHEMAS,)).fetchall():
        outsider.execute("SAVEPOINT before")
        with pytest.raises(psycopg.Error):
            outsider.execute("SELECT nextval(%s::oid::regclass)", (oid,))
        outsider.execute("ROLLBACK TO before")
    take_topics(outsider, mode)
    take_floors(outsider, mode, 1)
    work.push("work", ["a"])
    assert Reader(work).more() == ["a"]
    assert work.log_blockers("work") == []


def test_a_forged_push_in_a_prepared_transaction_does_not_hold_the_log_back(
    work: TaskQueue, outsider: psycopg.Connection
) -> None:
    name = f"forged {uuid4().hex}"
    outsider.execute("BEGIN")
    outsider.execute("SELECT pg_advisory_xact_lock_shared(%s, %s)", (TOPIC_LOCKS, topic_number(work)))
    outsider.execute("SELECT pg_advisory_xact_lock_shared((%s::bigint << 48) | 1)", (FLOOR_LOCKS,))
    outsider.execute(sql.SQL("PREPARE TRANSACTION {}").format(name))
    try:
        work.push("work", ["a"])
        assert Reader(work).more() == ["a"]
        with pytest.raises(TaskQueueError, match=f"prepared transaction '{name}'"):
            work.drop_topic("work")
    finally:
        outsider.execute(sql.SQL("ROLLBACK PREPARED {}").format(name))


@pytest.mark.parametrize("kind", ["reader", "consumer"])
def test_a_role_that_may_not_push_cannot_hold_the_log_back(work: TaskQueue, login: Login, kind: str) -> None:
    """Such a role can name the tables for staging, and so lock them in a statement that it only prepares."""
    forger = login(kind)
    forger.execute("BEGIN")
    take_topics(forger, "_shared")
    take_floors(forger, "_shared", 1)
    tables = "SELECT format('%I.%I', schemaname, tablename) FROM pg_tables WHERE schemaname LIKE 'taskq%'"
    locked = 0
    for number, (table,) in enumerate(work.conn.execute(tables.encode()).fetchall()):
        forger.execute("SAVEPOINT before")
        try:
            forger.execute(f"PREPARE locks_{number} AS SELECT FROM {table} FOR UPDATE".encode())
            locked += 1
        except psycopg.errors.InsufficientPrivilege:
            forger.execute("ROLLBACK TO before")
    assert locked == 3, "only the tables for staging are in the schema taskq"
    work.push("work", ["a"])
    assert Reader(work).more() == ["a"]


FORGED = ["", "no number", "-1", "0", "1", "99999999999999999999999999", "281474976710655", "1e3", " 7"]


@pytest.mark.parametrize("value", FORGED)
def test_a_producer_cannot_hide_its_push_by_a_setting(work: TaskQueue, login: Login, value: str) -> None:
    reader = Reader(work)
    work.push("work", ["a"])
    assert reader.more() == ["a"]
    producer = login("producer")
    producer.execute("BEGIN")
    producer.execute("SELECT set_config('taskq.log_opened', pg_current_xact_id()::text, false)")
    producer.execute("SELECT set_config('taskq.log_floor', %s, false)", (value,))
    TaskQueue(producer).push("work", ["hidden"])
    work.push("work", ["b"])
    assert reader.more() == []
    producer.execute("SELECT set_config('taskq.log_floor', %s, true)", (value,))
    TaskQueue(producer).push("work", ["hidden", "twice"])
    assert reader.more() == []
    producer.execute("COMMIT")
    assert reader.more() == ["hidden", "b", "hidden", "twice"]


@pytest.mark.parametrize("upto", [2, 3000], ids=["floors near the last number", "all floors"])
def test_an_open_push_holds_the_log_back_while_an_outsider_holds_floors(
    work: TaskQueue, producer: TaskQueue, outsider: psycopg.Connection, upto: int
) -> None:
    reader = Reader(work)
    work.push("work", ["a"])
    assert reader.more() == ["a"]
    take_floors(outsider, "", upto)
    producer.push("work", ["b"])
    work.push("work", ["c"])
    assert reader.more() == []
    assert [holder.pid for holder in work.log_blockers("work")] == [producer.conn.info.backend_pid]
    producer.conn.commit()
    assert reader.more() == ["b", "c"]


def test_an_open_push_whose_topic_an_outsider_holds_counts_for_every_topic(
    work: TaskQueue, producer: TaskQueue, outsider: psycopg.Connection
) -> None:
    work.create_topic("other")
    take_topics(outsider, "")
    producer.push("work", ["a"])
    work.push("work", ["b"])
    work.push("other", ["x"])
    readers = [Reader(work), Reader(work, "other")]
    assert [reader.more() for reader in readers] == [[], []]
    outsider.execute("SELECT pg_advisory_unlock_all()")
    assert [reader.more() for reader in readers] == [[], []]
    producer.conn.commit()
    assert [reader.more() for reader in readers] == [["a", "b"], ["x"]]


def test_rolling_back_to_a_savepoint_ends_that_a_push_counts_for_every_topic(
    work: TaskQueue, producer: TaskQueue, outsider: psycopg.Connection
) -> None:
    work.create_topic("other")
    producer.push("other", ["x"])
    outsider.execute("SELECT pg_advisory_lock(%s, %s)", (TOPIC_LOCKS, topic_number(work)))
    producer.conn.execute("SAVEPOINT before")
    producer.push("work", ["never"])
    producer.conn.execute("ROLLBACK TO before")
    work.push("work", ["a"])
    assert Reader(work).more() == ["a"]


@MODES
@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ"])
def test_an_open_push_keeps_its_topic_from_being_dropped_although_an_outsider_holds_its_lock(
    own_queue: TaskQueue,
    own_dsn: str,
    producer: TaskQueue,
    outsider: psycopg.Connection,
    background: InBackground[bool],
    mode: str,
    level: str,
) -> None:
    producer.conn.execute(f"SET TRANSACTION ISOLATION LEVEL {level}".encode())
    take_topics(outsider, mode)
    producer.push("work", ["a"])
    outsider.execute("SELECT pg_advisory_unlock_all()")
    with connect(own_dsn, autocommit=True) as conn:
        dropped = background(lambda: TaskQueue(conn).drop_topic("work"))
        await_standstill(own_queue.conn, TaskQueue(conn))
        producer.conn.commit()
        assert dropped.result(120) is True
    assert own_queue.conn.execute("SELECT FROM taskq.task_info").rowcount == 0


@MODES
def test_a_drop_names_the_outsider_in_its_way_and_pushes_continue(
    own_queue: TaskQueue, outsider: psycopg.Connection, mode: str
) -> None:
    own_queue.push("work", ["a"])
    take_topics(outsider, mode)
    with pytest.raises(TaskQueueError, match=f"'work'.*session {outsider.info.backend_pid} of role"):
        own_queue.drop_topic("work")
    own_queue.push("work", ["b"])
    outsider.execute("SELECT pg_advisory_unlock_all()")
    assert own_queue.drop_topic("work")
    with pytest.raises(UnknownTopic):
        own_queue.push("work", ["c"])


@MODES
def test_tasks_are_recreated_while_an_outsider_holds_the_lock_of_their_topic(
    work: TaskQueue, outsider: psycopg.Connection, mode: str
) -> None:
    owner = work.register("worker")
    work.push("work", ["a"])
    [task] = work.poll("work", owner)
    work.complete(owner, {task: Result.FAILURE})
    reader = Reader(work)
    assert reader.more() == ["a"]
    take_known(outsider, mode, work)
    assert list(work.revive("work", State.FAILED, Revival.APPEND)) == [task.sequence]
    assert reader.more() == ["a"]


def test_an_open_push_is_distinguished_from_a_forged_one(
    work: TaskQueue, producer: TaskQueue, outsider: psycopg.Connection
) -> None:
    take_topics(outsider, "_shared")
    take_floors(outsider, "_shared", 1)
    assert work.log_blockers("work") == []
    producer.push("work", ["a"])
    assert [blocker.pid for blocker in work.log_blockers("work")] == [producer.conn.info.backend_pid]


def test_an_outsider_that_listens_sees_only_the_names_of_topics(work: TaskQueue, outsider: psycopg.Connection) -> None:
    work.alter_topic("work", TopicPolicy(notify=True))
    outsider.execute("LISTEN taskq")
    work.push("work", [NewTask("customer-17", {"total": 12})])
    [heard] = outsider.notifies(timeout=300, stop_after=1)
    assert (heard.channel, heard.payload) == ("taskq", "work")
