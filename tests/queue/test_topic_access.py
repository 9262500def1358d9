"""Roles that are limited to topics: their rights there. No call reaches another topic."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg import sql

from airflow_provider_taskq.queue import (
    Insertion,
    InvalidTask,
    LeaseLost,
    NewTask,
    NotHeld,
    Owner,
    Result,
    State,
    Task,
    TaskQueue,
    TaskQueueError,
    UnknownTopic,
    install,
)
from airflow_provider_taskq.queue.errors import translate_errors
from tests.internals import pretend_release

pytestmark = pytest.mark.promise("A role that is limited to topics reaches no other topic")

Answer = TypeVar("Answer")
Limited = Callable[..., "Role"]
Denied = psycopg.errors.InsufficientPrivilege

LEASE = timedelta(minutes=5)


@pytest.fixture
def queue(queue: TaskQueue) -> Iterator[TaskQueue]:
    """The queue as its owner, in a transaction that is undone: with it go the roles that a test makes.

    The topic orders has a READY task, invoices a READY, a SUSPENDED and a FAILED one.
    """
    with queue.conn.transaction(force_rollback=True):
        queue.create_topic("orders")
        queue.create_topic("invoices")
        queue.push("orders", ["order"])
        queue.push("invoices", [NewTask("secret", {"total": 12}), NewTask("group", suspended=True), NewTask("failed")])
        yield queue


@dataclass(frozen=True, slots=True)
class Role:
    """A role that logs in for each of its calls. What a call did that fails is undone."""

    queue: TaskQueue
    name: str

    def does(self, call: Callable[[TaskQueue], Answer], *, set_role: str | None = None) -> Answer:
        """Makes a call as this role, or as the role that it sets."""
        conn = self.queue.conn
        with conn.transaction():
            conn.execute(sql.SQL("SET LOCAL SESSION AUTHORIZATION {}").format(sql.Identifier(self.name)))
            if set_role:
                conn.execute(sql.SQL("SET LOCAL ROLE {}").format(sql.Identifier(set_role)))
            answer = call(self.queue)
            conn.execute("RESET ROLE; RESET SESSION AUTHORIZATION")
        return answer

    def pushes(self, topic: str, insertion: Insertion = Insertion.APPEND, **how: str) -> None:
        """Pushes a task of the identifier `order`."""
        self.does(lambda queue: queue.push(topic, ["order"], insertion), **how)

    def may_not_push(self, topic: str, insertion: Insertion = Insertion.APPEND, **how: str) -> None:
        """Checks that a push is refused with the name of the topic."""
        with pytest.raises(Denied, match=f"may not push .*to topic '{topic}'"):
            self.pushes(topic, insertion, **how)

    def runs(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        """The rows of a statement."""
        return self.does(lambda queue: run(queue, statement, *values))

    def is_granted(self, kind: str, topics: list[str] | None = None) -> None:
        """Gets access from the owner of the schema."""
        self.queue.conn.execute("SELECT taskq.grant_access(%s, %s, %s::text[])", (self.name, kind, topics))

    def is_revoked(self, *kind_and_topics: object) -> None:
        """Loses access, all of it if no kind is given."""
        values = (self.name, *kind_and_topics)
        self.queue.conn.execute(f"SELECT taskq.revoke_access({', '.join(['%s'] * len(values))})".encode(), values)

    def joins(self, group: "Role") -> None:
        """Becomes a member of another role."""
        names = (sql.Identifier(group.name), sql.Identifier(self.name))
        self.queue.conn.execute(sql.SQL("GRANT {} TO {}").format(*names))

    def is_recreated(self) -> None:
        """Is dropped as the documentation says, and created again under its name."""
        name = sql.Identifier(self.name)
        self.queue.conn.execute(sql.SQL("DROP OWNED BY {0}; DROP ROLE {0}; CREATE ROLE {0}").format(name))


@pytest.fixture
def limited(queue: TaskQueue) -> Limited:
    """Makes a new role that has these kinds of access to `topics`."""

    def limited(*kinds: str, topics: list[str] | None = None) -> Role:
        role = Role(queue, f"taskq_limited_{uuid4().hex[:8]}")
        queue.conn.execute(sql.SQL("CREATE ROLE {}").format(sql.Identifier(role.name)))
        for kind in kinds:
            role.is_granted(kind, topics or ["orders"])
        return role

    return limited


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


def push_staged(queue: TaskQueue, topic: str, named: str | None, insertion: str = "APPEND") -> None:
    """Pushes a task as Spark does, to one topic or to the topic that it names."""
    [(stage,)] = run(queue, "SELECT taskq.open_stage()")
    queue.conn.execute(
        "INSERT INTO taskq.staged_task (stage, part, attempt, place, topic, identifier) VALUES (%s, 0, 1, 0, %s, 'a')",
        (stage, topic),
    )
    run(queue, "SELECT taskq.commit_stage(%s, '{0}', '{1}', '{1}', NULL, NULL, %s, %s)", stage, named, insertion)


@pytest.mark.parametrize("by_task", [False, True], ids=["to one topic", "to the topics of the tasks"])
def test_a_producer_of_a_topic_pushes_to_it_and_to_no_other(queue: TaskQueue, limited: Limited, by_task: bool) -> None:
    """By a stage. The other ways to push name their topic, as all verbs of tests/queue/test_access.py."""
    producer, before = limited("producer"), contents(queue)
    producer.does(lambda queue: push_staged(queue, "orders", None if by_task else "orders"))
    for topic in ("invoices", "unknown"):  # the error does not tell whether a topic exists
        with pytest.raises(Denied, match=f"may not push to topic '{topic}'"):
            producer.does(partial(push_staged, topic=topic, named=None if by_task else topic))
    assert contents(queue) == before


def test_a_producer_pushes_with_delete_only_if_it_may_push_to_every_topic(queue: TaskQueue, limited: Limited) -> None:
    producer = limited("producer")
    producer.may_not_push("orders", Insertion.DELETE)
    with pytest.raises(Denied, match="may not push with DELETE to topic 'orders'"):
        producer.does(lambda queue: push_staged(queue, "orders", None, "DELETE"))
    producer.is_granted("producer")
    producer.pushes("orders", Insertion.DELETE)
    assert [task.identifier for task in queue.page("orders")] == ["order"]


def test_a_dependency_on_another_topic_needs_some_access_to_it(limited: Limited) -> None:
    producer = limited("producer")

    def push(topic: str, identifier: str) -> None:
        producer.does(lambda queue: queue.push("orders", [NewTask("next", depends_on=[(topic, identifier)])]))

    for identifier in ("secret", "no such task"):  # else the answer would tell which identifiers exist
        with pytest.raises(Denied, match="may not read topic 'invoices'"):
            push("invoices", identifier)
    push("orders", "order")
    producer.is_granted("reader", ["invoices"])
    push("invoices", "secret")
    with pytest.raises(InvalidTask):
        push("invoices", "no such task")


def hold(queue: TaskQueue) -> tuple[Owner, Task]:
    """An owner of another role, and the task of invoices that it holds."""
    theirs = queue.register("theirs")
    [task] = queue.poll("invoices", theirs)
    return theirs, task


def open_stage(queue: TaskQueue, owner: Owner) -> UUID:
    """A stage for decisions of an owner."""
    [(stage,)] = run(queue, "SELECT taskq.open_stage(%s, %s)", owner.name, owner.fence)
    assert isinstance(stage, UUID)
    return stage


def stage_decision(queue: TaskQueue, stage: UUID, task: Task, result: Result = Result.SUCCESS) -> None:
    """Stages a decision as a Spark executor does."""
    queue.conn.execute(
        "INSERT INTO taskq.staged (stage, part, attempt, sequence, result) VALUES (%s, 0, 1, %s, %s)",
        (stage, task.sequence, result.value),
    )


COMMIT = "SELECT taskq.commit_stage(%s, '{0}', '{1}', '{1}', %s, %s)"


def test_a_consumer_of_a_topic_cannot_use_the_owner_of_another_role(queue: TaskQueue, limited: Limited) -> None:
    theirs, task = hold(queue)
    consumer, before = limited("consumer"), contents(queue)
    key = (theirs.name, theirs.fence)
    assert consumer.does(lambda queue: queue.held(theirs)) == []
    for call in (
        lambda queue: queue.heartbeat(theirs),
        lambda queue: queue.complete(theirs, {task.sequence: Result.FAILURE}),
        lambda queue: queue.exchange(theirs, {task.sequence: Result.FAILURE}, "orders"),
        lambda queue: queue.poll("orders", theirs),
        lambda queue: queue.take_over("theirs", theirs.fence, LEASE),
        lambda queue: run(queue, "SELECT * FROM taskq.held_bounds(%s, %s, NULL, 4)", *key),
        lambda queue: run(queue, "SELECT * FROM taskq.held_slice(%s, %s, NULL, 0, 99)", *key),
        lambda queue: run(queue, "SELECT taskq.open_stage(%s, %s)", *key),
        lambda queue: run(queue, "SELECT taskq.check_stage(%s, %s, %s)", uuid4(), *key),
        lambda queue: run(queue, "SELECT taskq.commit_stage(%s, '{}', '{}', '{}', %s, %s)", uuid4(), *key),
        lambda queue: run(queue, "SELECT taskq.defer_held_tasks(%s, %s)", *key),
    ):
        with pytest.raises(LeaseLost, match=f"another role than {consumer.name}[.] .* ALTER ROLE {consumer.name} SET"):
            consumer.does(call)
    with pytest.raises(Denied, match=r"owner 'theirs' was registered by another role .* SET role"):
        consumer.does(lambda queue: queue.register("theirs"))
    assert contents(queue) == before
    queue.complete(theirs, {task.sequence: Result.SUCCESS})


def test_login_roles_that_rotate_use_the_owners_of_their_common_role(limited: Limited) -> None:
    group, before, after = limited("consumer"), limited(), limited()
    for login in (before, after):
        login.joins(group)
    owner = before.does(lambda queue: queue.register("program", LEASE), set_role=group.name)
    [task] = before.does(lambda queue: queue.poll("orders", owner), set_role=group.name)
    with pytest.raises(LeaseLost, match="belongs to another role"):
        after.does(lambda queue: queue.heartbeat(owner))
    after.does(lambda queue: queue.complete(owner, {task: Result.SUCCESS}), set_role=group.name)


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
    theirs, task = hold(queue)
    assert limited("consumer").runs("SELECT taskq.expire(%s::interval)", grace) == [(0,)]
    assert [held.sequence for held in queue.held(theirs)] == [task.sequence]


def test_a_consumer_of_a_topic_cannot_complete_by_the_sequence_of_another_topic(
    queue: TaskQueue, limited: Limited
) -> None:
    _, task = hold(queue)
    consumer, before = limited("consumer"), contents(queue)
    mine = consumer.does(lambda queue: queue.register("mine"))
    with pytest.raises(NotHeld):
        consumer.does(lambda queue: queue.complete(mine, {task.sequence: Result.FAILURE}))
    stage = consumer.does(lambda queue: open_stage(queue, mine))
    consumer.does(lambda queue: stage_decision(queue, stage, task, Result.FAILURE))
    with pytest.raises(NotHeld):
        consumer.runs(COMMIT, stage, mine.name, mine.fence)
    assert contents(queue) == before


STAGE_CALLS = {
    "count_staged": "SELECT taskq.count_staged(%(stage)s)",
    "close_stage": "SELECT * FROM taskq.close_stage(%(stage)s)",
    "check_stage": "SELECT taskq.check_stage(%(stage)s, %(owner)s, %(fence)s)",
    "commit_stage": "SELECT taskq.commit_stage(%(stage)s, '{}', '{}', '{}', %(owner)s, %(fence)s)",
}


@pytest.mark.parametrize("call", STAGE_CALLS)
def test_a_consumer_of_a_topic_cannot_use_the_stage_of_another_role(
    queue: TaskQueue, limited: Limited, call: str
) -> None:
    theirs, task = hold(queue)
    stage = open_stage(queue, theirs)
    stage_decision(queue, stage, task)
    consumer = limited("consumer")
    mine = consumer.does(lambda queue: queue.register("mine"))

    def is_refused() -> None:
        values = {"owner": mine.name, "fence": mine.fence, "stage": stage}
        with pytest.raises(Denied, match="opened by another role"):
            consumer.does(lambda queue: queue.conn.execute(STAGE_CALLS[call], values))

    is_refused()
    assert run(queue, "SELECT taskq.count_staged(%s)", stage) == [(1,)]
    assert run(queue, COMMIT, stage, theirs.name, theirs.fence) == [(1,)]
    is_refused()
    assert run(queue, "SELECT completed FROM taskq.close_stage(%s)", stage) == [(1,)]


def test_rows_that_another_role_adds_to_a_stage_fail_its_commit_and_change_nothing(
    queue: TaskQueue, limited: Limited
) -> None:
    theirs, task = hold(queue)
    stage = open_stage(queue, theirs)
    stage_decision(queue, stage, task)
    limited("consumer").does(lambda queue: stage_decision(queue, stage, task, Result.FAILURE))
    before = contents(queue)
    with pytest.raises(psycopg.Error) as error, queue.conn.transaction():
        queue.conn.execute(COMMIT, (stage, theirs.name, theirs.fence))
    assert error.value.sqlstate == "TQ007"
    assert contents(queue) == before


PUSH_CALLS = {
    "check_stage": "SELECT taskq.check_stage(%s)",
    "close_stage": "SELECT taskq.close_stage(%s)",
    "commit_stage": "SELECT taskq.commit_stage(%s, '{}', '{}', '{}', p_topic => 'orders')",
}


@pytest.mark.parametrize("opened", ["by the driver", "by an executor"])
@pytest.mark.parametrize("call", PUSH_CALLS)
def test_a_producer_of_a_topic_cannot_use_the_staged_push_of_another_role(
    limited: Limited, call: str, opened: str
) -> None:
    """The driver of a stream opens no stage: its executors do."""
    theirs, producer = limited("producer", topics=["invoices"]), limited("producer")
    stage = theirs.runs("SELECT taskq.open_stage()")[0][0] if opened == "by the driver" else uuid4()
    row = "INSERT INTO taskq.staged_task (stage, part, attempt, place, identifier) VALUES (%s, 0, 1, 0, 'a')"
    theirs.does(lambda queue: queue.conn.execute(row, (stage,)))
    theirs.runs("SELECT taskq.check_stage(%s)", stage)
    with pytest.raises(Denied, match="opened by another role"):
        producer.runs(PUSH_CALLS[call], stage)
    push = "SELECT taskq.commit_stage(%s, '{0}', '{1}', '{1}', p_topic => 'invoices')"
    assert theirs.runs(push, stage) == theirs.runs(push, stage) == [(1,)]
    with pytest.raises(Denied, match="opened by another role"):
        producer.runs(PUSH_CALLS[call], stage)
    assert theirs.runs("SELECT completed FROM taskq.close_stage(%s)", stage) == [(1,)]


FOLLOW_UPS = {
    "task": "INSERT INTO taskq.staged_task (stage, part, attempt, place, parent, topic, identifier)"
    " VALUES (%s, 0, 1, 0, %s, 'invoices', 'secret')",
    "junction": "INSERT INTO taskq.staged_task (stage, part, attempt, place, parent, topic, payload, junction)"
    " VALUES (%s, 0, 1, 0, %s, 'invoices', '[[\"group\"]]', 'SINGULAR')",
}


@pytest.mark.parametrize("follow_up", FOLLOW_UPS)
def test_follow_ups_of_a_decision_reach_no_other_topic(queue: TaskQueue, limited: Limited, follow_up: str) -> None:
    worker, before = limited("consumer", "producer"), contents(queue)
    mine = worker.does(lambda queue: queue.register("mine"))
    [task] = worker.does(lambda queue: queue.poll("orders", mine))
    stage = worker.does(lambda queue: open_stage(queue, mine))
    worker.does(lambda queue: stage_decision(queue, stage, task))
    worker.does(lambda queue: queue.conn.execute(FOLLOW_UPS[follow_up], (stage, task.sequence)))
    with pytest.raises(Denied, match="topic 'invoices'"):
        worker.runs(COMMIT, stage, mine.name, mine.fence)
    assert contents(queue) == before
    assert queue.held(mine) == [task]


def test_a_reader_of_a_topic_sees_no_owner_of_others_although_no_consumer_is_limited(
    queue: TaskQueue, limited: Limited
) -> None:
    queue.register("theirs")
    reader, consumer = limited("reader"), limited()
    consumer.is_granted("consumer")

    def seen(role: Role) -> list[str]:
        return [owner.name for owner in role.does(lambda queue: queue.owners())]

    assert seen(reader) == []
    assert reader.does(lambda queue: queue.owner("theirs")) is None
    assert seen(consumer) == ["theirs"]
    reader.is_granted("reader")
    assert seen(reader) == ["theirs"]


OWN_STAGE = "uses only a stage that its own role opened"
OWN_OWNER = "uses only an owner that its own role registered"
NO_TASK = "reads no task and no topic"
ENDS_DUE = "changes only what is due by the rules of the owner of the schema, whichever role calls it"
WITHOUT_TOPIC = {
    "check_stage": OWN_STAGE,
    "complete": OWN_OWNER,
    "close_stage": OWN_STAGE,
    "count_staged": OWN_STAGE,
    "defer_held_tasks": OWN_OWNER,
    "format_duration": NO_TASK,
    "draw_fence": OWN_OWNER,
    "heartbeat": OWN_OWNER,
    "is_worker_active": NO_TASK,
    "maintain": ENDS_DUE,
    "max_claim": OWN_OWNER,
    "open_stage": OWN_OWNER,
    "prune_stages": ENDS_DUE,
    "register": OWN_OWNER,
    "state_name": NO_TASK,
}
"""Functions for limited roles that name no topic, and why they are safe."""

OF_BOTH = "'{orders, invoices, unknown}', '{9, 9, 9}', '{NONE, NONE, NONE}', '{f, f, f}', '{invoices}', '{secret}'"
GROUP = "'{wait}', '{invoices}', '{SINGULAR}', '{1}', '{0}', '{group}'"
# A call that names tasks, a drain or an owner of the topic invoices, and its answer for a role limited to orders.
TELLING: dict[str, tuple[str, list[tuple[Any, ...]]]] = {
    "browse_topics": ("SELECT topic, ready FROM taskq.browse_topics(NULL, false, NULL, 9, 9)", [("orders", 1)]),
    "end_drain": ("SELECT taskq.end_drain('theirs', NULL, '{}')", [(False,)]),
    "find_drain": ("SELECT * FROM taskq.find_drain('theirs')", []),
    "owner": ("SELECT name FROM taskq.owner('theirs')", []),
    "owners": ("SELECT name FROM taskq.owners('1 hour')", []),
    "release": ("SELECT taskq.release('theirs', 1)", [(0,)]),
    "topic_status": (
        "SELECT position, ready FROM taskq.topic_status('{orders, invoices, unknown}', '{NONE, NONE, NONE}', 9)",
        [(1, 1)],
    ),
    "topics": ("SELECT * FROM taskq.topics()", [("orders",)]),
    "watch_groups": (f"SELECT number FROM taskq.watch_groups({GROUP})", [(-1,)]),
    "watch_tasks": (f"SELECT number FROM taskq.watch_tasks({OF_BOTH})", [(1,), (-1,), (-1,), (-1,)]),
}

FUNCTIONS = """SELECT p.proname, p.oid::regprocedure::text, p.proargnames[:p.pronargs],
           p.proargtypes::oid[]::regtype[]::text[], p.provariadic <> 0
    FROM pg_proc p JOIN taskq.privileges r ON r.function = p.proname
    WHERE p.pronamespace = 'taskq'::regnamespace AND r.by_topic"""


def calls(queue: TaskQueue, role: Role, kind: str, topic: str) -> dict[str, str]:
    """A call of each function with a topic that a limited role of a kind may call, for an owner of this role."""
    given = {
        "p_owner": "'mine'",
        "p_fence": str(role.does(lambda queue: queue.register("mine").fence)) if kind == "consumer" else "0",
        **dict.fromkeys(("p_topic", "topic"), topic),
        "p_condition": "'NONE'",
        "p_order": "'FIRST_IN_FIRST_OUT'",
        "p_junction": "'SINGULAR'",
    }
    made = {}
    for name, function, names, types, variadic in run(queue, FUNCTIONS + " AND r.kind = %s", kind):
        if {"p_topic", "topic"} & set(names or ()):
            values = [given.get(arg, "NULL") + f"::{of}" for arg, of in zip(names, types, strict=True)]
            values[-1] = "VARIADIC " * variadic + values[-1]
            made[function.removeprefix("taskq.")] = f"SELECT * FROM taskq.{name}({', '.join(values)})"
    return made


def answer(queue: TaskQueue, call: str, role: Role | None = None) -> object:
    """The rows of a call, or its error. Nothing that the call does remains."""
    try:
        with queue.conn.transaction(force_rollback=True):
            return role.runs(call) if role else run(queue, call)
    except (psycopg.Error, TaskQueueError) as error:
        return error


@pytest.mark.parametrize("topic", ["orders", "invoices", "unknown", None])
@pytest.mark.parametrize("kind", ["producer", "consumer", "reader"])
def test_every_function_for_limited_roles_refuses_another_topic(
    queue: TaskQueue, limited: Limited, kind: str, topic: str | None
) -> None:
    """A function that is added later and does not check the topic fails here. NULL stands for every topic."""
    role = limited(kind)
    made = calls(queue, role, kind, "NULL" if topic is None else f"'{topic}'")
    found = {function: answer(queue, call, role) for function, call in made.items()}
    reached = {function.split("(")[0]: got for function, got in found.items() if not isinstance(got, Denied)}
    if topic == "orders":
        assert reached.keys() == {function.split("(")[0] for function in made}
        assert len(made) > 5
        return
    reached.pop("notify", None)  # any role can send a notification
    reached.pop("commit_stage", None)  # pushes nothing here, as it names no stage; tested above
    if kind == "consumer":
        assert reached.pop("held") == []  # the owner of the role holds no such task
    if kind == "consumer" and topic is None:  # all topics of the tasks that the owner of the role holds
        assert isinstance(reached.pop("expire"), list)  # changes only what is due, as maintain() does
        reached.pop("held_bounds")
        assert reached.pop("held_slice") == []
    assert reached == {}


def test_each_function_for_limited_roles_names_a_topic_or_has_a_reason_to_need_none(queue: TaskQueue) -> None:
    found = run(queue, FUNCTIONS)
    assert {name for name, _, names, *_ in found if not {"p_topic", "topic"} & set(names or ())} == {
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
    assert {name: answer(queue, call, role) for name, (call, _) in told.items()} == {
        name: rows for name, (_, rows) in told.items()
    }
    assert {name for name, (call, rows) in told.items() if answer(queue, call) == rows} == set()  # it would tell more
    assert queue.drain_report("theirs") is not None
    assert contents(queue) == before


def test_a_role_has_the_access_of_the_roles_that_it_is_a_member_of(queue: TaskQueue, limited: Limited) -> None:
    member, group = limited("producer"), limited("producer", topics=["invoices"])
    member.joins(group)
    member.pushes("orders")
    member.pushes("invoices")
    queue.conn.execute(sql.SQL("REVOKE {} FROM {}").format(sql.Identifier(group.name), sql.Identifier(member.name)))
    member.may_not_push("invoices")


def test_a_pooled_connection_and_an_administrator_act_with_the_access_of_the_role_that_they_set(
    queue: TaskQueue, limited: Limited
) -> None:
    pool, shop, billing = limited(), limited("producer"), limited("producer", topics=["invoices"])
    for role, own, other in ((shop, "orders", "invoices"), (billing, "invoices", "orders")):
        pool.joins(role)
        pool.pushes(own, set_role=role.name)
        pool.may_not_push(other, set_role=role.name)
    administrator = Role(queue, queue.conn.info.user)
    administrator.may_not_push("invoices", set_role=shop.name)
    administrator.pushes("invoices", Insertion.DELETE)


def test_a_role_without_access_gains_none_through_a_function_of_a_limited_role(
    queue: TaskQueue, limited: Limited
) -> None:
    owner, caller = limited(), limited()
    owner.is_granted("producer")
    queue.conn.execute("CREATE SCHEMA shop; GRANT ALL ON SCHEMA shop TO PUBLIC")
    function = """CREATE FUNCTION shop.order(topic text) RETURNS bigint[] LANGUAGE sql SECURITY DEFINER
                  AS $$ SELECT taskq.push(topic, 'APPEND', ARRAY['a']) $$"""
    owner.does(lambda queue: queue.conn.execute(function))
    caller.runs("SELECT shop.order('invoices')")  # no role is limited: the rights of the function's owner decide
    owner.is_revoked()
    owner.is_granted("producer", ["orders"])
    for role in (owner, caller):
        with pytest.raises(Denied, match="may not push to topic 'invoices'"):
            role.runs("SELECT shop.order('invoices')")


def upgrade(queue: TaskQueue) -> None:
    """Replaces all functions."""
    pretend_release(queue.conn)
    install(queue.conn)


def test_limits_outlive_an_upgrade_and_end_with_a_revocation(queue: TaskQueue, limited: Limited) -> None:
    producer = limited("producer")
    upgrade(queue)
    producer.pushes("orders")
    producer.may_not_push("invoices")
    producer.is_granted("producer", ["invoices"])
    producer.is_revoked("producer", ["orders"])
    producer.pushes("invoices")
    producer.may_not_push("orders")
    producer.is_revoked()
    with pytest.raises(Denied):
        producer.pushes("invoices")


def test_a_limit_is_never_ignored_and_a_grant_for_every_topic_lifts_it(limited: Limited) -> None:
    producer = limited("producer")
    producer.is_granted("producer")
    producer.pushes("invoices")
    producer.is_granted("producer", ["orders"])
    producer.pushes("orders")
    producer.may_not_push("invoices")


@pytest.mark.parametrize(
    ("kind", "topics", "reason"),
    [
        ("king", None, "king"),
        ("operator", ["orders"], "operator, which cannot be limited to topics"),
        ("producer", [], "at least one topic"),
        ("producer", ["orders", None], "is blank"),
        ("producer", [""], "is blank"),
    ],
)
def test_an_invalid_grant_is_refused(limited: Limited, kind: str, topics: list[str] | None, reason: str) -> None:
    with pytest.raises(psycopg.Error, match=reason):
        limited().is_granted(kind, topics)


def test_a_grant_to_an_unknown_role_is_refused_by_name(queue: TaskQueue) -> None:
    with pytest.raises(psycopg.Error, match='"unknown role" does not exist'):
        Role(queue, "unknown role").is_granted("reader")


def test_a_limit_holds_for_a_topic_that_is_created_later(queue: TaskQueue, limited: Limited) -> None:
    producer = limited("producer", topics=["returns"])
    with pytest.raises(UnknownTopic):
        producer.pushes("returns")
    queue.create_topic("returns")
    producer.pushes("returns")
    assert queue.count("returns")["returns"][State.READY].count == 1


@pytest.mark.parametrize("change", ["grant", "revoke", "upgrade"])
def test_a_new_role_does_not_get_the_access_of_a_dropped_role_of_its_name(
    queue: TaskQueue, limited: Limited, change: str
) -> None:
    role = limited()
    for kind in ("operator", "consumer"):
        role.is_granted(kind)
    role.is_recreated()
    if change == "grant":
        role.is_granted("producer")
    elif change == "revoke":
        role.is_revoked("consumer")
    else:
        upgrade(queue)
    query = """SELECT kind FROM (VALUES ('producer', 'taskq.first_pushed(text, bigint)'),
                   ('consumer', 'taskq.prune_stages()'), ('reader', 'taskq.audit_trail(text, bigint, int, text)'),
                   ('operator', 'taskq.forget_worker(text)')) AS f (kind, function)
               WHERE has_function_privilege(%s, to_regprocedure(function), 'EXECUTE')"""
    assert run(queue, query, role.name) == ([("producer",)] if change == "grant" else [])


def test_a_new_role_does_not_get_the_topics_of_a_dropped_role_of_its_name(limited: Limited) -> None:
    role, group = limited("producer", topics=["invoices"]), limited("producer", topics=["orders"])
    role.is_recreated()
    role.joins(group)
    role.pushes("orders")  # as a member of the group
    role.may_not_push("invoices")
    role.is_granted("producer", ["orders"])
    role.may_not_push("invoices")
