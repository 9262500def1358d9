"""taskq topics, pause, resume: topics and their policies."""

from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

import click

from airflow_provider_taskq.cli._options import (
    COUNT,
    DURATION,
    OPTIONAL_DURATION,
    TOPIC,
    Choice,
    CommandGroup,
    combine_options,
    dry_run_option,
    number_between,
    search_option,
    topic_argument,
    yes_option,
)
from airflow_provider_taskq.cli._output import ask, capped, facts, plural, table
from airflow_provider_taskq.cli._session import Session, audited
from airflow_provider_taskq.cli._times import format_duration, format_exact
from airflow_provider_taskq.queue import Row, TaskQueue, TopicPolicy, UnknownTopic
from airflow_provider_taskq.queue.policies import policy_fields

COUNT_CAP = 1_000  # of a count of tasks in a summary
TOPICS_PER_CALL = 500
TOPIC_COLUMNS = (
    *("~topic", "#ready", "?#scheduled", "?#retrying", "?#blocked", "?#paused", "#running", "#failed"),
    *("?#suspended", "?#expired", "?#owners"),
    *("#oldest due", "?#last end"),
)


def summaries(queue: TaskQueue, search: str | None = None) -> Iterator[Row]:
    """Yield all topics, or those whose name contains a text, by name. Counts stop at COUNT_CAP."""
    after: str | None = None
    while True:
        page = queue.browse_topics(search, after=after, size=TOPICS_PER_CALL, cap=COUNT_CAP)
        yield from page
        if len(page) < TOPICS_PER_CALL:
            return
        after = page[-1].topic


def summary_document(topic: Row) -> dict[str, Any]:
    """Return a topic as a document. Counts stop at `capped_at`."""
    return {**topic._asdict(), "capped_at": COUNT_CAP}


def summary_rows(topics: Sequence[Row]) -> list[list[object]]:
    """Return topics as rows of TOPIC_COLUMNS. An optional column is empty if every topic has 0 in the column."""
    rows = [_summary_row(topic) for topic in topics]
    empty = {
        place
        for place, name in enumerate(TOPIC_COLUMNS)
        if name.startswith("?#") and all(row[place] in ("0", "") for row in rows)
    }
    return [["" if place in empty else cell for place, cell in enumerate(row)] for row in rows]


def _summary_row(topic: Row) -> tuple[object, ...]:
    waiting = (topic.ready, topic.scheduled, topic.retrying, topic.blocked, topic.paused_tasks)
    counts = (*waiting, topic.running, topic.failed, topic.suspended, topic.expired)
    return (
        f"{topic.topic} (paused)" if topic.paused else topic.topic,
        *(capped(count, COUNT_CAP) for count in counts),
        str(topic.consumers),
        _format_seconds(topic.oldest_seconds),
        _format_seconds(topic.last_end_seconds),
    )


def _format_seconds(seconds: int | None) -> str:
    return "" if seconds is None else format_duration(timedelta(seconds=seconds))


_policy_options = combine_options(
    click.option("--max-attempts", type=COUNT, help="Attempts until a task is FAILED; a new topic has 1."),
    click.option("--base", type=DURATION, help="The delay after the first failure."),
    click.option("--factor", type=number_between(1e-300, 1e300), help="The growth of the delay with each failure."),
    click.option("--max-delay", type=DURATION, help="The longest delay."),
    click.option(
        "--horizon", type=OPTIONAL_DURATION, help="No attempt is due later than this after the push; or none."
    ),
    click.option("--max-elapsed", type=OPTIONAL_DURATION, help="Give up once the delays add up to this; or none."),
    click.option("--jitter", type=number_between(0, 1), help="The largest share that is randomly taken off a delay."),
    click.option("--probe/--no-probe", default=None, help="While retries fail, try one at a time."),
    click.option(
        "--on-expiry", type=Choice(("redeliver", "expire")), help="What happens to the tasks of a lapsed lease."
    ),
    click.option("--max-crashes", type=COUNT, help="Lapsed leases until a task is FAILED."),
    click.option("--max-payload-bytes", type=click.IntRange(0, 2**31 - 1), help="The largest payload."),
    click.option("--ttl", type=OPTIONAL_DURATION, help="While a task is younger, failures are not noted; or none."),
    click.option("--notify/--no-notify", default=None, help="A push notifies the workers that listen, at a cost."),
    click.option(
        "--keep-succeeded",
        type=OPTIONAL_DURATION,
        help="How long to keep tasks that have succeeded, were filtered or are redundant; or none: forever.",
    ),
    click.option("--keep-failed", type=OPTIONAL_DURATION, help="How long to keep failed tasks; or none: forever."),
)


def _policy_changes(given: dict[str, Any]) -> dict[str, Any]:
    """Return the fields that the options set. The word `none` removes a limit."""
    return {name: None if value == "none" else value for name, value in given.items() if value is not None}


def _policy_facts(policy: TopicPolicy) -> Iterator[tuple[str, object]]:
    """Yield the fields of a policy by name, with durations as the options read them."""
    for name, value in policy_fields(policy).items():
        shown = format_exact(value) if isinstance(value, timedelta) else value
        yield name.replace("_", " "), "none" if shown is None else "no" if shown is False else shown


