"""taskq ls, show, why: tasks, one by one and in pages."""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any

import click

from airflow_provider_taskq.cli._durations import format_age, format_attempt_times, moment_at
from airflow_provider_taskq.cli._options import (
    MOMENT,
    SEQUENCE,
    STATES,
    Choice,
    Function,
    error_group_option,
    topic_argument,
)
from airflow_provider_taskq.cli._output import facts, sanitize, table
from airflow_provider_taskq.cli._session import Session
from airflow_provider_taskq.queue import HistoryEvent, State, TaskQueue, UnreadablePayload
from airflow_provider_taskq.queue.encoding import decode_json, json_defect
from airflow_provider_taskq.queue.reports import STATUSES, Dependency, TaskFilter, TaskSummary, TaskTexts

ERROR = 10_000  # characters of an error, as many as a stored one has


@dataclass(frozen=True, slots=True)
class Page:
    """Tasks, and the sequence after which the next page begins, None at the end.

    `stopped`: the page is not full, as it had looked at as many rows as one may.
    """

    tasks: list[TaskSummary]
    next: int | None
    stopped: bool


def page_of(queue: TaskQueue, topic: str, given: TaskFilter, size: int, *, after: int | None, newest: bool) -> Page:
    """At most `size` tasks that the filter finds beyond `after`."""
    found = queue.find_tasks(topic, given, after=after, newest=newest, size=size + 1)
    tasks = queue.browse_tasks(topic, found.sequences[:size], ERROR)
    if len(found.sequences) > size:
        return Page(tasks, found.sequences[size - 1], stopped=False)
    return Page(tasks, found.looked_to, stopped=found.looked_to is not None)


def sequences_of(queue: TaskQueue, topic: str, given: TaskFilter, size: int) -> tuple[list[int], bool]:
    """The lowest sequences that the filter finds, at most `size`, and whether there may be more."""
    sequences: list[int] = []
    after: int | None = None
    while True:
        found = queue.find_tasks(topic, given, after=after, newest=False, size=size - len(sequences) + 1)
        sequences += found.sequences
        if len(sequences) > size:
            return sequences[:size], True
        if found.looked_to is None:
            return sequences, False
        after = found.looked_to


TASK_COLUMNS = ("#sequence", "~identifier", "status", "?#attempt", "?pushed", "due or ended", "?~owner", "~error")


def task_document(task: TaskSummary) -> dict[str, Any]:
    """Everything about a task but its payload and output, which may be private."""
    descent = None if task.descent is None else task.descent.name
    return {**asdict(task), "state": task.state.name, "descent": descent}


def task_row(task: TaskSummary, now: datetime) -> tuple[object, ...]:
    """In the order of TASK_COLUMNS."""
    return (
        *(str(task.sequence), task.identifier, status_word(task.status)),
        *(
            task.attempt or "",
            format_age(task.created, now),
            _due(task, now),
            task.owner,
            shortened(task.error_summary),
        ),
    )


def status_word(status: str) -> str:
    """The word for a status in lists: a task without attempts left is a failed one there."""
    return "failed" if status == "exhausted" else status


def shortened(line: str | None, width: int = 60) -> str:
    """As much of a line as a table has room for."""
    line = line or ""
    return line if len(line) <= width else f"{line[: width - 3]}..."


def _due(task: TaskSummary, now: datetime) -> str:
    """When it is due, while that is to come; how long ago it ended, where it has."""
    if task.completed is not None:
        return format_age(task.completed, now)
    return format_age(task.available_at, now) if task.available_at > now else ""


