"""What ended lately, by topic."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from airflow_provider_taskq.queue import State, TaskQueue


@dataclass(slots=True)
class Lately:
    """How many tasks of a topic ended within a span, by state; `sampled` is the share of the history that was read."""

    states: Counter[State] = field(default_factory=Counter)
    sampled: float = 1.0

    @property
    def ended(self) -> int:
        """All that ended."""
        return self.states.total()

    @property
    def failure_rate(self) -> float | None:
        """The share that FAILED of all that ended, 0 to 1, as the page and health tell it; None where nothing ended."""
        return self.states[State.FAILED] / self.ended if self.ended else None

    def document(self) -> dict[str, Any]:
        """By stable keys."""
        return {
            "ended": self.ended,
            "succeeded": self.states[State.SUCCEEDED],
            "failed": self.states[State.FAILED],
            "failure_rate": self.failure_rate,
            "sampled": self.sampled,
        }

    def cells(self) -> tuple[str, str]:
        """How many, about how many where that is an estimate, and the share that failed."""
        if not self.ended:
            return "0", ""
        about = "~" if self.sampled < 1 else ""
        return f"{about}{self.ended:,}", f"{self.failure_rate:.1%}"


def lately(queue: TaskQueue, span: timedelta, topic: str | None = None) -> Mapping[str, Lately]:
    """What ended within the span up to now, by topic; topics without any are left out."""
    found: dict[str, Lately] = {}
    for ended in queue.throughput(span, 1, topic):
        of_topic = found.setdefault(ended.topic, Lately())
        of_topic.states[ended.state] += ended.count
        of_topic.sampled = min(of_topic.sampled, ended.sampled)
    return found
