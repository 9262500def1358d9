"""When a drain that goes round ends."""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum

from airflow_provider_taskq.queue import Result, TaskQueueError

ALL = 2**31 - 1


class Ended(StrEnum):
    """Why a drain claimed no more."""

    EMPTY = "EMPTY"  # nothing was ready
    ROUNDS = "ROUNDS"  # as many rounds as were asked for
    BUDGET = "BUDGET"  # as many tasks as were asked for
    DEADLINE = "DEADLINE"  # no round begins after it


@dataclass(slots=True)
class Tally:
    """What the rounds did so far."""

    rounds: int = 0
    claimed: int = 0
    resumed: int = 0
    done: int = 0
    pushed: int = 0
    completed: dict[Result, int] = field(default_factory=dict)

    @property
    def worked(self) -> int:
        """Tasks that were worked on, wherever they came from."""
        return self.claimed + self.resumed

    def add(self, done: int, pushed: int, completed: dict[Result, int]) -> None:
        """Counts what a round committed."""
        self.done += done
        self.pushed += pushed
        for result, count in sorted(completed.items()):
            self.completed[result] = self.completed.get(result, 0) + count


@dataclass(frozen=True, slots=True)
class Limits:
    """Tasks a round, rounds, tasks in all, and a moment after which no round begins; None: no such limit."""

    size: int | None
    rounds: int | None
    budget: int | None
    until: datetime | None

    @classmethod
    def checked(
        cls, size: int | None, rounds: int | None, budget: int | None, deadline: timedelta | datetime | None
    ) -> "Limits":
        """Limits from what a drain was asked for; TaskQueueError where that makes no sense."""
        for name, number in (("size", size), ("rounds", rounds), ("budget", budget)):
            if number is not None and number < 1:
                raise TaskQueueError(f"{name} must be a whole number from 1, or None for no limit, not {number}")
        if isinstance(deadline, timedelta):
            deadline = datetime.now(UTC) + deadline
        elif deadline is not None and deadline.tzinfo is None:
            raise TaskQueueError("deadline must have a time zone: without one it is another moment on every machine")
        return cls(size, rounds, budget, deadline)

    def reached(self, tally: Tally) -> Ended | None:
        """The limit that keeps another round from beginning, if one does."""
        if self.rounds is not None and tally.rounds >= self.rounds:
            return Ended.ROUNDS
        if self.budget is not None and tally.worked >= self.budget:
            return Ended.BUDGET
        if self.until is not None and datetime.now(UTC) >= self.until:
            return Ended.DEADLINE
        return None

    def room(self, tally: Tally) -> int:
        """How many tasks the next round may work on."""
        left = ALL if self.budget is None else self.budget - tally.worked
        return min(left, ALL if self.size is None else self.size)
