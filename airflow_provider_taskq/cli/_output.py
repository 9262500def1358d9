"""Output of the commands: tables and sentences for people, JSON for programs, and confirmation prompts."""

import json
import os
import sys
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any

import click
from rich.box import Box
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from airflow_provider_taskq.cli._options import Refused

STYLES = {  # of states, statuses and severities, in any case
    **dict.fromkeys(("ACTIVE", "RUNNING"), "cyan"),
    **dict.fromkeys(("READY", "SUCCEEDED", "FINE"), "green"),
    **dict.fromkeys(("SCHEDULED", "FILTERED", "NOTICE"), "blue"),
    **dict.fromkeys(("PAUSED", "RETRYING", "EXPIRED", "SUSPENDED", "WARNING"), "yellow"),
    **dict.fromkeys(("FAILED", "EXHAUSTED"), "red"),
    **dict.fromkeys(("RECREATED", "REDUNDANT"), "dim"),
    "BLOCKED": "magenta",
    "CRITICAL": "bold red",
}
_UNLIMITED_WIDTH = 10_000
_CONTROLS = {"Cc", "Cf", "Cs", "Zl", "Zp"}  # controls, formats, halves of surrogate pairs, line separators
_ESCAPES = {"\t": "\\t", "\n": "\\n", "\r": "\\r"}


def sanitize(text: str, *, lines: bool = False) -> str:
    """Replace terminal control characters and direction marks of a text by escapes.

    :param lines: whether line breaks and tabs stay.
    """
    if text.isprintable():
        return text
    kept = "\n\t" if lines else ""
    return "".join(
        _ESCAPES.get(c) or _escaped(c) if c not in kept and unicodedata.category(c) in _CONTROLS else c for c in text
    )


def _escaped(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}" if code < 65536 else f"\\U{code:08x}"


def plural(count: int, word: str, many: str | None = None) -> str:
    """Format a count with its noun: 1 task, 2,000 tasks."""
    return f"{count:,} {word if count == 1 else many or word + 's'}"


def capped(count: int, cap: int) -> str:
    """Format a count that stops at a cap: 1,000+."""
    return f"{cap:,}+" if count >= cap else f"{count:,}"


def shortened(line: str | None, width: int = 60) -> str:
    """Cut a line to the width of a table cell."""
    line = line or ""
    return line if len(line) <= width else f"{line[: width - 3]}..."


def ask(sentence: str, *, yes: bool) -> None:
    """Ask for a confirmation, unless `yes` gives it. Without a terminal `--yes` is required."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise Refused(f"{sanitize(sentence)} There is no terminal to confirm it: add --yes.")
    click.confirm(f"{sanitize(sentence)} Go on?", abort=True, err=True)


def show(*parts: RenderableType) -> None:
    """Print sentences and tables below each other, as wide as the terminal.

    Without a terminal, lines keep their full width, and none ends in blanks.
    """
    width = None if sys.stdout.isatty() or os.environ.get("COLUMNS") else _UNLIMITED_WIDTH
    on = Console(file=sys.stdout, width=width, highlight=False, markup=False, emoji=False)
    if on.is_terminal:
        _print(on, parts)
        return
    with on.capture() as captured:
        _print(on, parts)
    on.file.write("".join(f"{line.rstrip()}\n" for line in captured.get().splitlines()))


def _print(on: Console, parts: Iterable[RenderableType]) -> None:
    """Sanitize and print texts; the cells of tables are sanitized already."""
    for part in parts:
        on.print(sanitize(part, lines=True) if isinstance(part, str) else part, soft_wrap=isinstance(part, str))


def json_text(document: object) -> str:
    """Format a document as JSON."""
    return json.dumps(document, default=_json_value, ensure_ascii=True, indent=2)


def _json_value(value: object) -> Any:
    """Convert times to ISO 8601 in UTC, durations to seconds, and enum members to their names."""
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, Enum):
        return value.name
    raise TypeError(f"{type(value).__name__} has no JSON representation")


def facts(pairs: Iterable[tuple[str, object]]) -> Table:
    """Build a table of names and values in two columns, without empty values."""
    made = Table.grid(padding=(0, 2))
    made.add_column(style="bold", no_wrap=True)
    made.add_column(overflow="fold")
    for name, value in pairs:
        if value is not None and value != "":
            made.add_row(name, cell(value))
    return made


def cell(value: object) -> Text:
    """Format a value for a table: numbers in groups of three, states in color, all other values as plain text."""
    if isinstance(value, Text):
        return value
    if isinstance(value, bool):
        return Text("yes" if value else "")
    if isinstance(value, int) and not isinstance(value, Enum):
        return Text(f"{value:,}")
    text = value.name if isinstance(value, Enum) else "" if value is None else sanitize(str(value))
    return Text(text, STYLES.get(text.upper(), ""))


_GAP = 3  # blanks between two columns
_SHORTENED_WIDTH = 12
_LINE_BELOW_HEADS = Box("    \n    \n ── \n    \n    \n    \n    \n    \n")


@dataclass(frozen=True, slots=True)
class _Column:
    name: str
    marks: str
    cells: list[Text]

    @property
    def least_width(self) -> int:
        whole = max(len(self.name), *(cell.cell_len for cell in self.cells))
        return min(whole, _SHORTENED_WIDTH) if "~" in self.marks or "=" in self.marks else whole


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> "FittedTable":
    """Build a table that fits the terminal. Without rows it prints nothing, and an empty column is left out.

    :param columns: the names of the columns, each with marks in front. `#`: numbers, aligned to the right. `~`: may be
        shortened. `=`: may wrap. `?`: may be left out.
    """
    named = zip(columns, zip(*rows, strict=True), strict=False)  # without rows there are no columns
    made = [_Column(name.lstrip("#~=?"), name, [cell(value) for value in values]) for name, values in named]
    return FittedTable([column for column in made if any(cell.plain for cell in column.cells)])


@dataclass(frozen=True, slots=True)
class FittedTable:
    """A table that leaves out columns if the terminal is too narrow."""

    columns: list[_Column]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the table in the available width, then the names of the columns that do not fit."""
        kept = list(self.columns)
        for column in reversed(self.columns):  # the last optional columns are left out first
            if "?" in column.marks and sum(one.least_width + _GAP for one in kept) - _GAP > options.max_width:
                kept.remove(column)
        made = Table(box=_LINE_BELOW_HEADS, show_edge=False, pad_edge=False, padding=(0, _GAP - 1, 0, 0))
        for column in kept:
            shortened = "~" in column.marks
            made.add_column(
                Text(column.name, "bold"),
                justify="right" if "#" in column.marks else "left",
                no_wrap=not shortened and "=" not in column.marks,  # rich narrows only columns that may wrap
                min_width=column.least_width,
            )
            for cell in column.cells if shortened else ():
                cell.no_wrap, cell.overflow = True, "ellipsis"
        for cells in zip(*(column.cells for column in kept), strict=True):
            made.add_row(*cells)
        if kept:
            yield made
        if left_out := [column.name for column in self.columns if column not in kept]:
            yield Text(f"The terminal is too narrow for {', '.join(left_out)}.", "dim")
