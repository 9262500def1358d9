"""taskq owners, release, expire: the holders of tasks, and their leases."""

from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any

import click
from rich.console import RenderableType

from airflow_provider_taskq.cli._durations import format_age, format_duration, format_exact
from airflow_provider_taskq.cli._options import AGE, SEQUENCE, CommandGroup, dry_run_option, yes_option
from airflow_provider_taskq.cli._output import ask, facts, plural, sanitize, table
from airflow_provider_taskq.cli._session import Session, audit
from airflow_provider_taskq.cli.tasks import TASK_COLUMNS, task_document, task_row
from airflow_provider_taskq.queue import TaskQueue
from airflow_provider_taskq.queue.reports import OwnerSummary

HELD_CAP = 1_000  # tasks that the count of what an owner holds goes to


@click.group(
    cls=CommandGroup,
    invoke_without_command=True,
    help="List the owners whose lease is not gone, the newest registration first: what they hold, and until when.",
)
@click.option("--search", metavar="TEXT", help="Only owners whose name holds this, in any case.")
@click.option("--after", type=SEQUENCE, help="Beyond this fence, where the page before ended.")
@click.option("--size", "-n", type=click.IntRange(1, 10_000), default=50, show_default=True, help="At most so many.")
@click.pass_context
def owners(ctx: click.Context, search: str | None, after: int | None, size: int) -> None:
    """Shows the owners, unless something is to be done."""
    if ctx.invoked_subcommand is None:
        _list_owners(ctx.ensure_object(Session), search, after, size)


def _list_owners(session: Session, search: str | None, after: int | None, size: int) -> None:
    """Shows a line an owner."""
    with session.looking() as queue:
        now = queue.now()
        found, looked_to = queue.browse_owners(search, after=after, size=size + 1)
    shown = found[:size]
    beyond = shown[-1].fence if len(found) > size else looked_to
    rows = [
        (one.name, str(one.fence), _held(one), _lease(one, now), format_age(one.seen, now), ", ".join(one.topics))
        for one in shown
    ]
    columns = ["~owner", "?#fence", "#held", "lease", "?last sign of life", "~topics"]
    said = [f"There is more beyond: --after {beyond} goes on."] if beyond else [] if rows else ["Nobody is at work."]
    document = {"owners": [_owner_document(one) for one in shown], "next": beyond}
    session.answer(document, *([table(columns, rows)] if rows else []), *said)


@owners.command(help="Show one OWNER and the tasks that it holds.")
@click.argument("owner")
@click.option("--after", type=SEQUENCE, help="Beyond this sequence, where the page before ended.")
@click.option("--size", "-n", type=click.IntRange(1, 10_000), default=20, show_default=True, help="At most so many.")
@click.pass_obj
def show(session: Session, owner: str, after: int | None, size: int) -> None:
    """Shows both."""
    with session.looking() as queue:
        now = queue.now()
        one = _known(queue, owner)
        found = queue.browse_held(owner, after, size + 1)
    shown = found[:size]
    beyond = shown[-1].sequence if len(found) > size else None
    lines = [
        ("owner", one.name),
        ("fence", None if one.fence is None else str(one.fence)),
        ("lease", _lease(one, now)),
        ("last sign of life", format_age(one.seen, now)),
        ("holds", _held(one)),
    ]
    rows = [(task.topic, *task_row(task, now)) for task in shown]
    parts: list[RenderableType] = ["", table(["~topic", *TASK_COLUMNS], rows)] if rows else []
    said = [f"There is more beyond: --after {beyond} goes on."] if beyond else []
    document = {"owner": _owner_document(one), "tasks": [task_document(task) for task in shown], "next": beyond}
    session.answer(document, facts(lines), *parts, *said)


@owners.command(help="Forget owners that hold nothing, are named by no stored task, and were not heard of for long.")
@click.option("--older-than", type=AGE, default="30d", show_default=True, help="For how long.")
@dry_run_option
@click.pass_obj
def purge(session: Session, older_than: timedelta, dry_run: bool) -> None:
    """Forgets them."""
    with session.acting(dry_run=dry_run) as queue:
        count = queue.purge_owners(older_than)
        audit(queue, "purge owners", None, f"not heard of for {format_exact(older_than)}", count)
    said = f"{'Would forget' if dry_run else 'Forgot'} {plural(count, 'owner')}."
    session.answer({"owners": count, "dry_run": dry_run}, said)


@click.command(
    help="End the lease of OWNER and give back what it holds: READY in its old place, the attempt not counted. "
    "If it still works, what it decides will not count."
)
@click.argument("owner")
@dry_run_option
@yes_option
@click.pass_obj
def release(session: Session, owner: str, dry_run: bool, yes: bool) -> None:
    """Counts, asks, and releases."""
    with session.looking() as queue:
        one = _known(queue, owner)
    if one.fence is None:
        raise click.ClickException(sanitize(f"the lease of owner {owner!r} is gone already: it holds nothing"))
    if not dry_run:
        ask(f"This ends the lease of {owner}, which holds {_held(one)} tasks.", yes=yes)
    with session.acting(dry_run=dry_run) as queue:
        held = queue.owner(owner)
        count = queue.release(held) if held is not None and held.fence == one.fence else 0
        audit(queue, "release", None, f"owner {owner}", count)
    said = f"{'Would give' if dry_run else 'Gave'} back {plural(count, 'task')} of {owner}."
    session.answer({"owner": owner, "released": count, "dry_run": dry_run}, said)


def _known(queue: TaskQueue, owner: str) -> OwnerSummary:
    """The owner of that name; exit code 1 where nobody is known by it."""
    found = queue.browse_owner(owner)
    if found is None:
        raise click.ClickException(sanitize(f"no owner is known by the name {owner!r}"))
    return found


def _held(one: OwnerSummary) -> str:
    return f"{HELD_CAP:,}+" if one.held >= HELD_CAP else f"{one.held:,}"


def _lease(one: OwnerSummary, now: datetime) -> str:
    """Until when its tasks are kept from others."""
    if one.fence is None:
        return "gone"
    return (
        f"lapsed {format_age(one.lease_until, now)}"
        if one.lapsed
        else f"for another {format_duration(one.lease_until - now)}"
    )


def _owner_document(one: OwnerSummary) -> dict[str, Any]:
    """An owner by stable keys; the lease in seconds."""
    named = asdict(one)
    lease: timedelta = named.pop("lease")
    return {"owner": named.pop("name"), "lease_seconds": lease.total_seconds(), **named, "held_capped_at": HELD_CAP}


@click.command(help="Take back what is held under leases that have lapsed, by each topic's policy. Safe at any time.")
@click.option("--grace", type=AGE, default="0s", help="Spare leases that lapsed no longer ago than this.")
@dry_run_option
@click.pass_obj
def expire(session: Session, grace: timedelta, dry_run: bool) -> None:
    """Expires, and says how many tasks that were."""
    with session.acting(dry_run=dry_run) as queue:
        count = queue.expire(grace)
        if count:
            audit(queue, "expire", None, f"leases that lapsed more than {format_exact(grace)} ago", count)
    tasks = plural(count, "task")
    said = f"{tasks} {'would be' if dry_run else 'were' if count != 1 else 'was'} taken back from lapsed leases."
    session.answer({"tasks": count, "dry_run": dry_run}, said)
