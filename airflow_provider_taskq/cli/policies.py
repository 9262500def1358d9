"""A topic's policy as options, and as names and values."""

from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any

import click

from airflow_provider_taskq.cli._options import COUNT, DURATION, OPTIONAL_DURATION, Choice, Function, Number
from airflow_provider_taskq.cli.words import exactly
from airflow_provider_taskq.queue import TopicPolicy
from airflow_provider_taskq.queue.policies import policy_fields

_OPTIONS = (
    click.option("--max-attempts", type=COUNT, help="Attempts of a task until it is FAILED; a new topic has 1."),
    click.option("--base", type=DURATION, help="Delay after the first failure."),
    click.option("--factor", type=Number(1e-300, 1e300), help="By which the delay grows with each."),
    click.option("--max-delay", type=DURATION, help="The longest delay."),
    click.option("--horizon", type=OPTIONAL_DURATION, help="No try is due later than this after the push; or none."),
    click.option("--max-elapsed", type=OPTIONAL_DURATION, help="Give up once the delays add up to this; or none."),
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
    for option in reversed(_OPTIONS):
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
        shown = exactly(value) if isinstance(value, timedelta) else value
        yield name.replace("_", " "), "none" if shown is None else "no" if shown is False else shown
