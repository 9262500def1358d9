"""What a page shows of topics, tasks, owners and the rest: cut to what a person can look at."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from airflow_provider_taskq.queue.models import State

# What a person sees of a task: the words of filters, of counts, of the page and of the command line.
STATUSES = (
    *("ready", "scheduled", "blocked", "paused", "retrying", "running", "failed", "suspended", "filtered", "succeeded"),
    *("expired", "redundant", "recreated"),
)


@dataclass(frozen=True, slots=True)
class TopicGlance:
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
class Found:
    """Sequences that a filter found; `looked_to`: where it stopped looking, None where nothing is beyond."""

    sequences: Sequence[int]
    looked_to: int | None


@dataclass(frozen=True, slots=True)
class TaskLine:
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
class Texts:
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
class OwnerLine:
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
class Holder:
    """Who holds how many tasks of a topic."""

    name: str
    held: int
    lease_until: datetime
    lapsed: bool


@dataclass(frozen=True, slots=True)
class LockLine:
    """A lock by name; nobody's until then where `held_by` is empty."""

    name: str
    held_by: str
    locked: datetime
    until: datetime
    seconds_left: int


@dataclass(frozen=True, slots=True)
class ReaderLine:
    """How far a group handled a partition, and how many tasks of the topic, of all partitions, come after."""

    group: str
    topic: str
    partition: int
    place: int
    advanced: datetime
    behind: int


@dataclass(frozen=True, slots=True)
class LogHolder:
    """An open transaction before whose first task a topic's log ends."""

    pid: int | None
    since: datetime | None
    application: str | None
    floor: int | None


@dataclass(frozen=True, slots=True)
class TickLine:
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
class AuditLine:
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
