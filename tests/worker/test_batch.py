"""Batches: values that handlers share, follow-ups, the owner, and the commit with its hooks."""

import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import psycopg
import pytest
from psycopg.types.json import set_json_dumps

from airflow_provider_taskq.consumer import Consumer, ConsumerGroup
from airflow_provider_taskq.queue import (
    Decision,
    InvalidTask,
    NewTask,
    Owner,
    Result,
    State,
    Task,
    TaskQueue,
    UnknownTopic,
    connect,
)
from airflow_provider_taskq.worker import (
    Batch,
    BatchContext,
    BatchOwner,
    SupplementError,
    Worker,
    batch,
    each,
)
from airflow_provider_taskq.worker.batches import CommitHook, name_of
from airflow_provider_taskq.worker.commit import (
    MAX_HOOK_ATTEMPTS,
    CommitHookInterrupted,
    commit_batch,
)
from tests.consumer.consumers import quick, state
from tests.queue.conftest import identifiers, lapse, states, until
from tests.worker.conftest import MakeWorker, listeners

pytestmark = [
    pytest.mark.promise("A decision, its follow-ups and its commit hooks are committed together, or not at all"),
    pytest.mark.promise("Each batch has an owner with a greater fence than any delivery before"),
]

SECONDS = 60


def task(sequence: int) -> Task:
    return Task(sequence, "work", f"t{sequence}", None, None, 1, False)


def test_a_value_is_registered_once_for_a_class_a_task_and_a_qualifier() -> None:
    batch = Batch([task(1), task(2)])
    batch.register(str, "of the batch")
    batch.register(str, "of one", task(1))
    batch.register(str, "of one, other", task(1), "other")
    with pytest.raises(SupplementError, match="str of task 1 is already registered"):
        batch.register(str, "again", task(1))
    assert batch.require(str) == "of the batch"
    assert batch.require(str, task(1)) == "of one"
    assert batch.require(str, task(1), "other") == "of one, other"


def test_a_missing_value_is_an_error_for_require_and_none_for_probe() -> None:
    batch = Batch([task(1)])
    with pytest.raises(SupplementError, match="int was not registered"):
        batch.require(int)
    assert batch.probe(int) is None
    batch.register(int, 0)
    assert batch.probe(int) == 0


def test_a_suggested_value_is_computed_once_for_all_threads() -> None:
    batch, calls, together = Batch([]), [], threading.Barrier(8)

    def make() -> list[int]:
        calls.append(1)
        return [1]

    def ask() -> list[int]:
        together.wait(10)
        return batch.suggest(list, make)

    with ThreadPoolExecutor(8) as pool:
        values = [future.result() for future in [pool.submit(ask) for _ in range(8)]]
    assert len(calls) == 1
    assert all(value is values[0] for value in values)
    assert batch.require(list) is values[0]


