"""The driver's part of a composite's commit: functions and pushes that steps on executors leave to the driver.

A batch may have more than decisions: functions of `batch.in_commit` and `batch.after_commit`, and pushes with another
insertion than APPEND, which cannot be staged. The executors pickle them for the driver. In one transaction the driver
calls the functions of `in_commit`, commits all decisions, and pushes. Then it calls the functions of `after_commit`.
The pickles travel inside Spark's own commit messages only: see `CompositeWriter`.
"""

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

import psycopg
import pyarrow as pa
from pyspark import cloudpickle

from airflow_provider_taskq.queue import (
    Condition,
    Decision,
    Insertion,
    LeaseLost,
    Task,
    TaskQueue,
    TaskQueueError,
)
from airflow_provider_taskq.queue.backoff import retrying
from airflow_provider_taskq.queue.errors import picklable_error, translate_errors
from airflow_provider_taskq.queue.faults import classify
from airflow_provider_taskq.spark.encoding import Attempt
from airflow_provider_taskq.spark.follow_ups import decision_copies
from airflow_provider_taskq.spark.staging import StagedAttempt, commit_with_retry, copy_rows
from airflow_provider_taskq.spark.transforms import DECISION_ARROW_SCHEMA, decision_values
from airflow_provider_taskq.spark.writers import BatchWriter
from airflow_provider_taskq.worker.batches import Batch, CommitHook, FollowUp, Release, name_of
from airflow_provider_taskq.worker.commit import (
    CommitHookInterrupted,
    push_follow_ups,
    run_commit_hook,
)

logger = logging.getLogger(__name__)

DRIVER_PART = -1  # the partition number of rows that the driver itself stages


@dataclass(frozen=True, slots=True)
class DriverActions:
    """The hooks and follow-ups of one batch that only the driver can run.

    If a push of the batch cannot be staged, the driver pushes and releases all follow-ups of the batch. Otherwise the
    executor stages them, and `follow_ups` and `releases` are empty.
    """

    composite: str
    decisions: Mapping[Task, Decision]
    commit_hooks: tuple[CommitHook, ...] = ()
    follow_ups: tuple[FollowUp, ...] = ()
    releases: tuple[Release, ...] = ()
    after_commit_calls: tuple[Callable[[], None], ...] = ()

    @classmethod
    def of(
        cls, composite: str, batch: Batch, decisions: Mapping[Task, Decision], condition: Condition
    ) -> "DriverActions":
        """Collect the actions of a batch. Raises TaskQueueError if the batch has any and the drain has a condition."""
        # Under a condition the stage may drop decisions. The driver would learn this only after it called the hooks.
        displacing = any(each.insertion is not Insertion.APPEND for each in batch.follow_ups)
        if condition is not Condition.NONE and (batch.commit_hooks or batch.after_commit_calls or displacing):
            raise TaskQueueError(
                f"composite {composite!r}: a drain under {condition} supports no in_commit, no after_commit, and no"
                " push but APPEND: run the composite in a worker"
            )
        follow_ups, releases = (batch.follow_ups, batch.releases) if displacing else ([], [])
        return cls(
            composite,
            {
                task: made if made.error is None else replace(made, error=picklable_error(made.error))
                for task, made in decisions.items()
            },
            tuple(batch.commit_hooks),
            tuple(follow_ups),
            tuple(releases),
            tuple(batch.after_commit_calls),
        )

    @property
    def pushes(self) -> bool:
        """Whether the driver pushes the follow-ups."""
        return bool(self.follow_ups)

    @property
    def is_empty(self) -> bool:
        """Whether the driver only has to commit the decisions."""
        return not (self.commit_hooks or self.follow_ups or self.after_commit_calls)

    def pickled(self) -> bytes:
        """Pickle the actions. Raises TaskQueueError if a function cannot be pickled."""
        try:
            return bytes(cloudpickle.dumps(self))  # type: ignore[no-untyped-call]
        except Exception as error:
            raise TaskQueueError(
                f"composite {self.composite!r}: cannot send a function of in_commit or after_commit to the driver,"
                f" as it refers to an object that cannot be pickled: {error}"
            ) from error

    def batch(self) -> Batch:
        """Restore the batch on the driver."""
        batch = Batch(self.decisions)
        batch.commit_hooks.extend(self.commit_hooks)
        batch.follow_ups.extend(self.follow_ups)
        batch.releases.extend(self.releases)
        batch.after_commit_calls.extend(self.after_commit_calls)
        return batch


