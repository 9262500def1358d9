"""The audit: the client names the actor, the database knows the role, and no access changes a row."""

from collections.abc import Iterator

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from airflow_provider_taskq.queue import NewTask, Owner, Result, State, TaskQueue, TaskQueueError, connect
from tests.internals import private_rights
from tests.roles import logged_in

pytestmark = pytest.mark.promise("The audit names the actor and the database role of each action")


@pytest.fixture
def other(queue: TaskQueue, dsn: str) -> Iterator[str]:
    """The name of another operator."""
    with logged_in(queue.conn, dsn, "operator") as other:
        yield str(conninfo_to_dict(other)["user"])


@pytest.fixture
def operator(queue: TaskQueue, dsn: str) -> Iterator[TaskQueue]:
    """The queue on a connection that logged in as an operator."""
    with logged_in(queue.conn, dsn, "operator") as own, connect(own, autocommit=True) as conn:
        yield TaskQueue(conn)


def test_an_action_is_recorded_with_the_role_that_logged_in(queue: TaskQueue, operator: TaskQueue) -> None:
    with operator.conn.transaction():
        operator.set_actor("the director")
        operator.record_action("purge", "work", "everything", 7)
    (line,) = queue.audit_trail()
    assert (line.actor, line.role, line.action, line.count) == ("the director", operator.conn.info.user, "purge", 7)


@pytest.mark.parametrize("pretense", ["SET ROLE {}", "SET taskq.role = {}", "SET application_name = {}"])
def test_a_client_cannot_choose_the_role(queue: TaskQueue, operator: TaskQueue, other: str, pretense: str) -> None:
    queue.conn.execute(sql.SQL("GRANT {} TO {}").format(sql.Identifier(other), sql.Identifier(operator.conn.info.user)))
    operator.conn.execute(sql.SQL(pretense).format(sql.Identifier(other)))
    with operator.conn.transaction():
        operator.set_actor("ann")
        operator.record_action("pause", "work", "", 1)
    assert [(line.actor, line.role) for line in queue.audit_trail()] == [("ann", operator.conn.info.user)]
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        operator.conn.execute(sql.SQL("SET SESSION AUTHORIZATION {}").format(sql.Identifier(other)))


def test_an_action_needs_an_actor(queue: TaskQueue, operator: TaskQueue) -> None:
    with pytest.raises(TaskQueueError, match="set_actor"):
        operator.record_action("purge", "work", "everything", 7)
    assert queue.audit_trail() == []


def test_the_history_of_a_task_names_the_role_that_acted(queue: TaskQueue, operator: TaskQueue, owner: Owner) -> None:
    (task,) = queue.push("work", ["a"])
    queue.complete(owner, dict.fromkeys(queue.poll("work", owner), Result.FAILURE))
    with operator.conn.transaction():
        operator.set_actor("the director")
        operator.reassign("work", Result.SUSPENSION, sequences=[task.sequence])
        operator.revive("work", sequences=[task.sequence])
        operator.pause_task("work", task.sequence)
    operator.resume_task("work", task.sequence)  # an operator that names no actor
    role = operator.conn.info.user
    assert [(each.what, each.actor, each.role) for each in queue.timeline("work", task.sequence)] == [
        ("pushed", None, None),
        ("reassigned", "the director", role),
        ("reset", "the director", role),
        ("paused", "the director", role),
        ("resumed", None, role),
    ]


def test_no_verb_of_an_operator_removes_or_changes_the_audit(operator: TaskQueue, queue: TaskQueue) -> None:
    with operator.conn.transaction():
        operator.set_actor("ann")
        operator.record_action("pause", "work", "", 1)
    before = queue.audit_trail()
    (task,) = operator.push("work", [NewTask("a", suspended=True)])
    operator.purge("work", state=State.SUSPENDED)
    operator.purge_sequences("work", [task.sequence], [State.SUSPENDED])
    operator.purge_all("work")
    operator.drop_topic("work")
    assert queue.audit_trail() == before
    assert private_rights(queue.conn, operator.conn.info.user) == []
