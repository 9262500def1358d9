"""The commit of a batch: commit hooks, follow-ups, and rollbacks."""

import threading
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import psycopg
import pytest

from airflow_provider_taskq.queue import (
    Decision,
    NewTask,
    Owner,
    Result,
    State,
    Task,
    TaskQueue,
    UnknownTopic,
)
from airflow_provider_taskq.worker import Batch, commit_batch, each, tagged
from airflow_provider_taskq.worker.batches import CommitHook
from airflow_provider_taskq.worker.commit import (
    MAX_HOOK_ATTEMPTS,
    CommitHookInterrupted,
    HookInterruptions,
    try_commit_batch,
)
from tests.queue.conftest import identifiers, states, until
from tests.worker.conftest import MakeWorker, listeners

pytestmark = pytest.mark.promise(
    "A decision, its follow-ups and its commit hooks are committed together, or not at all"
)

SUCCESS = Decision(Result.SUCCESS)
FAILURE = Decision(Result.FAILURE)


Effects = Callable[[], list[str]]


@pytest.fixture(name="batch")
def two_tasks(queue: TaskQueue, owner: Owner) -> Batch:
    """Two held tasks, and a topic for follow-ups."""
    queue.create_topic("mail")
    queue.push("work", ["a", "b"])
    return Batch(queue.poll("work", owner, 2))


def test_decisions_of_commit_hooks_are_merged_by_priority(queue: TaskQueue, owner: Owner, batch: Batch) -> None:
    a, b = batch.tasks
    batch.in_commit(lambda *_: {a: Decision(Result.SUSPENSION), b: Decision(Result.SUCCESS, "noted")})
    batch.in_commit(lambda _, decisions: {task: Decision(Result.FILTER) for task in decisions})
    stands = commit_batch(queue, owner, batch, {a: SUCCESS, b: SUCCESS})
    assert [stands[task].result for task in batch.tasks] == [Result.SUSPENSION, Result.FILTER]
    assert stands[b].message == "noted"
    assert states(queue) == [("a", State.SUSPENDED), ("b", State.FILTERED)]


def test_a_follow_up_that_cannot_be_pushed_undoes_the_whole_commit(
    queue: TaskQueue, owner: Owner, batch: Batch
) -> None:
    batch.push(batch.tasks[0], "mail", ["m"])
    batch.push(batch.tasks[0], "none", ["n"])
    with pytest.raises(UnknownTopic):
        commit_batch(queue, owner, batch, dict.fromkeys(batch.tasks, SUCCESS))
    assert states(queue, "mail") == []
    assert identifiers(queue.held(owner)) == ["a", "b"]


def test_after_commit_functions_see_the_commit_and_may_fail(queue: TaskQueue, owner: Owner, batch: Batch) -> None:
    seen: list[list[tuple[str, State]]] = []

    def fail() -> None:
        raise ZeroDivisionError

    batch.after_commit(fail)
    batch.after_commit(lambda: seen.append(states(queue)))
    commit_batch(queue, owner, batch, dict.fromkeys(batch.tasks, SUCCESS))
    assert seen == [[("a", State.SUCCEEDED), ("b", State.SUCCEEDED)]]


def test_workers_of_topics_that_got_follow_ups_are_woken(queue: TaskQueue, make_worker: MakeWorker) -> None:
    queue.create_topic("mail")
    sent = threading.Event()

    def pass_on(task: Task, batch: Batch) -> None:
        batch.push(task, "mail", [NewTask("m", reference="x")])

    mailer = make_worker(lambda _: sent.set(), topic="mail")
    mailer.start()
    until(lambda: listeners(queue) == 1)
    queue.push("work", ["a"])
    make_worker(each(pass_on), rewrite=tagged, listen=False).start()
    assert sent.wait(10)
    until(lambda: states(queue, "mail") == [("m", State.SUCCEEDED)])
    [mail] = queue.page("mail")
    [parent] = queue.page("work")
    assert mail.reference == str(parent.sequence)


def test_a_shortage_of_the_server_abandons_no_commit_hook() -> None:
    """A full disk is not the fault of a hook. A statement that is cancelled again and again is."""
    hook = CommitHook(lambda *_: None)
    for error, is_abandoned in ((psycopg.errors.DiskFull("full"), False), (psycopg.errors.QueryCanceled("late"), True)):
        interruptions = HookInterruptions(0)
        for _ in range(MAX_HOOK_ATTEMPTS):
            interruptions.note(CommitHookInterrupted(hook, error))
        assert (id(hook) in interruptions.abandoned) == is_abandoned


def test_an_interrupted_commit_hook_is_logged_without_the_parameters_of_its_statement(
    queue: TaskQueue, owner: Owner, batch: Batch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its statement has no translation of errors, because it belongs to the user."""
    queue.conn.execute("SET log_parameter_max_length_on_error = -1")
    queue.conn.execute("SET statement_timeout = '10ms'")

    def wait(own: TaskQueue, _: Any) -> None:
        own.conn.execute("SELECT pg_sleep(60), %s::text", ["markedpayload0815"])

    batch.in_commit(wait)
    with pytest.raises(CommitHookInterrupted) as interrupted:
        try_commit_batch(queue, owner, batch, dict.fromkeys(batch.tasks, SUCCESS), {}, nullcontext)
    assert "markedpayload0815" in str(interrupted.value.cause)
    HookInterruptions(0).note(interrupted.value)
    assert "commit hook interrupted, will retry" in caplog.text
    assert "markedpayload0815" not in caplog.text
