"""The concepts of the queue: tasks, owners, decisions, and the enumerations of their states."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum, IntEnum, StrEnum
from typing import NoReturn, Self, TypeAlias, Union

from airflow_provider_taskq.queue.arguments import Duration, DurationLike, to_timedelta
from airflow_provider_taskq.queue.errors import InvalidArgument, InvalidTask, trace_text

# An UnreadablePayload is only ever read, in the place of a whole value, and never stored.
Json: TypeAlias = Union[bool, int, float, str, list["Json"], dict[str, "Json"], "UnreadablePayload", None]


class NamedEnum(Enum):
    """Base of enumerations whose members are also found by name in any case, as in State.of("failed")."""

    @classmethod
    def of(cls, value: Self | str) -> Self:
        """Return the member itself, or the member of a name.

        :raises InvalidArgument: for another name. The message lists the names.
        """
        return cls(value)

    @classmethod
    def _missing_(cls, value: object) -> Self:
        for member in cls:
            if isinstance(value, str) and value.upper() == member.name:
                return member
        names = ", ".join(member.name for member in cls)
        raise InvalidArgument(f"unknown {cls.__name__.lower()} {value!r}: expected one of {names}")


class State(NamedEnum, IntEnum):
    """The state of a task. EXPIRED to SUCCEEDED are the ended states, FAILED to SUCCEEDED the completed ones."""

    ACTIVE = 0
    READY = 1
    EXPIRED = 2
    FAILED = 3
    SUSPENDED = 4
    FILTERED = 5
    SUCCEEDED = 6
    RECREATED = 7
    REDUNDANT = 8


class Result(NamedEnum, IntEnum):
    """How a task ended. When two results of one task are merged, the lower number wins."""

    FAILURE = 0
    SUSPENSION = 1
    FILTER = 2
    SUCCESS = 3


class Waits(IntEnum):
    """What a READY task waits for besides its due time: a column of `live`. A poll looks at NOTHING only."""

    NOTHING = 0
    DEPENDENCIES = 1
    PROBE = 2  # the retry that its topic tries first
    RESUME = 3  # it is paused


class HistoryKind(IntEnum):
    """What happened to a task: a column of the table `history`."""

    FAILED = 1
    LAPSED = 2
    RESET = 3
    RECREATED = 4
    REASSIGNED = 5
    PAUSED = 6
    RESUMED = 7
    DUE_SET = 8
    ATTEMPTS_SET = 9
    PRIORITY_SET = 10
    CANCELED = 11


class LockKind(IntEnum):
    """What an advisory lock of the queue stands for: the upper 16 of the 64 bits of its key.

    They begin at a number that other programs are unlikely to use.
    """

    TOPIC = 0x7E40  # a topic, which a transaction relies on or drops
    FLOOR = 0x7E41  # a push, with a number no greater than any that it draws
    PUSH_TIME = 0x7E42  # a push, with a time in milliseconds no later than its own
    RETRY_TIME = 0x7E43  # the same for a transaction that makes tasks READY for a retry
    CLAIM_TIME = 0x7E44  # the same for a poll
    NAME = 0x7E45  # a named lock, while a transaction changes it
    TICKS = 0x7E46  # the ticks of a prefix
    ROWS = 0x7E47  # the creation of rows that belong to the schema
    INSTALL = 0x7E48  # an installation or upgrade
    RETRY_TOPIC = 0x7E49  # a topic with such a retry, as in TOPIC


class Insertion(NamedEnum, StrEnum):
    """What a push does to older tasks of the same identifiers."""

    APPEND = "APPEND"
    SUPERSEDE = "SUPERSEDE"
    REPLACE = "REPLACE"
    DELETE = "DELETE"


class Revival(NamedEnum, StrEnum):
    """How an ended task is revived: itself (RESET), or as a copy that is pushed by that insertion."""

    RESET = "RESET"
    APPEND = "APPEND"
    SUPERSEDE = "SUPERSEDE"
    REPLACE = "REPLACE"


class Order(NamedEnum, StrEnum):
    """The order in which a poll claims due tasks of one priority."""

    FIRST_IN_FIRST_OUT = "FIRST_IN_FIRST_OUT"
    LAST_IN_FIRST_OUT = "LAST_IN_FIRST_OUT"


class Condition(NamedEnum, StrEnum):
    """Which other tasks of its identifier keep a task from being polled."""

    NONE = "NONE"
    SINGULAR_BY_IDENTIFIER = "SINGULAR_BY_IDENTIFIER"
    SINGULAR_BY_IDENTIFIER_SUSPEND_ON_FAILURE = "SINGULAR_BY_IDENTIFIER_SUSPEND_ON_FAILURE"
    SINGULAR_BY_IDENTIFIER_SUSPEND_UNTIL_SUCCESS = "SINGULAR_BY_IDENTIFIER_SUSPEND_UNTIL_SUCCESS"


class Outcome(NamedEnum, StrEnum):
    """What an offer did: it stored a task, replaced what a waiting task holds, or changed nothing."""

    CREATED = "CREATED"
    UPDATED = "UPDATED"
    IGNORED = "IGNORED"


class Junction(NamedEnum, StrEnum):
    """What each identifier of a group needs before the group is released.

    SINGULAR requires a SUSPENDED task, and ETERNAL a task in any state but REDUNDANT.
    """

    SINGULAR = "SINGULAR"
    ETERNAL = "ETERNAL"


@dataclass(frozen=True, slots=True)
class UnreadablePayload:
    """Stands for a payload, or another JSON value, that is stored but cannot be decoded by Python.

    `reason` says why, without any of the text. Code that uses the object as data gets an InvalidTask with that reason,
    so that a handler that expects a payload fails this one task only. Check for the class with `isinstance`.
    """

    reason: str

    def _refuse(self, *_: object) -> NoReturn:
        raise InvalidTask(self.reason)

    __getitem__ = __iter__ = __len__ = __contains__ = __bool__ = __int__ = __float__ = __index__ = __reversed__ = (
        _refuse
    )

    def __getattr__(self, name: str) -> NoReturn:
        # Names of protocols (copy, pickle, inspection) are absent, as is a reason that is not set yet.
        if name.startswith("_") or name == "reason":
            raise AttributeError(name)
        raise InvalidTask(self.reason)


@dataclass(frozen=True, slots=True)
class NewTask:
    """A task to push.

    :param identifier: what the task is about, 1 to 500 characters; several tasks may have the same.
    :param payload: any JSON value.
    :param reference: a text of at most 2,000 bytes that pages and counts can be filtered by.
    :param suspended: stores the task as SUSPENDED, so that a junction or `revive` releases it.
    :param available_at: when the task is due, in the years 1 to 9999; at most one of this and `delay`.
    :param delay: how long after the push the task is due, at most 3650 days: a timedelta, a number of seconds, or a
        text such as `90s`.
    :param ttl: while the task is younger than this, at most 3650 days, its failures are not counted. Given as `delay`.
    :param priority: -100 to 100; higher first.
    :param depends_on: pairs of topic and identifier. The task waits until the latest task of each has SUCCEEDED.
    """

    identifier: str
    payload: Json = field(default=None, repr=False)  # private: not for logs
    reference: str | None = None
    suspended: bool = False
    available_at: datetime | None = None
    delay: DurationLike | None = None
    ttl: DurationLike | None = None
    priority: int = 0
    depends_on: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """A task as its owner sees it. Two tasks are equal if their topics and sequences are equal.

    `attempt` is 1 at the first poll and 0 for a task just pushed. `redelivered` is True if a previous owner lost its
    lease while it held the task. A payload that Python cannot decode is an UnreadablePayload.
    """

    sequence: int
    topic: str
    identifier: str
    payload: Json = field(repr=False)
    reference: str | None
    attempt: int
    redelivered: bool

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Task):
            return NotImplemented
        return (self.topic, self.sequence) == (other.topic, other.sequence)

    def __hash__(self) -> int:
        return hash((self.topic, self.sequence))


@dataclass(frozen=True, slots=True, eq=False)
class TaskInfo(Task):
    """A task with all its columns.

    `status` is one of `reports.STATE_OF_STATUS`; `exhausted` is FAILED without attempts left. `descent` is the
    state that a RECREATED or REDUNDANT task had before. `output` is the message of its decision. `error` is the bounded
    traceback of the last failure, `error_summary` the same in one line of at most 200 characters, such as `ValueError:
    no mailbox for bad-1`. `polled` is when the last attempt was claimed; None while the task is READY, and for a task
    that ended without being polled or is EXPIRED.
    """

    state: State
    descent: State | None
    status: str
    owner: str | None
    crashes: int
    priority: int
    created: datetime
    available_at: datetime
    completed: datetime | None
    output: Json = field(repr=False)
    error: str | None
    error_summary: str | None
    polled: datetime | None


UNDECIDED_DELAY = timedelta.min  # of a SUSPENSION that decides nothing


@dataclass(frozen=True)
class Decision:
    """The outcome of a task.

    :param result: a Result, or its name in any case.
    :param message: any JSON value, stored as the task's `output`.
    :param error: the reason for a failure; an exception is stored as a bounded traceback.
    :param continued: whether later steps of a composite get the task. With None they get it after a SUCCESS only.
    :param delay: turns a SUSPENSION into a snooze: the task is READY again, due after this time, and the attempt is not
        counted. A delay beyond the year 9999 ends there. A negative delay makes a FAILURE final: it is not retried.
        Numbers are seconds; text such as `90s` is a delay too.
    :raises InvalidArgument: for an unknown result, or a delay that does not go with the result.
    """

    result: Result
    message: Json = field(default=None, repr=False)
    error: BaseException | str | None = None
    continued: bool | None = None
    delay: Duration[timedelta | None] = Duration(None, timedelta.min)

    def __post_init__(self) -> None:
        if self.result.__class__ is not Result:
            object.__setattr__(self, "result", Result(self.result))
        if self.delay is not None and not self._is_final:
            if self.result is not Result.SUSPENSION:
                raise InvalidArgument(f"a delay goes with SUSPENSION only, not with {self.result.name}")
            if self.delay != UNDECIDED_DELAY:
                to_timedelta(self.delay, "delay of a SUSPENSION")
        if self.continued is None:
            object.__setattr__(self, "continued", self.result is Result.SUCCESS)

    @property
    def _is_final(self) -> bool:
        return self.result is Result.FAILURE and self.delay is not None and self.delay < timedelta(0)

    def merge(self, other: Self) -> Self:
        """Return the decision that applies when both were made: the lower result, continued only if both are.

        If the results are equal, `self` applies, unless only `other` is a final failure. The error of the merged
        decision has both errors, one after the other.
        """
        keeps = self.result < other.result or (self.result == other.result and self._is_final >= other._is_final)
        first, second = (self, other) if keeps else (other, self)
        return type(self)(
            result=first.result,
            message=first.message if first.message is not None else second.message,
            error=_merge_errors(first.error, second.error),
            continued=bool(self.continued and other.continued),
            delay=first.delay,
        )


def _merge_errors(first: BaseException | str | None, second: BaseException | str | None) -> BaseException | str | None:
    if first is None or second is None or first is second:
        return first if first is not None else second
    if isinstance(first, BaseException) and isinstance(second, BaseException):
        return BaseExceptionGroup("two decisions failed this task", [first, second])
    return f"{trace_text(first)}\n{trace_text(second)}"


@dataclass(frozen=True, slots=True)
class Owner:
    """A registration that may hold tasks: a name, a lease on the database's clock, and a fence that only grows.

    `resumed` is True if the name held tasks when it registered. The new registration holds these tasks.
    """

    name: str
    fence: int
    lease: timedelta
    lease_until: datetime
    resumed: bool


class Polled(list[Task]):
    """The tasks that one poll claimed, in order, and the fence that it drew (see `TaskQueue.draw_fence`).

    `fence` is greater than that of each earlier poll of one of these tasks. It is 0 if there are no tasks.
    """

    fence: int = 0


@dataclass(frozen=True, slots=True)
class MaintenanceResult:
    """What a call of `TaskQueue.maintain` did.

    `expired` counts the tasks that the ended leases held, and `purged` the removed tasks. `more` is True if the call
    left work, because it had no time for it.
    """

    expired: int
    purged: int
    more: bool


@dataclass(frozen=True, slots=True)
class Pushed:
    """The result of `push_stream`: the number of tasks in the iterator, and the lowest and highest stored sequence."""

    count: int
    first: int | None
    last: int | None


@dataclass(frozen=True, slots=True)
class Offered:
    """The outcome of an offer, and the sequence of the task that now waits under the identifier."""

    outcome: Outcome
    sequence: int


@dataclass(frozen=True, slots=True)
class Count:
    """A number of tasks, and the highest sequence among them."""

    count: int
    last: int
