"""The commit of a drain that others take part in: their writes, all decisions, what follows; one transaction."""

import time
from collections.abc import Iterable, Sequence
from typing import Any
from uuid import UUID

import psycopg
import pyarrow as pa

from airflow_provider_taskq.queue import Decision, LeaseLost, Task, TaskQueueError
from airflow_provider_taskq.queue.backoff import Backoff
from airflow_provider_taskq.queue.errors import translate_errors
from airflow_provider_taskq.spark.batches import ARROW
from airflow_provider_taskq.spark.binary_copy import SIGNATURE, TRAILER
from airflow_provider_taskq.spark.commit import Commit
from airflow_provider_taskq.spark.encoding import COPY, staged_rows
from airflow_provider_taskq.spark.follow_ups import Staging
from airflow_provider_taskq.spark.staging import Staged, until_answered
from airflow_provider_taskq.spark.transforms import values_of
from airflow_provider_taskq.spark.writers import CompleteWriter, carry_out, check_of
from airflow_provider_taskq.worker.commit import MAX_HOOK_SECONDS, CommitHookInterrupted, HookInterruptions

DRIVER = -1  # the part of a stage that is the driver's own


def land(writer: CompleteWriter, won: Sequence[Staged], company: Iterable[bytes]) -> None:
    """Lands what these tries decided, with the company of their batches; then calls what waits for that.

    A server that went away is asked again: it knows by the stage whether the transaction came to its end. So is one
    that interrupted a participant, for up to a minute; then the participant's tasks fail.
    """
    commit, interruptions, back_off = Commit.of(company), HookInterruptions(MAX_HOOK_SECONDS), Backoff()
    while True:
        try:
            until_answered(lambda: _carry_out(writer, won, commit, interruptions))
            break
        except CommitHookInterrupted as interrupted:
            interruptions.note(interrupted)
            time.sleep(back_off.next())  # nothing tells when what interrupted it has passed
    commit.after_commit(lambda: writer.route.connect(autocommit=True))


def _carry_out(writer: CompleteWriter, won: Sequence[Staged], commit: Commit, interruptions: HookInterruptions) -> None:
    """The transaction, unless it was committed by a try whose answer was lost."""
    with writer.route.connect() as conn:
        if not _is_committed(conn, writer):
            own = _stage_changes(conn, writer, commit.run_commit_hook(conn, interruptions.abandoned))
            carry_out(conn, writer.options, writer.stage, [*won, own])
            commit.push_follow_ups(conn, writer.stage)


def _is_committed(conn: psycopg.Connection[Any], writer: CompleteWriter) -> bool:
    """Whether the stage was carried out."""
    statement, arguments = check_of(writer.options, writer.stage)
    try:
        with conn.transaction(), translate_errors():
            conn.execute(statement.encode(), arguments)
    except LeaseLost:
        raise
    except TaskQueueError:
        return True
    return False


def _stage_changes(
    conn: psycopg.Connection[Any], writer: CompleteWriter, changed: Sequence[tuple[Task, Decision]]
) -> Staged:
    """Stages decisions that became others, beside those of the executors, with which they are merged."""
    if not changed:
        return Staged(DRIVER, 0, 0)
    rows = [values_of(task.sequence, decision, (), ()) for task, decision in changed]
    staging = Staging((writer.stage, DRIVER, 0), lambda: conn)
    (batch,) = staging.kept_apart(iter([pa.RecordBatch.from_pylist(rows, schema=ARROW)]))
    with translate_errors(), conn.cursor().copy(COPY.encode()) as copy:
        copy.write(SIGNATURE)
        copy.write(memoryview(staged_rows(batch, UUID(writer.stage).bytes, DRIVER, 0)))
        copy.write(TRAILER)
    return Staged(DRIVER, 0, len(rows))
