"""run-now, priority, cancel: what is done to tasks that wait."""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import click

from airflow_provider_taskq.cli._options import (
    COUNT,
    MOMENT,
    SEQUENCE,
    Choice,
    Function,
    dry_run_option,
    topic_argument,
    yes_option,
)
from airflow_provider_taskq.cli._session import Session
from airflow_provider_taskq.cli.asking import ask, plural
from airflow_provider_taskq.cli.finding import sequences_of
from airflow_provider_taskq.cli.selection import MOST
from airflow_provider_taskq.cli.trail import note
from airflow_provider_taskq.cli.words import moment_at
from airflow_provider_taskq.queue import State, TaskQueue
from airflow_provider_taskq.queue.reports import TaskFilter

STATUSES = ("ready", "scheduled", "retrying", "blocked", "paused")
_WHICH = "those of these SEQUENCES, all or none; or those that wait and that the options choose."


def _selection(function: Function) -> Function:
    """[SEQUENCE]... and the options that choose tasks that wait."""
    wrapped: Any = function
    for option in (
        click.option("--size", type=COUNT, help="The most tasks to take, the lowest sequences first."),
        click.option("--until", type=MOMENT, help="Pushed at this moment or before."),
        click.option("--since", type=MOMENT, help="Pushed since this moment: 2026-11-21T09:30, or 2h for 2 hours ago."),
        click.option("--error", help="Whose last error holds this text."),
        click.option("--reference", "-r", help="Of this reference."),
        click.option("--identifier", "-i", help="Of this identifier."),
        click.option("--status", type=Choice(STATUSES), help="Of this status."),
        click.argument("named", nargs=-1, type=SEQUENCE, metavar="[SEQUENCE]..."),
    ):
        wrapped = option(wrapped)
    made: Function = wrapped
    return made


@click.command("run-now", help=f"Make tasks of TOPIC due now: {_WHICH} What else they wait for still keeps them.")
@topic_argument
@_selection
@dry_run_option
@yes_option
@click.pass_obj
def run_now(session: Session, /, topic: str, dry_run: bool, yes: bool, **chosen: Any) -> None:
    """Changes the due time, and wakes the workers that wait for the topic."""
    count = _change(
        session, topic, "run now", "due now", chosen, lambda queue, named: queue.run_now(topic, named), dry_run, yes
    )
    if count and not dry_run:
        with session.acting() as queue:
            queue.wake(topic)


@click.command(help=f"Set the PRIORITY, -100 to 100, of tasks of TOPIC: {_WHICH} Higher runs first.")
@topic_argument
@click.argument("priority", type=click.IntRange(-100, 100))
@_selection
@dry_run_option
@yes_option
@click.pass_obj
def priority(session: Session, /, topic: str, priority: int, dry_run: bool, yes: bool, **chosen: Any) -> None:
    """Changes the priority."""
    what = f"of priority {priority}"
    _change(
        session,
        topic,
        "change priority",
        what,
        chosen,
        lambda queue, named: queue.set_priority(topic, named, priority),
        dry_run,
        yes,
    )


@click.command(help=f"Cancel tasks of TOPIC: {_WHICH} They end as FILTERED without being run; `retry` takes it back.")
@topic_argument
@_selection
@dry_run_option
@yes_option
@click.pass_obj
def cancel(session: Session, /, topic: str, dry_run: bool, yes: bool, **chosen: Any) -> None:
    """Ends the tasks."""
    _change(session, topic, "cancel", "FILTERED", chosen, lambda queue, named: queue.cancel(topic, named), dry_run, yes)


def _change(
    session: Session,
    topic: str,
    action: str,
    becoming: str,
    chosen: dict[str, Any],
    change: Callable[[TaskQueue, list[int]], int],
    dry_run: bool,
    yes: bool,
) -> int:
    """Changes the tasks in one transaction, with a row in the audit; returns how many."""
    named = list(chosen.pop("named"))
    what = f"sequences {', '.join(map(str, named))}"
    more = False
    found = named
    if not named:
        with session.looking() as queue:
            found, more, what = _find(queue, topic, **chosen)
        ask(f"This makes {plural(len(found), 'task')} of {topic} {becoming}.", yes=yes or dry_run or not found)
    elif any(value is not None for value in chosen.values()):
        raise click.UsageError("tasks are named by sequence, or chosen by --status and the like: not both")
    with session.acting(dry_run=dry_run) as queue:
        held = found if named else queue.hold_found(topic, found, [State.READY])
        count = change(queue, held)
        note(queue, action, topic, f"{what}: {becoming}", count)
    verb = "Would make" if dry_run else "Made"
    remark = [f"More match than the {len(found):,} that one call takes: call it again."] if more else []
    document = {"topic": topic, "action": action, "changed": count, "more": more, "dry_run": dry_run}
    session.answer(document, f"{verb} {plural(count, 'task')} of {topic} {becoming}.", *remark)
    return count


def _find(
    queue: TaskQueue,
    topic: str,
    *,
    status: str | None,
    identifier: str | None,
    reference: str | None,
    error: str | None,
    since: datetime | timedelta | None,
    until: datetime | timedelta | None,
    size: int | None,
) -> tuple[list[int], bool, str]:
    """The tasks that wait and match, whether more do, and the filter in words."""
    said = {"status": status, "identifier": identifier, "reference": reference, "error": error}
    said |= {"since": since, "until": until}  # type: ignore[dict-item]  # in words only
    given = {name: value for name, value in said.items() if value is not None}
    if not given and size is None:
        raise click.UsageError("name the tasks by their sequences, or choose them by --status and the like")
    now = queue.now()
    wanted = TaskFilter(
        State.READY,
        status=status,
        identifier=identifier,
        reference=reference,
        since=moment_at(since, now),
        until=moment_at(until, now),
        error=error,
    )
    sequences, more = sequences_of(queue, topic, wanted, min(size or MOST, MOST))
    words = ", ".join(f"{name} {value}" for name, value in given.items()) or "all that wait"
    return sequences, more and (size or MOST) >= MOST, words
