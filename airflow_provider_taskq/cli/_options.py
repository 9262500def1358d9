"""Argument and option types of the commands."""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from airflow_provider_taskq.cli._session import Session
from airflow_provider_taskq.queue import Json, UnreadablePayload
from airflow_provider_taskq.queue.encoding import decode_json

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
        from airflow_provider_taskq.cli._durations import moment_of

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


def payload_option(function: Function) -> Function:
    """`--payload`."""
    return click.option(
        "--payload",
        callback=_payload_of,
        metavar="JSON|@FILE",
        help="The payload; @FILE, or @- for stdin, keeps it private.",
    )(function)


def _payload_of(_: click.Context, __: click.Parameter, value: str | None) -> Json:
    """The JSON itself, or that of the file named after an @; what it is not is told without quoting it."""
    if value is None:
        return None
    try:
        return json_value(_read_text(value[1:]) if value.startswith("@") else value)
    except OSError as error:
        raise click.BadParameter(f"the file cannot be read: {error.strerror}") from None
    except json.JSONDecodeError as error:
        raise click.BadParameter(f"it is not JSON: {error}") from None
    except UnicodeDecodeError:
        raise click.BadParameter("it is not JSON: the file is not UTF-8 text") from None
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def json_value(text: str) -> Json:
    """The value of a JSON text; JSONDecodeError for what is not JSON, ValueError for what Python cannot read."""
    found = decode_json(text)
    if not isinstance(found, UnreadablePayload):
        return found
    with suppress(RecursionError):
        _raise_place(text)
    raise ValueError(found.reason)


def _raise_place(text: str) -> None:
    """Raises JSONDecodeError, which tells the place, if the text is not JSON."""
    try:
        json.loads(text)
    except json.JSONDecodeError:
        raise
    except ValueError:  # an integer of more digits than Python converts
        return


def _read_text(name: str) -> str:
    """The file's text, or that of stdin."""
    return sys.stdin.read() if name == "-" else Path(name).read_text(encoding="utf-8")


error_group_option = click.option(
    "--error-group", metavar="ERROR", help="Whose error is of this group: see taskq errors."
)


class CommandGroup(click.Group):
    """Commands under one name, such as `taskq topics`; the program itself is one, too."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The named command; the error for a misspelled name suggests the nearest one."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            near = get_close_matches(args[0], self.list_commands(ctx), n=1)
            if not near or "Did you mean" in error.message:  # later versions of click suggest by themselves
                raise
            raise click.UsageError(f"{error.message} Did you mean '{near[0]}'?", ctx) from error
