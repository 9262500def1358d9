"""taskq push, offer, drop: new tasks, from arguments, a file or stdin."""

import sys
from collections.abc import Iterable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import IO, Any

import click

from airflow_provider_taskq.cli._options import (
    DURATION,
    MOMENT,
    Choice,
    combine_options,
    dry_run_option,
    topic_argument,
)
from airflow_provider_taskq.cli._output import plural, table
from airflow_provider_taskq.cli._session import Session, audited
from airflow_provider_taskq.queue import Insertion, InvalidTask, Json, NewTask, UnreadablePayload
from airflow_provider_taskq.queue.encoding import decode_json
from airflow_provider_taskq.queue.task_input import TASK_FIELDS, to_new_task

INSERTIONS = tuple(Insertion)


def _parse_dependencies(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> list[tuple[str, str]]:
    pairs = [tuple(value.split(":", 1)) for value in values]
    if any(len(pair) != 2 for pair in pairs):
        raise click.BadParameter("expected TOPIC:IDENTIFIER")
    return [(pair[0], pair[1]) for pair in pairs]


def _parse_payload(_: click.Context, __: click.Parameter, value: str | None) -> Json:
    """Parse JSON text, or the contents of the file named after an @. No error message quotes the payload."""
    if value is None:
        return None
    try:
        return _parse_json(_read(value[1:]) if value.startswith("@") else value)
    except OSError as error:
        raise click.BadParameter(f"cannot read the file: {error.strerror}") from None
    except UnicodeDecodeError:
        raise click.BadParameter("not JSON: the file is not UTF-8 text") from None
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def _read(name: str) -> str:
    return sys.stdin.read() if name == "-" else Path(name).read_text(encoding="utf-8")


def _parse_json(text: str) -> Json:
    found = decode_json(text)
    if not isinstance(found, UnreadablePayload):
        return found
    raise ValueError(found.reason)


payload_option = click.option(
    "--payload",
    callback=_parse_payload,
    metavar="JSON|@FILE",
    help="The payload. Every user of the machine can read JSON here in the list of processes; @FILE, or @- for stdin, "
    "avoids that.",
)
_new_tasks = combine_options(
    topic_argument,
    click.argument("identifiers", nargs=-1, metavar="[IDENTIFIER]..."),
    click.option("--file", "-f", type=click.File(encoding="utf-8", lazy=True), help="JSON lines; - for stdin."),
    payload_option,
    click.option("--reference", help="A second name of the task."),
    click.option("--priority", type=click.IntRange(-100, 100), default=0, help="-100 to 100, higher first."),
    click.option("--delay", type=DURATION, help="Due after this time."),
    click.option("--at", type=MOMENT, help="Due at this moment."),
    click.option("--ttl", type=DURATION, help="While the task is younger, failures are not noted."),
)


@click.command(
    help="Push tasks into TOPIC: one for each IDENTIFIER, all with the same options; or those of a file of JSON lines, "
    f"each an identifier in quotes or an object with {', '.join(TASK_FIELDS)}. All of them are stored, or none."
)
@_new_tasks
@click.option("--stream", is_flag=True, help="Push any number of lines in bounded memory; prints the count only.")
@click.option("--suspended", is_flag=True, help="Wait until a junction or an operator releases the task.")
@click.option(
    "--depends-on",
    multiple=True,
    callback=_parse_dependencies,
    metavar="TOPIC:IDENTIFIER",
    help="Wait until the latest task of this identifier has succeeded.",
)
@click.option(
    "--insertion", type=Choice(INSERTIONS), default="APPEND", help="What happens to older tasks of the identifier."
)
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
    tasks = _given_tasks(identifiers, file, fields)
    document: dict[str, Any]
    with session.transaction(dry_run=dry_run) as queue:
        if stream:
            pushed = audited(queue).push_stream(topic, tasks, Insertion(insertion))
            document = {"pushed": pushed.count, "first": pushed.first, "last": pushed.last}
        else:
            found = audited(queue).push(topic, tasks, Insertion(insertion))
            listed = [{"sequence": task.sequence, "identifier": task.identifier} for task in found]
            document = {"pushed": len(found), "tasks": listed}
    if not dry_run:
        session.notify(topic)
    sentence = f"{'Would push' if dry_run else 'Pushed'} {plural(document['pushed'], 'task')} into {topic}."
    rows = [] if dry_run else [(str(task["sequence"]), task["identifier"]) for task in document.get("tasks", ())]
    session.answer(
        {"topic": topic, **document, "dry_run": dry_run}, table(["#sequence", "~identifier"], rows), sentence
    )


@click.command(
    help="Offer tasks to TOPIC, at most one waiting task per IDENTIFIER: a waiting task is updated or ignored. All "
    "IDENTIFIERS have the same options; a file has JSON lines, as for push. All offers are stored, or none."
)
@_new_tasks
@click.option(
    "--if-exists",
    type=Choice(("update", "ignore", "ignore_held")),
    default="update",
    help="What happens to a waiting task. With ignore_held, a held task counts like a waiting one.",
)
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
    tasks = list(_given_tasks(identifiers, file, fields))
    with session.transaction(dry_run=dry_run) as queue:
        offered = queue.offer_many(topic, tasks, if_exists=if_exists)
        audited(queue).record("offer", topic, f"if exists: {if_exists}", len(offered))
    if not dry_run:
        session.notify(topic)
    shown = [
        {"sequence": each.sequence, "identifier": task.identifier, "outcome": each.outcome}
        for task, each in zip(tasks, () if dry_run else offered, strict=not dry_run)
    ]
    rows = [(str(each["sequence"]), each["identifier"], each["outcome"]) for each in shown]
    sentence = f"{'Would offer' if dry_run else 'Offered'} {plural(len(offered), 'task')} to {topic}."
    document = {"topic": topic, "offered": len(offered), "tasks": shown, "dry_run": dry_run}
    session.answer(document, table(["#sequence", "~identifier", "outcome"], rows), sentence)


def _given_tasks(identifiers: tuple[str, ...], file: IO[str] | None, fields: dict[str, Any]) -> Iterable[NewTask]:
    if file is not None:
        if identifiers or any(fields.values()):
            raise click.UsageError("--file holds the tasks with all their fields: give no identifier or task option")
        return _tasks_of_lines(file)
    if not identifiers:
        raise click.UsageError("give an IDENTIFIER, or JSON lines with --file (- for stdin)")
    moment = fields.pop("at")
    if isinstance(moment, timedelta):
        raise click.UsageError("--at needs a moment such as 2026-11-21T09:30; use --delay for a time from now")
    return [NewTask(identifier, available_at=moment, **fields) for identifier in identifiers]


def _tasks_of_lines(lines: Iterable[str]) -> Iterator[NewTask]:
    """Yield the task of each line that is not blank. Raises InvalidTask, which names the line but not the payload."""
    number = 0
    try:
        for number, line in enumerate(lines, start=1):  # noqa: B007 -- an error names it
            if line.strip():
                yield to_new_task(_parse_json(line))
    except UnicodeDecodeError:  # the decoder reads ahead, so the number of the line is unknown
        raise InvalidTask("the tasks are not UTF-8 text") from None
    except OSError as error:
        raise InvalidTask(f"cannot read the tasks: {error.strerror}") from None
    except (TypeError, ValueError) as error:
        raise InvalidTask(f"line {number}: {error}") from None


@click.command(help="Drop the waiting task of IDENTIFIER from TOPIC. Running and ended tasks stay.")
@topic_argument
@click.argument("identifier")
@dry_run_option
@click.pass_obj
def drop(session: Session, /, topic: str, identifier: str, dry_run: bool) -> None:
    with session.transaction(dry_run=dry_run) as queue:
        dropped = queue.drop(topic, identifier)
        audited(queue).record("drop", topic, f"identifier {identifier}", int(dropped))
    verb = "Would drop" if dry_run else "Dropped"
    sentence = f"{verb} {identifier} from {topic}." if dropped else f"{topic} has no waiting task of {identifier}."
    session.answer({"topic": topic, "identifier": identifier, "dropped": dropped, "dry_run": dry_run}, sentence)
