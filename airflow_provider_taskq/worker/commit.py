"""The commit of a batch: commit hooks, decisions, follow-ups and releases in one transaction."""

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import count, groupby
from typing import cast

from airflow_provider_taskq.queue import Decision, Junction, LeaseLost, NotHeld, Owner, Result, Task, TaskQueue
from airflow_provider_taskq.queue.backoff import retrying
from airflow_provider_taskq.queue.encoding import JsonEncoder
from airflow_provider_taskq.queue.errors import first_line
from airflow_provider_taskq.queue.faults import Fault, classify
from airflow_provider_taskq.queue.handler_statements import handler_statements
from airflow_provider_taskq.queue.session import DatabaseSession, Disconnected
from airflow_provider_taskq.worker.batches import Batch, CommitHook, name_of
from airflow_provider_taskq.worker.calls import UnansweredCommit
from airflow_provider_taskq.worker.handlers import UNDECIDED
from airflow_provider_taskq.worker.lease import InFlightBatch
from airflow_provider_taskq.worker.runtime import WorkerRuntime, WorkerStopped

log = logging.getLogger(__name__)

MAX_HOOK_ATTEMPTS = 5  # interruptions after which a commit hook is abandoned
MAX_HOOK_SECONDS = 60.0  # since its first interruption, during which it is not abandoned
_MAX_QUIET_ATTEMPTS = 5  # failed commits after which further transient errors go to `on_fatal`


class CommitHookInterrupted(Exception):
    """A commit hook failed with a transient error, `cause`, such as a deadlock or a statement_timeout."""

    def __init__(self, hook: CommitHook, cause: BaseException) -> None:
        super().__init__(f"{name_of(hook.call)}: {type(cause).__name__}: {first_line(cause)}")
        self.hook = hook
        self.cause = cause

    def note(self, seconds: float = MAX_HOOK_SECONDS) -> None:
        """Count and log the interruption. After too many, the hook fails its tasks, but not within `seconds`.

        A server may be slow for a while. A shortage of the server, such as a full disk, is no fault of a hook.
        """
        hook, now = self.hook, time.monotonic()
        if classify(self.cause) is Fault.SHORTAGE:
            log.warning("commit hook interrupted by a shortage of the server, will retry: hook=%s", self)
            return
        hook.interruptions += 1
        hook.interrupted_at = hook.interrupted_at or now
        if hook.interruptions >= MAX_HOOK_ATTEMPTS and now - hook.interrupted_at >= min(seconds, MAX_HOOK_SECONDS):
            hook.failed_with = self.cause
        outcome = "will retry" if hook.failed_with is None else "its tasks fail"
        log.warning("commit hook interrupted, %s: attempt=%d hook=%s", outcome, hook.interruptions, self)


def commit_batch(
    queue: TaskQueue, owner: Owner, batch: Batch, decisions: Mapping[Task, Decision]
) -> Mapping[Task, Decision]:
    """Commit a batch in one transaction, and return the decisions as the commit hooks have left them.

    The transaction calls the commit hooks, completes the tasks, pushes the follow-ups of continued tasks, and releases
    their groups, in this order. An error undoes it. It is CommitHookInterrupted for a transient error of a hook.
    """
    with queue.conn.transaction():
        final = dict(decisions)
        for hook in batch.commit_hooks:
            run_commit_hook(queue, hook, final)
        encode = queue.json_encoder()
        final = {task: storable_decision(decision, encode) for task, decision in final.items()}
        queue.complete(owner, cast("Mapping[Task | int, Decision | Result]", final))
        topics = push_follow_ups(queue, batch, final)
    run_after_commit(queue, batch, topics)
    return final


def storable_decision(decision: Decision, encode: JsonEncoder) -> Decision:
    """Return a decision, or a FAILURE if the queue cannot store its message: it must not fail the other tasks."""
    try:
        encode(decision.message)
    except ValueError as error:
        return Decision(Result.FAILURE, error=ValueError(f"the message of the decision {error}"))
    return decision


