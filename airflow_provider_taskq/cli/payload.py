"""A payload on the command line: JSON, or a file that keeps it out of the list of processes."""

import json
import sys
from contextlib import suppress
from pathlib import Path

import click

from airflow_provider_taskq.cli._options import Function
from airflow_provider_taskq.queue import Json, UnreadablePayload
from airflow_provider_taskq.queue.encoding import decode_json


def payload_option(function: Function) -> Function:
    """`--payload`."""
    return click.option(
        "--payload",
        callback=_payload,
        metavar="JSON|@FILE",
        help="The payload; @FILE, or @- for stdin, keeps it private.",
    )(function)


def _payload(_: click.Context, __: click.Parameter, value: str | None) -> Json:
    """The JSON itself, or that of the file named after an @; what it is not is told without quoting it."""
    if value is None:
        return None
    try:
        return json_value(_read(value[1:]) if value.startswith("@") else value)
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


def _read(name: str) -> str:
    """The file's text, or that of stdin."""
    return sys.stdin.read() if name == "-" else Path(name).read_text(encoding="utf-8")
