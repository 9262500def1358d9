"""Results of the inspection verbs: rows of searches, history events, statistics, health findings, audit entries."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import IntEnum

from airflow_provider_taskq.queue.models import NamedEnum, State

# The statuses of filters, counts, the page and the command line.
STATUSES = (
    *("ready", "scheduled", "blocked", "paused", "retrying", "running", "failed", "suspended", "filtered", "succeeded"),
    *("expired", "redundant", "recreated"),
)


@dataclass(frozen=True, slots=True)
class TopicSummary:
    """A topic with counts of tasks by status (TaskInfo.status), which stop at a cap.

    `paused` is about the topic; `paused_tasks` counts all READY tasks of a paused topic. `failed` includes `exhausted`.
    `running` and `consumers` are counted among the first 10,000 held tasks of the database; `running_capped` is True if
    there are more held tasks.
    """

    topic: str
    paused: bool
    ready: int
    scheduled: int
    retrying: int
    blocked: int
    paused_tasks: int
    running: int
    failed: int
    suspended: int
    expired: int
    running_capped: bool
    consumers: int
    oldest_seconds: int | None
    last_end_seconds: int | None


# The label `state` of the metrics of a topic's depth, and the field of TopicSummary that counts it.
DEPTH_FIELDS = {
    "ready": "ready",
    "scheduled": "scheduled",
    "retrying": "retrying",
    "blocked": "blocked",
    "paused": "paused_tasks",
    "running": "running",
    "failed": "failed",
    "suspended": "suspended",
    "expired": "expired",
}


@dataclass(frozen=True, slots=True)
class TaskFilter:
    """Conditions on tasks of a topic, all of which have to hold; None is no condition.

    `status` is one of STATUSES, or `exhausted`: FAILED without attempts left. `since` and `until` bound the push, both
    included. The task's error contains `error`, in any case, and belongs to `error_group` (ErrorGroup.error); without a
    state these two search EXPIRED, FAILED and SUSPENDED tasks.
    """

    state: State | None = None
    status: str | None = None
    identifier: str | None = None
    reference: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    error: str | None = None
    error_group: str | None = None


@dataclass(frozen=True, slots=True)
class SearchPage:
    """Sequences of tasks that match a filter.

    `looked_to` is where the search stopped; None if no task is left beyond.
    """

    sequences: Sequence[int]
    looked_to: int | None


@dataclass(frozen=True, slots=True)
class TaskSummary:
    """A task with the sizes of its payload and output instead of their values. `error` is cut, or None.

    `waited` is the queue time of the last attempt, from when the task was due to its poll. `ran` is its run time, from
    the poll to the end, or to now while it runs. Both are None if no attempt runs or was completed.
    """

    sequence: int
    topic: str
    identifier: str
    reference: str | None
    state: State
    descent: State | None
    status: str
    attempt: int
    crashes: int
    redelivered: bool
    priority: int
    created: datetime
    available_at: datetime
    completed: datetime | None
    owner: str | None
    lease_until: datetime | None
    error: str | None
    error_summary: str | None
    payload_bytes: int | None
    output_bytes: int | None
    waited: timedelta | None
    ran: timedelta | None


@dataclass(frozen=True, slots=True)
class TaskTexts:
    """A task's payload and output as JSON texts, which may be cut, with their whole sizes in bytes."""

    payload: str | None = field(repr=False)  # private: not for logs
    payload_bytes: int | None
    output: str | None = field(repr=False)
    output_bytes: int | None


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a task is not running.

    :param reason: one sentence.
    :param waits_normally: for a READY task, whether it waits only for its first due time, or for tasks before it in a
        topic that workers poll. None for a task in another state.
    """

    reason: str
    waits_normally: bool | None


@dataclass(frozen=True, slots=True)
class Dependency:
    """A dependency of a task: the newest task of an identifier, if one still exists, and the name of its state."""

    topic: str
    identifier: str
    sequence: int | None
    state: str


@dataclass(frozen=True, slots=True)
class OwnerSummary:
    """An owner. `held` stops at 1,000; `topics` are those of the counted tasks; `fence` is None without a lease."""

    name: str
    fence: int | None
    lease: timedelta
    lease_until: datetime
    lapsed: bool
    seen: datetime
    held: int
    topics: Sequence[str]


@dataclass(frozen=True, slots=True)
class TopicHolder:
    """An owner that holds tasks of a topic, and the number of these."""

    name: str
    held: int
    lease_until: datetime
    lapsed: bool


@dataclass(frozen=True, slots=True)
class LockSummary:
    """A lock by name. If `held_by` is empty, the lock was given back early and has no holder until `until`."""

    name: str
    held_by: str
    locked: datetime
    until: datetime
    seconds_left: int


@dataclass(frozen=True, slots=True)
class ConsumerLag:
    """The progress of a consumer group in a partition, and how many tasks of the topic, in all partitions, follow."""

    group: str
    topic: str
    partition: int
    place: int
    advanced: datetime
    behind: int


@dataclass(frozen=True, slots=True)
class LogBlocker:
    """An open transaction that holds a topic's log back: the log ends before its first task, `floor`."""

    pid: int | None
    since: datetime | None
    application: str | None
    floor: int | None


