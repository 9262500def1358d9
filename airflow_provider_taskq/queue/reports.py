"""What a page shows of topics, tasks, owners and the rest: cut to what a person can look at."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import IntEnum

from airflow_provider_taskq.queue.models import NamedEnum, State

# What a person sees of a task: the words of filters, of counts, of the page and of the command line.
STATUSES = (
    *("ready", "scheduled", "blocked", "paused", "retrying", "running", "failed", "suspended", "filtered", "succeeded"),
    *("expired", "redundant", "recreated"),
)


@dataclass(frozen=True, slots=True)
class TopicSummary:
    """A topic with counts by status (TaskInfo.status) that stop at a cap.

    `paused` is about the topic, `paused_tasks` counts tasks: all that are READY in a paused topic. `failed` includes
    `exhausted`. `running` and `consumers` are of the first 10,000 tasks that are held in the database;
    `running_capped`: there are more.
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


@dataclass(frozen=True, slots=True)
class TaskFilter:
    """Which tasks of a topic: every part may be None.

    `status` is one of STATUSES; `exhausted` are the failed without attempts left. `since` and `until` are about the
    push, both included. `error` is contained in the error, in any case, `error_group` is its group (ErrorGroup);
    without a state they look among EXPIRED, FAILED and SUSPENDED tasks.
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
    """Sequences that a filter found; `looked_to`: where it stopped looking, None where nothing is beyond."""

    sequences: Sequence[int]
    looked_to: int | None


@dataclass(frozen=True, slots=True)
class TaskSummary:
    """A task without its payload and output, of which it has the bytes; `error` is cut, or None unless asked for.

    `waited` is the queue time of the last attempt, from when the task was due to its poll; `ran` its run time, from the
    poll to the end, or to now while it runs. Both are None if no attempt runs or was completed.
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
    """A task's payload and output as JSON texts that may be cut, with their whole bytes."""

    payload: str | None
    payload_bytes: int | None
    output: str | None
    output_bytes: int | None


@dataclass(frozen=True, slots=True)
class Dependency:
    """What a task depends on: the newest task of an identifier, if there still is one, and the name of its state."""

    topic: str
    identifier: str
    sequence: int | None
    state: str


@dataclass(frozen=True, slots=True)
class OwnerSummary:
    """An owner; `held` stops at 1,000, `topics` are those of these tasks, `fence` is None once the lease is gone."""

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
    """Who holds how many tasks of a topic."""

    name: str
    held: int
    lease_until: datetime
    lapsed: bool


@dataclass(frozen=True, slots=True)
class LockSummary:
    """A lock by name; nobody's until then where `held_by` is empty."""

    name: str
    held_by: str
    locked: datetime
    until: datetime
    seconds_left: int


@dataclass(frozen=True, slots=True)
class ConsumerLag:
    """How far a group handled a partition, and how many tasks of the topic, of all partitions, come after."""

    group: str
    topic: str
    partition: int
    place: int
    advanced: datetime
    behind: int


@dataclass(frozen=True, slots=True)
class LogBlocker:
    """An open transaction before whose first task a topic's log ends."""

    pid: int | None
    since: datetime | None
    application: str | None
    floor: int | None


@dataclass(frozen=True, slots=True)
class TickSummary:
    """Ticks of one prefix and hash that wait; the count stops at 1,000.

    `schedule` is in words, as the last fifty nominal times tell it, in UTC.
    """

    prefix: str
    config_hash: str
    waiting: int
    next: datetime
    last: datetime
    schedule: str


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """An action of the page or the command line.

    `actor` is the person, as the client said. `role` is the database role that was connected, as the database says.
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
    """How durations are spread, in seconds: shortest, mean, longest, and percentiles."""

    shortest: float
    mean: float
    longest: float
    p50: float
    p90: float
    p95: float
    p99: float


@dataclass(frozen=True, slots=True)
class TopicStatistics:
    """What of a topic ended within a span of time.

    `retried` is how many tasks took more than one try, `retries` how many further tries those were. `took` is from when
    the last try was due to the end: the wait for a worker and the work.
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
        """The share of tasks, 0..1, that took more than one try."""
        return self.retried / self.ended


@dataclass(frozen=True, slots=True)
class HandlingTimes:
    """How long tasks of a topic were handled, as those who handled them noted: `count` of them."""

    topic: str
    count: int
    took: DurationStats


@dataclass(frozen=True, slots=True)
class TopicErrors:
    """Tasks of a topic that failed and have not succeeded since: FAILED, or to be tried again; each counted to 1,000.

    `sequence` is the first of them, pushed so long ago as `age` says.
    """

    topic: str
    sequence: int
    age: timedelta
    failed: int
    retrying: int


@dataclass(frozen=True, slots=True)
class ErrorGroup:
    """Tasks of a topic that failed for the same reason.

    `error` is the summary of their error with # in the place of identifiers and numbers, such as
    `ValueError: no mailbox for #`. `failed` tasks FAILED, `retrying` ones are READY to be tried again, with `messages`
    different summaries, of which `example` is the newest. `newest` is the highest sequence, `last_failed` when a task
    FAILED last. `looked_at` is how many FAILED tasks of the topic were looked at, of all groups together.
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
    """An owner that holds tasks under a lease that lapsed so long ago, and when it gave its last sign of life."""

    name: str
    fence: int
    lapsed: timedelta
    seen: datetime
    held: int


@dataclass(frozen=True, slots=True)
class HistoryEvent:
    """One event in the life of a task.

    `what`: pushed, failed (and is tried again), lapsed (its owner's lease), started anew, recreated, reassigned, held
    (now, since `happened`), ended. `state` is what it was before; of held and ended, what it is. `actor` is the person
    who did it, as the client said, `role` the database role that was connected, as the database says, `other` the
    sequence of the copy that was recreated or the state that was assigned. `error` is the end of a traceback,
    `error_summary` the line of it that says what went wrong.

    `waited` and `ran` are the queue time and the run time of the attempt that failed, lapsed or ended, or is held: from
    when the task was due (or due again, after a failure) to its poll, and from the poll to the end, or to now.
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
    """How many tasks of a topic ended in a state within a span of time: span 0 is the last one, 1 that before.

    Where there is much history only a random share of it is read, `sampled`, and the count is an estimate.
    """

    topic: str
    span: int
    state: State
    count: int
    sampled: float


class Severity(NamedEnum, IntEnum):
    """How bad it is; what is worse is greater."""

    FINE = 0
    NOTICE = 1
    WARNING = 2
    CRITICAL = 3


@dataclass(frozen=True, slots=True)
class HealthFinding:
    """Something that slows or threatens the queue, or a value that would, told in a sentence.

    `value` is what was measured (seconds, rows, bytes or transactions, as the sentence says), `pid` the session of
    the server to look at. `topic`, `sequence` and `owner` say what it is about, where it is about one of these.
    """

    severity: Severity
    subject: str
    detail: str
    value: int | None
    pid: int | None
    topic: str | None = None
    sequence: int | None = None
    owner: str | None = None
