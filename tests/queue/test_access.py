"""Access: roles with a grant may call the functions of their kind, and nothing else."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql

from airflow_provider_taskq.queue import (
    Cursor,
    Owner,
    Result,
    State,
    TaskQueue,
    TaskQueueError,
    TopicPolicy,
    connect,
    install,
    uninstall,
)
from tests.internals import pretend_release

pytestmark = pytest.mark.promise("A role may call the functions of its kind, and no others")

KINDS = ["producer", "consumer", "reader", "operator"]
LEASE = timedelta(minutes=5)

As = Callable[[str], TaskQueue]


@pytest.fixture
def role(own_queue: TaskQueue) -> Iterator[str]:
    """A role without any rights."""
    name = f"taskq_user_{uuid4().hex[:8]}"
    own_queue.conn.execute(sql.SQL("CREATE ROLE {}").format(sql.Identifier(name)))
    yield name
    own_queue.conn.execute("RESET ROLE")
    own_queue.conn.execute(sql.SQL("DROP OWNED BY {}").format(sql.Identifier(name)))
    own_queue.conn.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(name)))


@pytest.fixture
def granted(own_queue: TaskQueue, role: str) -> As:
    """The queue as a role with this kind of access."""

    def granted(kind: str) -> TaskQueue:
        own_queue.conn.execute("SELECT taskq.grant_access(%s, %s)", (role, kind))
        own_queue.conn.execute(sql.SQL("SET ROLE {}").format(sql.Identifier(role)))
        return own_queue

    return granted


def may(call: Callable[[], object]) -> bool:
    """Whether a role may make that call, with any result."""
    try:
        call()
    except psycopg.errors.InsufficientPrivilege:
        return False
    except TaskQueueError:
        return True
    return True


def verbs(queue: TaskQueue) -> dict[str, Callable[[], object]]:
    """One call of each verb. No call changes the rows that another call needs."""
    owner = Owner("me", 1, LEASE, datetime.now(UTC), resumed=False)
    return {
        "push": lambda: queue.push("work", ["a"]),
        "push_stream": lambda: queue.push_stream("work", iter(["a"])),
        "offer": lambda: queue.offer("work", "offered"),
        "drop": lambda: queue.drop("work", "offered"),
        "install_ticks": lambda: queue.install_ticks("work", "daily", "hash", [(datetime.now(UTC), None)]),
        "uninstall_ticks": lambda: queue.uninstall_ticks("work", "daily", "hash"),
        "notify": lambda: queue.notify("work"),
        "topics": queue.topics,
        "policy": lambda: queue.policy("work"),
        "register": lambda: queue.register("someone", LEASE),
        "heartbeat": lambda: queue.heartbeat(owner),
        "poll": lambda: queue.poll("work", owner),
        "poll_batch": lambda: queue.poll_batch("work", owner),
        "complete": lambda: queue.complete(owner, {1: Result.SUCCESS}),
        "exchange": lambda: queue.exchange(owner, {1: Result.SUCCESS}, "work"),
        "claim": lambda: queue.claim("work", owner, 1),
        "held": lambda: queue.held(owner),
        "release": lambda: queue.release(owner),
        "owners": queue.owners,
        "expire": queue.expire,
        "maintain": queue.maintain,
        "lock": lambda: queue.lock("name", "me", LEASE),
        "unlock": lambda: queue.unlock("name", "me"),
        "junction": lambda: queue.junction("work", [["a"]]),
        "release_groups_once": lambda: queue.release_groups_once("a wait", "work", [["a"]]),
        "events": lambda: queue.events("work", None, 1),
        "progress": lambda: queue.progress("group", "work", 0),
        "advance": lambda: queue.advance("group", "work", 0, Cursor(0)),
        "ready": lambda: queue.ready("work"),
        "has_unclaimed": lambda: queue.has_unclaimed("work"),
        "task": lambda: queue.task("work", 1),
        "page": lambda: queue.page("work"),
        "latest": lambda: queue.latest("work", ["a"]),
        "count": queue.count,
        "results": queue.results,
        "resolve": lambda: queue.resolve(datetime.now(UTC)),
        "timeline": lambda: queue.timeline("work", 1),
        "explain": lambda: queue.explain("work", 1),
        "health": queue.health,
        "error_groups": lambda: queue.error_groups("work"),
        "audit_trail": queue.audit_trail,
        "create_topic": lambda: queue.create_topic("other"),
        "alter_topic": lambda: queue.alter_topic("work", TopicPolicy()),
        "pause_topic": lambda: queue.pause_topic("work"),
        "resume_topic": lambda: queue.resume_topic("work"),
        "revive": lambda: queue.revive("work", State.FAILED),
        "reassign": lambda: queue.reassign("work", Result.SUCCESS, state=State.FAILED),
        "pause_task": lambda: queue.pause_task("work", 1),
        "resume_task": lambda: queue.resume_task("work", 1),
        "run_now": lambda: queue.run_now("work", [1]),
        "set_priority": lambda: queue.set_priority("work", [1], 5),
        "cancel": lambda: queue.cancel("work", [1]),
        "purge": lambda: queue.purge("work"),
        "purge_all": lambda: queue.purge_all("work"),
        "purge_owners": lambda: queue.purge_owners(LEASE),
        "purge_group_releases": lambda: queue.purge_group_releases(LEASE),
        "record_action": lambda: queue.record_action("purge", "work", "all", 1),
        "drop_topic": lambda: queue.drop_topic("other"),
    }


ALLOWED = {
    "producer": {"push", "push_stream", "offer", "drop", "install_ticks", "notify", "topics", "policy"},
    "consumer": {
        "has_unclaimed",
        *("register", "heartbeat", "release", "owners", "held", "claim", "poll", "poll_batch", "ready", "complete"),
        *(
            "exchange",
            "expire",
            "maintain",
            "lock",
            "unlock",
            "junction",
            "release_groups_once",
            "notify",
            "task",
            "events",
            "progress",
        ),
        *("advance", "topics", "policy"),
    },
    "reader": {
        *("topics", "policy", "owners", "ready", "task", "page", "latest", "count", "results", "resolve", "events"),
        *("progress", "timeline", "explain", "health", "error_groups", "audit_trail"),
    },
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_role_may_call_the_functions_of_its_kind_and_no_others(granted: As, kind: str) -> None:
    calls = verbs(granted(kind))
    allowed = ALLOWED.get(kind, set(calls))
    assert {name for name, call in calls.items() if may(call)} == allowed


@pytest.mark.parametrize(
    ("kinds", "table", "allowed"),
    [
        (["consumer"], "staged", True),
        (["producer"], "staged", False),
        (["producer"], "staged_task", True),
        (["consumer"], "staged_task", False),
        (["consumer", "producer"], "staged_task", True),
        (["reader"], "staged_task", False),
    ],
)
def test_only_a_producer_stages_tasks_also_as_follow_ups_of_decisions(
    own_queue: TaskQueue, role: str, kinds: list[str], table: str, allowed: bool
) -> None:
    for kind in kinds:
        own_queue.conn.execute("SELECT taskq.grant_access(%s, %s)", (role, kind))
    row = own_queue.conn.execute(
        "SELECT has_table_privilege(%s, %s, 'INSERT'), has_table_privilege(%s, %s, 'SELECT')",
        (role, f"taskq.{table}", role, f"taskq.{table}"),
    ).fetchone()
    assert row == (allowed, False)


def test_a_role_without_a_grant_may_do_nothing(own_queue: TaskQueue, role: str) -> None:
    own_queue.conn.execute(sql.SQL("SET ROLE {}").format(sql.Identifier(role)))
    assert not any(may(call) for call in verbs(own_queue).values())


def test_functions_on_the_search_path_of_a_role_do_not_run_with_the_owners_rights(
    own_queue: TaskQueue, role: str
) -> None:
    conn = own_queue.conn
    conn.execute(sql.SQL("CREATE SCHEMA evil AUTHORIZATION {}").format(sql.Identifier(role)))
    conn.execute("SELECT taskq.grant_access(%s, 'producer')", (role,))
    conn.execute(sql.SQL("SET ROLE {}").format(sql.Identifier(role)))
    conn.execute(
        "CREATE FUNCTION evil.length(text) RETURNS int LANGUAGE plpgsql AS"
        " $$ BEGIN RAISE EXCEPTION 'ran as %', current_user; END $$"
    )
    conn.execute("SET search_path = evil, pg_catalog")
    with pytest.raises(psycopg.errors.RaiseException):
        conn.execute("SELECT length('a'::text)")
    assert len(own_queue.push("work", ["a"])) == 1
    conn.execute("RESET search_path")


def test_grants_outlive_an_upgrade(own_queue: TaskQueue, own_dsn: str, role: str) -> None:
    own_queue.conn.execute("SELECT taskq.grant_access(%s, 'producer')", (role,))
    with connect(own_dsn) as conn:
        pretend_release(conn)
        install(conn)
    own_queue.conn.execute(sql.SQL("SET ROLE {}").format(sql.Identifier(role)))
    assert len(own_queue.push("work", ["a"])) == 1


def test_access_can_be_revoked(own_queue: TaskQueue, granted: As, role: str) -> None:
    queue = granted("operator")
    queue.conn.execute("RESET ROLE")
    queue.conn.execute("SELECT taskq.revoke_access(%s)", (role,))
    queue.conn.execute(sql.SQL("SET ROLE {}").format(sql.Identifier(role)))
    assert not any(may(call) for call in verbs(own_queue).values())


@pytest.mark.parametrize(("unknown_role", "kind"), [("unknown role", "reader"), (None, "king")])
def test_an_unknown_role_or_kind_is_refused_by_name(
    own_queue: TaskQueue, role: str, unknown_role: str | None, kind: str
) -> None:
    with pytest.raises(psycopg.Error, match=unknown_role or kind):
        own_queue.conn.execute("SELECT taskq.grant_access(%s, %s)", (unknown_role or role, kind))


def test_a_schema_with_grants_can_be_uninstalled(own_queue: TaskQueue, own_dsn: str, role: str) -> None:
    own_queue.conn.execute("SELECT taskq.grant_access(%s, 'operator')", (role,))
    with connect(own_dsn) as conn:
        uninstall(conn)
        install(conn)
