"""taskq topics, pause, resume: topics, their policies and their partitions."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import timedelta
from typing import Any

import click

from airflow_provider_taskq.cli._durations import format_duration, format_exact
from airflow_provider_taskq.cli._options import (
    COUNT,
    DURATION,
    OPTIONAL_DURATION,
    TOPIC,
    Choice,
    CommandGroup,
    Function,
    Number,
    dry_run_option,
    topic_argument,
    yes_option,
)
from airflow_provider_taskq.cli._output import ask, facts, plural, table
from airflow_provider_taskq.cli._session import Session, audit
from airflow_provider_taskq.queue import TaskQueue, TopicPolicy, UnknownTopic
from airflow_provider_taskq.queue.policies import policy_fields
from airflow_provider_taskq.queue.reports import TopicSummary

_POLICY_OPTIONS = (
    click.option("--max-attempts", type=COUNT, help="Attempts of a task until it is FAILED; a new topic has 1."),
    click.option("--base", type=DURATION, help="Delay after the first failure."),
    click.option("--factor", type=Number(1e-300, 1e300), help="By which the delay grows with each."),
    click.option("--max-delay", type=DURATION, help="The longest delay."),
    click.option("--horizon", type=OPTIONAL_DURATION, help="No try is due later than this after the push; or none."),
    click.option("--max-format_short", type=OPTIONAL_DURATION, help="Give up once the delays add up to this; or none."),
    click.option("--jitter", type=Number(0, 1), help="The share that chance may take off a delay."),
    click.option("--probe/--no-probe", default=None, help="While retries fail, try one at a time."),
    click.option("--on-expiry", type=Choice(("redeliver", "expire")), help="What becomes of tasks of lapsed owners."),
    click.option("--max-crashes", type=COUNT, help="Lapsed leases until a task is FAILED."),
    click.option("--max-payload-bytes", type=click.IntRange(0, 2**31 - 1), help="The largest payload."),
    click.option("--ttl", type=OPTIONAL_DURATION, help="While a task is younger, failures are not noted; or none."),
    click.option("--notify/--no-notify", default=None, help="A push notifies the workers that listen, at a cost."),
)


def policy_options(function: Function) -> Function:
    """An option for each field of a policy."""
    wrapped: Any = function
    for option in reversed(_POLICY_OPTIONS):
        wrapped = option(wrapped)
    made: Function = wrapped
    return made


def policy_changes(given: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that were given; the word `none` takes a limit away."""
    return {name: None if value == "none" else value for name, value in given.items() if value is not None}


def policy_document(policy: TopicPolicy) -> dict[str, Any]:
    """The policy by name, durations in seconds."""
    return policy_fields(policy)


def policy_facts(policy: TopicPolicy) -> Iterator[tuple[str, object]]:
    """The policy by name, durations as the options take them."""
    for name, value in policy_fields(policy).items():
        shown = format_exact(value) if isinstance(value, timedelta) else value
        yield name.replace("_", " "), "none" if shown is None else "no" if shown is False else shown


COUNT_CAP = 1_000  # tasks that a count goes to
TOPICS_PER_CALL = 500  # topics a call

TOPIC_COLUMNS = (
    *("~topic", "#ready", "?#scheduled", "?#retrying", "?#blocked", "?#paused", "#running", "#failed"),
    *("?#suspended", "?#expired", "?#owners"),
    *("#oldest due", "?#last end"),
)


def summaries(queue: TaskQueue, search: str | None = None) -> Iterator[TopicSummary]:
    """All topics, or those whose name holds this, by name."""
    after: str | None = None
    while True:
        page = queue.browse_topics(search, after=after, size=TOPICS_PER_CALL, cap=COUNT_CAP)
        yield from page
        if len(page) < TOPICS_PER_CALL:
            return
        after = page[-1].topic


def summary_document(one: TopicSummary) -> dict[str, Any]:
    """By stable keys; counts that are `capped_at` stopped there."""
    return {**asdict(one), "capped_at": COUNT_CAP}


def summary_rows(found: Sequence[TopicSummary]) -> list[list[object]]:
    """In the order of TOPIC_COLUMNS; one that may be left out is empty where no topic has anything to say in it."""
    rows = [_topic_row(one) for one in found]
    needless = {
        place
        for place, name in enumerate(TOPIC_COLUMNS)
        if name.startswith("?#") and all(row[place] in ("0", "") for row in rows)
    }
    return [["" if place in needless else cell for place, cell in enumerate(row)] for row in rows]


def _topic_row(one: TopicSummary) -> tuple[object, ...]:
    waiting = (one.ready, one.scheduled, one.retrying, one.blocked, one.paused_tasks)
    counts = (*waiting, one.running, one.failed, one.suspended, one.expired)
    name = f"{one.topic} (paused)" if one.paused else one.topic
    return (
        *(name, *map(_capped_count, counts), str(one.consumers)),
        *(_seconds(one.oldest_seconds), _seconds(one.last_end_seconds)),
    )


def _capped_count(count: int) -> str:
    """A count, or that it stopped."""
    return f"{COUNT_CAP:,}+" if count >= COUNT_CAP else f"{count:,}"


def _seconds(seconds: int | None) -> str:
    return "" if seconds is None else format_duration(timedelta(seconds=seconds))


_patience = click.option(
    "--patience", type=DURATION, default="1m", help="How long to wait for sessions that use the tables."
)


@click.group(cls=CommandGroup, help="Give a busy topic its own tables, or put it back into the shared ones.")
def partition() -> None:
    """Groups the commands."""


