"""The commit of a batch: commit hooks, decisions, follow-ups and releases, in one transaction."""

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import cast

import psycopg

from airflow_provider_taskq.queue import (
    Decision,
    Insertion,
    Junction,
    LeaseLost,
    NewTask,
    NotHeld,
    Owner,
    Result,
    Task,
    TaskQueue,
)
from airflow_provider_taskq.queue.backoff import Backoff
from airflow_provider_taskq.queue.errors import is_session_timeout, is_transient
from airflow_provider_taskq.worker.batches import Batch, CommitHook, FollowUp, name_of
from airflow_provider_taskq.worker.connection import DatabaseSession, Disconnected
from airflow_provider_taskq.worker.lease import InFlightBatch
from airflow_provider_taskq.worker.runtime import WorkerRuntime, WorkerStopped

log = logging.getLogger(__name__)

MAX_HOOK_ATTEMPTS = 5  # of a commit hook that is interrupted
MAX_HOOK_SECONDS = 60.0  # during which it is called again, even if that makes more attempts
_MAX_QUIET_ATTEMPTS = 5  # of a commit; later errors that may pass are reported to `on_fatal`

AbandonedHooks = Mapping[int, BaseException]
NO_ABANDONED_HOOKS: AbandonedHooks = {}


class CommitHookInterrupted(Exception):
    """A commit hook failed for a reason that may pass, such as a deadlock or a statement_timeout: see `cause`."""

    def __init__(self, hook: CommitHook, cause: BaseException) -> None:
        super().__init__(f"{name_of(hook.call)}: {type(cause).__name__}: {cause}")
        self.hook = hook
        self.cause = cause


class HookInterruptions:
    """Counts the interruptions of each commit hook of a batch, and abandons hooks that are interrupted always.

    A hook is abandoned after `MAX_HOOK_ATTEMPTS`, and not before `seconds` have passed since its first interruption: a
    server may be slow for a while. `abandoned` maps the id of each such hook to its last error.
    """

    def __init__(self, seconds: float) -> None:
        self.abandoned: dict[int, BaseException] = {}
        self._seconds = min(seconds, MAX_HOOK_SECONDS)
        self._counts: dict[int, int] = {}
        self._first: dict[int, float] = {}

    def note(self, interrupted: CommitHookInterrupted) -> None:
        """Counts and logs one interruption."""
        key = id(interrupted.hook)
        first = self._first.setdefault(key, time.monotonic())
        self._counts[key] = self._counts.get(key, 0) + 1
        if self._counts[key] >= MAX_HOOK_ATTEMPTS and time.monotonic() - first >= self._seconds:
            self.abandoned[key] = interrupted.cause
        outcome = "its tasks fail" if key in self.abandoned else "the commit is retried"
        log.warning("commit hook interrupted: hook=%s attempt=%d; %s", interrupted, self._counts[key], outcome)


def commit_batch(
    queue: TaskQueue, owner: Owner, batch: Batch, decisions: Mapping[Task, Decision]
) -> Mapping[Task, Decision]:
    """Commits a batch in one transaction, and returns the decisions after all commit hooks.

    In order: commit hooks, decisions, pushes and then releases that follow continued tasks. After the commit it wakes
    the topics that got tasks, and calls the functions of `after_commit`. Needs a connection without an open
    transaction. Raises what `complete`, `push` and `junction` raise, and a transient error of a commit hook (a
    deadlock, a timeout of the server); nothing is changed then.
    """
    try:
        return try_commit_batch(queue, owner, batch, decisions)
    except CommitHookInterrupted as interrupted:
        raise interrupted.cause from None


