"""taskq push, offer, drop: new tasks, from arguments, a file or stdin."""

import json
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from typing import IO, Any

import click

from airflow_provider_taskq.cli._options import (
    DURATION,
    MOMENT,
    Choice,
    dry_run_option,
    json_value,
    payload_option,
    topic_argument,
)
from airflow_provider_taskq.cli._output import plural, table
from airflow_provider_taskq.cli._session import Session, note
from airflow_provider_taskq.queue import Insertion, InvalidTask, NewTask, Task
from airflow_provider_taskq.queue.task_input import TASK_FIELDS, to_new_task


def tasks_of(lines: Iterable[str]) -> Iterator[NewTask]:
    """The task of each line, blank ones aside; InvalidTask names the line, counted from 1."""
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                yield to_new_task(json_value(line))
            except (TypeError, ValueError) as error:
                raise InvalidTask(f"line {number}: {_line_error(error)}") from None


def _line_error(error: Exception) -> str:
    """What is wrong with a line, without the line: it holds a payload."""
    if isinstance(error, json.JSONDecodeError):
        return f"not JSON: {error.msg}, at character {error.pos + 1}"
    return str(error)


INSERTIONS = tuple(Insertion)


def _dependencies(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> list[tuple[str, str]]:
    """The pairs of topic and identifier."""
    pairs = [tuple(value.split(":", 1)) for value in values]
    if any(len(pair) != 2 for pair in pairs):
        raise click.BadParameter("write TOPIC:IDENTIFIER")
    return [(pair[0], pair[1]) for pair in pairs]


@click.command(
    help="Push tasks into TOPIC: one for each IDENTIFIER, all with the same options; or those of a file of JSON lines, "
    f"each an identifier in quotes or an object with {', '.join(TASK_FIELDS)}. All of them are stored, or none."
)
@topic_argument
@click.argument("identifiers", nargs=-1, metavar="[IDENTIFIER]...")
@click.option("--file", "-f", type=click.File(encoding="utf-8", lazy=True), help="JSON lines; - for stdin.")
@click.option("--stream", is_flag=True, help="In bounded memory, however many lines: tells how many, not which.")
@payload_option
@click.option("--reference", help="What else it is known by.")
@click.option("--priority", type=click.IntRange(-100, 100), default=0, help="-100 to 100, higher first.")
@click.option("--delay", type=DURATION, help="Due after this long.")
@click.option("--at", type=MOMENT, help="Due at this moment.")
@click.option("--ttl", type=DURATION, help="While it is younger, failures are not noted.")
@click.option("--suspended", is_flag=True, help="Wait until a junction, or somebody, releases it.")
@click.option(
    "--depends-on", multiple=True, callback=_dependencies, metavar="TOPIC:IDENTIFIER", help="Not before that."
)
@click.option("--insertion", type=Choice(INSERTIONS), default="APPEND", help="What becomes of older tasks.")
@dry_run_option
@click.pass_obj
def push(
    session: Session,
    /,
    topic: str,
    identifiers: tuple[str, ...],
    file: IO[str] | None,
    stream: bool,
    insertion: str,
    dry_run: bool,
    **fields: Any,
) -> None:
    """Pushes, then wakes who waits for the topic."""
    tasks = tasks_given(identifiers, file, fields)
    with session.acting(dry_run=dry_run) as queue:
        if stream:
            pushed = queue.push_stream(topic, tasks, Insertion(insertion))
            document: dict[str, Any] = {"pushed": pushed.count, "first": pushed.first, "last": pushed.last}
            found: list[Task] = []
        else:
            found = queue.push(topic, tasks, Insertion(insertion))
            document = {"pushed": len(found), "tasks": [_known(task) for task in found]}
        note(queue, "push", topic, f"by {insertion}", document["pushed"])
    if not dry_run:
        with session.acting() as queue:  # after the commit: who waits for it has to see it
            queue.notify(topic)
    said = f"{'Would push' if dry_run else 'Pushed'} {plural(document['pushed'], 'task')} into {topic}."
    rows = [] if dry_run else [(str(task.sequence), task.identifier) for task in found]
    parts = [table(["#sequence", "~identifier"], rows)] if rows else []
    session.answer({"topic": topic, **document, "dry_run": dry_run}, *parts, said)


def _known(task: Task) -> dict[str, Any]:
    return {"sequence": task.sequence, "identifier": task.identifier}


def tasks_given(identifiers: tuple[str, ...], file: IO[str] | None, fields: dict[str, Any]) -> Iterable[NewTask]:
    """The tasks of the arguments or of the file, never both."""
    if file is not None:
        if identifiers or any(fields.values()):
            raise click.UsageError("a file says all of its tasks: no identifier or option of a task goes with --file")
        return tasks_of(file)
    if not identifiers:
        raise click.UsageError("name an identifier, or a file of JSON lines by --file (- for stdin)")
    at = fields.pop("at")
    if isinstance(at, timedelta):
        raise click.UsageError("--at is a moment to come, as 2026-11-21T09:30; --delay says how long from now")
    when: datetime | None = at
    return [NewTask(identifier, available_at=when, **fields) for identifier in identifiers]


@click.command(
    help="Offer tasks to TOPIC, at most one waiting task per IDENTIFIER: a task that waits is updated, or ignored. All "
    "IDENTIFIERS have the same options; a file has JSON lines, as for push. All offers are carried out, or none."
)
@topic_argument
@click.argument("identifiers", nargs=-1, metavar="[IDENTIFIER]...")
@click.option("--file", "-f", type=click.File(encoding="utf-8", lazy=True), help="JSON lines; - for stdin.")
@click.option(
    "--if-exists", type=Choice(("update", "ignore")), default="update", help="What becomes of a waiting task."
)
@payload_option
@click.option("--reference", help="What else it is known by.")
@click.option("--priority", type=click.IntRange(-100, 100), default=0, help="-100 to 100, higher first.")
@click.option("--delay", type=DURATION, help="Due after this long.")
@click.option("--at", type=MOMENT, help="Due at this moment.")
@click.option("--ttl", type=DURATION, help="While it is younger, failures are not noted.")
@dry_run_option
@click.pass_obj
def offer(
    session: Session,
    /,
    topic: str,
    identifiers: tuple[str, ...],
    file: IO[str] | None,
    if_exists: str,
    dry_run: bool,
    **fields: Any,
) -> None:
    """Offers, then wakes the watchers of the topic."""
    tasks = list(tasks_given(identifiers, file, fields))
    with session.acting(dry_run=dry_run) as queue:
        offered = queue.offer_many(topic, tasks, if_exists=if_exists)
        note(queue, "offer", topic, f"if exists: {if_exists}", len(offered))
    if not dry_run:
        with session.acting() as queue:  # after the commit, so that the watchers see it
            queue.notify(topic)
    found = [
        {"sequence": each.sequence, "identifier": task.identifier, "outcome": each.outcome}
        for task, each in zip(tasks, offered, strict=True)
    ]
    rows = [(str(each["sequence"]), each["identifier"], each["outcome"]) for each in found]
    said = f"{'Would offer' if dry_run else 'Offered'} {plural(len(found), 'task')} to {topic}."
    parts = [] if dry_run else [table(["#sequence", "~identifier", "outcome"], rows)]
    document = {"topic": topic, "offered": len(found), "tasks": [] if dry_run else found, "dry_run": dry_run}
    session.answer(document, *parts, said)


@click.command(help="Remove what waits in TOPIC under IDENTIFIER. Tasks that are held or have ended stay.")
@topic_argument
@click.argument("identifier")
@dry_run_option
@click.pass_obj
def drop(session: Session, /, topic: str, identifier: str, dry_run: bool) -> None:
    """Drops."""
    with session.acting(dry_run=dry_run) as queue:
        dropped = queue.drop(topic, identifier)
        note(queue, "drop", topic, f"identifier {identifier}", int(dropped))
    done = "Would drop" if dry_run else "Dropped"
    said = f"{done} {identifier} from {topic}." if dropped else f"Nothing waits in {topic} under {identifier}."
    session.answer({"topic": topic, "identifier": identifier, "dropped": dropped, "dry_run": dry_run}, said)
