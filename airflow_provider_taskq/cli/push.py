"""push: tasks from arguments, from a file or from stdin."""

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import IO, Any

import click

from airflow_provider_taskq.cli._options import DURATION, MOMENT, Choice, dry_run_option, topic_argument
from airflow_provider_taskq.cli._output import table
from airflow_provider_taskq.cli._session import Session
from airflow_provider_taskq.cli.asking import plural
from airflow_provider_taskq.cli.lines import tasks_of
from airflow_provider_taskq.cli.payload import payload_option
from airflow_provider_taskq.cli.trail import note
from airflow_provider_taskq.queue import Insertion, NewTask, Task
from airflow_provider_taskq.queue.task_input import FIELDS

INSERTIONS = tuple(Insertion)


def _dependencies(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> list[tuple[str, str]]:
    """The pairs of topic and identifier."""
    pairs = [tuple(value.split(":", 1)) for value in values]
    if any(len(pair) != 2 for pair in pairs):
        raise click.BadParameter("write TOPIC:IDENTIFIER")
    return [(pair[0], pair[1]) for pair in pairs]


@click.command(
    help="Push tasks into TOPIC: one for each IDENTIFIER, all with the same options; or those of a file of JSON lines, "
    f"each an identifier in quotes or an object with {', '.join(FIELDS)}. All of them are stored, or none."
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
            queue.wake(topic)
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