def run_commit_hook(queue: TaskQueue, hook: CommitHook, decisions: dict[Task, Decision]) -> None:
    """Call a hook and merge its decisions into `decisions`. An error undoes its writes and fails its tasks."""
    concerned = {task: decision for task, decision in decisions.items() if hook.tasks is None or task in hook.tasks}
    returned = _call_hook(queue, hook, concerned) if concerned else {}
    for task, decision in returned.items():
        decisions[task] = decisions[task].merge(decision)


def _call_hook(queue: TaskQueue, hook: CommitHook, concerned: dict[Task, Decision]) -> Mapping[Task, Decision]:
    if hook.failed_with is not None:
        return dict.fromkeys(concerned, Decision(Result.FAILURE, error=hook.failed_with))
    try:
        with handler_statements(queue.conn, savepoint=True):
            returned = hook.call(queue, dict(concerned))
            if returned is not None:
                _check_hook(hook, returned, concerned)
    except Exception as error:
        if isinstance(error, hook.success_on) and not queue.conn.closed:
            return {}
        if classify(error) in (Fault.RETRY, Fault.SHORTAGE, Fault.TIMEOUT):
            raise CommitHookInterrupted(hook, error) from error
        if queue.conn.closed:
            raise
        return dict.fromkeys(concerned, Decision(Result.FAILURE, error=error))
    return returned or {}


def _check_hook(hook: CommitHook, returned: Mapping[Task, Decision], concerned: Mapping[Task, Decision]) -> None:
    name = f"commit hook {name_of(hook.call)}"
    if missing := [str(task.sequence) for task in concerned if task not in returned]:
        raise LookupError(f"{name} returned no decisions for tasks that it got: {', '.join(missing[:10])}")
    if foreign := [str(task.sequence) for task in returned if task not in concerned]:
        raise LookupError(f"{name} returned decisions for tasks that it did not get: {', '.join(foreign[:10])}")


def push_follow_ups(queue: TaskQueue, batch: Batch, decisions: Mapping[Task, Decision]) -> list[str]:
    """Push the follow-ups of continued tasks, then release their groups. Return the topics that got tasks."""

    def continues(task: Task) -> bool:
        return task in decisions and bool(decisions[task].continued)

    topics: dict[str, None] = {}
    continued = (each for each in batch.follow_ups if continues(each.task))
    # One push for adjacent follow-ups of the same topic and insertion, because the order of pushes matters.
    for (topic, insertion), adjacent in groupby(continued, lambda each: (each.topic, each.insertion)):
        queue.push(topic, [task for each in adjacent for task in each.tasks], insertion)
        topics[topic] = None
    groups: dict[tuple[str, Junction], dict[tuple[str, ...], None]] = {}
    for release in batch.releases:
        if continues(release.task):
            groups.setdefault((release.topic, release.junction), {}).update(dict.fromkeys(release.groups))
    for (topic, junction), given in groups.items():
        if queue.junction(topic, given, junction):
            topics[topic] = None
    return list(topics)


def run_after_commit(queue: TaskQueue, batch: Batch, topics: Iterable[str]) -> None:
    """Wake topics and call the functions of `after_commit`. Log their errors."""
    calls: list[Callable[[], None]] = [partial(queue.notify, topic) for topic in topics]
    for call in calls + batch.after_commit_calls:
        try:
            call()
        except Exception:
            log.exception("call after a commit failed, the commit stands: call=%s", name_of(call))