def commit_on_driver(writer: BatchWriter, attempts: Sequence[StagedAttempt], pickled: Iterable[bytes]) -> None:
    """Commit the decisions of these attempts together with the pickled `DriverActions` of their batches.

    The commit is retried for up to a minute if the server goes away or interrupts a commit hook. After that, the tasks
    of the hook fail. If the answer of a commit is lost, the next attempt reads from the stage whether it succeeded.
    """
    commit = DriverCommit([cloudpickle.loads(each) for each in pickled])

    def may_retry(error: Exception) -> bool:
        if isinstance(error, CommitHookInterrupted):
            error.note()
        return isinstance(error, CommitHookInterrupted)

    retrying(lambda: commit_with_retry(lambda: _commit_once(writer, attempts, commit)), may_retry, time.sleep)
    commit.after_commit(writer)


class DriverCommit:
    """The driver actions of all batches in one round of a drain, in the order of the partitions."""

    def __init__(self, actions: Sequence[DriverActions]) -> None:
        self._actions = actions
        self._decisions: list[Mapping[Task, Decision]] = []  # as the hooks left them
        self._topics: dict[str, None] = {}

    def run_hooks(self, conn: psycopg.Connection[Any]) -> list[tuple[Task, Decision]]:
        """Call the commit hooks before the stage is completed, and return the decisions that they changed.

        Raises CommitHookInterrupted as `run_commit_hook` does.
        """
        queue = TaskQueue(conn)
        changed: list[tuple[Task, Decision]] = []
        self._decisions = []
        for actions in self._actions:
            decisions = dict(actions.decisions)
            for hook in actions.commit_hooks:
                run_commit_hook(queue, hook, decisions)
            changed += [(task, made) for task, made in decisions.items() if made is not actions.decisions[task]]
            self._decisions.append(decisions)
        return changed

    def push_follow_ups(self, conn: psycopg.Connection[Any], stage: str) -> None:
        """Push and release the follow-ups that could not be staged, for tasks that the stage has completed."""
        for actions, decisions in zip(self._actions, self._decisions, strict=True):
            if actions.pushes:
                completed = _completed_decisions(conn, stage, decisions)
                self._topics.update(dict.fromkeys(push_follow_ups(TaskQueue(conn), actions.batch(), completed)))

    def after_commit(self, writer: BatchWriter) -> None:
        """Call the functions of `after_commit`, and notify the consumers of the pushes. Errors are only logged."""
        for call in [call for actions in self._actions for call in actions.after_commit_calls]:
            try:
                call()
            except Exception:
                logger.exception("after_commit failed, the decisions are committed: function=%s", name_of(call))
        with suppress(psycopg.Error, TaskQueueError):  # without a notification, consumers find the tasks by polling
            if self._topics:
                with writer.connection_info.connect(autocommit=True) as conn:
                    for topic in self._topics:
                        TaskQueue(conn).notify(topic)


def _commit_once(writer: BatchWriter, attempts: Sequence[StagedAttempt], commit: DriverCommit) -> None:
    with writer.connection_info.connect() as conn:
        if not _is_committed(conn, writer):
            changed = _stage_changes(conn, writer, commit.run_hooks(conn))
            writer.rows.commit(conn, writer.stage, [*attempts, changed])
            commit.push_follow_ups(conn, writer.stage)


def _is_committed(conn: psycopg.Connection[Any], writer: BatchWriter) -> bool:
    """Return whether an earlier attempt, whose answer was lost, has completed the stage."""
    statement, arguments = writer.rows.still_open(writer.stage)
    try:
        with conn.transaction(), translate_errors():
            conn.execute(statement.encode(), arguments)
    except TaskQueueError as error:
        if isinstance(error, LeaseLost) or classify(error).is_temporary:
            raise
        return True
    return False


def _stage_changes(
    conn: psycopg.Connection[Any], writer: BatchWriter, changed: Sequence[tuple[Task, Decision]]
) -> StagedAttempt:
    """Stage the changed decisions, which the queue merges with those of the executors."""
    if changed:
        rows = [decision_values(task.sequence, decision, (), ()) for task, decision in changed]
        batch = pa.RecordBatch.from_pylist(rows, schema=DECISION_ARROW_SCHEMA)
        copy_rows(conn, decision_copies(batch, Attempt(UUID(writer.stage), DRIVER_PART, 0)))
    return StagedAttempt(DRIVER_PART, 0, len(changed))


def _completed_decisions(
    conn: psycopg.Connection[Any], stage: str, decisions: Mapping[Task, Decision]
) -> Mapping[Task, Decision]:
    """Return the decisions whose tasks the stage has completed. It may have dropped others."""
    sequences = [task.sequence for task in decisions]
    with translate_errors():
        row = conn.execute("SELECT taskq.completed_in_stage(%s::uuid, %s::bigint[])", (stage, sequences)).fetchone()
    completed = set(row[0]) if row else set()
    return {task: decision for task, decision in decisions.items() if task.sequence in completed}
