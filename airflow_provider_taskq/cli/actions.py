"""taskq retry, reassign, run-now, priority, cancel, purge: actions on tasks, by sequence or by filter."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import click

from airflow_provider_taskq.cli._durations import moment_at
from airflow_provider_taskq.cli._options import (
    COUNT,
    MOMENT,
    SEQUENCE,
    STATES,
    Choice,
    Function,
    dry_run_option,
    error_group_option,
    topic_argument,
    yes_option,
)
from airflow_provider_taskq.cli._output import ask, plural
from airflow_provider_taskq.cli._session import Session, actor, note
from airflow_provider_taskq.cli.tasks import sequences_of
from airflow_provider_taskq.queue import Result, Revival, State, TaskQueue
from airflow_provider_taskq.queue.reports import TaskFilter

ENDED = ("EXPIRED", "FAILED", "SUSPENDED", "FILTERED", "SUCCEEDED")
MOST = 10_000  # tasks that one call finds by a filter


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
        return {"sequences": queue.lock_tasks(topic, self.arguments["sequences"], [self.found])}

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


BY = tuple(Revival)
RESULTS = tuple(result.name for result in Result)
_ENDED_ONES = "those of these SEQUENCES, all or none; or those that the options choose."


@click.command(
    help=f"Start ended tasks of TOPIC anew: {_ENDED_ONES} RESET makes them READY themselves, in their old place; "
    "the other ways push copies by that insertion."
)
@topic_argument
@selection_options
@click.option("--by", type=Choice(BY), default="RESET", show_default=True, help="How they go on.")
@dry_run_option
@yes_option
@click.pass_obj
def retry(session: Session, /, topic: str, by: str, dry_run: bool, yes: bool, **chosen: Any) -> None:
    """Revives, after asking where the tasks were chosen rather than named."""
    found = _chosen(session, topic, "This starts {} anew.", chosen, sure=yes or dry_run)
    with session.acting(dry_run=dry_run) as queue:
        revived = queue.revive(topic, revival=Revival(by), **found.held(queue, topic))
        note(queue, "retry", topic, f"{found.what}, by {by}", len(revived))
    if not dry_run and revived:
        with session.acting() as queue:
            queue.notify(topic)
    said = f"{'Would start' if dry_run else 'Started'} {plural(len(revived), 'task')} of {topic} anew."
    # The numbers that a dry run has drawn for copies will not be theirs.
    pairs = [] if dry_run else [{"sequence": old, "goes_on_as": new} for old, new in revived.items()]
    document = {"topic": topic, "by": by, "revived": len(revived), "tasks": pairs, "more": found.more}
    session.answer({**document, "dry_run": dry_run}, said, *found.remark())


@click.command(help=f"Give ended tasks of TOPIC another result: {_ENDED_ONES} Their output stays.")
@topic_argument
@selection_options
@click.option("--result", type=Choice(RESULTS), required=True, help="The result that they get.")
@dry_run_option
@yes_option
@click.pass_obj
def reassign(session: Session, /, topic: str, result: str, dry_run: bool, yes: bool, **chosen: Any) -> None:
    """Reassigns, after asking where the tasks were chosen rather than named."""
    found = _chosen(session, topic, f"This makes {result} the result of {{}}.", chosen, sure=yes or dry_run)
    with session.acting(dry_run=dry_run) as queue:
        count = queue.reassign(topic, Result[result], **found.held(queue, topic))
        note(queue, "reassign", topic, f"{found.what}, to {result}", count)
    said = f"{'Would make' if dry_run else 'Made'} {result} the result of {plural(count, 'task')} of {topic}."
    document = {"topic": topic, "result": result, "reassigned": count, "more": found.more, "dry_run": dry_run}
    session.answer(document, said, *found.remark())


def _chosen(session: Session, topic: str, sentence: str, chosen: dict[str, Any], *, sure: bool) -> Chosen:
    """The tasks; a person is asked about those that were chosen rather than named."""
    with session.looking() as queue:
        found = choose(queue, topic, **chosen)
    if not chosen["named"] and found.count:
        ask(sentence.format(f"{plural(found.count, 'task')} of {topic}"), yes=sure)
    return found


WAITING_STATUSES = ("ready", "scheduled", "retrying", "blocked", "paused")
_WAITING_ONES = "those of these SEQUENCES, all or none; or those that wait and that the options choose."


def _waiting_selection(function: Function) -> Function:
    """[SEQUENCE]... and the options that choose tasks that wait."""
    wrapped: Any = function
    for option in (
        click.option("--size", type=COUNT, help="The most tasks to take, the lowest sequences first."),
        click.option("--until", type=MOMENT, help="Pushed at this moment or before."),
        click.option("--since", type=MOMENT, help="Pushed since this moment: 2026-11-21T09:30, or 2h for 2 hours ago."),
        click.option("--error", help="Whose last error holds this text."),
        click.option("--reference", "-r", help="Of this reference."),
        click.option("--identifier", "-i", help="Of this identifier."),
        click.option("--status", type=Choice(WAITING_STATUSES), help="Of this status."),
        click.argument("named", nargs=-1, type=SEQUENCE, metavar="[SEQUENCE]..."),
    ):
        wrapped = option(wrapped)
    made: Function = wrapped
    return made


@click.command(
    "run-now", help=f"Make tasks of TOPIC due now: {_WAITING_ONES} What else they wait for still keeps them."
)
@topic_argument
@_waiting_selection
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
            queue.notify(topic)


@click.command(help=f"Set the PRIORITY, -100 to 100, of tasks of TOPIC: {_WAITING_ONES} Higher runs first.")
@topic_argument
@click.argument("priority", type=click.IntRange(-100, 100))
@_waiting_selection
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


@click.command(
    help=f"Cancel tasks of TOPIC: {_WAITING_ONES} They end as FILTERED without being run; `retry` takes it back."
)
@topic_argument
@_waiting_selection
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
        held = found if named else queue.lock_tasks(topic, found, [State.READY])
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


BITE = 10_000  # tasks a transaction, so that none is long
NOT_HELD = tuple(state for state in State if state is not State.ACTIVE)


@click.command(
    help="Remove tasks of TOPIC for good: those of these SEQUENCES, unless somebody holds them; those that have ended "
    "(FAILED to REDUNDANT); those of one state; or all. What somebody is polling or completing right now stays."
)
@topic_argument
@click.argument("named", nargs=-1, type=SEQUENCE, metavar="[SEQUENCE]...")
@click.option("--state", type=Choice(STATES), help="Only of this state; ACTIVE, READY and EXPIRED have to be named.")
@click.option("--before", type=MOMENT, help="Only tasks pushed before this moment: 2026-11-01, or 30d for 30 days ago.")
@click.option("--from", "from_", type=SEQUENCE, default=0, help="Only from this sequence on.")
@click.option("--to", type=SEQUENCE, help="Only up to this sequence.")
@click.option("--all", "all_", is_flag=True, help="Every task of the topic, held ones too.")
@dry_run_option
@yes_option
@click.pass_obj
def purge(
    session: Session,
    topic: str,
    named: tuple[int, ...],
    state: str | None,
    before: datetime | timedelta | None,
    from_: int,
    to: int | None,
    all_: bool,
    dry_run: bool,
    yes: bool,
) -> None:
    """Counts, asks, and removes."""
    if bool(named) + all_ + bool(state or before or from_ or to is not None) > 1:
        raise click.UsageError("tasks are named by sequence, or chosen by options, or --all of them: one of the three")
    wanted = None if state is None else State[state]
    with session.looking() as queue:
        queue.policy(topic)  # an unknown topic is an error, not one without tasks
        to = _last(queue, before, to)
        count = len(_there(queue, topic, named)) if named else _count(queue, topic, wanted, from_, to, all_=all_)
    what = f"{plural(count, 'task')} of {topic}{'' if wanted is None else f' in state {wanted.name}'}"
    if dry_run or not count:
        removed, said = 0, f"Would remove {what}." if dry_run else "There is nothing to remove."
    else:
        ask(f"This removes {what} for good.", yes=yes)
        if named:
            removed = _remove_named(session, topic, named)
        else:
            removed = _remove_all(session, topic) if all_ else _remove_range(session, topic, wanted, from_, to)
        said = f"Removed {plural(removed, 'task')} of {topic}."
    session.answer({"topic": topic, "matching": count, "removed": removed, "dry_run": dry_run}, said)


def _last(queue: TaskQueue, before: datetime | timedelta | None, to: int | None) -> int | None:
    """The last sequence that may go; 0 where everything is younger than that."""
    moment = moment_at(before, queue.now())
    if moment is None:
        return to
    last = queue.resolve(moment, preceding=True) or 0
    return last if to is None else min(to, last)


def _count(queue: TaskQueue, topic: str, state: State | None, from_: int, to: int | None, *, all_: bool) -> int:
    """How many tasks would go now."""
    counts: dict[State, Any] = queue.count(topic, state=state, from_=from_, to=to).get(topic, {})
    gone = set(State) if all_ or state is not None else {found for found in State if found >= State.FAILED}
    return sum(count.count for found, count in counts.items() if found in gone)


def _there(queue: TaskQueue, topic: str, named: tuple[int, ...]) -> list[int]:
    """Those of these tasks that are there and held by nobody."""
    return [task.sequence for task in queue.browse_tasks(topic, named) if task.state in NOT_HELD]


def _remove_named(session: Session, topic: str, named: tuple[int, ...]) -> int:
    """Removes these tasks, held ones aside."""
    with session.acting() as queue:
        removed = queue.purge_sequences(topic, named, NOT_HELD)
        note(queue, "purge", topic, f"sequences {', '.join(map(str, named))}", removed)
    return removed


def _remove_range(session: Session, topic: str, state: State | None, from_: int, to: int | None) -> int:
    """Removes in bites, each committed; what is in the way of one is left, so that this ends."""
    which = "all that have ended" if state is None else f"state {state.name}"
    what = f"{which}, sequences {from_} to {'the last' if to is None else to}"
    total, removed = 0, BITE
    with session.connection() as conn:
        queue = TaskQueue(conn)
        while removed == BITE:
            queue.set_actor(actor())
            removed = queue.purge(topic, from_, to, state, size=BITE)
            note(queue, "purge", topic, what, removed)
            conn.commit()
            total += removed
    return total


def _remove_all(session: Session, topic: str) -> int:
    """Empties the topic, at once where it has tables of its own."""
    with session.alone() as queue:
        removed = queue.purge_all(topic)
    with session.acting() as queue:
        note(queue, "purge", topic, "every task", removed)
    return removed
