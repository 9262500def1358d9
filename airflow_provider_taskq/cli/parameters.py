"""What the verbs' arguments and options are made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from airflow_provider_taskq.cli.session import Session
from airflow_provider_taskq.cli.words import duration_of, moment_of

if TYPE_CHECKING:
    ParamType = click.ParamType[Any]
    WordChoice = click.Choice[str]
else:  # before click 8.2 these were not generic
    ParamType = click.ParamType
    WordChoice = click.Choice

Function = TypeVar("Function", bound=Callable[..., Any])

# As the queue names them: a test holds them together. The queue itself is imported when there is something to do.
STATES = ("ACTIVE", "READY", "EXPIRED", "FAILED", "SUSPENDED", "FILTERED", "SUCCEEDED", "RECREATED", "REDUNDANT")


class Duration(ParamType):
    """A duration: 90s, 5m, 1h30m, 2d."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The text as a timedelta."""
        if not isinstance(value, str):
            return value
        try:
            return duration_of(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class OptionalDuration(Duration):
    """A duration, or `none`."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The text as a timedelta, or as the word `none`."""
        return value if value == "none" else super().convert(value, param, ctx)


class Moment(ParamType):
    """A moment: 2026-11-21T09:30, or 2h for two hours ago."""

    name = "moment"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The text as a datetime, or as the timedelta that it was ago."""
        if not isinstance(value, str):
            return value
        try:
            return moment_of(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class Topic(ParamType):
    """The name of a topic; a shell completes it from the database."""

    name = "topic"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:  # noqa: ARG002
        """The topics that begin so; none where the database cannot be asked."""
        from click.shell_completion import CompletionItem

        try:
            with _session_of(ctx).looking() as queue:
                return [CompletionItem(name) for name in queue.topics() if name.startswith(incomplete)]
        except Exception:  # noqa: BLE001  a half-typed line is no place for an error
            return []


def _session_of(ctx: click.Context) -> Session:
    """The session of a run, with the database that the line so far names."""
    return ctx.find_object(Session) or Session()


class Choice(WordChoice):
    """One of some words, in any case."""

    def __init__(self, words: tuple[str, ...]) -> None:
        super().__init__(words, case_sensitive=False)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:  # noqa: ARG002
        """The words that begin so, as they are written."""
        from click.shell_completion import CompletionItem

        return [CompletionItem(word) for word in self.choices if word.lower().startswith(incomplete.lower())]


DURATION, OPTIONAL_DURATION, MOMENT, TOPIC = Duration(), OptionalDuration(), Moment(), Topic()


def topic_argument(function: Function) -> Function:
    """The argument TOPIC."""
    return click.argument("topic", type=TOPIC)(function)


def dry_run_option(function: Function) -> Function:
    """`--dry-run`."""
    return click.option("--dry-run", is_flag=True, help="Say what would be done, and change nothing.")(function)


def yes_option(function: Function) -> Function:
    """`--yes`."""
    return click.option("--yes", "-y", is_flag=True, allow_from_autoenv=False, help="Do not ask.")(function)
