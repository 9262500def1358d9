"""topics: what there is, and create, alter, show, drop."""

from typing import Any

import click

from airflow_provider_taskq.cli._options import dry_run_option, topic_argument, yes_option
from airflow_provider_taskq.cli._output import facts, table
from airflow_provider_taskq.cli._session import Session
from airflow_provider_taskq.cli.asking import ask, plural
from airflow_provider_taskq.cli.command_group import CommandGroup
from airflow_provider_taskq.cli.glance import COLUMNS, glance_document, glance_rows, glances
from airflow_provider_taskq.cli.partitions import partition
from airflow_provider_taskq.cli.policies import policy_changes, policy_document, policy_facts, policy_options
from airflow_provider_taskq.cli.trail import note
from airflow_provider_taskq.queue import UnknownTopic


@click.group(
    cls=CommandGroup,
    invoke_without_command=True,
    help="List the topics: what is due, what comes later, what is held and what went wrong.",
)
@click.option("--search", metavar="TEXT", help="Only topics whose name holds this, in any case.")
@click.pass_context
def topics(ctx: click.Context, search: str | None) -> None:
    """Shows the topics, unless something is to be done to one."""
    if ctx.invoked_subcommand is None:
        _list(ctx.ensure_object(Session), search)


topics.add_command(partition)


def _list(session: Session, search: str | None) -> None:
    """Shows a line a topic."""
    with session.looking() as queue:
        found = list(glances(queue, search))
    shown = table(COLUMNS, glance_rows(found)) if found else "There are no topics." if not search else "No such topic."
    session.answer({"topics": [glance_document(one) for one in found]}, shown)


@topics.command(
    help="Create TOPIC with a policy: one attempt for each task, unless --max-attempts says more. A topic that exists "
    "is left as it is."
)
@topic_argument
@policy_options
@click.pass_obj
def create(session: Session, /, topic: str, **given: Any) -> None:
    """Creates, and says whether it is new."""
    with session.acting() as queue:
        new = queue.create_topic(topic, **policy_changes(given))
        if new:
            note(queue, "create", topic, "the topic", 1)
    said = f"Created topic {topic}." if new else f"Topic {topic} exists, and was left as it is."
    session.answer({"topic": topic, "created": new}, said)


@topics.command(help="Change the policy of TOPIC: only what is given. What is scheduled keeps its time.")
@topic_argument
@policy_options
@dry_run_option
@click.pass_obj
def alter(session: Session, /, topic: str, dry_run: bool, **given: Any) -> None:
    """Alters, and shows the whole policy."""
    changes = policy_changes(given)
    if not changes:
        raise click.UsageError("say what to change: --max-attempts, --base, ...")
    with session.acting(dry_run=dry_run) as queue:
        queue.alter_topic(topic, **changes)
        policy = queue.policy(topic)
        note(queue, "alter", topic, ", ".join(changes), 1)
    said = f"The policy of {topic} {'would be' if dry_run else 'is now'}:"
    document = {"topic": topic, "policy": policy_document(policy), "dry_run": dry_run}
    session.answer(document, said, facts(policy_facts(policy)))


@topics.command(help="Show the policy of TOPIC.")
@topic_argument
@click.pass_obj
def show(session: Session, topic: str) -> None:
    """Shows it."""
    with session.looking() as queue:
        policy = queue.policy(topic)
    session.answer({"topic": topic, "policy": policy_document(policy)}, facts(policy_facts(policy)))


@topics.command(help="Remove TOPIC with all its tasks, held ones too.")
@topic_argument
@dry_run_option
@yes_option
@click.pass_obj
def drop(session: Session, topic: str, dry_run: bool, yes: bool) -> None:
    """Counts, asks, and drops."""
    with session.looking() as queue:
        count = queue.count_tasks(topic)
    what = f"topic {topic} with {plural(count, 'task')}"
    if not dry_run:
        ask(f"This removes {what} for good.", yes=yes)
        _drop(session, topic, count)
    said = f"{'Would remove' if dry_run else 'Removed'} {what}."
    session.answer({"topic": topic, "dropped": not dry_run, "tasks": count, "dry_run": dry_run}, said)


def _drop(session: Session, topic: str, count: int) -> None:
    """Drops it, at once where it has tables of its own."""
    with session.alone() as queue:
        if not queue.drop_topic(topic):
            raise UnknownTopic(f"topic {topic!r} is gone already")
    with session.acting() as queue:
        note(queue, "drop", topic, "the topic with its tasks", count)