@click.command(
    help="List tasks of TOPIC, the newest first. Payloads are not shown; show --payload has them. "
    "Where there are more, the next page is the same command with --after."
)
@topic_argument
@click.option("--state", "-s", type=Choice(STATES), help="In this state.")
@click.option(
    "--status",
    type=Choice((*STATUSES, "exhausted")),
    help="Of this status, as the list shows it; exhausted: failed, with no attempts left.",
)
@click.option("--identifier", "-i", help="Of this identifier.")
@click.option("--reference", "-r", help="Of this reference.")
@click.option("--error", help="Whose error holds this text, in any case.")
@error_group_option
@click.option("--since", type=MOMENT, help="Pushed since this moment: 2026-11-21T09:30, or 2h for 2 hours ago.")
@click.option("--until", type=MOMENT, help="Pushed at this moment or before.")
@click.option("--after", type=SEQUENCE, help="Beyond this sequence, where the page before ended.")
@click.option("--size", "-n", type=click.IntRange(1, 10_000), default=20, show_default=True, help="At most so many.")
@click.option("--oldest", is_flag=True, help="The oldest first.")
@click.pass_obj
def ls(
    session: Session,
    topic: str,
    state: str | None,
    status: str | None,
    identifier: str | None,
    reference: str | None,
    error: str | None,
    error_group: str | None,
    since: datetime | timedelta | None,
    until: datetime | timedelta | None,
    after: int | None,
    size: int,
    oldest: bool,
) -> None:
    """Shows a page."""
    wanted = None if state is None else State[state]
    with session.looking() as queue:
        now = queue.now()
        span = (moment_at(since, now), moment_at(until, now))
        given = TaskFilter(wanted, status, identifier, reference, *span, error, error_group)
        page = page_of(queue, topic, given, size, after=after, newest=not oldest)
    document = {"tasks": [task_document(task) for task in page.tasks], "next": page.next, "stopped": page.stopped}
    rows = [task_row(task, now) for task in page.tasks]
    parts = [table(TASK_COLUMNS, rows)] if rows else []
    session.answer(document, *parts, *_page_remarks(len(rows), page.next, page.stopped))


def _page_remarks(count: int, beyond: int | None, stopped: bool) -> list[str]:
    """What stands below the table."""
    if beyond is None:
        return [] if count else ["No task is so."]
    reason = "Looked no further than" if stopped else "There is more beyond"
    return [f"{reason} {beyond}: --after {beyond} goes on."]


WHOLE = 2**31 - 1
LAST_SEQUENCE = 2**63 - 1


def _task_arguments(function: Function) -> Function:
    """TOPIC with SEQUENCE or IDENTIFIER; --identifier is for an identifier that looks like a sequence."""
    wrapped: Any = click.option("--identifier", "-i", help="The newest task of this identifier.")(function)
    wrapped = click.argument("named", required=False, metavar="[SEQUENCE|IDENTIFIER]")(wrapped)
    made: Function = topic_argument(wrapped)
    return made


@click.command(
    help="Show one task and what happened to it: the one with this SEQUENCE, or the newest of this IDENTIFIER."
)
@_task_arguments
@click.option("--payload", is_flag=True, help="Show payload and output, which may be private.")
@click.pass_obj
def show(session: Session, topic: str, named: str | None, identifier: str | None, payload: bool) -> None:
    """Shows the task, why it does not run, and its timeline."""
    with session.looking() as queue:
        now = queue.now()
        task = _found(queue, topic, named, identifier)
        told = queue.explain(topic, task.sequence)
        timeline = queue.timeline(topic, task.sequence)
        depends_on = queue.dependencies(topic, task.sequence)
        texts = queue.task_texts(topic, task.sequence, WHOLE) if payload else None
    document = {
        "task": {**task_document(task), **({} if texts is None else _values(texts))},
        "why": told,
        "depends_on": [asdict(dependency) for dependency in depends_on],
        "timeline": [_happening_document(happening) for happening in timeline],
    }
    rows = [_happening_row(happening, now) for happening in timeline]
    session.answer(
        document,
        facts(_facts(task, told, depends_on, now)),
        *_wholes(task, texts),
        "",
        table(["when", "what", "?times", "?#attempt", "~by", "~error"], rows),
    )


@click.command(help="Say in one sentence why a task is not running, or that it runs, or how it ended.")
@_task_arguments
@click.pass_obj
def why(session: Session, topic: str, named: str | None, identifier: str | None) -> None:
    """Says why."""
    with session.looking() as queue:
        task = _found(queue, topic, named, identifier)
        told = queue.explain(topic, task.sequence)
    document = {"topic": topic, "sequence": task.sequence, "identifier": task.identifier, "state": task.state.name}
    session.answer({**document, "why": told}, f"Task {task.sequence} ({task.identifier}): {told}.")


def _found(queue: TaskQueue, topic: str, named: str | None, identifier: str | None) -> TaskSummary:
    """The task that is asked for, a number by its sequence before its identifier; exit code 1 where there is none."""
    if (named is None) == (identifier is None):
        raise click.UsageError("name the task either by its SEQUENCE or IDENTIFIER, or by --identifier")
    sequence = _sequence_of(named)
    found = [] if sequence is None else queue.browse_tasks(topic, [sequence], ERROR)
    if not found:
        called = identifier or named or ""
        newest = queue.newest_sequences(topic, [called])[called]
        found = [] if newest is None else queue.browse_tasks(topic, [newest], ERROR)
    if not found:
        which = f"of identifier {identifier or named!r}"
        which = which if sequence is None else f"of sequence {sequence}, and none {which}"
        raise click.ClickException(sanitize(f"topic {topic!r} has no task {which}"))
    return found[0]