def test_a_suggestion_that_fails_is_repeated_and_one_that_needs_itself_raises() -> None:
    batch = Batch([])
    with pytest.raises(ZeroDivisionError):
        batch.suggest(int, lambda: 1 // 0)
    assert batch.suggest(int, lambda: 5) == 5
    with pytest.raises(SupplementError, match="by the function that makes it"):
        batch.suggest(str, lambda: batch.require(str))


def test_a_follow_up_of_a_task_of_another_batch_raises() -> None:
    batch = Batch([task(1)])
    with pytest.raises(InvalidTask, match="task 2 of topic 'work' is not in this batch"):
        batch.push(task(2), "mail", ["a"])
    with pytest.raises(InvalidTask):
        batch.junction(task(2), "mail", [["a"]])
    with pytest.raises(InvalidTask):
        batch.in_commit(lambda *_: None, task(2))
    with pytest.raises(InvalidTask, match="tasks is one str"):
        batch.push(task(1), "mail", "abc")
    with pytest.raises(InvalidTask, match="not a text"):
        batch.junction(task(1), "mail", ["abc"])


def test_the_name_of_a_function_in_logs_has_no_value_of_the_program() -> None:
    """The repr of a partial has its arguments, and a callable object may have anything in its repr."""

    class Deliver:
        def __repr__(self) -> str:
            return "Deliver(key=opensesame4711)"

        def __call__(self, _: object) -> None: ...

    def send(_key: str, _: object, server: str) -> None:
        assert server

    function = partial(partial(send, "opensesame4711"), server="opensesame4711")
    name = name_of(function)
    assert name.endswith("send")
    for made in (each(function), batch(function), each(function, threads=2), each(function, processes=1)):
        assert name_of(made) == name
    assert name_of(Deliver()).endswith("Deliver")
    assert name_of(each(Deliver())).endswith("Deliver")


# The owner of a batch: a name and a fence, by which an outside system tells a late handler from its successor


def test_a_task_that_comes_back_to_an_earlier_registration_has_a_greater_fence(queue: TaskQueue) -> None:
    queue.push("work", ["a"])
    early, late = queue.register("early"), queue.register("late")
    first = queue.poll("work", late)
    lapse(queue, late)
    queue.expire()
    second = queue.poll("work", early)
    assert [*second] == [*queue.held(early)] != []
    assert early.fence < late.fence < first.fence < second.fence
    assert queue.draw_fence(early) > second.fence
    assert queue.heartbeat(early).fence == early.fence


def test_a_poll_without_tasks_draws_no_fence_and_an_exchange_draws_one(queue: TaskQueue, owner: Owner) -> None:
    assert queue.poll("work", owner).fence == 0
    queue.push("work", ["a", "b"])
    first = queue.poll("work", owner)
    second = queue.exchange(owner, dict.fromkeys(first, "SUCCESS"), "work")
    assert [task.identifier for task in (*first, *second)] == ["a", "b"]
    assert owner.fence < first.fence < second.fence


def test_the_owner_of_a_batch_stays_readable_after_the_worker_has_abandoned_it(
    queue: TaskQueue, make_worker: MakeWorker
) -> None:
    inside, abandoned, seen = threading.Event(), threading.Event(), list[BatchOwner]()

    def handle(task: Task, batch: Batch) -> None:
        seen.append(batch.owner)
        inside.set()
        assert abandoned.wait(SECONDS)
        assert batch.cancelled.is_set()
        seen.append(batch.owner)
        raise AssertionError(f"the decision on {task} does not count")

    queue.push("work", ["a"])
    worker = make_worker(handle)
    worker.start()
    assert inside.wait(SECONDS)
    [holder] = queue.owners()
    worker.stop(timedelta(0))
    again = queue.poll("work", queue.register("successor"))
    abandoned.set()
    until(lambda: len(seen) == 2, SECONDS)
    assert seen[0] == seen[1]
    assert seen[0].name == holder.name
    assert holder.fence < seen[0].fence < again.fence


def test_each_batch_of_a_worker_has_a_greater_fence(queue: TaskQueue, make_worker: MakeWorker) -> None:
    seen: list[int] = []
    queue.push("work", ["a", "b", "c"])
    make_worker(lambda _, batch: seen.append(batch.owner.fence)).drain()
    make_worker(lambda _, batch: seen.append(batch.owner.fence), prefetch=2).drain()
    assert seen == sorted(set(seen))
    assert len(seen) == 3


def test_a_worker_that_finds_tasks_under_its_name_has_a_fence_for_them(
    queue: TaskQueue, make_worker: MakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[BatchOwner] = []
    queue.push("work", ["a"])
    polled = TaskQueue.poll

    def poll_without_answer(*arguments: object) -> object:
        polled(*arguments)  # type: ignore[arg-type]
        monkeypatch.undo()
        raise ConnectionError("the answer was lost")

    monkeypatch.setattr(TaskQueue, "poll", poll_without_answer)
    make_worker(lambda _, batch: seen.append(batch.owner)).drain()
    [owner] = seen
    assert owner.fence > 0


def test_a_successor_on_a_partition_has_a_greater_fence(dsn: str, queue: TaskQueue) -> None:
    group, seen = ConsumerGroup("readers"), list[BatchOwner]()

    @group.on()
    def handle(_: Task, batch: BatchContext) -> None:
        seen.append(batch.owner)

    for count in (1, 2):
        queue.push("work", ["a"])
        with Consumer(dsn, group, "work", quick()) as consumer:
            until(lambda count=count: len(seen) == count, SECONDS)  # type: ignore[misc]
            assert seen[-1] == BatchOwner(consumer.member_id, state(queue).fence or 0)
    assert seen[0].fence < seen[1].fence


def test_a_batch_that_no_runner_has_made_has_no_owner() -> None:
    with pytest.raises(LookupError, match="this batch has no owner"):
        _ = Batch([]).owner


# The commit of a batch: commit hooks, follow-ups, and rollbacks


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


@pytest.mark.parametrize("is_set", [True, False])
def test_a_worker_encodes_messages_and_follow_ups_as_its_connections_do_and_fails_one_task_for_another(
    dsn: str, queue: TaskQueue, is_set: bool
) -> None:
    """A message that cannot be stored must not fail the other tasks of the batch."""
    queue.push("work", ["moment", "fine"])
    moment: Any = datetime(2026, 1, 1, tzinfo=UTC)

    def connected() -> psycopg.Connection:
        conn = connect(dsn)
        if is_set:
            set_json_dumps(partial(json.dumps, default=str), conn)
        return conn

    def handle(given: Batch) -> dict[Task, Decision]:
        if is_set:
            given.push(given.tasks[0], "work", [NewTask("next", moment, delay=3600)])
        return {task: Decision(Result.SUCCESS, moment if task.identifier == "moment" else 1) for task in given.tasks}

    Worker(connected, "work", batch(handle), size=2, pause=1).drain()
    stored, fine, *later = queue.page("work")
    assert (fine.state, fine.output, [task.payload for task in later]) == (State.SUCCEEDED, 1, [str(moment)] * is_set)
    if is_set:
        assert (stored.state, stored.output) == (State.SUCCEEDED, str(moment))
    else:
        assert stored.error_summary is not None
        assert "the message of the decision is not JSON" in stored.error_summary


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
        batch.push(task, "mail", ["m"])

    mailer = make_worker(lambda _: sent.set(), topic="mail")
    mailer.start()
    until(lambda: listeners(queue) == 1)
    queue.push("work", ["a"])
    make_worker(each(pass_on), listen=False).start()
    assert sent.wait(120)
    until(lambda: states(queue, "mail") == [("m", State.SUCCEEDED)])


def test_a_shortage_of_the_server_abandons_no_commit_hook() -> None:
    """A full disk is not the fault of a hook. A statement that is cancelled again and again is."""
    for error, is_at_fault in ((psycopg.errors.DiskFull("full"), False), (psycopg.errors.QueryCanceled("late"), True)):
        hook = CommitHook(lambda *_: None)
        for _ in range(MAX_HOOK_ATTEMPTS):
            CommitHookInterrupted(hook, error).note(seconds=0)
        assert (hook.failed_with is error) == is_at_fault


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
        commit_batch(queue, owner, batch, dict.fromkeys(batch.tasks, SUCCESS))
    assert "markedpayload0815" in str(interrupted.value.cause)
    interrupted.value.note()
    assert "commit hook interrupted, will retry" in caplog.text
    assert "markedpayload0815" not in caplog.text