def try_commit_batch(
    queue: TaskQueue,
    owner: Owner,
    batch: Batch,
    decisions: Mapping[Task, Decision],
    abandoned: AbandonedHooks = NO_ABANDONED_HOOKS,
    hook_statements: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> Mapping[Task, Decision]:
    """The same as `commit_batch`, but raises CommitHookInterrupted for a hook that may succeed at another attempt.

    The tasks of `abandoned` hooks fail with the error given there. Each hook runs within `hook_statements()`, which may
    allow its statements more time than the queue's own calls.
    """
    with queue.conn.transaction():
        final = dict(decisions)
        for hook in batch.commit_hooks:
            with hook_statements():
                run_commit_hook(queue, hook, final, abandoned)
        queue.complete(owner, cast("Mapping[Task | int, Decision | Result]", final))
        topics = push_follow_ups(queue, batch, final)
    run_after_commit(queue, batch, topics)
    return final


def run_commit_hook(
    queue: TaskQueue, hook: CommitHook, decisions: dict[Task, Decision], abandoned: AbandonedHooks = NO_ABANDONED_HOOKS
) -> None:
    """Calls a hook and merges its decisions into `decisions`. If it fails, its writes are undone, and its tasks fail.

    Raises CommitHookInterrupted if it failed for a reason that may pass, unless it is in `abandoned`.
    """
    concerned = {task: decision for task, decision in decisions.items() if hook.task in (None, task)}
    if not concerned:
        return
    if (reason := abandoned.get(id(hook))) is not None:
        returned: Mapping[Task, Decision] | None = dict.fromkeys(concerned, Decision(Result.FAILURE, error=reason))
    else:
        returned = _call_hook(queue, hook, concerned)
    for task, decision in (returned or {}).items():
        decisions[task] = decisions[task].merge(decision)


def _call_hook(queue: TaskQueue, hook: CommitHook, concerned: dict[Task, Decision]) -> Mapping[Task, Decision] | None:
    try:
        with queue.conn.transaction():
            returned = hook.call(queue, dict(concerned))
            _check_hook(hook, returned, concerned)
    except Exception as error:
        if isinstance(error, hook.success_on) and not queue.conn.closed:
            return None
        if is_transient(error) or is_session_timeout(error):
            raise CommitHookInterrupted(hook, error) from error
        if queue.conn.closed:
            raise
        return dict.fromkeys(concerned, Decision(Result.FAILURE, error=error))
    return returned


def _check_hook(hook: CommitHook, returned: Mapping[Task, Decision] | None, concerned: Mapping[Task, Decision]) -> None:
    if returned is None:
        return
    name = name_of(hook.call)
    if missing := [task.sequence for task in concerned if task not in returned]:
        raise LookupError(f"{name} made no decision on sequence {', '.join(map(str, missing[:10]))}")
    if foreign := [task.sequence for task in returned if task not in concerned]:
        raise LookupError(f"{name} decided on sequence {', '.join(map(str, foreign[:10]))}, which it did not get")


def push_follow_ups(queue: TaskQueue, batch: Batch, decisions: Mapping[Task, Decision]) -> list[str]:
    """Pushes the follow-ups of continued tasks, and then releases groups. Returns the topics that got tasks."""

    def continues(task: Task) -> bool:
        return task in decisions and bool(decisions[task].continued)

    topics: dict[str, None] = {}
    for topic, insertion, tasks in _join_neighbors(each for each in batch.follow_ups if continues(each.task)):
        queue.push(topic, tasks, insertion)
        topics[topic] = None
    groups: dict[tuple[str, Junction], dict[tuple[str, ...], None]] = {}
    for release in batch.releases:
        if continues(release.task):
            groups.setdefault((release.topic, release.junction), {}).update(dict.fromkeys(release.groups))
    for (topic, junction), given in groups.items():
        if queue.junction(topic, given, junction):
            topics[topic] = None
    return list(topics)


def _join_neighbors(follow_ups: Iterable[FollowUp]) -> list[tuple[str, Insertion, list[NewTask]]]:
    """Joins neighbors of one topic and insertion into one push, in their order."""
    joined: list[tuple[str, Insertion, list[NewTask]]] = []
    for each in follow_ups:
        if not joined or joined[-1][:2] != (each.topic, each.insertion):
            joined.append((each.topic, each.insertion, []))
        joined[-1][2].extend(each.tasks)
    return joined


def run_after_commit(queue: TaskQueue, batch: Batch, topics: Iterable[str] = ()) -> None:
    """Wakes topics and calls the functions of `after_commit`. Errors are logged; the commit stands."""
    for topic in topics:
        _log_errors(f"notify({topic!r})", lambda topic=topic: queue.notify(topic))  # type: ignore[misc]
    for call in batch.after_commit_calls:
        _log_errors(name_of(call), call)


def _log_errors(name: str, call: Callable[[], None]) -> None:
    try:
        call()
    except Exception:
        log.exception("call after a commit failed, the commit stands: call=%s", name)


class BatchCommitter:
    """Commits the decisions on batches that are claimed, through the session of its thread."""

    def __init__(self, runtime: WorkerRuntime, session: DatabaseSession) -> None:
        self._runtime = runtime
        self._session = session

    def complete(
        self, batch: InFlightBatch, decisions: Mapping[Task, Decision], *, maybe_committed: bool = False
    ) -> None:
        """Commits the decisions. If that fails, the batch is FAILED; without its lease it is abandoned.

        `maybe_committed`: a call whose answer was lost may have committed the decisions already.
        """
        try:
            committed = self._commit(batch, batch.batch, decisions, maybe_committed)
        except (LeaseLost, WorkerStopped) as error:
            self._abandon(batch, error)
        except Exception as error:  # noqa: BLE001 -- of a follow-up, say: the transaction is undone
            self.fail(batch, error)
        else:
            self.completed(batch, committed)

    def completed(self, batch: InFlightBatch, decisions: Mapping[Task, Decision]) -> None:
        """Accounts for a batch that is committed."""
        self._account_for(batch, decisions)
        self._runtime.listeners.on_complete(batch.trace, decisions)

    def fail(self, batch: InFlightBatch, error: BaseException) -> None:
        """Commits FAILURE for all tasks. If even that fails, the lease is abandoned, with all its batches."""
        tasks = batch.batch.tasks
        failed = dict.fromkeys(tasks, Decision(Result.FAILURE, error=error))
        try:
            committed = self._commit(batch, Batch(tasks), failed, maybe_committed=False)
        except (LeaseLost, WorkerStopped) as lost:
            self._abandon(batch, lost)
        except Exception as fatal:
            self._abandon(batch, LeaseLost(f"a batch could neither be completed nor failed: {fatal}"))
            raise
        else:
            self._account_for(batch, committed)
            self._runtime.listeners.on_error(batch.trace, error)

    def _commit(
        self, in_flight: InFlightBatch, batch: Batch, decisions: Mapping[Task, Decision], maybe_committed: bool
    ) -> Mapping[Task, Decision]:
        """Commits decisions on the tasks that are held.

        Retries, as long as the lease lasts, while the server is away or the queue's own calls fail for a reason that
        may pass: finished work is not FAILED because of that. A hook that is interrupted always is abandoned.
        """
        backoff, attempts, check_held = Backoff(), 0, maybe_committed
        interruptions = HookInterruptions(self._runtime.config.lease.total_seconds())
        while True:
            try:
                with self._session.queue() as queue:
                    if check_held:
                        held = self._still_held(queue, in_flight, decisions)
                        if maybe_committed and not held:
                            run_after_commit(queue, batch, {each.topic: None for each in batch.follow_ups})
                            return decisions
                        decisions = held
                    return try_commit_batch(
                        queue,
                        in_flight.lease.owner,
                        batch,
                        decisions,
                        interruptions.abandoned,
                        self._session.for_handler_statements,
                    )
            except Disconnected as error:
                maybe_committed = True
                if isinstance(error.__cause__, CommitHookInterrupted):
                    interruptions.note(error.__cause__)
                log.info("batch not committed, will retry: error=%s", error)
            except CommitHookInterrupted as interrupted:
                interruptions.note(interrupted)
            except LeaseLost:
                raise
            except (NotHeld, psycopg.Error) as error:
                attempts += 1
                if not self._may_retry(error, attempts):
                    raise
            check_held = True
            self._pause(in_flight, backoff)

    def _may_retry(self, error: NotHeld | psycopg.Error, attempts: int) -> bool:
        if isinstance(error, NotHeld):
            return attempts <= _MAX_QUIET_ATTEMPTS
        if not is_transient(error):
            return False
        log.warning("batch not committed, will retry: attempt=%d error=%s: %s", attempts, type(error).__name__, error)
        if attempts > _MAX_QUIET_ATTEMPTS:
            self._runtime.listeners.on_fatal(error)
        return True

    def _still_held(
        self, queue: TaskQueue, in_flight: InFlightBatch, decisions: Mapping[Task, Decision]
    ) -> dict[Task, Decision]:
        """The decisions on tasks that the owner still holds. LeaseLost if the lease is gone.

        The other tasks were purged or dropped meanwhile, or all were completed by a call whose answer was lost.
        """
        owner = in_flight.lease.owner
        queue.heartbeat(owner)
        held = {task: task.attempt for task in queue.held(owner)}
        for other in in_flight.lease.batches:
            if other is not in_flight:
                for task in other.batch.tasks:
                    # The lost call put the task back, and a later poll took it again.
                    held.pop(task, None)
        return {task: decision for task, decision in decisions.items() if held.get(task) == task.attempt}

    def _pause(self, batch: InFlightBatch, backoff: Backoff) -> None:
        if self._runtime.stopped.wait(backoff.next()):
            raise WorkerStopped("the worker stopped before the batch could be committed")
        if batch.lease.lost is not None:
            raise batch.lease.lost

    def _abandon(self, batch: InFlightBatch, error: LeaseLost | WorkerStopped) -> None:
        if isinstance(error, LeaseLost):
            self._runtime.keeper.lose(batch.lease, error)
        self._account_for(batch, {})
        self._runtime.listeners.on_error(batch.trace, error)

    def _account_for(self, batch: InFlightBatch, committed: Mapping[Task, Decision]) -> None:
        batch.lease.remove(batch)
        batch.token.release()
        results = (decision.result for decision in committed.values())
        self._runtime.counters.ended(len(batch.batch.tasks), results)
