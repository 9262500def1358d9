"""Counts of a topic's unfinished tasks, and the sentences that say what a gate waits for."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

MAX_COUNT = 1000
"""Where the counts stop."""

_NAMED = 10  # identifiers that a sentence names at most


@dataclass(frozen=True, slots=True)
class TopicStatus:
    """The unfinished tasks of a topic, each counted once and up to `MAX_COUNT`, and whether the topic is paused.

    `ready` counts tasks that a poll under the condition could claim now. `scheduled` and `retrying` tasks are due
    later. `blocked` tasks are due, but behind a dependency, the topic's probe, or another task of their identifier.
    `paused` tasks are due in a paused topic, or are paused themselves. `running` tasks are held by owners.
    """

    topic: str
    ready: int
    scheduled: int
    retrying: int
    blocked: int
    paused: int
    running: int
    topic_paused: bool = False
    paused_by: str | None = None
    paused_since: datetime | None = None

    @property
    def pause(self) -> str | None:
        """A clause with the role that paused the topic and the time; None if the topic is not paused."""
        if not self.topic_paused:
            return None
        since = f" since {self.paused_since.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC" if self.paused_since else ""
        return f"topic paused by {self.paused_by or 'an unknown role'}{since}"

    def __str__(self) -> str:
        """List the ready tasks, the other counts that are not 0, and the pause."""
        kinds = ("scheduled", "retrying", "blocked", "paused", "running")
        counts = [f"{_number(getattr(self, kind))} {kind}" for kind in kinds if getattr(self, kind)]
        return ", ".join([f"{_number(self.ready)} ready", *counts, *([self.pause] if self.pause else [])])


def describe_ready_wait(
    status: TopicStatus, min_tasks: int, condition: str = "NONE", max_wait: float | None = None
) -> str:
    """Describe what a gate on ready tasks waits for.

    :param max_wait: the gate opens for one task once that task has been due for this many seconds; None for no limit.
    """
    under = "" if condition == "NONE" else f" under {condition}"
    aged = "" if max_wait is None or min_tasks == 1 else f", or one after {max_wait:g} s"
    return f"Waits for {_tasks(min_tasks, 'ready ')} of topic {status.topic!r}{under}{aged}; {status}."


def describe_state_wait(status: TopicStatus, found: Mapping[str, str | None], wanted: Collection[str]) -> str:
    """Describe what a gate on states waits for.

    :param found: the state of each identifier; None for an identifier without a task.
    """
    missing = [
        f"{name!r} is {state}" if state else f"{name!r} has no task"
        for name, state in found.items()
        if state not in wanted
    ]
    more = f"{len(missing) - _NAMED} more are not" if len(missing) > _NAMED else None
    parts = [f"{len(found) - len(missing)} done", *missing[:_NAMED], more, status.pause]
    states = " or ".join(sorted(wanted))
    return f"Waits for {_tasks(len(found))} of topic {status.topic!r} to be {states}; {', '.join(filter(None, parts))}."


def describe_group_wait(status: TopicStatus, groups: int, incomplete: int | None) -> str:
    """Describe what a gate on groups of suspended tasks waits for.

    :param incomplete: the number of incomplete groups; None if the number is not known.
    """
    known = None if incomplete is None else f"{groups - incomplete} released, {incomplete} incomplete"
    parts = ", ".join(filter(None, [known, status.pause]))
    noun = "group" if groups == 1 else "groups"
    return f"Waits for {groups:,} {noun} of suspended tasks of topic {status.topic!r}{'; ' if parts else ''}{parts}."


def _tasks(number: int, kind: str = "") -> str:
    return f"{number:,} {kind}{'task' if number == 1 else 'tasks'}"


def _number(count: int) -> str:
    return f"{count:,}" if count < MAX_COUNT else f"{MAX_COUNT:,} or more"
