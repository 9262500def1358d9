"""Building blocks of the commands: groups, argument types and shared options.

`taskq --help` imports this module, so it imports the queue only when a value needs it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from difflib import get_close_matches
from functools import partial, reduce
from typing import TYPE_CHECKING, Any, TypeVar

import click

from airflow_provider_taskq.cli._session import Session

if TYPE_CHECKING:
    ParamType = click.ParamType[Any]
    WordChoice = click.Choice[str]
else:  # before click 8.2 these were not generic
    ParamType = click.ParamType
    WordChoice = click.Choice

Function = TypeVar("Function", bound=Callable[..., Any])

# Copies of the queue's values, which a test compares: importing the queue here would import psycopg.
LONGEST_STORED, LONGEST_DURATION = timedelta(days=3650), timedelta(days=365_000)
STATES = ("ACTIVE", "READY", "EXPIRED", "FAILED", "SUSPENDED", "FILTERED", "SUCCEEDED", "RECREATED", "REDUNDANT")


class Refused(click.ClickException):
    """An error with the exit code of a usage error, and without the usage."""

    exit_code = 2


class CommandGroup(click.Group):
    """A group of commands that suggests the command that a wrong name means.

    :param synonyms: commands by other names for them.
    """

    def __init__(self, *args: Any, synonyms: Mapping[str, str] | None = None, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.synonyms = synonyms or {}

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the named command.

        The error for an unknown name suggests a command of a similar meaning, or else of a similar spelling.
        """
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            near = get_close_matches(args[0], self.list_commands(ctx), n=1)
            meant = self.synonyms.get(args[0].lower()) or next(iter(near), None)
            if meant is None:
                raise
            raise click.UsageError(f"No such command {args[0]!r}. Did you mean {meant!r}?", ctx) from error


class Parsed(ParamType):
    """A value that `parse` reads from a text; a ValueError becomes a usage error."""

    def __init__(self, name: str, parse: Callable[[str], Any]) -> None:
        self.name = name
        self.parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Convert a text. Return any other object as it is, because click also passes converted values."""
        try:
            return self.parse(value) if isinstance(value, str) else value
        except ValueError as error:
            self.fail(str(error), param, ctx)


def _duration(text: str, longest: timedelta = LONGEST_STORED) -> timedelta:
    from airflow_provider_taskq.queue.durations import parse_duration

    return parse_duration(text, longest)


def _moment(text: str) -> Any:
    from airflow_provider_taskq.cli._times import parse_moment

    return parse_moment(text)


def number_between(least: float, most: float) -> Parsed:
    """Return the type of a number between two bounds, both included. NaN is outside of all bounds."""

    def parse(text: str) -> float:
        if not least <= float(text) <= most:
            raise ValueError(f"{text} is not between {least} and {most}")
        return float(text)

    return Parsed("float", parse)


def _max_failed(text: str) -> Any:
    from airflow_provider_taskq.queue import FailureLimit

    return FailureLimit.of(text)


class Topic(ParamType):
    """The name of a topic; a shell completes it from the database."""

    name = "topic"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:  # noqa: ARG002
        """Return the topics that start with the text. Return none if the database cannot be read."""
        from click.shell_completion import CompletionItem

        try:
            with (ctx.find_object(Session) or Session()).read_only() as queue:
                return [CompletionItem(name) for name in queue.topics() if name.startswith(incomplete)]
        except Exception:  # noqa: BLE001  the shell would print an error into the half-typed line
            return []


class Choice(WordChoice):
    """One of several words, in any case."""

    def __init__(self, words: tuple[str, ...]) -> None:
        super().__init__(words, case_sensitive=False)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:  # noqa: ARG002
        """Return the words that start with the text, in their own case."""
        from click.shell_completion import CompletionItem

        return [CompletionItem(word) for word in self.choices if word.lower().startswith(incomplete.lower())]


TOPIC = Topic()
DURATION = Parsed("duration", _duration)
OPTIONAL_DURATION = Parsed("duration|none", lambda text: text if text == "none" else _duration(text))
AGE = Parsed("duration", partial(_duration, longest=LONGEST_DURATION))  # the database does not store it
MOMENT = Parsed("moment", _moment)
MAX_FAILED = Parsed("count|share", _max_failed)
SEQUENCE, COUNT = click.IntRange(0, 2**63 - 1), click.IntRange(1, 2**31 - 1)  # the ranges of bigint and int


def combine_options(*options: Callable[[Any], Any]) -> Callable[[Function], Function]:
    """Combine several arguments and options into one decorator, in the order of the help."""
    return lambda function: reduce(lambda wrapped, option: option(wrapped), reversed(options), function)


def page_size_option(default: int) -> Callable[[Function], Function]:
    """Return the option `--size` of a list."""
    return click.option(
        "--size", "-n", type=click.IntRange(1, 10_000), default=default, show_default=True, help="The most to list."
    )


topic_argument = click.argument("topic", type=TOPIC)
optional_topic_argument = click.argument("topic", required=False, type=TOPIC)
dry_run_option = click.option("--dry-run", is_flag=True, help="Say what would be done, and change nothing.")
yes_option = click.option("--yes", "-y", is_flag=True, allow_from_autoenv=False, help="Do not ask for confirmation.")
search_option = click.option("--search", metavar="TEXT", help="Only names that contain this text, in any case.")
since_option = click.option(
    "--since", type=MOMENT, help="Pushed at this moment or later: 2026-11-21T09:30, or 2h for two hours ago."
)
until_option = click.option("--until", type=MOMENT, help="Pushed at this moment or before.")
error_group_option = click.option(
    "--error-group", metavar="ERROR", help="Tasks whose error belongs to this group of `taskq errors`."
)
