"""The end of a batch: its decisions are committed, whatever it takes, or it is given up."""

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

import psycopg

from airflow_provider_taskq.queue import Decision, LeaseLost, NotHeld, Result, Task, TaskQueue
from airflow_provider_taskq.queue.errors import is_transient
from airflow_provider_taskq.worker.batches import Batch
from airflow_provider_taskq.worker.commit import (
    CommitHookInterrupted,
    HookInterruptions,
    after_commit,
    try_commit_batch,
)
from airflow_provider_taskq.worker.connection import Disconnected, Session
from airflow_provider_taskq.worker.handlers import TaskResultException, decision_on, handle_batch, name_of
from airflow_provider_taskq.worker.lease import Run
from airflow_provider_taskq.worker.partial import failures_of_unreadable, readable
from airflow_provider_taskq.worker.patience import BackOff

if TYPE_CHECKING:
    from airflow_provider_taskq.worker.runtime import WorkerRuntime

log = logging.getLogger(__name__)

_TRIES = 5  # of a commit for tasks that are not held; from then on errors that may pass are told to `on_fatal` too


class WorkerStopped(Exception):
    """The worker stopped before a batch was done."""


def decide(shift: "WorkerRuntime", run: Run) -> dict[Task, Decision] | BaseException:
    """Calls the handler for a batch: its decisions, or what made it fail as a whole.

    A task whose payload cannot be decoded is a FAILURE by itself; the handler gets the rest of the batch.
    """
    shift.telling.on_dispatched(run.trace)
    shift.watch.enter(run)
    handler = readable(shift.handler, run.batch)
    try:
        with run.batch.running(name_of(handler)):
            return handle_batch(handler, run.batch)
    except TaskResultException as error:
        return {**dict.fromkeys(run.batch.tasks, decision_on(error)), **failures_of_unreadable(run.batch.tasks)}
    except BaseException as error:  # noqa: BLE001 -- also an exit: it ends the batch, not the worker
        return error
    finally:
        shift.counters.decided(shift.watch.leave(run))


class Finisher:
    """Commits what was decided on batches that are claimed, through a session of its thread."""

    def __init__(self, shift: "WorkerRuntime", session: Session) -> None:
        self._shift = shift
        self._session = session

    def end(self, run: Run, outcome: Mapping[Task, Decision] | BaseException) -> None:
        """Completes a batch by its decisions, or fails it as a whole."""
        if isinstance(outcome, BaseException):
            self.fail(run, outcome)
        else:
            self.complete(run, outcome)

    def complete(self, run: Run, decisions: Mapping[Task, Decision], *, in_doubt: bool = False) -> None:
        """Commits the decisions. A batch for which that fails is FAILED; without its lease it is given up.

        `in_doubt`: they may have been committed before, by a call whose answer was lost.
        """
        try:
            committed = self._commit(run, run.batch, decisions, in_doubt)
        except (LeaseLost, WorkerStopped) as error:
            self._lost(run, error)
        except Exception as error:  # noqa: BLE001 -- of a follow-up, say: the transaction is undone
            self.fail(run, error)
        else:
            self.completed(run, committed)

    def completed(self, run: Run, decisions: Mapping[Task, Decision]) -> None:
        """What comes after the commit of a batch."""
        self._leave(run, decisions)
        self._shift.telling.on_complete(run.trace, decisions)

    def fail(self, run: Run, error: BaseException) -> None:
        """Commits FAILURE for a whole batch. Where even that fails, the lease is let go, with all that it holds."""
        failed = dict.fromkeys(run.batch.tasks, Decision(Result.FAILURE, error=error))
        try:
            committed = self._commit(run, Batch(run.batch.tasks), failed, in_doubt=False)
        except (LeaseLost, WorkerStopped) as lost:
            self._lost(run, lost)
        except Exception as fatal:
            self._lost(run, LeaseLost(f"a batch could neither be completed nor failed: {fatal}"))
            raise
        else:
            self._leave(run, committed)
            self._shift.telling.on_error(run.trace, error)

    def _commit(
        self, run: Run, batch: Batch, decisions: Mapping[Task, Decision], in_doubt: bool
    ) -> Mapping[Task, Decision]:
        """Commits decisions on what is held.

        Tries again, as long as the lease lasts, while the server is away or the queue's own calls fail for a reason
        that may pass: work that was done is not FAILED by that. A participant that is always interrupted is given up.
        """
        back_off, tries, look = BackOff(), 0, in_doubt
        interruptions = HookInterruptions(self._shift.settings.lease.total_seconds())
        while True:
            try:
                with self._session.queue() as queue:
                    if look:
                        held = self._still_held(queue, run, decisions)
                        if in_doubt and not held:
                            after_commit(queue, batch, {each.topic: None for each in batch.follow_ups})
                            return decisions
                        decisions = held
                    return try_commit_batch(
                        queue,
                        run.tenure.owner,
                        batch,
                        decisions,
                        interruptions.given_up,
                        self._session.for_handler_statements,
                    )
            except Disconnected as error:
                in_doubt = True
                if isinstance(error.__cause__, CommitHookInterrupted):
                    interruptions.note(error.__cause__)
                log.info("A batch is not committed yet, which is tried again: %s", error)
            except CommitHookInterrupted as interrupted:
                interruptions.note(interrupted)
            except LeaseLost:
                raise
            except (NotHeld, psycopg.Error) as error:
                tries += 1
                if not self._may_pass(error, tries):
                    raise
            look = True
            self._wait(run, back_off)

    def _may_pass(self, error: NotHeld | psycopg.Error, tries: int) -> bool:
        """Whether to try again; an error that goes on is told."""
        if isinstance(error, NotHeld):
            return tries <= _TRIES
        if not is_transient(error):
            return False
        log.warning("batch not committed: error=%s; try=%d; tried again: %s", type(error).__name__, tries, error)
        if tries > _TRIES:
            self._shift.telling.on_fatal(error)
        return True

    def _still_held(self, queue: TaskQueue, run: Run, decisions: Mapping[Task, Decision]) -> dict[Task, Decision]:
        """The decisions on those tasks that the owner still holds; LeaseLost where it is none any more.

        Of the others some were purged or dropped meanwhile, or all were completed by a call whose answer was lost.
        """
        queue.heartbeat(run.tenure.owner)
        held = {task: task.attempt for task in queue.held(run.tenure.owner)}
        for other in run.tenure.runs():
            if other is not run:
                for task in other.batch.tasks:
                    held.pop(task, None)  # put back by the lost call, and taken again
        return {task: decision for task, decision in decisions.items() if held.get(task) == task.attempt}

    def _wait(self, run: Run, back_off: BackOff) -> None:
        """Waits before the next try, unless there is none: the worker is over, or the lease lost."""
        if self._shift.over.wait(back_off.next()):
            raise WorkerStopped("the worker stopped before the batch could be committed")
        if run.tenure.lost is not None:
            raise run.tenure.lost

    def _lost(self, run: Run, error: LeaseLost | WorkerStopped) -> None:
        """Gives a claimed batch up."""
        if isinstance(error, LeaseLost):
            self._shift.keeper.lose(run.tenure, error)
        self._leave(run, {})
        self._shift.telling.on_error(run.trace, error)

    def _leave(self, run: Run, committed: Mapping[Task, Decision]) -> None:
        """The batch is in flight no more."""
        run.tenure.leave(run)
        run.token.release()
        self._shift.counters.ended(len(run.batch.tasks), (decision.result for decision in committed.values()))