class BatchCommitter:
    """Commits batches that its thread has claimed, over the session of the thread."""

    def __init__(self, runtime: WorkerRuntime, session: DatabaseSession) -> None:
        self._runtime = runtime
        self._session = session

    def complete(
        self, batch: InFlightBatch, decisions: Mapping[Task, Decision], earlier: UnansweredCommit | None = None
    ) -> None:
        """Commit the decisions, perhaps after an earlier call. After an error, commit FAILURE for the batch."""
        try:
            committed = self._commit(batch, batch.batch, decisions, earlier or UnansweredCommit())
        except Exception as error:  # noqa: BLE001 -- such as that of a follow-up: it has undone the transaction
            self.fail(batch, error)
        else:
            if committed is not None:
                self.completed(batch, committed)

    def completed(self, batch: InFlightBatch, decisions: Mapping[Task, Decision]) -> None:
        """Count and report a batch that is committed."""
        self._account_for(batch, decisions)
        self._runtime.listeners.on_complete(batch.trace, decisions)

    def fail(self, batch: InFlightBatch, error: BaseException) -> None:
        """Commit FAILURE for all tasks of a batch. If this fails, too, abandon all batches of the lease."""
        failed = dict.fromkeys(batch.batch.tasks, Decision(Result.FAILURE, error=error))
        try:
            committed = self._commit(batch, Batch(failed), failed, UnansweredCommit())
        except Exception as fatal:
            self._abandon(batch, LeaseLost(f"a batch could neither be completed nor failed: {fatal}"))
            raise
        if committed is not None:
            self._account_for(batch, committed)
            self._runtime.listeners.on_error(batch.trace, error)

    def release(self, batch: InFlightBatch) -> None:
        """Release the tasks of a batch that no handler got. Its attempt does not count."""
        released = dict.fromkeys(batch.batch.tasks, UNDECIDED)
        if self._commit(batch, Batch(released), released, UnansweredCommit()) is not None:
            self._account_for(batch, {})

    def _commit(
        self, in_flight: InFlightBatch, batch: Batch, decisions: Mapping[Task, Decision], calls: UnansweredCommit
    ) -> Mapping[Task, Decision] | None:
        """Commit the decisions on the tasks that the owner still holds, and return them.

        Retry as long as the lease lasts, unless the error is the fault of the tasks: the server must not fail finished
        work. If the lease is lost or the worker stops, abandon the batch and return None.
        """
        attempts = count(1)

        def commit() -> Mapping[Task, Decision]:
            with self._session.queue() as queue:
                left = calls.left(queue, in_flight, decisions)
                if left is None:
                    run_after_commit(queue, batch, {each.topic: None for each in batch.follow_ups})
                    return decisions
                return commit_batch(queue, in_flight.lease.owner, batch, left)

        def may_retry(error: Exception) -> bool:
            interrupted = error.__cause__ if isinstance(error, Disconnected) else error
            if isinstance(interrupted, CommitHookInterrupted):
                calls.failed(error if isinstance(error, Disconnected) else interrupted.cause)
                interrupted.note(self._runtime.config.lease.total_seconds())
                return True
            calls.failed(error)
            return self._may_retry(error, next(attempts))

        try:
            return retrying(commit, may_retry, lambda seconds: self._pause(in_flight, seconds))
        except (LeaseLost, WorkerStopped) as error:
            self._abandon(in_flight, error)
            return None

    def _may_retry(self, error: Exception, attempt: int) -> bool:
        if isinstance(error, NotHeld):
            return attempt <= _MAX_QUIET_ATTEMPTS and not isinstance(error, LeaseLost)
        fault = classify(error)
        if not fault.is_temporary:
            return False
        name = type(error).__name__
        log.warning("batch not committed, will retry: attempt=%d error=%s: %s", attempt, name, first_line(error))
        if attempt > _MAX_QUIET_ATTEMPTS and not fault.ends_session:
            self._runtime.listeners.on_fatal(error)
        return True

    def _pause(self, batch: InFlightBatch, seconds: float) -> None:
        if self._runtime.stopped.wait(seconds):
            raise WorkerStopped("the worker stopped before it could commit the batch")
        if batch.lease.lost is not None:
            raise batch.lease.lost

    def _abandon(self, batch: InFlightBatch, error: LeaseLost | WorkerStopped) -> None:
        if isinstance(error, LeaseLost):
            self._runtime.keeper.lose(batch.lease, error)
        following, batch.following = batch.following, ()
        self._account_for(batch, {}, len(following))
        self._runtime.listeners.on_error(batch.trace, error)

    def _account_for(self, batch: InFlightBatch, committed: Mapping[Task, Decision], lost: int = 0) -> None:
        batch.committed = committed
        batch.lease.remove(batch)
        if not batch.following:  # the next batch of the group has the same token
            batch.token.release()
        self._runtime.count_end(len(batch.batch.tasks) + lost, committed)
