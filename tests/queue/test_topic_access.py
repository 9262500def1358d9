"""Roles that are limited to topics: their rights there. No call reaches another topic."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from airflow_provider_taskq.queue import (
    Insertion,
    InvalidTask,
    LeaseLost,
    NewTask,
    NotHeld,
    Owner,
    Result,
    State,
    TaskQueue,
    TaskQueueError,
    UnknownTopic,
    connect,
    install,
)
from airflow_provider_taskq.queue.errors import translate_errors
from tests.internals import pretend_release

pytestmark = pytest.mark.promise("A role that is limited to topics reaches no other topic")

Limited = Callable[..., TaskQueue]
Denied = psycopg.errors.InsufficientPrivilege

NOW = datetime.now(UTC)
LEASE = timedelta(minutes=5)


@pytest.fixture
def queue(own_queue: TaskQueue) -> TaskQueue:
    """The queue as its owner: orders has a READY task, invoices a READY, a SUSPENDED and a FAILED one."""
    own_queue.create_topic("orders")
    own_queue.create_topic("invoices")
    own_queue.push("orders", ["order"])
    own_queue.push("invoices", [NewTask("secret", {"total": 12}), NewTask("group", suspended=True), NewTask("failed")])
    return own_queue


@pytest.fixture
def limited(queue: TaskQueue, own_dsn: str) -> Iterator[Limited]:
    """Logs in as a new role that has these kinds of access to `topics`."""
    made: list[tuple[str, psycopg.Connection[Any]]] = []

    def limited(*kinds: str, topics: list[str] | None = None, may_delete: bool | None = None) -> TaskQueue:
        name, password = f"taskq_limited_{uuid4().hex[:8]}", uuid4().hex
        statement = sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}")
        queue.conn.execute(statement.format(sql.Identifier(name), sql.Literal(password)))
        for kind in kinds:
            grant(queue, name, kind, topics or ["orders"], may_delete)
        conn = connect(make_conninfo(own_dsn, user=name, password=password), autocommit=True)
        made.append((name, conn))
        return TaskQueue(conn)

    yield limited
    queue.conn.execute("RESET ROLE")
    for name, conn in made:
        conn.close()
        queue.conn.execute(sql.SQL("DROP OWNED BY {}").format(sql.Identifier(name)))
        queue.conn.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(name)))


def grant(
    queue: TaskQueue, role: str, kind: str, topics: list[str] | None = None, may_delete: bool | None = None
) -> None:
    queue.conn.execute("SELECT taskq.grant_access(%s, %s, %s::text[], %s::boolean)", (role, kind, topics, may_delete))


def name_of(queue: TaskQueue) -> str:
    return queue.conn.info.user


def run(queue: TaskQueue, statement: str, *values: object) -> list[tuple[Any, ...]]:
    with translate_errors():
        return queue.conn.execute(statement.encode(), values).fetchall()


def contents(queue: TaskQueue) -> list[tuple[Any, ...]]:
    """Everything that a hostile call could have changed in invoices."""
    return run(
        queue,
        "SELECT sequence, identifier, state, attempt, owner, priority, available_at FROM taskq.task_info"
        " WHERE topic = 'invoices' ORDER BY sequence",
    )


PUSHES: dict[str, Callable[[TaskQueue, str], object]] = {
    "push one": lambda queue, topic: queue.push(topic, ["a"]),
    "push many": lambda queue, topic: queue.push(topic, ["a", "b"]),
    "supersede": lambda queue, topic: queue.push(topic, ["a"], Insertion.SUPERSEDE),
    "replace": lambda queue, topic: queue.push(topic, ["a"], Insertion.REPLACE),
    "stream": lambda queue, topic: queue.push_stream(topic, iter(["a"])),
    "offer": lambda queue, topic: queue.offer(topic, "a"),
    "offer many": lambda queue, topic: queue.offer_many(topic, ["a", "b"]),
    "drop": lambda queue, topic: queue.drop(topic, "secret"),
    "ticks": lambda queue, topic: queue.install_ticks(topic, "daily", "hash", [(NOW, None)]),
    "policy": lambda queue, topic: queue.policy(topic),
    "lock_offers": lambda queue, topic: run(queue, "SELECT taskq.lock_offers(%s, '{a}')", topic),
    "first_pushed": lambda queue, topic: run(queue, "SELECT taskq.first_pushed(%s, 1)", topic),
    "staged": lambda queue, topic: push_staged(queue, topic, topic),
    "staged to their own topics": lambda queue, topic: push_staged(queue, topic, None),
}


def push_staged(queue: TaskQueue, topic: str, named: str | None, insertion: str = "APPEND") -> int:
    [(stage,)] = run(queue, "SELECT taskq.open_push()")
    queue.conn.execute(
        "INSERT INTO taskq.staged_task (stage, part, attempt, place, topic, identifier) VALUES (%s, 0, 1, 0, %s, 'a')",
        (stage, topic),
    )
    return int(run(queue, "SELECT taskq.push_staged(%s, %s, %s, '{0}', '{1}', '{1}')", stage, named, insertion)[0][0])


@pytest.mark.parametrize("verb", PUSHES)
def test_a_producer_of_a_topic_pushes_to_it_and_to_no_other(queue: TaskQueue, limited: Limited, verb: str) -> None:
    producer, before = limited("producer"), contents(queue)
    PUSHES[verb](producer, "orders")
    for topic in ("invoices", "unknown"):  # the error does not tell whether a topic exists
        with pytest.raises(Denied, match=f"may not (push to|read) topic '{topic}'"):
            PUSHES[verb](producer, topic)
    assert contents(queue) == before


def test_a_producer_of_a_topic_pushes_with_delete_only_if_that_was_granted(queue: TaskQueue, limited: Limited) -> None:
    producer = limited("producer")
    with pytest.raises(Denied, match="may not push with DELETE to topic 'orders'"):
        producer.push("orders", ["order"], Insertion.DELETE)
    with pytest.raises(Denied, match="may not push with DELETE to topic 'orders'"):
        push_staged(producer, "orders", None, "DELETE")
    grant(queue, name_of(producer), "producer", ["orders"], may_delete=True)
    producer.push("orders", ["order"], Insertion.DELETE)
    assert [task.identifier for task in queue.page("orders")] == ["order"]
    with pytest.raises(Denied):
        producer.push("invoices", ["secret"], Insertion.DELETE)


def test_a_producer_of_every_topic_may_be_denied_delete(queue: TaskQueue, limited: Limited) -> None:
    producer = limited()
    grant(queue, name_of(producer), "producer")
    producer.push("orders", ["order"], Insertion.DELETE)
    grant(queue, name_of(producer), "producer", may_delete=False)
    producer.push("invoices", ["order"])
    with pytest.raises(Denied, match="DELETE"):
        producer.push("orders", ["order"], Insertion.DELETE)


def test_a_dependency_on_another_topic_needs_some_access_to_it(queue: TaskQueue, limited: Limited) -> None:
    producer = limited("producer")
    for identifier in ("secret", "no such task"):  # else the answer would tell which identifiers exist
        with pytest.raises(Denied, match="may not read topic 'invoices'"):
            producer.push("orders", [NewTask("next", depends_on=[("invoices", identifier)])])
    producer.push("orders", [NewTask("next", depends_on=[("orders", "order")])])
    grant(queue, name_of(producer), "reader", ["invoices"])
    producer.push("orders", [NewTask("last", depends_on=[("invoices", "secret")])])
    with pytest.raises(InvalidTask):
        producer.push("orders", [NewTask("last", depends_on=[("invoices", "no such task")])])


CONSUMES: dict[str, Callable[[TaskQueue, str, Owner], object]] = {
    "poll": lambda queue, topic, owner: queue.poll(topic, owner),
    "poll_batch": lambda queue, topic, owner: queue.poll_batch(topic, owner),
    "claim": lambda queue, topic, owner: queue.claim(topic, owner, 1),
    "exchange": lambda queue, topic, owner: queue.exchange(owner, {}, topic),
    "claim_batch": lambda queue, topic, owner: run(
        queue, "SELECT taskq.claim_batch(%s, %s, %s, 1, 'SINGULAR_BY_IDENTIFIER')", topic, owner.name, owner.fence
    ),
    "ready": lambda queue, topic, _: queue.ready(topic),
    "has_unclaimed": lambda queue, topic, _: queue.has_unclaimed(topic),
    "task": lambda queue, topic, _: queue.task(topic, 2),
    "junction": lambda queue, topic, _: queue.junction(topic, [["group"]]),
    "release_groups_once": lambda queue, topic, _: queue.release_groups_once("wait", topic, [["group"]]),
    "events": lambda queue, topic, _: queue.events(topic, None, 10),
    "progress": lambda queue, topic, _: queue.progress("readers", topic, 0),
    "advance": lambda queue, topic, _: run(queue, "SELECT taskq.advance('readers', %s, 0, 0)", topic),
    "log_slice": lambda queue, topic, _: run(queue, "SELECT * FROM taskq.log_slice(%s, 0, 99)", topic),
    "held_bounds": lambda queue, topic, owner: run(
        queue, "SELECT * FROM taskq.held_bounds(%s, %s, %s, 4)", owner.name, owner.fence, topic
    ),
    "held_slice": lambda queue, topic, owner: run(
        queue, "SELECT * FROM taskq.held_slice(%s, %s, %s, 0, 99)", owner.name, owner.fence, topic
    ),
    "begin_drain": lambda queue, topic, owner: run(
        queue, "SELECT taskq.begin_drain('mine', %s, %s)", owner.fence, topic
    ),
}


@pytest.mark.parametrize("verb", CONSUMES)
def test_a_consumer_of_a_topic_reaches_no_other(queue: TaskQueue, limited: Limited, verb: str) -> None:
    consumer, before = limited("consumer"), contents(queue)
    owner = consumer.register("mine")
    CONSUMES[verb](consumer, "orders", owner)
    for topic in ("invoices", "unknown"):
        with pytest.raises(Denied, match=f"may not (consume|read) topic '{topic}'"):
            CONSUMES[verb](consumer, topic, owner)
    assert contents(queue) == before


def test_a_wait_of_a_limited_consumer_treats_other_topics_as_unknown(limited: Limited) -> None:
    """A call for several topics treats those that the role may not consume as unknown."""
    consumer = limited("consumer")
    assert consumer.topics() == ["orders"]
    both = "ARRAY['orders', 'invoices']"
    assert run(consumer, f"SELECT position FROM taskq.topic_status({both}, '{{NONE, NONE}}', 9)") == [(1,)]
    ready = run(consumer, f"SELECT * FROM taskq.ready_many({both}, '{{9, 9}}')")
    assert ready == [(1, 1), (2, None)]
    none = "'{}', '{}', '{}', '{}', '{}', '{}'"
    watched = run(consumer, f"SELECT number FROM taskq.watch({both}, '{{9, 9}}', '{{NONE, NONE}}', '{{f, f}}',"
                            f" ARRAY['invoices'], ARRAY['secret'], {none})")  # fmt: skip
    assert watched == [(1,), (-1,), (-1,)]
    groups = "ARRAY['wait'], ARRAY['invoices'], ARRAY['SINGULAR'], '{1}', '{0}', ARRAY['group']"
    empty = "'{}', '{}', '{}', '{}', '{}', '{}'"
    assert run(consumer, f"SELECT number FROM taskq.watch({empty}, {groups})") == [(-1,)]


def test_a_consumer_of_a_topic_cannot_use_the_owner_of_another_role(queue: TaskQueue, limited: Limited) -> None:
    theirs = queue.register("theirs")
    [task] = queue.poll("invoices", theirs)
    consumer, before = limited("consumer"), contents(queue)
    key = (theirs.name, theirs.fence)
    assert consumer.owners() == []
    assert consumer.owner("theirs") is None
    assert consumer.held(theirs) == []
    assert consumer.release(theirs) == 0
    for call in (
        lambda: consumer.heartbeat(theirs),
        lambda: consumer.complete(theirs, {task.sequence: Result.FAILURE}),
        lambda: consumer.exchange(theirs, {task.sequence: Result.FAILURE}, "orders"),
        lambda: consumer.poll("orders", theirs),
        lambda: consumer.release_tasks(theirs, [task.sequence]),
        lambda: consumer.take_over("theirs", theirs.fence, LEASE),
        lambda: run(consumer, "SELECT * FROM taskq.held_bounds(%s, %s, NULL, 4)", *key),
        lambda: run(consumer, "SELECT * FROM taskq.held_slice(%s, %s, NULL, 0, 99)", *key),
        lambda: run(consumer, "SELECT taskq.open_stage(%s, %s)", *key),
        lambda: run(consumer, "SELECT taskq.check_stage(%s, %s, %s)", *key, uuid4()),
        lambda: run(consumer, "SELECT taskq.complete_staged(%s, %s, %s, '{}', '{}', '{}')", *key, uuid4()),
        lambda: run(consumer, "SELECT taskq.defer_held_tasks(%s, %s)", *key),
    ):
        with pytest.raises(LeaseLost):
            call()
    with pytest.raises(Denied, match="owner 'theirs' was registered by another role"):
        consumer.register("theirs")
    assert contents(queue) == before
    queue.complete(theirs, {task.sequence: Result.SUCCESS})


@pytest.mark.parametrize(
    "grace",
    [
        "-1200 months 36001 days",  # positive where a month has 30 days, and negative when added to a moment
        "-1200 months 36000 days 1 microsecond",
        "1000000 months -29999999 days",  # beyond the range of a moment
        "-178000000 years",
        "178000000 years",
        "-2147483648 days",
        "2147483647 months -2147483648 days",
    ],
)
def test_no_grace_lets_a_consumer_end_a_lease_that_has_not_lapsed(
    queue: TaskQueue, limited: Limited, grace: str
) -> None:
    theirs = queue.register("theirs")
    [task] = queue.poll("invoices", theirs)
    assert run(limited("consumer"), "SELECT taskq.expire(%s::interval)", grace) == [(0,)]
    assert [held.sequence for held in queue.held(theirs)] == [task.sequence]


def test_a_consumer_of_a_topic_cannot_complete_by_the_sequence_of_another_topic(
    queue: TaskQueue, limited: Limited
) -> None:
    [task] = queue.poll("invoices", queue.register("theirs"))
    consumer, before = limited("consumer"), contents(queue)
    mine = consumer.register("mine")
    with pytest.raises(NotHeld):
        consumer.complete(mine, {task.sequence: Result.FAILURE})
    [(stage,)] = run(consumer, "SELECT taskq.open_stage(%s, %s)", mine.name, mine.fence)
    consumer.conn.execute(
        "INSERT INTO taskq.staged (stage, part, attempt, sequence, result) VALUES (%s, 0, 1, %s, 0)",
        (stage, task.sequence),
    )
    commit = "SELECT taskq.complete_staged(%s, %s, %s, '{0}', '{1}', '{1}')"
    with pytest.raises(NotHeld):
        run(consumer, commit, mine.name, mine.fence, stage)
    assert contents(queue) == before


STAGE_CALLS = {
    "count_staged": "SELECT taskq.count_staged(%(stage)s)",
    "completed_in_stage": "SELECT taskq.completed_in_stage(%(stage)s, '{1}')",
    "abandon_stage": "SELECT taskq.abandon_stage(%(stage)s)",
    "finish_stage": "SELECT * FROM taskq.finish_stage(%(stage)s)",
    "check_stage": "SELECT taskq.check_stage(%(owner)s, %(fence)s, %(stage)s)",
    "complete_staged": "SELECT taskq.complete_staged(%(owner)s, %(fence)s, %(stage)s, '{}', '{}', '{}')",
}


@pytest.mark.parametrize("call", STAGE_CALLS)
def test_a_consumer_of_a_topic_cannot_use_the_stage_of_another_role(
    queue: TaskQueue, limited: Limited, call: str
) -> None:
    theirs = queue.register("theirs")
    [task] = queue.poll("invoices", theirs)
    [(stage,)] = run(queue, "SELECT taskq.open_stage(%s, %s)", theirs.name, theirs.fence)
    queue.conn.execute(
        "INSERT INTO taskq.staged (stage, part, attempt, sequence, result) VALUES (%s, 0, 1, %s, 3)",
        (stage, task.sequence),
    )
    consumer = limited("consumer")
    mine = consumer.register("mine")
    with pytest.raises(Denied, match="opened by another role"):
        consumer.conn.execute(STAGE_CALLS[call], {"owner": mine.name, "fence": mine.fence, "stage": stage})
    assert run(queue, "SELECT taskq.count_staged(%s)", stage) == [(1,)]
    commit = "SELECT taskq.complete_staged(%s, %s, %s, '{0}', '{1}', '{1}')"
    assert run(queue, commit, theirs.name, theirs.fence, stage) == [(1,)]
    with pytest.raises(Denied, match="opened by another role"):
        consumer.conn.execute(STAGE_CALLS[call], {"owner": mine.name, "fence": mine.fence, "stage": stage})
    assert run(queue, "SELECT completed FROM taskq.finish_stage(%s)", stage) == [(1,)]


def test_rows_that_another_role_adds_to_a_stage_fail_its_commit_and_change_nothing(
    queue: TaskQueue, limited: Limited
) -> None:
    theirs = queue.register("theirs")
    [task] = queue.poll("invoices", theirs)
    [(stage,)] = run(queue, "SELECT taskq.open_stage(%s, %s)", theirs.name, theirs.fence)
    row = "INSERT INTO taskq.staged (stage, part, attempt, sequence, result) VALUES (%s, 0, 1, %s, %s)"
    queue.conn.execute(row, (stage, task.sequence, Result.SUCCESS.value))
    limited("consumer").conn.execute(row, (stage, task.sequence, Result.FAILURE.value))
    before = contents(queue)
    with pytest.raises(psycopg.Error) as error:
        queue.conn.execute(
            "SELECT taskq.complete_staged(%s, %s, %s, '{0}', '{1}', '{1}')", (theirs.name, theirs.fence, stage)
        )
    assert error.value.sqlstate == "TQ007"
    assert contents(queue) == before


PUSH_CALLS = {
    "check_push": "SELECT taskq.check_push(%s)",
    "abandon_push": "SELECT taskq.abandon_push(%s)",
    "push_staged": "SELECT taskq.push_staged(%s, 'orders', 'APPEND', '{}', '{}', '{}')",
}


@pytest.mark.parametrize("opened", ["by the driver", "by an executor"])
@pytest.mark.parametrize("call", PUSH_CALLS)
def test_a_producer_of_a_topic_cannot_use_the_staged_push_of_another_role(
    limited: Limited, call: str, opened: str
) -> None:
    """The driver of a stream opens no stage: its executors do."""
    theirs, producer = limited("producer", topics=["invoices"]), limited("producer")
    stage = run(theirs, "SELECT taskq.open_push()")[0][0] if opened == "by the driver" else uuid4()
    theirs.conn.execute(
        "INSERT INTO taskq.staged_task (stage, part, attempt, place, identifier) VALUES (%s, 0, 1, 0, 'a')", (stage,)
    )
    run(theirs, "SELECT taskq.check_push(%s)", stage)
    with pytest.raises(Denied, match="opened by another role"):
        producer.conn.execute(PUSH_CALLS[call].encode(), (stage,))
    push = "SELECT taskq.push_staged(%s, 'invoices', 'APPEND', '{0}', '{1}', '{1}')"
    assert run(theirs, push, stage) == [(1,)]
    assert run(theirs, push, stage) == [(1,)]
    with pytest.raises(Denied, match="opened by another role"):
        producer.conn.execute(PUSH_CALLS[call].encode(), (stage,))
    assert run(theirs, "SELECT taskq.abandon_push(%s)", stage) == [(1,)]


@pytest.mark.parametrize("follow_up", ["task", "junction"])
def test_follow_ups_of_a_decision_reach_no_other_topic(queue: TaskQueue, limited: Limited, follow_up: str) -> None:
    worker, before = limited("consumer", "producer"), contents(queue)
    mine = worker.register("mine")
    [task] = worker.poll("orders", mine)
    [(stage,)] = run(worker, "SELECT taskq.open_stage(%s, %s)", mine.name, mine.fence)
    worker.conn.execute(
        "INSERT INTO taskq.staged (stage, part, attempt, sequence, result) VALUES (%s, 0, 1, %s, 3)",
        (stage, task.sequence),
    )
    if follow_up == "task":
        worker.conn.execute(
            "INSERT INTO taskq.staged_task (stage, part, attempt, place, parent, topic, identifier)"
            " VALUES (%s, 0, 1, 0, %s, 'invoices', 'secret')",
            (stage, task.sequence),
        )
    else:
        worker.conn.execute(
            "INSERT INTO taskq.staged_junction (stage, part, attempt, parent, topic, groups, junction)"
            " VALUES (%s, 0, 1, %s, 'invoices', '[[\"group\"]]', 'SINGULAR')",
            (stage, task.sequence),
        )
    with pytest.raises(Denied, match="topic 'invoices'"):
        run(worker, "SELECT taskq.complete_staged(%s, %s, %s, '{0}', '{1}', '{1}')", mine.name, mine.fence, stage)
    assert contents(queue) == before
    assert [held.sequence for held in worker.held(mine)] == [task.sequence]


READS: dict[str, Callable[[TaskQueue, str], object]] = {
    "task": lambda queue, topic: queue.task(topic, 2),
    "page": lambda queue, topic: queue.page(topic),
    "latest": lambda queue, topic: queue.latest(topic, ["secret"]),
    "count": lambda queue, topic: queue.count(topic),
    "explain": lambda queue, topic: queue.explain(topic, 2),
    "timeline": lambda queue, topic: queue.timeline(topic, 2),
    "error_groups": lambda queue, topic: queue.error_groups(topic),
    "statistics": lambda queue, topic: queue.statistics(LEASE, topic),
    "events": lambda queue, topic: queue.events(topic, None, 10),
    "ready": lambda queue, topic: queue.ready(topic),
    "newest": lambda queue, topic: run(queue, "SELECT * FROM taskq.newest(%s)", topic),
    "task_slice": lambda queue, topic: run(
        queue, "SELECT * FROM taskq.task_slice(%s, 0, 99, NULL, NULL, NULL, NULL, true)", topic
    ),
}


@pytest.mark.parametrize("verb", READS)
def test_a_reader_of_a_topic_reads_no_other(limited: Limited, verb: str) -> None:
    reader = limited("reader")
    READS[verb](reader, "orders")
    for topic in ("invoices", "unknown"):
        with pytest.raises(Denied, match=f"may not read topic '{topic}'"):
            READS[verb](reader, topic)


def test_a_reader_of_a_topic_gets_no_figures_and_no_view_of_all_topics(limited: Limited) -> None:
    reader = limited("reader")
    assert reader.topics() == ["orders"]
    for call in (reader.count, reader.results, reader.health, reader.audit_trail, lambda: reader.statistics(LEASE)):
        with pytest.raises(Denied):
            call()
    for view in ("tasks", "topic_summaries", "task_info"):
        with pytest.raises(Denied):
            run(reader, f"SELECT * FROM taskq.{view}")


def test_a_reader_of_a_topic_sees_no_owner_of_others_although_no_consumer_is_limited(
    queue: TaskQueue, limited: Limited
) -> None:
    queue.register("theirs")
    reader, consumer = limited("reader"), limited()
    grant(queue, name_of(consumer), "consumer")
    assert reader.owners() == []
    assert reader.owner("theirs") is None
    assert [owner.name for owner in consumer.owners()] == ["theirs"]
    grant(queue, name_of(reader), "reader")
    assert [owner.name for owner in reader.owners()] == ["theirs"]


OWN_STAGE = "uses only a stage that its own role opened"
OWN_OWNER = "uses only an owner that its own role registered"
NO_TASK = "reads no task and no topic"
ENDS_DUE = "changes only what is due by the rules of the owner of the schema, whichever role calls it"
WITHOUT_TOPIC = {
    "abandon_push": OWN_STAGE,
    "abandon_stage": OWN_STAGE,
    "check_push": OWN_STAGE,
    "check_stage": OWN_STAGE,
    "complete": OWN_OWNER,
    "complete_staged": OWN_STAGE,
    "completed_in_stage": OWN_STAGE,
    "count_staged": OWN_STAGE,
    "defer_held_tasks": OWN_OWNER,
    "finish_stage": OWN_STAGE,
    "format_duration": NO_TASK,
    "draw_fence": OWN_OWNER,
    "heartbeat": OWN_OWNER,
    "is_worker_active": NO_TASK,
    "maintain": ENDS_DUE,
    "open_push": "opens a stage without tasks",
    "open_stage": OWN_OWNER,
    "prune_stages": ENDS_DUE,
    "register": OWN_OWNER,
    "release_tasks": OWN_OWNER,
    "state_name": NO_TASK,
    "take_over": OWN_OWNER,
}
"""Functions for limited roles that name no topic, and why they are safe."""

OF_BOTH = "'{orders, invoices, unknown}', '{9, 9, 9}', '{NONE, NONE, NONE}', '{f, f, f}', '{invoices}', '{secret}'"
NO_WAIT = "'{}', '{}', '{}', '{}', '{}', '{}'"
# A call that names tasks, a drain or an owner of the topic invoices, and its answer for a role limited to orders.
TELLING: dict[str, tuple[str, list[tuple[Any, ...]]]] = {
    "browse_topics": ("SELECT topic, ready FROM taskq.browse_topics(NULL, false, NULL, 9, 9)", [("orders", 1)]),
    "end_drain": ("SELECT taskq.end_drain('theirs', NULL, '{}')", [(False,)]),
    "find_drain": ("SELECT * FROM taskq.find_drain('theirs')", []),
    "owner": ("SELECT name FROM taskq.owner('theirs')", []),
    "owners": ("SELECT name FROM taskq.owners('1 hour')", []),
    "ready_many": (
        "SELECT * FROM taskq.ready_many('{orders, invoices, unknown}', '{9, 9, 9}')",
        [(1, 1), (2, None), (3, None)],
    ),
    "release": ("SELECT taskq.release('theirs', 1)", [(0,)]),
    "topic_status": (
        "SELECT position, ready FROM taskq.topic_status('{orders, invoices, unknown}', '{NONE, NONE, NONE}', 9)",
        [(1, 1)],
    ),
    "topics": ("SELECT * FROM taskq.topics()", [("orders",)]),
    "watch": (f"SELECT number FROM taskq.watch({OF_BOTH}, {NO_WAIT})", [(1,), (-1,), (-1,), (-1,)]),
    "watch_tasks": (f"SELECT number FROM taskq.watch_tasks({OF_BOTH})", [(1,), (-1,), (-1,), (-1,)]),
}

FUNCTIONS = """SELECT p.proname, p.oid::regprocedure::text, p.proargnames[:p.pronargs],
           p.proargtypes::oid[]::regtype[]::text[]
    FROM pg_proc p JOIN taskq.privileges r ON r.function = p.proname
    WHERE p.pronamespace = 'taskq'::regnamespace AND r.by_topic"""


def calls(queue: TaskQueue, role: TaskQueue, kind: str, topic: str) -> dict[str, str]:
    """A call of each function with a topic that a limited role of a kind may call, for an owner of this role."""
    given = {
        "p_owner": "'mine'",
        "p_fence": str(role.register("mine").fence) if kind == "consumer" else "0",
        **dict.fromkeys(("p_topic", "topic"), topic),
        "p_condition": "'NONE'",
        "p_order": "'FIRST_IN_FIRST_OUT'",
        "p_junction": "'SINGULAR'",
    }
    made = {}
    for name, function, names, types in run(queue, FUNCTIONS + " AND r.kind = %s", kind):
        if {"p_topic", "topic"} & set(names or ()):
            values = (given.get(arg, "NULL") + f"::{of}" for arg, of in zip(names, types, strict=True))
            made[function] = f"SELECT * FROM taskq.{name}({', '.join(values)})"
    return made


def answer(role: TaskQueue, call: str) -> object:
    """The rows of a call, or its error. Nothing that the call does remains."""
    try:
        with role.conn.transaction(force_rollback=True):
            return run(role, call)
    except (psycopg.Error, TaskQueueError) as error:
        return error


@pytest.mark.parametrize("topic", ["invoices", "unknown", None])
@pytest.mark.parametrize("kind", ["producer", "consumer", "reader"])
def test_every_function_for_limited_roles_refuses_another_topic(
    queue: TaskQueue, limited: Limited, kind: str, topic: str | None
) -> None:
    """A function that is added later and does not check the topic fails here. NULL stands for every topic."""
    role = limited(kind)
    made = calls(queue, role, kind, "NULL" if topic is None else f"'{topic}'")
    found = {function: answer(role, call) for function, call in made.items()}
    reached = {function.split("(")[0]: got for function, got in found.items() if not isinstance(got, Denied)}
    reached.pop("notify", None)  # any role can send a notification
    reached.pop("push_staged", None)  # pushes nothing here, as it names no stage; tested above
    if kind == "consumer":
        assert reached.pop("held") == []  # the owner of the role holds no such task
    if kind == "consumer" and topic is None:  # all topics of the tasks that the owner of the role holds
        assert isinstance(reached.pop("expire"), list)  # changes only what is due, as maintain() does
        reached.pop("held_bounds")
        assert reached.pop("held_slice") == []
    assert reached == {}


@pytest.mark.parametrize("kind", ["producer", "consumer", "reader"])
def test_every_function_for_limited_roles_takes_a_topic_of_the_role(
    queue: TaskQueue, limited: Limited, kind: str
) -> None:
    role = limited(kind)
    found = {function: answer(role, call) for function, call in calls(queue, role, kind, "'orders'").items()}
    assert len(found) > 5
    assert {function: str(got) for function, got in found.items() if isinstance(got, Denied)} == {}


def test_each_function_for_limited_roles_names_a_topic_or_has_a_reason_to_need_none(queue: TaskQueue) -> None:
    found = run(queue, FUNCTIONS)
    assert {name for name, _, names, _ in found if not {"p_topic", "topic"} & set(names or ())} == {
        *WITHOUT_TOPIC,
        *TELLING,
    }


@pytest.mark.parametrize("kind", ["producer", "consumer", "reader"])
def test_a_function_without_a_topic_tells_a_limited_role_nothing_of_another_topic(
    queue: TaskQueue, limited: Limited, kind: str
) -> None:
    queue.begin_drain("theirs", "invoices")
    queue.push("invoices", [NewTask("held", priority=9)])
    theirs = queue.register("theirs")
    assert (theirs.fence, len(queue.poll("invoices", theirs))) == (1, 1)
    role, before = limited(kind), contents(queue)
    allowed = run(queue, "SELECT function FROM taskq.privileges WHERE by_topic AND kind = %s", kind)
    told = {name: TELLING[name] for (name,) in allowed if name in TELLING}
    assert {name: answer(role, call) for name, (call, _) in told.items()} == {
        name: rows for name, (_, rows) in told.items()
    }
    assert {name for name, (call, rows) in told.items() if answer(queue, call) == rows} == set()  # it would tell more
    assert queue.drain_report("theirs") is not None
    assert contents(queue) == before


def test_a_role_has_the_access_of_the_roles_that_it_is_a_member_of(queue: TaskQueue, limited: Limited) -> None:
    member, group = limited("producer"), limited("producer", topics=["invoices"])
    statement = sql.SQL("GRANT {} TO {}")
    queue.conn.execute(statement.format(sql.Identifier(name_of(group)), sql.Identifier(name_of(member))))
    member.push("orders", ["a"])
    member.push("invoices", ["a"])
    queue.conn.execute(
        sql.SQL("REVOKE {} FROM {}").format(sql.Identifier(name_of(group)), sql.Identifier(name_of(member)))
    )
    with pytest.raises(Denied):
        member.push("invoices", ["a"])


def test_a_pooled_connection_acts_with_the_access_of_the_role_that_it_sets(queue: TaskQueue, limited: Limited) -> None:
    pool, shop, billing = limited(), limited("producer"), limited("producer", topics=["invoices"])
    for role in (shop, billing):
        queue.conn.execute(
            sql.SQL("GRANT {} TO {}").format(sql.Identifier(name_of(role)), sql.Identifier(name_of(pool)))
        )
    pool.conn.execute(sql.SQL("SET ROLE {}").format(sql.Identifier(name_of(shop))))
    pool.push("orders", ["a"])
    with pytest.raises(Denied, match=name_of(shop)):
        pool.push("invoices", ["a"])
    pool.conn.execute(sql.SQL("SET ROLE {}").format(sql.Identifier(name_of(billing))))
    pool.push("invoices", ["a"])
    with pytest.raises(Denied):
        pool.push("orders", ["a"])


def test_an_administrator_is_limited_only_while_it_sets_a_limited_role(queue: TaskQueue, limited: Limited) -> None:
    role = sql.Identifier(name_of(limited("producer")))
    queue.push("invoices", ["a"], Insertion.DELETE)
    queue.conn.execute(sql.SQL("SET ROLE {}").format(role))
    with pytest.raises(Denied):
        queue.push("invoices", ["a"])
    queue.conn.execute("RESET ROLE")
    queue.push("invoices", ["a"], Insertion.DELETE)


def test_a_role_without_access_gains_none_through_a_function_of_a_limited_role(
    queue: TaskQueue, limited: Limited
) -> None:
    owner, caller = limited(), limited()
    grant(queue, name_of(owner), "producer")
    queue.conn.execute("CREATE SCHEMA shop; GRANT ALL ON SCHEMA shop TO PUBLIC")
    owner.conn.execute(
        "CREATE FUNCTION shop.order(topic text) RETURNS bigint[] LANGUAGE sql SECURITY DEFINER"
        " AS $$ SELECT taskq.push(topic, 'APPEND', ARRAY['a']) $$"
    )
    call = "SELECT shop.order('invoices')"
    run(caller, call)  # no role is limited: the rights of the function's owner decide
    queue.conn.execute("SELECT taskq.revoke_access(%s)", (name_of(owner),))
    grant(queue, name_of(owner), "producer", ["orders"])
    for role in (owner, caller):
        with pytest.raises(Denied, match="may not push to topic 'invoices'"):
            run(role, call)


def test_limits_outlive_an_upgrade_and_end_with_a_revocation(queue: TaskQueue, own_dsn: str, limited: Limited) -> None:
    producer = limited("producer", may_delete=True)
    with connect(own_dsn) as conn:
        pretend_release(conn)
        install(conn)
    producer.push("orders", ["order"], Insertion.DELETE)
    with pytest.raises(Denied):
        producer.push("invoices", ["a"])
    grant(queue, name_of(producer), "producer", ["invoices"])
    queue.conn.execute("SELECT taskq.revoke_access(%s, 'producer', '{orders}')", (name_of(producer),))
    producer.push("invoices", ["a"])
    with pytest.raises(Denied, match="may not push to topic 'orders'"):
        producer.push("orders", ["a"])
    queue.conn.execute("SELECT taskq.revoke_access(%s)", (name_of(producer),))
    with pytest.raises(Denied):
        producer.push("invoices", ["a"])


def test_a_limit_is_never_ignored_and_a_grant_for_every_topic_lifts_it(queue: TaskQueue, limited: Limited) -> None:
    producer = limited("producer")
    grant(queue, name_of(producer), "producer")
    producer.push("invoices", ["a"])
    with pytest.raises(
        psycopg.Error, match=r"has access 'producer' to every topic; to limit it, call taskq\.revoke_access"
    ):
        grant(queue, name_of(producer), "producer", ["orders"])
    queue.conn.execute("SELECT taskq.revoke_access(%s, 'producer')", (name_of(producer),))
    grant(queue, name_of(producer), "producer", ["orders"])
    with pytest.raises(Denied):
        producer.push("invoices", ["a"])


@pytest.mark.parametrize(
    ("kind", "topics", "reason"),
    [
        ("operator", ["orders"], "operator cannot be limited to topics"),
        ("producer", [], "at least one topic"),
        ("producer", ["orders", None], "each has a name"),
        ("producer", [""], "each has a name"),
    ],
)
def test_an_invalid_limit_is_refused(
    queue: TaskQueue, limited: Limited, kind: str, topics: list[str], reason: str
) -> None:
    with pytest.raises(psycopg.Error, match=reason):
        grant(queue, name_of(limited()), kind, topics)


def test_a_limit_holds_for_a_topic_that_is_created_later(queue: TaskQueue, limited: Limited) -> None:
    producer = limited("producer", topics=["returns"])
    with pytest.raises(UnknownTopic):
        producer.push("returns", ["a"])
    queue.create_topic("returns")
    producer.push("returns", ["a"])
    assert queue.count("returns")["returns"][State.READY].count == 1


def recreate(queue: TaskQueue, role: TaskQueue) -> TaskQueue:
    """Drop the role of a session as the documentation says, create one of the same name, and log in as that role."""
    name, password = sql.Identifier(name_of(role)), uuid4().hex
    queue.conn.execute(sql.SQL("DROP OWNED BY {0}; DROP ROLE {0}").format(name))
    queue.conn.execute(sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}").format(name, sql.Literal(password)))
    return TaskQueue(
        connect(make_conninfo(queue.conn.info.dsn, user=name_of(role), password=password), autocommit=True)
    )


def kinds(queue: TaskQueue, role: TaskQueue) -> list[tuple[Any, ...]]:
    """The kinds of access whose functions a role may call."""
    return run(
        queue,
        """SELECT kind FROM (VALUES ('producer', 'taskq.open_push()'), ('consumer', 'taskq.prune_stages()'),
               ('reader', 'taskq.audit_trail(text, bigint, int, text)'), ('operator', 'taskq.forget_worker(text)'))
               AS f (kind, function)
           WHERE has_function_privilege(%s, to_regprocedure(function), 'EXECUTE')""",
        name_of(role),
    )


@pytest.mark.parametrize("change", ["grant", "revoke", "upgrade"])
def test_a_new_role_does_not_get_the_access_of_a_dropped_role_of_its_name(
    queue: TaskQueue, own_dsn: str, limited: Limited, change: str
) -> None:
    old = limited()
    for kind in ("operator", "consumer"):
        grant(queue, name_of(old), kind)
    new = recreate(queue, old)
    if change == "grant":
        grant(queue, name_of(old), "producer")
    elif change == "revoke":
        queue.conn.execute("SELECT taskq.revoke_access(%s, 'consumer')", (name_of(old),))
    else:
        with connect(own_dsn) as conn:
            pretend_release(conn)
            install(conn)
    assert kinds(queue, old) == ([("producer",)] if change == "grant" else [])
    new.conn.close()


def test_a_new_role_does_not_get_the_topics_of_a_dropped_role_of_its_name(queue: TaskQueue, limited: Limited) -> None:
    old, group = limited("producer", topics=["invoices"]), limited("producer", topics=["orders"])
    new = recreate(queue, old)
    queue.conn.execute(sql.SQL("GRANT {} TO {}").format(sql.Identifier(name_of(group)), sql.Identifier(name_of(old))))
    new.push("orders", ["a"])  # as a member of the group
    with pytest.raises(Denied):
        new.push("invoices", ["a"])
    grant(queue, name_of(old), "producer", ["orders"])
    with pytest.raises(Denied):
        new.push("invoices", ["a"])
    new.conn.close()
