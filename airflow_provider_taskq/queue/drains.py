"""Drains: their reports, the counts of the tasks that they ended, and the limit `max_failed`."""

import json
import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeAlias, cast

from airflow_provider_taskq.queue.arguments import to_integer
from airflow_provider_taskq.queue.connection import FunctionCaller
from airflow_provider_taskq.queue.encoding import model_row
from airflow_provider_taskq.queue.errors import InvalidArgument, TaskQueueError
from airflow_provider_taskq.queue.models import Owner

MaxFailed: TypeAlias = int | float | str | None


@dataclass(frozen=True, slots=True)
class FailedTask:
    """A task that is FAILED, and the summary of its error."""

    sequence: int
    identifier: str
    error: str | None

    def __str__(self) -> str:
        return f"{self.identifier} (sequence {self.sequence}): {self.error or 'no error was recorded'}"


@dataclass(frozen=True, slots=True)
class DrainReport:
    """The latest drain of a name.

    `finished` and `report` are None while the drain runs, and if its program was killed.
    """

    topic: str
    began: datetime
    finished: datetime | None
    report: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class DrainCounts:
    """Counts of the tasks that a drain has ended: FAILED tasks, all ended tasks, and the first failed ones.

    `first` is in order of sequence. A task that will be retried has not ended, nor has a snoozed one.
    """

    failed: int
    ended: int
    first: Sequence[FailedTask] = ()


class TooManyFailures(TaskQueueError):
    """More tasks of a drain failed than its `max_failed` allows. The drain has committed all decisions."""


class TooManyUndecided(TaskQueueError):
    """A drain left more tasks without a decision than its `max_undecided` allows. It has committed all decisions."""

    @classmethod
    def check(cls, topic: str, undecided: int, max_undecided: int | None) -> "TooManyUndecided | None":
        """Return an error if more tasks are undecided than `max_undecided` allows; None is no limit."""
        if max_undecided is None or undecided <= max_undecided:
            return None
        return cls(
            f"{undecided:,} tasks of topic {topic!r} are undecided, max_undecided allows {max_undecided:,}. They have"
            " no result, and all other results are committed. Let the function decide each task (None is SUCCESS), or"
            " pass a greater max_undecided"
        )


def parse_max_undecided(value: int | str | None) -> int | None:
    """Return the limit for a value of `max_undecided`: a count, or None for no limit, also as text.

    :raises InvalidArgument: for any other value.
    """
    if value is None or value in ("", "None"):
        return None
    if isinstance(value, str) and value.isdecimal():
        value = int(value)
    return to_integer(cast("int", value), "max_undecided", 0)


@dataclass(frozen=True, slots=True)
class FailureLimit:
    """The limit `max_failed`: a count of tasks, or a share of the tasks that ended.

    An int is a count: `0` allows no failed task, `10` allows ten. A float from 0 to 1 is a share: `0.05` allows 5 % of
    the tasks that ended. Text follows the same rule (`"10"`, `"0.05"`), and `"5%"` is also a share.
    """

    count: int | None = None
    share: float | None = None

    @classmethod
    def of(cls, max_failed: MaxFailed) -> "FailureLimit | None":
        """Return the limit for a value of `max_failed`. None, and the texts "" and "None", are no limit.

        :raises InvalidArgument: for a negative count, a share outside 0 to 1, and any other value.
        """
        if max_failed is None or max_failed in ("", "None"):
            return None
        value = _parse_limit(max_failed) if isinstance(max_failed, str) else max_failed
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return cls(count=value)
        if isinstance(value, float) and 0 <= value <= 1:
            return cls(share=value)
        raise InvalidArgument(
            f"invalid max_failed {max_failed!r}: expected a count such as 0 or 10, or a share such as 0.05 or '5%'"
        )

    def is_exceeded(self, counts: DrainCounts) -> bool:
        """Return whether more tasks failed than the limit allows."""
        if self.count is not None:
            return counts.failed > self.count
        return self.share is not None and counts.failed > self.share * counts.ended

    def exceeded(self, topic: str, counts: DrainCounts) -> TooManyFailures | None:
        """Return an error with the counts and the first errors, if more tasks failed than the limit allows."""
        if not self.is_exceeded(counts):
            return None
        allowed = f"{self.count:,}" if self.count is not None else f"{100 * (self.share or 0):.4g} % of them"
        more = counts.failed - len(counts.first)
        name = shlex.quote(topic)
        show = f" See a traceback with: taskq show {name} {counts.first[0].sequence}." if counts.first else ""
        text = (
            f"{counts.failed:,} of {counts.ended:,} tasks that ended in topic {topic!r} failed, max_failed allows"
            f" {allowed}. All results are committed.{show} Correct the cause, and retry the failed tasks with:"
            f" taskq retry {name} --state FAILED. Then clear the task in Airflow. The first errors:"
        )
        return TooManyFailures("\n  ".join([text, *map(str, counts.first), *([f"and {more:,} more"] if more else [])]))


def _parse_limit(text: str) -> int | float | None:
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


class DrainMixin(FunctionCaller):
    """Verbs of programs that drain: they work until a topic has no more tasks for them."""

    def begin_drain(self, name: str, topic: str, owner: Owner | None = None) -> datetime:
        """Store that a drain of this name begins. Return the moment from which its tasks count.

        If the previous drain of the name was killed before its report, this is the moment at which that drain began.

        :param owner: the owner that drains; None if several owners drain, whose names are `name/...`.
        """
        fence = None if owner is None else owner.fence
        began: datetime = self._value("SELECT taskq.begin_drain(%s::text, %s::bigint, %s::text)", (name, fence, topic))
        return began

    def end_drain(self, name: str, report: Mapping[str, Any], owner: Owner | None = None) -> bool:
        """Store the report of a drain. Return False, and store nothing, if a later drain of this name has started.

        :param report: at most 64 KiB of JSON.
        :param owner: as given to `begin_drain`.
        """
        fence = None if owner is None else owner.fence
        return self._flag("SELECT taskq.end_drain(%s::text, %s::bigint, %s::text)", (name, fence, json.dumps(report)))

    def drain_report(self, name: str) -> DrainReport | None:
        """Return the latest drain of a name; None if there was none."""
        found = self._fetch(
            model_row(DrainReport), "SELECT topic, began, finished, report FROM taskq.find_drain(%s::text)", (name,)
        )
        return found[0] if found else None

    def drain_counts(self, topic: str, name: str, since: datetime, first: int = 5) -> DrainCounts:
        """Count what the owner of a name, and owners named `name/...`, have ended in a topic since a moment.

        Costs about 2 s for each million tasks that ended since then.

        :param first: how many failed tasks to name, those with the lowest sequences.
        """
        rows = self._rows(
            "SELECT failed, ended, sequence, identifier, error"
            " FROM taskq.count_ended_by(%s::text, %s::text, %s::timestamptz, %s::int)",
            (topic, name, since, first),
        )
        failed, ended = rows[0][:2]
        return DrainCounts(failed, ended, tuple(FailedTask(*row[2:]) for row in rows if row[2] is not None))
