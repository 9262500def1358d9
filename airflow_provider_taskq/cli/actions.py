"""taskq retry, reassign, run-now, priority, cancel, purge: actions on tasks, by sequence or by filter."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import click

from airflow_provider_taskq.cli._options import (
    COUNT,
    MOMENT,
    SEQUENCE,
    STATES,
    Choice,
    combine_options,
    dry_run_option,
    error_group_option,
    since_option,
    topic_argument,
    until_option,
    yes_option,
)
from airflow_provider_taskq.cli._output import ask, plural
from airflow_provider_taskq.cli._session import Session, actor
from airflow_provider_taskq.cli._times import moment_at
from airflow_provider_taskq.cli.tasks import find_sequences
from airflow_provider_taskq.queue import Result, Revival, State, TaskQueue, selection
from airflow_provider_taskq.queue.reports import TaskFilter
from airflow_provider_taskq.queue.selection import MAX_TASKS, PURGEABLE, WAKING_ACTIONS, Action, ActionResult, Selection

REVIVALS = tuple(Revival)
RESULTS = tuple(result.name for result in Result)
ENDED = tuple(state.name for state in selection.ENDED)
WAITING_STATUSES = ("ready", "scheduled", "retrying", "blocked", "paused")
PURGE_BATCH = 10_000  # tasks per transaction, so that none is long

_sequences = click.argument("named", nargs=-1, metavar="[SEQUENCE|IDENTIFIER]...")
_filter_options = (
    click.option("--identifier", "-i", help="Tasks with this identifier."),
    click.option("--reference", "-r", help="Tasks with this reference."),
    click.option("--error", help="Tasks whose last error contains this text."),
    since_option,
    until_option,
    click.option("--size", type=COUNT, help="The most tasks to change, the lowest sequences first."),
)
_ended_tasks = combine_options(
    _sequences,
    click.option("--state", type=Choice(ENDED), help="All tasks in this state."),
    error_group_option,
    *_filter_options,
)
_waiting_tasks = combine_options(
    _sequences, click.option("--status", type=Choice(WAITING_STATUSES), help="Tasks of this status."), *_filter_options
)
_confirmation = combine_options(dry_run_option, yes_option)
_BY_SELECTION = "by SEQUENCE, or IDENTIFIER if it has one such task, all or none, or by filter options."


@click.command(
    help=f"Retry ended tasks of TOPIC, {_BY_SELECTION} RESET makes them ready again, in their old place. The other "
    "insertions push copies."
)
@topic_argument
@_ended_tasks
@click.option(
    "--by", type=Choice(REVIVALS), default="RESET", show_default=True, help="RESET, or the copies' insertion."
)
@_confirmation
@click.pass_obj
def retry(session: Session, /, topic: str, by: str, dry_run: bool, yes: bool, **chosen: Any) -> None:
    action = selection.retry(Revival(by))
    tasks = _select_ended(session, topic, **chosen)
    _confirm(tasks, f"This retries {_named(tasks)}.", dry_run, yes)
    result = _apply(session, action, tasks, dry_run)
    # A dry run draws sequences for copies and gives them back.
    pairs = [] if dry_run else [{"sequence": old, "goes_on_as": new} for old, new in result.revived.items()]
    document = {"topic": topic, "by": by, "revived": result.count, "tasks": pairs}
    verb = "Would retry" if dry_run else "Retried"
    _answer(session, tasks, {**document, "dry_run": dry_run}, f"{verb} {plural(result.count, 'task')} of {topic}.")


@click.command(help=f"Give ended tasks of TOPIC another result, {_BY_SELECTION} Their output stays.")
@topic_argument
@_ended_tasks
@click.option("--result", type=Choice(RESULTS), required=True, help="The new result.")
@_confirmation
@click.pass_obj
def reassign(session: Session, /, topic: str, result: str, dry_run: bool, yes: bool, **chosen: Any) -> None:
    tasks = _select_ended(session, topic, **chosen)
    _confirm(tasks, f"This gives {_named(tasks)} the result {result}.", dry_run, yes)
    count = _apply(session, selection.reassign(Result[result]), tasks, dry_run).count
    document = {"topic": topic, "result": result, "reassigned": count, "dry_run": dry_run}
    verb = "Would give" if dry_run else "Gave"
    _answer(session, tasks, document, f"{verb} {plural(count, 'task')} of {topic} the result {result}.")


@click.command(
    "run-now",
    help=f"Make waiting tasks of TOPIC due now, {_BY_SELECTION} Dependencies, the probe and paused topics still apply.",
)
@topic_argument
@_waiting_tasks
@_confirmation
@click.pass_obj
def run_now(session: Session, /, topic: str, dry_run: bool, yes: bool, **chosen: Any) -> None:
    _change_waiting(session, topic, selection.run_now(), "due now", dry_run, yes, chosen)


@click.command(help=f"Set the PRIORITY, -100 to 100, of waiting tasks of TOPIC, {_BY_SELECTION} Higher runs first.")
@topic_argument
@click.argument("priority", type=click.IntRange(-100, 100))
@_waiting_tasks
@_confirmation
@click.pass_obj
def priority(session: Session, /, topic: str, priority: int, dry_run: bool, yes: bool, **chosen: Any) -> None:
    action = selection.set_priority(priority)
    _change_waiting(session, topic, action, f"priority {priority}", dry_run, yes, chosen)


@click.command(
    help=f"Cancel waiting tasks of TOPIC, {_BY_SELECTION} They end as FILTERED without a run; `retry` takes it back."
)
@topic_argument
@_waiting_tasks
@_confirmation
@click.pass_obj
def cancel(session: Session, /, topic: str, dry_run: bool, yes: bool, **chosen: Any) -> None:
    _change_waiting(session, topic, selection.cancel(), "FILTERED", dry_run, yes, chosen)


def _change_waiting(
    session: Session, topic: str, action: Action, becoming: str, dry_run: bool, yes: bool, chosen: dict[str, Any]
) -> None:
    tasks = _select_waiting(session, topic, **chosen)
    _confirm(tasks, f"This makes {_named(tasks)} {becoming}.", dry_run, yes)
    count = _apply(session, action, tasks, dry_run).count
    document = {"topic": topic, "action": action.name, "changed": count, "dry_run": dry_run}
    verb = "Would make" if dry_run else "Made"
    _answer(session, tasks, document, f"{verb} {plural(count, 'task')} of {topic} {becoming}.")


def _select_ended(
    session: Session, topic: str, named: Sequence[str], state: str | None, size: int | None, **given: Any
) -> Selection:
    is_filtered = _is_filtered(given)
    if named:
        if state is not None or size is not None or is_filtered:
            raise click.UsageError(
                "give either SEQUENCEs and IDENTIFIERs or --state and other filter options, not both"
            )
        return _select_named(session, topic, named, selection.ENDED)
    if state is None and given["error_group"] is not None:
        state = "FAILED"  # a group of errors is a group of failures
    if state is None:
        raise click.UsageError("name the tasks by their SEQUENCEs or IDENTIFIERs, or select them with --state")
    with session.read_only() as queue:
        if not is_filtered and size is None:
            return selection.select_state(queue, topic, State[state])
        return _select_filter(queue, topic, TaskFilter(State[state]), [State[state]], size, **given)


def _select_waiting(
    session: Session, topic: str, named: Sequence[str], status: str | None, size: int | None, **given: Any
) -> Selection:
    is_filtered = status is not None or size is not None or _is_filtered(given)
    if named:
        if is_filtered:
            raise click.UsageError(
                "give either SEQUENCEs and IDENTIFIERs or --status and other filter options, not both"
            )
        return _select_named(session, topic, named, selection.WAITING)
    if not is_filtered:
        raise click.UsageError(
            "name the tasks by their SEQUENCEs or IDENTIFIERs, or select them with --status or other filter options"
        )
    with session.read_only() as queue:
        return _select_filter(queue, topic, TaskFilter(State.READY, status), selection.WAITING, size, **given)


def _select_named(session: Session, topic: str, named: Sequence[str], states: Sequence[State]) -> Selection:
    with session.read_only() as queue:
        return selection.select_sequences(topic, find_sequences(queue, topic, named, states))


def _is_filtered(given: dict[str, Any]) -> bool:
    return any(value is not None for value in given.values())


def _select_filter(
    queue: TaskQueue,
    topic: str,
    basis: TaskFilter,
    states: Sequence[State],
    size: int | None,
    *,
    since: datetime | timedelta | None,
    until: datetime | timedelta | None,
    **texts: Any,
) -> Selection:
    now = queue.now()
    given = TaskFilter(basis.state, basis.status, since=moment_at(since, now), until=moment_at(until, now), **texts)
    return selection.select_filter(queue, topic, given, states, limit=min(size or MAX_TASKS, MAX_TASKS))


def _named(tasks: Selection) -> str:
    return f"{plural(tasks.count, 'task')} of {tasks.topic}"


def _confirm(tasks: Selection, sentence: str, dry_run: bool, yes: bool) -> None:
    """Ask for a confirmation if a filter selected the tasks."""
    if tasks.states and tasks.count:
        ask(sentence, yes=yes or dry_run)


def _apply(session: Session, action: Action, tasks: Selection, dry_run: bool) -> ActionResult:
    """Apply an action in one transaction, then wake the workers. Roll back a dry run."""
    with session.transaction(dry_run=dry_run) as queue:
        result = action.apply(queue, tasks)
    if action.name in WAKING_ACTIONS and result.count and not dry_run:
        session.notify(tasks.topic)
    return result


def _answer(session: Session, tasks: Selection, document: dict[str, Any], sentence: str) -> None:
    more = tasks.more and tasks.count >= MAX_TASKS
    rest = [f"More tasks match than the {tasks.count:,} of one call: repeat the command."] if more else []
    session.answer({**document, "more": more}, sentence, *rest)


@click.command(
    help="Purge tasks of TOPIC for good: by SEQUENCE or IDENTIFIER, unless they run; by default all that have ended "
    "(FAILED to REDUNDANT); those of one state; or all. A task that another session is polling or completing stays."
)
@topic_argument
@_sequences
@click.option("--state", type=Choice(STATES), help="Only this state; required for ACTIVE, READY and EXPIRED.")
@click.option("--before", type=MOMENT, help="Only tasks pushed before this moment: 2026-11-01, or 30d for 30 days ago.")
@click.option("--from", "from_", type=SEQUENCE, default=0, help="Only this sequence and higher ones.")
@click.option("--to", type=SEQUENCE, help="Only this sequence and lower ones.")
@click.option("--all", "all_", is_flag=True, help="Every task of the topic, running ones too.")
@_confirmation
@click.pass_obj
def purge(
    session: Session,
    topic: str,
    named: tuple[str, ...],
    state: str | None,
    before: datetime | timedelta | None,
    from_: int,
    to: int | None,
    all_: bool,
    dry_run: bool,
    yes: bool,
) -> None:
    if bool(named) + all_ + bool(state or before or from_ or to is not None) > 1:
        raise click.UsageError("give SEQUENCEs and IDENTIFIERs, or filter options, or --all: only one of the three")
    wanted = None if state is None else State[state]
    with session.read_only() as queue:
        queue.policy(topic)  # raises for an unknown topic, which would look empty
        to = _last_before(queue, before, to)
        sequences = find_sequences(queue, topic, named, PURGEABLE) if named else []
        count = (
            len(_purgeable(queue, topic, sequences)) if named else _count(queue, topic, wanted, from_, to, all_=all_)
        )
    what = f"{plural(count, 'task')} of {topic}{'' if wanted is None else f' in state {wanted.name}'}"
    if dry_run or not count:
        removed, sentence = 0, f"Would purge {what}." if dry_run else "No task to purge."
    else:
        ask(f"This purges {what} for good.", yes=yes)
        if named:
            removed = _apply(
                session, selection.purge(), selection.select_sequences(topic, sequences), dry_run=False
            ).count
        else:
            removed = _purge_all(session, topic) if all_ else _purge_range(session, topic, wanted, from_, to)
        sentence = f"Purged {plural(removed, 'task')} of {topic}."
    session.answer({"topic": topic, "matching": count, "removed": removed, "dry_run": dry_run}, sentence)


def _last_before(queue: TaskQueue, before: datetime | timedelta | None, to: int | None) -> int | None:
    """Return the last sequence in the range; 0 if every task is younger than `before`."""
    moment = moment_at(before, queue.now())
    if moment is None:
        return to
    last = queue.resolve(moment, preceding=True) or 0
    return last if to is None else min(to, last)


def _count(queue: TaskQueue, topic: str, state: State | None, from_: int, to: int | None, *, all_: bool) -> int:
    counts: dict[State, Any] = queue.count(topic, state=state, from_=from_, to=to).get(topic, {})
    purged = set(State) if all_ or state is not None else {found for found in State if found >= State.FAILED}
    return sum(count.count for found, count in counts.items() if found in purged)


def _purgeable(queue: TaskQueue, topic: str, named: Sequence[int]) -> list[int]:
    return [task.sequence for task in queue.browse_tasks(topic, named) if task.state in PURGEABLE]


def _purge_range(session: Session, topic: str, state: State | None, from_: int, to: int | None) -> int:
    """Purge in batches, each in a transaction. Skip locked tasks, so that the loop ends."""
    which = "all that have ended" if state is None else f"state {state.name}"
    what = f"{which}, sequences {from_} to {'the last' if to is None else to}"
    total, removed = 0, PURGE_BATCH
    with session.connection() as conn:
        queue = TaskQueue(conn)
        while removed == PURGE_BATCH:
            queue.set_actor(actor())
            removed = queue.purge(topic, from_, to, state, size=PURGE_BATCH)
            queue.record_action("purge", topic, what, removed)
            conn.commit()
            total += removed
    return total


def _purge_all(session: Session, topic: str) -> int:
    with session.transaction() as queue:
        removed = queue.purge_all(topic)
        queue.record_action("purge", topic, "every task", removed)
    return removed