@dataclass(frozen=True, slots=True)
class TickSummary:
    """The waiting ticks of one prefix and hash; the count stops at 1,000.

    `schedule` describes up to fifty of their nominal times in words, in UTC.
    """

    prefix: str
    config_hash: str
    waiting: int
    next: datetime
    last: datetime
    schedule: str


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """An action of the page or the command line, as recorded in the audit trail.

    `actor` is the person that the client named. `role` is the connected database role.
    """

    audit_id: int
    happened: datetime
    actor: str
    role: str
    action: str
    topic: str | None
    what: str
    count: int


@dataclass(frozen=True, slots=True)
class DurationStats:
    """Statistics of durations, in seconds: shortest, mean, longest, and percentiles."""

    shortest: float
    mean: float
    longest: float
    p50: float
    p90: float
    p95: float
    p99: float


@dataclass(frozen=True, slots=True)
class TopicStatistics:
    """Statistics of a topic's tasks that ended within a span of time.

    `retried` counts the tasks that took more than one attempt, and `retries` their further attempts. `took` is measured
    from when the last attempt was due to the end: the wait for a worker and the work.
    """

    topic: str
    ended: int
    succeeded: int
    failed: int
    retried: int
    retries: int
    took: DurationStats

    @property
    def retried_share(self) -> float:
        """The share of tasks, 0 to 1, that took more than one attempt."""
        return self.retried / self.ended


@dataclass(frozen=True, slots=True)
class HandlingTimes:
    """How long handlers worked on a topic's tasks, as workers recorded it for `count` tasks."""

    topic: str
    count: int
    took: DurationStats


@dataclass(frozen=True, slots=True)
class TopicErrors:
    """Counts of a topic's tasks that failed and have not succeeded since: FAILED or waiting for a retry, up to 1,000.

    `sequence` is the first of them, and `age` the time since its push.
    """

    topic: str
    sequence: int
    age: timedelta
    failed: int
    retrying: int


@dataclass(frozen=True, slots=True)
class ErrorGroup:
    """Tasks of a topic that failed for the same reason.

    `error` is the summary of their error with # for identifiers and numbers, such as `ValueError: no mailbox for #`.
    `failed` tasks are FAILED and `retrying` ones wait for a retry. Their summaries have `messages` different texts, of
    which `example` is the newest. `newest` is the highest sequence, and `last_failed` the last time that a task became
    FAILED. `looked_at` is the number of FAILED tasks of the topic that were examined, in all groups together.
    """

    error: str
    failed: int
    retrying: int
    messages: int
    example: str | None
    newest: int
    last_failed: datetime | None
    looked_at: int


@dataclass(frozen=True, slots=True)
class StuckOwner:
    """An owner that holds tasks under a lapsed lease. `lapsed` is the time since then, `seen` its last sign of life."""

    name: str
    fence: int
    lapsed: timedelta
    seen: datetime
    held: int


@dataclass(frozen=True, slots=True)
class HistoryEvent:
    """One event in the life of a task.

    `what` is one of: pushed, failed (a retry follows), lapsed (its owner's lease), reset, recreated, reassigned, held
    (now, since `happened`), ended. `state` is the state before the event; of held and ended, the state now.
    `actor` is the person that the client named, and `role` the connected database role. `other` is the sequence of the
    recreated copy, or the number of the assigned state. `error` is the end of a traceback, and `error_summary` its
    telling line.

    `waited` is the queue time of the attempt, from when the task was due to its poll. `ran` is its run time, from the
    poll to the end, or to now.
    """

    happened: datetime | None
    what: str
    state: State | None
    attempt: int
    holder: str | None
    actor: str | None
    role: str | None
    other: int | None
    error: str | None
    error_summary: str | None
    waited: timedelta | None
    ran: timedelta | None


@dataclass(frozen=True, slots=True)
class Throughput:
    """The number of a topic's tasks that ended in a state within a span of time.

    Span 0 is the last span, and span 1 the one before. Of a long history the queue reads only the random share
    `sampled`, and the count is an estimate.
    """

    topic: str
    span: int
    state: State
    count: int
    sampled: float


class Severity(NamedEnum, IntEnum):
    """The severity of a health finding; a worse one is greater."""

    FINE = 0
    NOTICE = 1
    WARNING = 2
    CRITICAL = 3


@dataclass(frozen=True, slots=True)
class HealthFinding:
    """A measured condition that slows or threatens the queue, or would do so at a higher value.

    `detail` is a sentence. `value` is the measured number of seconds, rows, bytes or transactions in that sentence, and
    `pid` the server's session in question. `topic`, `sequence` and `owner` are set if the finding is about a topic, a
    task or an owner. `remedy` is a command of `taskq` or an SQL statement that ends the condition or shows its cause;
    None if the finding is fine, or if no command helps.
    """

    severity: Severity
    subject: str
    detail: str
    value: int | None
    pid: int | None
    topic: str | None = None
    sequence: int | None = None
    owner: str | None = None
    remedy: str | None = None
