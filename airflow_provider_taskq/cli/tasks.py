"""taskq ls, show, why: tasks, one by one and in pages."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import click

from airflow_provider_taskq.cli._options import (
    SEQUENCE,
    STATES,
    Choice,
    combine_options,
    error_group_option,
    page_size_option,
    since_option,
    topic_argument,
    until_option,
)
from airflow_provider_taskq.cli._output import facts, sanitize, shortened, table
from airflow_provider_taskq.cli._session import Session
from airflow_provider_taskq.cli._times import format_age, format_attempt_times, moment_at
from airflow_provider_taskq.queue import Row, State, TaskFilter, TaskQueue, UnreadablePayload
from airflow_provider_taskq.queue.encoding import decode_json, json_defect
from airflow_provider_taskq.queue.reports import STATE_OF_STATUS
from airflow_provider_taskq.queue.selection import select_filter

MAX_ERROR = 10_000  # characters, as many as the database stores
MAX_TEXT = 2**31 - 1
MAX_SEQUENCE = 2**63 - 1
SHOWN_SEQUENCES = 20  # of an identifier with several tasks
TASK_COLUMNS = ("#sequence", "~identifier", "status", "?#attempt", "?pushed", "due or ended", "?~owner", "~error")


def task_document(task: Row) -> dict[str, Any]:
    """Return a task as a document, without payload and output because they may be private."""
    descent = None if task.descent is None else task.descent.name
    return {**task._asdict(), "state": task.state.name, "descent": descent}


def task_row(task: Row, now: datetime) -> tuple[object, ...]:
    """Return a task as a row of TASK_COLUMNS."""
    status = "failed" if task.status == "exhausted" else task.status
    due = format_age(task.available_at, now) if task.available_at > now else ""
    return (
        str(task.sequence),
        task.identifier,
        status,
        task.attempt or "",
        format_age(task.created, now),
        due if task.completed is None else format_age(task.completed, now),
        task.owner,
        shortened(task.error_summary),
    )


@click.command(
    help="List tasks of TOPIC, the newest first, without payloads; `taskq show --payload` shows one. For the next page "
    "repeat the command with --after."
)
@topic_argument
@click.option("--state", "-s", type=Choice(STATES), help="Tasks in this state.")
@click.option(
    "--status",
    type=Choice(tuple(STATE_OF_STATUS)),
    help="Tasks of this status, as the list shows it; exhausted: failed, with no attempts left.",
)
@click.option("--identifier", "-i", help="Tasks with this identifier.")
@click.option("--reference", "-r", help="Tasks with this reference.")
@click.option("--error", help="Tasks whose error contains this text, in any case.")
@error_group_option
@since_option
@until_option
@click.option("--after", type=SEQUENCE, help="Start after this sequence, where the previous page ended.")
@page_size_option(20)
@click.option("--oldest", is_flag=True, help="The oldest first.")
@click.pass_obj
def ls(
    session: Session, /, topic: str, state: str | None, after: int | None, size: int, oldest: bool, **given: Any
) -> None:
    with session.read_only() as queue:
        now = queue.now()
        given |= {name: moment_at(given[name], now) for name in ("since", "until")}
        wanted = TaskFilter(None if state is None else State[state], **given)
        found, looked_to = queue.find_tasks(topic, wanted, after=after, newest=not oldest, size=size + 1)
        tasks = queue.browse_tasks(topic, found[:size], MAX_ERROR)
    following = found[size - 1] if len(found) > size else looked_to
    stopped = following is not None and len(found) <= size
    rest = [] if tasks else ["No task matches."]
    if following is not None:
        reason = "The search stopped at" if stopped else "More tasks follow"
        rest = [f"{reason} {following}: repeat with --after {following}."]
    document = {"tasks": [task_document(task) for task in tasks], "next": following, "stopped": stopped}
    rows = [task_row(task, now) for task in tasks]
    session.answer(document, table(TASK_COLUMNS, rows), *rest)


_task_arguments = combine_options(
    topic_argument,
    click.argument("named", required=False, metavar="[SEQUENCE|IDENTIFIER]"),
    click.option("--identifier", "-i", help="The newest task of this identifier, also if it looks like a sequence."),
)


@click.command(help="Show one task and its history: that of SEQUENCE, or the newest of IDENTIFIER.")
@_task_arguments
@click.option("--payload", is_flag=True, help="Show payload and output, which may be private.")
@click.pass_obj
def show(session: Session, topic: str, named: str | None, identifier: str | None, payload: bool) -> None:
    with session.read_only() as queue:
        now = queue.now()
        task = _find_task(queue, topic, named, identifier)
        reason = _reason(queue, task)
        timeline = queue.timeline(topic, task.sequence)
        depends_on = queue.dependencies(topic, task.sequence)
        found = queue.task_texts(topic, task.sequence, MAX_TEXT) if payload else None
    texts = {} if found is None else {"payload": found.payload, "output": found.output}
    document = {
        "task": {**task_document(task), **_text_values(texts)},
        "why": reason,
        "depends_on": [dependency._asdict() for dependency in depends_on],
        "timeline": [{**event._asdict(), "state": _state_name(event)} for event in timeline],
    }
    session.answer(
        document,
        facts(_facts(task, reason, depends_on, now)),
        *(f"\n{name}\n{text.rstrip()}" for name, text in {"error": task.error, **texts}.items() if text),
        "",
        table(["when", "what", "?times", "?#attempt", "~by", "~error"], [_event_row(event, now) for event in timeline]),
    )


@click.command(help="Say in one sentence why a task is not running, that it is running, or how it ended.")
@_task_arguments
@click.pass_obj
def why(session: Session, topic: str, named: str | None, identifier: str | None) -> None:
    with session.read_only() as queue:
        task = _find_task(queue, topic, named, identifier)
        reason = _reason(queue, task)
    document = {"topic": topic, "sequence": task.sequence, "identifier": task.identifier, "state": task.state.name}
    session.answer({**document, "why": reason}, f"Task {task.sequence} ({task.identifier}): {reason}.")


def parse_sequence(named: str) -> int | None:
    """Return the sequence that a text may be; None for a text that can only be an identifier."""
    is_number = named.isascii() and named.isdigit() and len(named) < 20 and int(named) <= MAX_SEQUENCE
    return int(named) if is_number else None


def find_sequences(queue: TaskQueue, topic: str, named: Sequence[str], states: Sequence[State]) -> list[int]:
    """Return the sequences of tasks that are named by sequence or by identifier, as `taskq why` names them.

    A number is a sequence if the topic has a task of that sequence, or none of that identifier.

    :param states: the states of tasks that the command changes. Several of them for an identifier are an error.
    """
    numbers = {text: sequence for text in named if (sequence := parse_sequence(text)) is not None}
    if numbers:
        known = {task.sequence for task in queue.browse_tasks(topic, list(numbers.values()))}
        unknown = [text for text, sequence in numbers.items() if sequence not in known]
        newest = queue.newest_sequences(topic, unknown) if unknown else {}
        numbers = {text: sequence for text, sequence in numbers.items() if text not in newest}
    return [numbers[text] if text in numbers else _sequence_of(queue, topic, text, states) for text in named]


def _sequence_of(queue: TaskQueue, topic: str, identifier: str, states: Sequence[State]) -> int:
    """Return the only task of an identifier in one of the states, or else the only task of the identifier."""
    for wanted in (states, tuple(State)):
        chosen = select_filter(queue, topic, TaskFilter(identifier=identifier), wanted, limit=SHOWN_SEQUENCES)
        found = list(chosen.sequences or ())
        if len(found) > 1:
            shown = ", ".join(map(str, found)) + (", ..." if chosen.more else "")
            raise click.ClickException(
                sanitize(
                    f"topic {topic!r} has several tasks of identifier {identifier!r}: name one by its sequence: {shown}"
                )
            )
        if found:
            return found[0]
    raise click.ClickException(sanitize(f"topic {topic!r} has no task of identifier {identifier!r}"))


def _find_task(queue: TaskQueue, topic: str, named: str | None, identifier: str | None) -> Row:
    """Return the task of a sequence or, without a sequence, the newest task of an identifier."""
    if (named is None) == (identifier is None):
        raise click.UsageError("name the task either by SEQUENCE or IDENTIFIER, or with --identifier")
    sequence = None if named is None else parse_sequence(named)
    found = [] if sequence is None else queue.browse_tasks(topic, [sequence], MAX_ERROR)
    if not found:
        name = identifier or named or ""
        found = queue.browse_tasks(topic, list(queue.newest_sequences(topic, [name]).values()), MAX_ERROR)
    if not found:
        which = f"of identifier {identifier or named!r}"
        which = which if sequence is None else f"of sequence {sequence}, and none {which}"
        raise click.ClickException(sanitize(f"topic {topic!r} has no task {which}"))
    return found[0]


def _reason(queue: TaskQueue, task: Row) -> str | None:
    explained = queue.explain(task.topic, task.sequence)
    return explained.reason if explained else None


def _facts(task: Row, reason: str | None, depends_on: list[Row], now: datetime) -> Iterator[tuple[str, object]]:
    yield "task", f"{task.sequence} of {task.topic}"
    yield "identifier", task.identifier
    yield "reference", task.reference
    yield "state", task.state
    yield "status", task.status if task.status != task.state.name.lower() else None
    yield "was", task.descent
    yield "why", reason
    yield "attempt", task.attempt or None
    verb = "running for" if task.state is State.ACTIVE else "ran"
    yield "times", format_attempt_times(task.waited, task.ran, verb)
    yield "crashes", task.crashes or None
    yield "redelivered", "yes" if task.redelivered else None
    yield "owner", task.owner
    yield "priority", task.priority or None
    yield "pushed", _format_moment(task.created, now)
    is_due_later = task.available_at > now and task.completed is None
    yield "due", _format_moment(task.available_at, now) if is_due_later else None
    yield "ended", None if task.completed is None else _format_moment(task.completed, now)
    for dependency in depends_on:
        yield "depends on", f"{dependency.identifier} of {dependency.topic} ({dependency.sequence}, {dependency.state})"
    yield "payload", None if task.payload_bytes is None else f"{task.payload_bytes:,} bytes"
    yield "output", None if task.output_bytes is None else f"{task.output_bytes:,} bytes"


def _format_moment(moment: datetime, now: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S %Z} ({format_age(moment, now)})"


def _text_values(texts: Mapping[str, str | None]) -> dict[str, Any]:
    """Return JSON values by name.

    For a value that is unreadable or outside the limits of a push, return the reason and the text instead.
    """
    document: dict[str, Any] = {}
    for name, text in texts.items():
        value = None if text is None else decode_json(text)
        reason = value.reason if isinstance(value, UnreadablePayload) else None
        if text is not None and reason is None and (defect := json_defect(text)):
            reason = f"unreadable JSON: it {defect}"
        unreadable = {name: None, f"{name}_unreadable": reason, f"{name}_text": text}
        document |= {name: value} if reason is None else unreadable
    return document


# After a lapsed lease, only the time that the task was held is known.
_RUN_VERBS = {"held": "running for", "lapsed": "held for"}


def _event_row(event: Row, now: datetime) -> tuple[object, ...]:
    when = "now" if event.happened is None else _format_moment(event.happened, now)
    times = format_attempt_times(event.waited, event.ran, _RUN_VERBS.get(event.what, "ran"))
    return when, _what(event), times, event.attempt or "", _by(event), shortened(event.error_summary)


_RESULTS = {"ended": "{0}", "reassigned": "from {0}", "reset": "from {0}", "recreated": "as {1}"}


def _what(event: Row) -> str:
    return f"{event.what} {_RESULTS.get(event.what, '').format(_state_name(event), event.other)}".rstrip()


def _by(event: Row) -> str | None:
    """Return the person with the database role, else the owner that held the task, else the role alone."""
    if event.actor and event.role:
        return f"{event.actor} via role {event.role}"
    return event.actor or event.holder or (event.role and f"role {event.role}")


def _state_name(event: Row) -> str | None:
    return None if event.state is None else event.state.name
