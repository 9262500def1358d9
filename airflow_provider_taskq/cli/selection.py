"""Which ended tasks an action is about: named by sequence, or chosen by what they are."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import click

from airflow_provider_taskq.cli._options import COUNT, MOMENT, SEQUENCE, Choice, Function
from airflow_provider_taskq.cli.finding import sequences_of
from airflow_provider_taskq.cli.words import moment_at
from airflow_provider_taskq.queue import State, TaskQueue
from airflow_provider_taskq.queue.reports import TaskFilter

ENDED = ("EXPIRED", "FAILED", "SUSPENDED", "FILTERED", "SUCCEEDED")
MOST = 10_000  # tasks that one call finds by a filter

error_group_option = click.option(
    "--error-group", metavar="ERROR", help="Whose error is of this group: see taskq errors."
)


def selection_options(function: Function) -> Function:
    """[SEQUENCE]... and the options that choose tasks."""
    wrapped: Any = function
    for option in (
        click.option("--size", type=COUNT, help="At most so many, the lowest sequences first."),
        click.option("--until", type=MOMENT, help="Pushed at this moment or before."),
        click.option("--since", type=MOMENT, help="Pushed since this moment: 2026-11-21T09:30, or 2h for 2 hours ago."),
        error_group_option,
        click.option("--error", help="Whose error holds this text."),
        click.option("--reference", "-r", help="Of this reference."),
        click.option("--identifier", "-i", help="Of this identifier."),
        click.option("--state", type=Choice(ENDED), help="All in this state."),
        click.argument("named", nargs=-1, type=SEQUENCE, metavar="[SEQUENCE]..."),
    ):
        wrapped = option(wrapped)
    made: Function = wrapped
    return made


@dataclass(frozen=True, slots=True)
class Chosen:
    """The tasks by arguments of `revive` and `reassign`, how many they are, and which, in words.

    `found`: they were found by a filter in this state, a moment ago, so that some may have gone on since. `more`:
    others match beyond them.
    """

    arguments: dict[str, Any]
    count: int
    what: str
    found: State | None = None
    more: bool = False

    def held(self, queue: TaskQueue, topic: str) -> dict[str, Any]:
        """The arguments, of tasks that a filter found without those that have gone on since."""
        if self.found is None:
            return self.arguments
        return {"sequences": queue.hold_found(topic, self.arguments["sequences"], [self.found])}

    def remark(self) -> Iterator[str]:
        """What is to be said of what was left."""
        if self.more:
            yield f"More match than the {self.count:,} that one call takes: call it again."


def choose(
    queue: TaskQueue,
    topic: str,
    *,
    named: tuple[int, ...],
    state: str | None,
    identifier: str | None,
    reference: str | None,
    error: str | None,
    error_group: str | None,
    since: datetime | timedelta | None,
    until: datetime | timedelta | None,
    size: int | None,
) -> Chosen:
    """Looks up what is chosen; nothing is locked, so that it may be other tasks a moment later."""
    finer = (identifier, reference, error, error_group, since, until)
    if named:
        if state is not None or size is not None or any(finer):
            raise click.UsageError("tasks are named by sequence, or chosen by --state and the like: not both")
        return Chosen({"sequences": list(named)}, len(named), f"sequences {', '.join(map(str, named))}")
    if state is None and error_group is not None:
        state = "FAILED"  # a group of errors is a group of failures
    if state is None:
        raise click.UsageError("name the tasks by their sequences, or choose them by --state")
    if not any(finer) and size is None:
        count = queue.count_tasks(topic, state=state)
        return Chosen({"state": State[state]}, count, f"state {state}")
    now = queue.now()
    given = TaskFilter(
        State[state],
        identifier=identifier,
        reference=reference,
        since=moment_at(since, now),
        until=moment_at(until, now),
        error=error,
        error_group=error_group,
    )
    sequences, more = sequences_of(queue, topic, given, min(size or MOST, MOST))
    named_by = {"identifier": identifier, "reference": reference, "error": error, "error group": error_group}
    said = {**named_by, "since": since, "until": until}
    what = ", ".join([f"state {state}", *(f"{name} {value}" for name, value in said.items() if value is not None)])
    return Chosen(
        {"sequences": sequences}, len(sequences), what, found=State[state], more=more and (size or MOST) >= MOST
    )
