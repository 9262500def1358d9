"""Decides when the events of a claim stream fire, so that no event waits for a run that never starts."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_taskq.queue import Task

NAMED_IDENTIFIERS = 100  # the most identifiers in an event


@dataclass(slots=True, eq=False)
class EventBatch:
    """The claimed tasks of one event, which Airflow's shared stream passes to the triggers and then to `advance`."""

    topic: str
    tasks: tuple[Task, ...] = ()
    fired: int = 0  # how many triggers have passed their event to Airflow
    rejections: list[str] = field(default_factory=list)
    starts_run: bool = True  # whether the event starts a run, because the previous event fired long ago

    @property
    def identifiers(self) -> tuple[str, ...]:
        """The identifiers of the tasks, by which `rejection` may judge the batch."""
        return tuple(task.identifier for task in self.tasks)

    def event(self) -> dict[str, Any]:
        """Return the payload of the event: all sequences, and the identifiers of the first 100 tasks."""
        return {
            "topic": self.topic,
            "claimed": len(self.tasks),
            "sequences": [task.sequence for task in self.tasks],
            "identifiers": list(self.identifiers[:NAMED_IDENTIFIERS]),
        }


class EventDebouncer:
    """Decides which batches fire now, and holds the last batch of a burst back.

    Airflow 3.3 starts a run with the first event since the previous run was created. Events that come before the new
    run is created wait for the next event. So within `cooldown` seconds of a settled event, the debouncer holds the
    last batch back. That batch fires when another one follows, or when the cooldown is over. All times are readings of
    one clock, in seconds.
    """

    def __init__(self, cooldown: float, closing_events: int) -> None:
        self._cooldown = cooldown
        self._closing_events = closing_events
        self._held_back: EventBatch | None = None
        self._unsettled = 0  # batches that have fired and are not settled
        self._quiet_at = 0.0  # the time from which the next event starts a run of its own
        self._needs_follow_up = False  # an event fired that may wait for the next event
        self._closings = 0
        self._closing_at: float | None = None

    @property
    def due_at(self) -> float | None:
        """The time at which `due` may return a batch; None if another call has to come first."""
        if self._unsettled:
            return None
        if self._held_back is not None or self._needs_follow_up:
            return self._quiet_at
        return None if self._closing_at is None else max(self._closing_at, self._quiet_at)

    def start(self, now: float) -> None:
        """Start without batches in flight, after the owner was registered."""
        self._held_back, self._unsettled, self._needs_follow_up = None, 0, False
        self._schedule_closing_events(now)  # the last events of another triggerer may still wait

    def add(self, batches: Sequence[EventBatch], now: float) -> list[EventBatch]:
        """Return the batches that fire now, beginning with the one that was held back."""
        ready = [*([self._held_back] if self._held_back is not None else []), *batches]
        self._held_back = None
        if self._cooldown > 0 and ready and (len(ready) > 1 or self._may_be_delayed(now)):
            self._held_back = ready.pop()
        return [self._fire(batch, now) for batch in ready]

    def due(self, now: float, topic: str) -> list[EventBatch]:
        """Return the batch that fires because no other came: the one that was held back, or one without tasks."""
        if self._may_be_delayed(now):
            return []
        if self._held_back is not None:
            held_back, self._held_back = self._held_back, None
            return [self._fire(held_back, now)]
        closing = self._closing_at is not None and now >= self._closing_at
        if not closing and not self._needs_follow_up:
            return []
        if closing:
            self._closings += 1
            more = self._closings < self._closing_events
            self._closing_at = now + self._cooldown * 2.0**self._closings if more else None
        return [self._fire(EventBatch(topic), now)]

    def settle(self, batch: EventBatch, now: float) -> None:
        """Record that Airflow has stored or dropped the event of a batch."""
        self._unsettled = max(self._unsettled - 1, 0)
        if batch.fired:
            self._quiet_at = now + self._cooldown
            self._needs_follow_up = not batch.starts_run
        if batch.tasks:
            self._schedule_closing_events(now)

    def _fire(self, batch: EventBatch, now: float) -> EventBatch:
        batch.starts_run = not self._may_be_delayed(now)
        self._unsettled += 1
        return batch

    def _may_be_delayed(self, now: float) -> bool:
        """Return whether an event that fires now may wait for the next event."""
        return self._cooldown > 0 and (self._unsettled > 0 or now < self._quiet_at)

    def _schedule_closing_events(self, now: float) -> None:
        self._closings = 0
        self._closing_at = now + self._cooldown if self._closing_events else None
