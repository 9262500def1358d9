"""purge: tasks removed for good."""

from datetime import datetime, timedelta
from typing import Any

import click

from airflow_provider_taskq.cli._options import (
    MOMENT,
    SEQUENCE,
    STATES,
    Choice,
    dry_run_option,
    topic_argument,
    yes_option,
)
from airflow_provider_taskq.cli._session import Session, actor
from airflow_provider_taskq.cli.asking import ask, plural
from airflow_provider_taskq.cli.trail import note
from airflow_provider_taskq.cli.words import moment_at
from airflow_provider_taskq.queue import State, TaskQueue

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
            removed = _remove_all(session, topic) if all_ else _remove(session, topic, wanted, from_, to)
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
        removed = queue.purge_named(topic, named, NOT_HELD)
        note(queue, "purge", topic, f"sequences {', '.join(map(str, named))}", removed)
    return removed


def _remove(session: Session, topic: str, state: State | None, from_: int, to: int | None) -> int:
    """Removes in bites, each committed; what is in the way of one is left, so that this ends."""
    which = "all that have ended" if state is None else f"state {state.name}"
    what = f"{which}, sequences {from_} to {'the last' if to is None else to}"
    total, removed = 0, BITE
    with session.connection() as conn:
        queue = TaskQueue(conn)
        while removed == BITE:
            queue.acting(actor())
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