@click.group(
    cls=CommandGroup,
    invoke_without_command=True,
    synonyms={
        **dict.fromkeys(("delete", "remove", "rm", "purge"), "drop"),
        **dict.fromkeys(("add", "new"), "create"),
        **dict.fromkeys(("edit", "update", "set", "change"), "alter"),
        **dict.fromkeys(("get", "describe", "policy"), "show"),
    },
    help="List the topics with counts of their tasks by status.",
)
@search_option
@click.pass_context
def topics(ctx: click.Context, search: str | None) -> None:
    if ctx.invoked_subcommand is not None:
        return
    session = ctx.ensure_object(Session)
    with session.read_only() as queue:
        found = list(summaries(queue, search))
    empty = f"No topic contains {search!r}." if search else "There are no topics."
    shown = table(TOPIC_COLUMNS, summary_rows(found)) if found else empty
    session.answer({"topics": [summary_document(topic) for topic in found]}, shown)


@topics.command(
    help="Create TOPIC with a policy. A task has one attempt, unless --max-attempts allows more. An existing topic "
    "stays as it is."
)
@topic_argument
@click.option("--own-tables", is_flag=True, help="Keep the tasks of TOPIC in tables of its own.")
@_policy_options
@click.pass_obj
def create(session: Session, /, topic: str, own_tables: bool, **given: Any) -> None:
    with session.transaction() as queue:
        new = queue.create_topic(topic, own_tables=own_tables, **_policy_changes(given))
        if new:
            audited(queue).record("create", topic, "the topic", 1)
    sentence = f"Created topic {topic}." if new else f"Topic {topic} exists; its policy is unchanged."
    session.answer({"topic": topic, "created": new}, sentence)


@topics.command(help="Change the given fields of the policy of TOPIC. Scheduled tasks keep their time.")
@topic_argument
@_policy_options
@dry_run_option
@click.pass_obj
def alter(session: Session, /, topic: str, dry_run: bool, **given: Any) -> None:
    changes = _policy_changes(given)
    if not changes:
        raise click.UsageError("give at least one option to change: --max-attempts, --base, ...")
    with session.transaction(dry_run=dry_run) as queue:
        queue.alter_topic(topic, **changes)
        policy = queue.policy(topic)
        audited(queue).record("alter", topic, ", ".join(changes), 1)
    sentence = f"The policy of {topic} {'would be' if dry_run else 'is now'}:"
    document = {"topic": topic, "policy": policy_fields(policy), "dry_run": dry_run}
    session.answer(document, sentence, facts(_policy_facts(policy)))


@topics.command(help="Show TOPIC: whether it is paused, its tasks by status, and its policy.")
@topic_argument
@click.pass_obj
def show(session: Session, topic: str) -> None:
    with session.read_only() as queue:
        policy = queue.policy(topic)
        summary = queue.browse_topic(topic, COUNT_CAP)
        status = queue.topic_status(topic)
    document = {"topic": topic, "policy": policy_fields(policy)}
    if summary is None:  # the topic was dropped in between
        session.answer(document, facts(_policy_facts(policy)))
        return
    counts = [(name.lstrip("?#~"), value) for name, value in zip(TOPIC_COLUMNS, _summary_row(summary), strict=True)]
    session.answer(
        {**document, "summary": summary_document(summary)},
        facts([("topic", topic), ("paused", (status.pause or "yes") if summary.paused else "no"), *counts[1:]]),
        "",
        facts(_policy_facts(policy)),
    )


@topics.command(help="Remove TOPIC with all its tasks, running ones too.")
@topic_argument
@dry_run_option
@yes_option
@click.pass_obj
def drop(session: Session, topic: str, dry_run: bool, yes: bool) -> None:
    with session.read_only() as queue:
        count = queue.count_tasks(topic)
    what = f"topic {topic} with {plural(count, 'task')}"
    if not dry_run:
        ask(f"This removes {what} for good.", yes=yes)
        with session.transaction() as queue:
            if not queue.drop_topic(topic):
                raise UnknownTopic(f"topic {topic!r} does not exist any more")
            audited(queue).record("drop", topic, "the topic with its tasks", count)
    sentence = f"{'Would remove' if dry_run else 'Removed'} {what}."
    session.answer({"topic": topic, "dropped": not dry_run, "tasks": count, "dry_run": dry_run}, sentence)


_topic_arguments = click.argument("topics", nargs=-1, required=True, type=TOPIC, metavar="TOPIC...")


@click.command(help="Pause topics: they hand out no task. They still take pushes and completions.")
@_topic_arguments
@dry_run_option
@click.pass_obj
def pause(session: Session, topics: tuple[str, ...], dry_run: bool) -> None:
    _set_paused(session, topics, paused=True, dry_run=dry_run)


@click.command(help="Resume paused topics: they hand out tasks again.")
@_topic_arguments
@dry_run_option
@click.pass_obj
def resume(session: Session, topics: tuple[str, ...], dry_run: bool) -> None:
    _set_paused(session, topics, paused=False, dry_run=dry_run)


def _set_paused(session: Session, topics: tuple[str, ...], *, paused: bool, dry_run: bool) -> None:
    """Pause or resume all topics, or none."""
    with session.transaction(dry_run=dry_run) as queue:
        changed = {topic: audited(queue).set_paused(topic, paused=paused) for topic in topics}
    if not paused and not dry_run:
        session.notify(*changed)
    verb = ("would be " if dry_run else "") + ("paused" if paused else "resumed")
    unchanged = "was paused already" if paused else "was not paused"
    lines = [f"{topic}: {verb if new else unchanged}" for topic, new in changed.items()]
    document = [{"topic": topic, "changed": new} for topic, new in changed.items()]
    session.answer({"paused": paused, "topics": document, "dry_run": dry_run}, *lines)
