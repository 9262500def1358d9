"""A payload on the command line: JSON, or a file that keeps it out of the list of processes."""

import json
import sys
from pathlib import Path

import click

from airflow_provider_taskq.cli.parameters import Function
from airflow_provider_taskq.queue import Json


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
        found: Json = json.loads(_read(value[1:]) if value.startswith("@") else value)
    except OSError as error:
        raise click.BadParameter(f"the file cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise click.BadParameter(f"it is not JSON: {error}") from None
    return found


def _read(name: str) -> str:
    """The file's text, or that of stdin."""
    return sys.stdin.read() if name == "-" else Path(name).read_text(encoding="utf-8")
