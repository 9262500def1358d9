"""Who takes part in the commit of a drain: functions that steps on executors gave, carried out by the driver.

What a batch has beside its decisions goes to the driver with them, pickled: functions of `work.in_commit` and
`work.after_commit`, and pushes with another insertion than APPEND, which a stage does not have. The driver calls the
first in the transaction that lands all decisions, before these, and the pushes after these. The bytes travel inside
Spark's own commit messages only: see composite_writer.py.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import psycopg
from pyspark import cloudpickle

from airflow_provider_taskq.queue import Condition, Decision, Insertion, Task, TaskQueue, TaskQueueError
from airflow_provider_taskq.queue.errors import picklable_error, translate_errors
from airflow_provider_taskq.worker.batches import Batch, CommitHook, FollowUp, Release
from airflow_provider_taskq.worker.commit import NO_ABANDONED_HOOKS, AbandonedHooks, push_follow_ups, run_commit_hook

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Company:
    """What a batch has beside its decisions; `pushes` tells that its follow-ups are among it."""

    composite: str
    decisions: Mapping[Task, Decision]
    participants: tuple[CommitHook, ...] = ()
    follow_ups: tuple[FollowUp, ...] = ()
    releases: tuple[Release, ...] = ()
    afterwards: tuple[Callable[[], None], ...] = ()

    @property
    def pushes(self) -> bool:
        """Whether the driver pushes."""
        return bool(self.follow_ups)

    @property
    def is_empty(self) -> bool:
        """Whether the driver has nothing to do beside the decisions."""
        return not (self.participants or self.follow_ups or self.afterwards)

    def pickled(self) -> bytes:
        """All of it as bytes; TaskQueueError where it does not pickle."""
        try:
            return bytes(cloudpickle.dumps(self))  # type: ignore[no-untyped-call]
        except Exception as error:
            raise TaskQueueError(
                f"composite {self.composite!r}: a function of in_commit or after_commit cannot be sent to the driver,"
                f" as what it refers to does not pickle: {error}"
            ) from error

    def work(self) -> Batch:
        """The batch again, on the driver."""
        work = Batch(self.decisions)
        work.commit_hooks.extend(self.participants)
        work.follow_ups.extend(self.follow_ups)
        work.releases.extend(self.releases)
        work.after_commit_calls.extend(self.afterwards)
        return work


def company_of(composite: str, work: Batch, decisions: Mapping[Task, Decision], condition: Condition) -> Company:
    """What a batch has beside its decisions that only the driver can do.

    TaskQueueError under a condition: which decisions land is known there only when they have.
    """
    displacing = any(each.insertion is not Insertion.APPEND for each in work.follow_ups)
    if condition is not Condition.NONE and (work.commit_hooks or work.after_commit_calls or displacing):
        raise TaskQueueError(
            f"composite {composite!r}: in a drain under {condition} there is no in_commit, no after_commit, and no push"
            " but APPEND; a worker has these"
        )
    follow_ups, releases = (work.follow_ups, work.releases) if displacing else ([], [])
    as_text = {task: _with_trace(made) for task, made in decisions.items()}
    return Company(
        composite, as_text, tuple(work.commit_hooks), tuple(follow_ups), tuple(releases), tuple(work.after_commit_calls)
    )


def _with_trace(decision: Decision) -> Decision:
    """A decision that pickles, whatever its exception is."""
    return decision if decision.error is None else replace(decision, error=picklable_error(decision.error))


@dataclass(slots=True)
class Commit:
    """The company of all batches of a drain's round, in one transaction on the driver."""

    companies: list[Company]
    stands: list[Mapping[Task, Decision]]
    topics: dict[str, None]

    @classmethod
    def of(cls, pickled: Iterable[bytes]) -> "Commit":
        """The batches of all partitions, in their order. Loads pickles: only ever those of a CompositeWriter."""
        return cls([cloudpickle.loads(each) for each in pickled], [], {})

    def run_commit_hook(
        self, conn: psycopg.Connection[Any], given_up: AbandonedHooks = NO_ABANDONED_HOOKS
    ) -> list[tuple[Task, Decision]]:
        """Calls who takes part, before the decisions land; returns the decisions that are others now.

        Hooks in `given_up` are not called: their tasks fail. Raises CommitHookInterrupted as `run_commit_hook` does.
        """
        queue = TaskQueue(conn)
        changed: list[tuple[Task, Decision]] = []
        self.stands = []
        for company in self.companies:
            stands = dict(company.decisions)
            for participation in company.participants:
                run_commit_hook(queue, participation, stands, given_up)
            changed += [(task, made) for task, made in stands.items() if made is not company.decisions[task]]
            self.stands.append(stands)
        return changed

    def push_follow_ups(self, conn: psycopg.Connection[Any], stage: str) -> None:
        """Pushes and releases what the stage could not, after it was carried out; nothing for decisions it dropped."""
        for company, stands in zip(self.companies, self.stands, strict=True):
            if company.pushes:
                landed = _landed(conn, stage, stands)
                self.topics.update(dict.fromkeys(push_follow_ups(TaskQueue(conn), company.work(), landed)))

    def after_commit(self, connect: Callable[[], psycopg.Connection[Any]]) -> None:
        """Calls what waits for the commit; what goes wrong here changes nothing, and is told to the log."""
        for call in [call for company in self.companies for call in company.afterwards]:
            try:
                call()
            except Exception:
                logger.exception("after a commit, %s failed; what was committed stands", call)
        with suppress(psycopg.Error, TaskQueueError):  # nothing depends on it
            if self.topics:
                with connect() as conn:
                    for topic in self.topics:
                        TaskQueue(conn).notify(topic)


def _landed(conn: psycopg.Connection[Any], stage: str, stands: Mapping[Task, Decision]) -> Mapping[Task, Decision]:
    """The decisions that the stage carried out."""
    asked = [task.sequence for task in stands]
    with translate_errors():
        row = conn.execute("SELECT taskq.completed_in_stage(%s::uuid, %s::bigint[])", (stage, asked)).fetchone()
    landed = set(row[0]) if row else set()
    return {task: made for task, made in stands.items() if task.sequence in landed}
