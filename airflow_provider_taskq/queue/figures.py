"""Figures of what a topic did: how many, how often again, how long."""

from dataclasses import dataclass
from datetime import datetime, timedelta


@dataclass(frozen=True, slots=True)
class Spread:
    """How durations are spread, in seconds: shortest, mean, longest, and percentiles."""

    shortest: float
    mean: float
    longest: float
    p50: float
    p90: float
    p95: float
    p99: float


@dataclass(frozen=True, slots=True)
class Ends:
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
    took: Spread

    @property
    def retried_share(self) -> float:
        """The share of tasks, 0..1, that took more than one try."""
        return self.retried / self.ended


@dataclass(frozen=True, slots=True)
class HandlingTimes:
    """How long tasks of a topic were handled, as those who handled them noted: `count` of them."""

    topic: str
    count: int
    took: Spread


@dataclass(frozen=True, slots=True)
class Errors:
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