def _sequence_of(named: str | None) -> int | None:
    """The sequence that a word names; None for a word that is none."""
    if named is None or not (named.isascii() and named.isdigit()):
        return None
    return sequence if (sequence := int(named)) <= LAST_SEQUENCE else None


def _facts(
    task: TaskSummary, told: str | None, depends_on: list[Dependency], now: datetime
) -> Iterator[tuple[str, object]]:
    """What is to be said of a task, by name."""
    yield "task", f"{task.sequence} of {task.topic}"
    yield "identifier", task.identifier
    yield "reference", task.reference
    yield "state", task.state
    yield "status", task.status if task.status != task.state.name.lower() else None
    yield "was", task.descent
    yield "why", told
    yield "attempt", task.attempt or None
    yield "times", format_attempt_times(task.waited, task.ran, "running for" if task.state is State.ACTIVE else "ran")
    yield "crashes", task.crashes or None
    yield "redelivered", "yes" if task.redelivered else None
    yield "owner", task.owner
    yield "priority", task.priority or None
    yield "pushed", _when(task.created, now)
    yield "due", _when(task.available_at, now) if task.available_at > now and task.completed is None else None
    yield "ended", None if task.completed is None else _when(task.completed, now)
    for dependency in depends_on:
        yield "depends on", f"{dependency.identifier} of {dependency.topic} ({dependency.sequence}, {dependency.state})"
    yield "payload", None if task.payload_bytes is None else f"{task.payload_bytes:,} bytes"
    yield "output", None if task.output_bytes is None else f"{task.output_bytes:,} bytes"


def _when(moment: datetime, now: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S %Z} ({format_age(moment, now)})"


def _wholes(task: TaskSummary, texts: TaskTexts | None) -> Iterator[str]:
    """Error, payload and output, each whole and below its name."""
    private = [] if texts is None else [("payload", texts.payload), ("output", texts.output)]
    for name, text in [("error", task.error), *private]:
        if text:
            yield f"\n{name}\n{text.rstrip()}"


def _values(texts: TaskTexts) -> dict[str, Any]:
    """Payload and output as the JSON that they are."""
    return {**_value("payload", texts.payload), **_value("output", texts.output)}


def _value(name: str, text: str | None) -> dict[str, Any]:
    """The value by its name; beside it the reason and the text, if it is unreadable or beyond the limits of a push."""
    value = None if text is None else decode_json(text)
    reason = value.reason if isinstance(value, UnreadablePayload) else None
    if text is not None and reason is None and (defect := json_defect(text)):
        reason = f"unreadable JSON: it {defect}"
    return {name: value} if reason is None else {name: None, f"{name}_unreadable": reason, f"{name}_text": text}


# A lapsed lease tells only how long the task was held.
_RUN_VERBS = {"held": "running for", "lapsed": "held for"}


def _happening_row(happening: HistoryEvent, now: datetime) -> tuple[object, ...]:
    """A line of the timeline."""
    when = "now" if happening.happened is None else _when(happening.happened, now)
    times = format_attempt_times(happening.waited, happening.ran, _RUN_VERBS.get(happening.what, "ran"))
    attempt, who = happening.attempt or "", _who(happening)
    return when, _what(happening), times, attempt, who, shortened(happening.error_summary)


def _who(happening: HistoryEvent) -> str | None:
    """The person with the database role, else the owner that held the task, else the role alone."""
    if happening.actor and happening.role:
        return f"{happening.actor} via role {happening.role}"
    return happening.actor or happening.holder or (happening.role and f"role {happening.role}")


_TOLD: dict[str, Callable[[HistoryEvent], str]] = {
    "ended": lambda happening: f"ended {_state(happening)}",
    "recreated": lambda happening: f"recreated as {happening.other}",
    "reassigned": lambda happening: f"reassigned from {_state(happening)}",
    "started anew": lambda happening: f"started anew from {_state(happening)}",
}


def _what(happening: HistoryEvent) -> str:
    """What happened, in a word or three."""
    told = _TOLD.get(happening.what)
    return told(happening) if told else happening.what


def _state(happening: HistoryEvent) -> str | None:
    return None if happening.state is None else happening.state.name


def _happening_document(happening: HistoryEvent) -> dict[str, Any]:
    """A line of the timeline by stable keys."""
    return {**asdict(happening), "state": _state(happening)}
