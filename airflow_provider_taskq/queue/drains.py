"""Drains: the report of one, what it has ended, and `max_failed`, the limit for its failed tasks."""

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeAlias

from airflow_provider_taskq.queue.errors import InvalidArgument, TaskQueueError

MaxFailed: TypeAlias = int | float | str | None


@dataclass(frozen=True, slots=True)
class FailedTask:
    """A task that is FAILED, and the summary of its error."""

    sequence: int
    identifier: str
    error: str | None

    def __str__(self) -> str:
        return f"{self.identifier} (sequence {self.sequence}): {self.error or 'no error was noted'}"


@dataclass(frozen=True, slots=True)
class DrainReport:
    """The latest drain of a name. `finished` and `report` are None until its end, and if its program was killed."""

    topic: str
    began: datetime
    finished: datetime | None
    report: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class DrainCounts:
    """What a drain has ended so far: FAILED tasks, all ended tasks with these, and the first failed ones by sequence.

    A failure that the topic's policy retries is in no count: its task has not ended. Neither is a snoozed task.
    """

    failed: int
    ended: int
    first: Sequence[FailedTask] = ()


class TooManyFailures(TaskQueueError):
    """More tasks of a drain failed than its `max_failed` allows. All decisions are committed."""


@dataclass(frozen=True, slots=True)
class FailureLimit:
    """The limit that `max_failed` names: a count of tasks, or a share of the tasks that ended.

    An int is a count: `0` allows no failed task, `10` allows ten. A float from 0 to 1 is a share: `0.05` allows 5 % of
    the tasks that ended. Text is read by the same rule (`"10"`, `"0.05"`), and `"5%"` is a share, too.
    """

    count: int | None = None
    share: float | None = None

    @classmethod
    def of(cls, max_failed: MaxFailed) -> "FailureLimit | None":
        """The limit for a value of `max_failed`. None, and the texts "" and "None", are no limit.

        InvalidArgument for a negative count, a share outside 0 to 1, and anything else.
        """
        if max_failed is None or max_failed in ("", "None"):
            return None
        value = _number(max_failed) if isinstance(max_failed, str) else max_failed
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return cls(count=value)
        if isinstance(value, float) and 0 <= value <= 1:
            return cls(share=value)
        raise InvalidArgument(
            f"invalid max_failed {max_failed!r}: expected a count such as 0 or 10, or a share such as 0.05 or '5%'"
        )

    def is_exceeded(self, counts: DrainCounts) -> bool:
        """Whether more tasks failed than the limit allows."""
        if self.count is not None:
            return counts.failed > self.count
        return self.share is not None and counts.failed > self.share * counts.ended

    def exceeded(self, topic: str, counts: DrainCounts) -> TooManyFailures | None:
        """The error to raise, with the counts and the first errors, if more tasks failed than the limit allows."""
        if not self.is_exceeded(counts):
            return None
        allowed = f"{self.count:,}" if self.count is not None else f"{100 * (self.share or 0):.4g} % of them"
        more = counts.failed - len(counts.first)
        text = (
            f"{counts.failed:,} of {counts.ended:,} tasks that ended in topic {topic!r} failed, max_failed allows"
            f" {allowed}. All results are committed. Run the failed tasks again with:"
            f" taskq retry {shlex.quote(topic)} --state FAILED. The first errors:"
        )
        lines = [
            text,
            *map(str, counts.first),
            *([f"and {more:,} more"] if more else []),
        ]
        return TooManyFailures("\n  ".join(lines))


def _number(text: str) -> int | float | None:
    """A count or a share from its text; None if it is neither."""
    try:
        if text.rstrip().endswith("%"):
            return float(text.rstrip()[:-1]) / 100
        return int(text)
    except ValueError:
        pass
    try:
        share = float(text)
    except ValueError:
        return None
    return share if math.isfinite(share) else None