@partition.command(
    help="Move TOPIC to its own tables. Pauses it meanwhile. Finishes a move that was interrupted.",
)
@topic_argument
@_patience
@dry_run_option
@click.pass_obj
def own(session: Session, topic: str, patience: timedelta, dry_run: bool) -> None:
    """Moves the topic, and says whether that changed anything."""
    if dry_run:
        _say_what_would_move(session, topic, "its own tables")
        return
    with session.alone() as queue:
        moved = queue.own_partition(topic, patience)
    said = f"Topic {topic} has its own tables now." if moved else f"Topic {topic} has its own tables already."
    _answer_move(session, topic, "own", moved, said)


@partition.command(
    help="Move TOPIC back to the shared tables. All topics wait meanwhile. Undoes a move that was interrupted.",
)
@topic_argument
@click.option("--most", type=click.IntRange(min=0), default=1000, help="Refuse a topic with more tasks than this.")
@_patience
@dry_run_option
@click.pass_obj
def shared(session: Session, topic: str, most: int, patience: timedelta, dry_run: bool) -> None:
    """Moves the topic back, and says whether that changed anything."""
    if dry_run:
        _say_what_would_move(session, topic, "the shared tables")
        return
    with session.alone() as queue:
        moved = queue.shared_partition(topic, most, patience)
    said = f"Topic {topic} is in the shared tables{' again' if moved else ' already'}."
    _answer_move(session, topic, "shared", moved, said)


@partition.command(help="Drop the empty tables of topics that were dropped.")
@_patience
@dry_run_option
@click.pass_obj
def clean(session: Session, patience: timedelta, dry_run: bool) -> None:
    """Drops them, and says of how many topics."""
    if dry_run:
        said = "Would drop the empty tables of dropped topics."
        session.answer({"cleaned": None, "dry_run": True}, said)
        return
    with session.alone() as queue:
        count = queue.drop_vacant_partitions(patience)
    session.answer(
        {"cleaned": count, "dry_run": False}, f"Dropped the empty tables of {plural(count, 'dropped topic')}."
    )


def _say_what_would_move(session: Session, topic: str, where: str) -> None:
    """Says how many tasks a move concerns."""
    with session.looking() as queue:
        queue.policy(topic)
        count = queue.count_tasks(topic)
    said = f"Would move topic {topic} with {plural(count, 'task')} to {where}."
    session.answer({"topic": topic, "moved": False, "tasks": count, "dry_run": True}, said)


def _answer_move(session: Session, topic: str, where: str, moved: bool, said: str) -> None:
    """Enters a move in the trail, and answers."""
    if moved:
        with session.acting() as queue:
            audit(queue, "partition", topic, f"to {where} tables", queue.count_tasks(topic))
    session.answer({"topic": topic, "moved": moved, "dry_run": False}, said)


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
        _list_topics(ctx.ensure_object(Session), search)


topics.add_command(partition)


def _list_topics(session: Session, search: str | None) -> None:
    """Shows a line a topic."""
    with session.looking() as queue:
        found = list(summaries(queue, search))
    shown = (
        table(TOPIC_COLUMNS, summary_rows(found))
        if found
        else "There are no topics."
        if not search
        else "No such topic."
    )
    session.answer({"topics": [summary_document(one) for one in found]}, shown)


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
            audit(queue, "create", topic, "the topic", 1)
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
        audit(queue, "alter", topic, ", ".join(changes), 1)
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
        _drop_topic(session, topic, count)
    said = f"{'Would remove' if dry_run else 'Removed'} {what}."
    session.answer({"topic": topic, "dropped": not dry_run, "tasks": count, "dry_run": dry_run}, said)


def _drop_topic(session: Session, topic: str, count: int) -> None:
    """Drops it, at once where it has tables of its own."""
    with session.alone() as queue:
        if not queue.drop_topic(topic):
            raise UnknownTopic(f"topic {topic!r} is gone already")
    with session.acting() as queue:
        audit(queue, "drop", topic, "the topic with its tasks", count)


_topic_arguments = click.argument("topics", nargs=-1, required=True, type=TOPIC, metavar="TOPIC...")


@click.command(help="Let topics hand out nothing. They take pushes and completions all the same.")
@_topic_arguments
@dry_run_option
@click.pass_obj
def pause(session: Session, topics: tuple[str, ...], dry_run: bool) -> None:
    """Pauses all of them, or none."""
    _set_paused(session, topics, paused=True, dry_run=dry_run)


@click.command(help="Let paused topics hand out tasks again.")
@_topic_arguments
@dry_run_option
@click.pass_obj
def resume(session: Session, topics: tuple[str, ...], dry_run: bool) -> None:
    """Resumes all of them, or none."""
    _set_paused(session, topics, paused=False, dry_run=dry_run)


def _set_paused(session: Session, topics: tuple[str, ...], *, paused: bool, dry_run: bool) -> None:
    """Pauses or resumes, and says of each topic whether that changed it."""
    with session.acting(dry_run=dry_run) as queue:
        verb = queue.pause_topic if paused else queue.resume_topic
        changed = {topic: verb(topic) for topic in topics}
        for topic, new in changed.items():
            if new:
                audit(queue, "pause" if paused else "resume", topic, "the topic", 1)
    if not paused and not dry_run:
        with session.acting() as queue:
            for topic in changed:
                queue.notify(topic)
    word = "paused" if paused else "resumed"
    already = "was paused already" if paused else "was not paused"
    would = "would be " if dry_run else ""
    said = [f"{topic}: {would + word if new else already}" for topic, new in changed.items()]
    document = [{"topic": topic, "changed": new} for topic, new in changed.items()]
    session.answer({"paused": paused, "topics": document, "dry_run": dry_run}, *said)
