"""Answers: tables for people, JSON for programs."""

import json
import os
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from airflow_provider_taskq.cli.listing import Listing
from airflow_provider_taskq.cli.text import plain

STYLES = {
    "ACTIVE": "cyan",
    "READY": "green",
    "EXPIRED": "yellow",
    "FAILED": "red",
    "SUSPENDED": "yellow",
    "FILTERED": "blue",
    "SUCCEEDED": "green",
    "RECREATED": "dim",
    "REDUNDANT": "dim",
    "FINE": "green",
    "NOTICE": "blue",
    "WARNING": "yellow",
    "CRITICAL": "bold red",
    "ready": "green",
    "scheduled": "blue",
    "blocked": "magenta",
    "paused": "yellow",
    "retrying": "yellow",
    "running": "cyan",
    "failed": "red",
    "suspended": "yellow",
    "filtered": "blue",
    "succeeded": "green",
    "expired": "yellow",
    "redundant": "dim",
    "recreated": "dim",
    "exhausted": "red",
}
_AS_LONG_AS_IT_GETS = 10_000


def console() -> Console:
    """Where answers go: coloured and as wide as the terminal, or plain and as wide as they are."""
    width = None if sys.stdout.isatty() or os.environ.get("COLUMNS") else _AS_LONG_AS_IT_GETS
    return Console(file=sys.stdout, width=width, highlight=False, markup=False, emoji=False)


def show(on: Console, *parts: RenderableType) -> None:
    """Writes the parts below each other; without a terminal, no line ends in blanks."""
    if on.is_terminal:
        _print(on, parts)
        return
    with on.capture() as captured:
        _print(on, parts)
    on.file.write("".join(f"{line.rstrip()}\n" for line in captured.get().splitlines()))


def _print(on: Console, parts: Iterable[RenderableType]) -> None:
    """Prints texts, which are made plain here, and tables, which are so already."""
    for part in parts:
        on.print(plain(part, lines=True) if isinstance(part, str) else part, soft_wrap=isinstance(part, str))


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Listing:
    """A table; the names of its columns are marked as in `Column`."""
    return Listing(columns, ([cell(value) for value in row] for row in rows))


def facts(pairs: Iterable[tuple[str, object]]) -> Table:
    """Names and values in two columns; what is empty is left out."""
    made = Table.grid(padding=(0, 2))
    made.add_column(style="bold", no_wrap=True)
    made.add_column(overflow="fold")
    for name, value in pairs:
        if value is not None and value != "":
            made.add_row(name, cell(value))
    return made


def cell(value: object) -> Text:
    """A value in a table: numbers in groups of three, states in their colour, everything else as plain text."""
    if isinstance(value, Text):
        return value
    if isinstance(value, bool):
        return Text("yes" if value else "")
    if isinstance(value, Enum):
        return Text(value.name, STYLES.get(value.name, ""))
    if isinstance(value, int):
        return Text(f"{value:,}")
    text = "" if value is None else plain(str(value))
    return Text(text, STYLES.get(text, ""))


def json_text(document: object, *, lines: bool = True) -> str:
    """The document as JSON: on lines of its own, or all on one."""
    return json.dumps(document, default=_json_value, ensure_ascii=True, indent=2 if lines else None)


def _json_value(value: object) -> Any:
    """Times in ISO 8601 and UTC, durations in seconds, words of an enum by name."""
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, Enum):
        return value.name
    raise TypeError(f"{type(value).__name__} has no form in JSON")
