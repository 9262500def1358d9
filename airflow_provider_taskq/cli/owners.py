"""taskq owners, release, expire, maintain: the owners that hold tasks, their leases, and the upkeep of the queue."""

from datetime import datetime, timedelta
from typing import Any

import click
from rich.console import RenderableType

from airflow_provider_taskq.cli._options import (
    AGE,
    SEQUENCE,
    CommandGroup,
    dry_run_option,
    page_size_option,
    search_option,
    yes_option,
)
from airflow_provider_taskq.cli._output import ask, capped, facts, plural, sanitize, table
from airflow_provider_taskq.cli._session import Session, audited
from airflow_provider_taskq.cli._times import format_age, format_duration, format_exact
from airflow_provider_taskq.cli.tasks import TASK_COLUMNS, task_document, task_row
from airflow_provider_taskq.queue import Row, TaskQueue

HELD_CAP = 1_000  # of the count of tasks that an owner holds


@click.group(
    cls=CommandGroup,
    invoke_without_command=True,
    synonyms=dict.fromkeys(("delete", "remove", "rm", "forget"), "purge"),
    help="List the owners with a lease, the newest registration first: how many tasks they hold, and until when.",
)
@search_option
@click.option("--after", type=SEQUENCE, help="Start after this fence, where the previous page ended.")
@page_size_option(50)
@click.pass_context
def owners(ctx: click.Context, search: str | None, after: int | None, size: int) -> None:
    if ctx.invoked_subcommand is not None:
        return
    session = ctx.ensure_object(Session)
    with session.read_only() as queue:
        now = queue.now()
        found = queue.browse_owners(search, after=after, size=size + 1)
    shown = found[:size]
    following = shown[-1].fence if len(found) > size else None
    rows = [
        (
            owner.name,
            str(owner.fence),
            capped(owner.held, HELD_CAP),
            _lease(owner, now),
            format_age(owner.seen, now),
            ", ".join(owner.topics),
        )
        for owner in shown
    ]
    columns = ["~owner", "?#fence", "#held", "lease", "?last heartbeat", "~topics"]
    rest = [] if rows else [f"No owner contains {search!r}." if search else "No owner has a lease."]
    if following:
        rest = [f"More owners follow: repeat with --after {following}."]
    document = {"owners": [_owner_document(owner) for owner in shown], "next": following}
    session.answer(document, table(columns, rows), *rest)


@owners.command(help="Show one OWNER and the tasks that it holds.")
@click.argument("owner")
@click.option("--after", type=SEQUENCE, help="Start after this sequence, where the previous page ended.")
@page_size_option(20)
@click.pass_obj
def show(session: Session, owner: str, after: int | None, size: int) -> None:
    with session.read_only() as queue:
        now = queue.now()
        found = _find_owner(queue, owner)
        tasks = queue.browse_held(owner, after, size + 1)
    shown = tasks[:size]
    following = shown[-1].sequence if len(tasks) > size else None
    lines = [
        ("owner", found.name),
        ("fence", None if found.fence is None else str(found.fence)),
        ("lease", _lease(found, now)),
        ("last heartbeat", format_age(found.seen, now)),
        ("holds", capped(found.held, HELD_CAP)),
    ]
    rows = [(task.topic, *task_row(task, now)) for task in shown]
    parts: list[RenderableType] = ["", table(["~topic", *TASK_COLUMNS], rows)] if rows else []
    rest = [f"More tasks follow: repeat with --after {following}."] if following else []
    document = {"owner": _owner_document(found), "tasks": [task_document(task) for task in shown], "next": following}
    session.answer(document, facts(lines), *parts, *rest)


@owners.command(help="Purge names of owners without tasks, current or stored, and without a heartbeat for a long time.")
@click.option("--older-than", type=AGE, default="30d", show_default=True, help="The time since the last heartbeat.")
@dry_run_option
@click.pass_obj
def purge(session: Session, older_than: timedelta, dry_run: bool) -> None:
    with session.transaction(dry_run=dry_run) as queue:
        count = queue.purge_owners(older_than)
        audited(queue).record("purge owners", None, f"no heartbeat for {format_exact(older_than)}", count)
    sentence = f"{'Would purge' if dry_run else 'Purged'} {plural(count, 'owner')}."
    session.answer({"owners": count, "dry_run": dry_run}, sentence)


@click.command(
    help="End the lease of OWNER and give back its tasks: ready, in their old place, the attempt not counted. The "
    "owner can complete none of them afterwards."
)
@click.argument("owner")
@dry_run_option
@yes_option
@click.pass_obj
def release(session: Session, owner: str, dry_run: bool, yes: bool) -> None:
    with session.read_only() as queue:
        found = _find_owner(queue, owner)
    if found.fence is None:
        raise click.ClickException(sanitize(f"the lease of owner {owner!r} has ended already: it holds no task"))
    if not dry_run:
        ask(f"This ends the lease of {owner}, which holds {capped(found.held, HELD_CAP)} tasks.", yes=yes)
    with session.transaction(dry_run=dry_run) as queue:
        current = queue.owner(owner)
        count = audited(queue).release(current) if current is not None and current.fence == found.fence else 0
    sentence = f"{'Would give' if dry_run else 'Gave'} back {plural(count, 'task')} of {owner}."
    session.answer({"owner": owner, "released": count, "dry_run": dry_run}, sentence)


@click.command(help="Take back the tasks of lapsed leases, by the policy of each topic. Safe at any time.")
@click.option("--grace", type=AGE, default="0s", help="Spare leases that lapsed less than this ago.")
@dry_run_option
@click.pass_obj
def expire(session: Session, grace: timedelta, dry_run: bool) -> None:
    with session.transaction(dry_run=dry_run) as queue:
        count = audited(queue).expire(grace)
    verb = "would be" if dry_run else "was" if count == 1 else "were"
    session.answer(
        {"tasks": count, "dry_run": dry_run}, f"{plural(count, 'task')} {verb} taken back from lapsed leases."
    )


@click.command(
    help="Carry out upkeep until none is left: take back the tasks of lapsed leases, and purge ended tasks that are "
    "older than their topic keeps them. Workers, drains and waiting gates do the same. A purge begins at most once a "
    "minute."
)
@dry_run_option
@click.pass_obj
def maintain(session: Session, dry_run: bool) -> None:
    expired = purged = 0
    while True:
        with session.transaction(dry_run=dry_run) as queue:
            done = queue.maintain()
        expired, purged = expired + done.expired, purged + done.purged
        if dry_run or not done.more:
            break
    sentence = (
        f"{'Would take' if dry_run else 'Took'} {plural(expired, 'task')} back from lapsed leases, and "
        f"{'purge' if dry_run else 'purged'} {plural(purged, 'task')}{' in a first call' if done.more else ''}."
    )
    session.answer({"expired": expired, "purged": purged, "more": done.more, "dry_run": dry_run}, sentence)


def _find_owner(queue: TaskQueue, owner: str) -> Row:
    found = queue.browse_owner(owner)
    if found is None:
        raise click.ClickException(sanitize(f"owner {owner!r} does not exist"))
    return found


def _lease(owner: Row, now: datetime) -> str:
    if owner.fence is None:
        return "ended"
    if owner.lapsed:
        return f"lapsed {format_age(owner.lease_until, now)}"
    return f"for another {format_duration(owner.lease_until - now)}"


def _owner_document(owner: Row) -> dict[str, Any]:
    fields = owner._asdict()
    lease: timedelta = fields.pop("lease")
    return {"owner": fields.pop("name"), "lease_seconds": lease.total_seconds(), **fields, "held_capped_at": HELD_CAP}
