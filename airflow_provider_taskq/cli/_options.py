"""What the verbs' arguments and options are made of."""

from __future__ import annotations

import copy
from collections.abc import Callable
from datetime import timedelta
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

# As the queue has them: a test compares them. The queue itself is imported when there is something to do.
LONGEST_STORED, LONGEST_DURATION = timedelta(days=3650), timedelta(days=365_000)
STATES = ("ACTIVE", "READY", "EXPIRED", "FAILED", "SUSPENDED", "FILTERED", "SUCCEEDED", "RECREATED", "REDUNDANT")


class Duration(ParamType):
    """A duration: 90s, 5m, 1h30m, PT5M; at most `most`."""

    name = "duration"

    def __init__(self, most: timedelta = LONGEST_STORED) -> None:
        self.most = most

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The text as a timedelta."""
        if not isinstance(value, str):
            return value
        from airflow_provider_taskq.queue.durations import parse_duration

        try:
            return parse_duration(value, self.most)
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
        from airflow_provider_taskq.cli.words import moment_of

        try:
            return moment_of(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class Text(ParamType):
    """A text that PostgreSQL can hold."""

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The text itself."""
        if isinstance(value, str) and ("\x00" in value or any("\ud800" <= letter <= "\udfff" for letter in value)):
            self.fail("it holds a NUL or bytes that are not UTF-8, which no text in the database can", param, ctx)
        return value


class Number(ParamType):
    """A number within bounds, both included; not-a-number is not."""

    name = "float"

    def __init__(self, least: float, most: float) -> None:
        self.least, self.most = least, most

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The text as a float."""
        number: float = click.FLOAT.convert(value, param, ctx)
        if not self.least <= number <= self.most:
            self.fail(f"{number} is not between {self.least} and {self.most}", param, ctx)
        return number


class MaxFailed(ParamType):
    """How many tasks of a drain may fail: a count, or a share of those that ended."""

    name = "count|share"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The text as a FailureLimit."""
        if not isinstance(value, str):
            return value
        from airflow_provider_taskq.queue import FailureLimit

        try:
            return FailureLimit.of(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class Topic(Text):
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


DURATION, OPTIONAL_DURATION, MOMENT, TOPIC, TEXT = Duration(), OptionalDuration(), Moment(), Topic(), Text()
AGE = Duration(LONGEST_DURATION)  # of a duration that nothing is stored of
MAX_FAILED = MaxFailed()
SEQUENCE, COUNT = click.IntRange(0, 2**63 - 1), click.IntRange(1, 2**31 - 1)  # what the columns hold


def checked(param: click.Parameter) -> click.Parameter:
    """The parameter, or a copy of one for any text that refuses what no text in the database can hold."""
    if param.type is not click.STRING:
        return param
    made = copy.copy(param)
    made.type = TEXT
    return made


def topic_argument(function: Function) -> Function:
    """The argument TOPIC."""
    return click.argument("topic", type=TOPIC)(function)


def dry_run_option(function: Function) -> Function:
    """`--dry-run`."""
    return click.option("--dry-run", is_flag=True, help="Say what would be done, and change nothing.")(function)


def yes_option(function: Function) -> Function:
    """`--yes`."""
    return click.option("--yes", "-y", is_flag=True, allow_from_autoenv=False, help="Do not ask.")(function)
