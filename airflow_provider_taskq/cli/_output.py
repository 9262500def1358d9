"""Output of the commands: tables and sentences for people, JSON for programs."""

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
from rich import box
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

_SPACES = {"\t": "\\t", "\n": "\\n", "\r": "\\r"}


def plain(text: str, *, lines: bool = False) -> str:
    """The text with everything written out that would steer a terminal: escapes, controls, changes of direction.

    `lines`: line breaks stay, and tabs.
    """
    if text.isprintable():
        return text
    kept = "\n\t" if lines else ""
    return "".join(c if c in kept or not _steers(c) else _SPACES.get(c) or _written_out(c) for c in text)


def _steers(character: str) -> bool:
    """Whether it is a control, a format character, a line separator or half of a surrogate pair."""
    return unicodedata.category(character) in {"Cc", "Cf", "Cs", "Zl", "Zp"}


def _written_out(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}" if code < 65536 else f"\\U{code:08x}"


class NobodyToAsk(click.ClickException):
    """A person has to agree, and there is none: a matter of usage, as `--yes` is missing."""

    exit_code = 2


def ask(sentence: str, *, yes: bool) -> None:
    """Returns once a person agrees, or has agreed by `--yes`; where nobody can be asked, `--yes` is needed."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise NobodyToAsk(f"{plain(sentence)} Nobody can be asked here: add --yes if it is meant.")
    click.confirm(f"{plain(sentence)} Go on?", abort=True, err=True)


def plural(count: int, word: str, many: str | None = None) -> str:
    """1 task, 2,000 tasks."""
    return f"{count:,} {word if count == 1 else many or word + 's'}"


GAP = 3  # blanks between two columns
SHORT = 12  # what is left of a text that is shortened, at least


@dataclass(frozen=True, slots=True)
class Column:
    """A column with its cells.

    Told by the first letters of its name: `#` numbers, to the right; `~` may be shortened; `=` may go on in the next
    line; `?` may be left out.
    """

    name: str
    marks: str
    cells: list[Text]

    @property
    def width(self) -> int:
        """As wide as it wants to be."""
        return max(len(self.name), *(cell.cell_len for cell in self.cells))

    @property
    def least(self) -> int:
        """As wide as it has to be."""
        return min(self.width, SHORT) if "~" in self.marks or "=" in self.marks else self.width


class Listing:
    """A table without its empty columns."""

    def __init__(self, names: Sequence[str], rows: Iterable[Sequence[Text]]) -> None:
        cells = list(zip(*rows, strict=True))
        marked = [(name.lstrip("#~=?"), name) for name in names]
        columns = [
            Column(name, whole.removesuffix(name), list(column))
            for (name, whole), column in zip(marked, cells, strict=True)
        ]
        self.columns = [column for column in columns if any(cell.plain for cell in column.cells)]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The table for the room that there is, and what it had no room for."""
        kept = self._fitting(options.max_width)
        made = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
        for column, width in zip(kept, _column_widths(kept, options.max_width), strict=True):
            right, one_line = "#" in column.marks, "=" not in column.marks
            made.add_column(column.name, justify="right" if right else "left", no_wrap=one_line, width=width)
        for row in zip(*(column.cells for column in kept), strict=True):
            made.add_row(*row)
        yield made
        left_out = [column.name for column in self.columns if column not in kept]
        if left_out:
            yield Text(f"No room here for {', '.join(left_out)}.", "dim")

    def _fitting(self, width: int) -> list[Column]:
        """The columns that fit, the last of those that may be left out gone first."""
        kept = list(self.columns)
        for column in reversed(self.columns):
            if sum(one.least + GAP for one in kept) - GAP <= width:
                break
            if "?" in column.marks:
                kept.remove(column)
        return kept


def _column_widths(columns: Sequence[Column], width: int) -> list[int]:
    """What each column gets: what it needs, and then what it wants, those that may be left out last."""
    room = max(0, width - sum(column.least + GAP for column in columns) + GAP)
    found = [column.least for column in columns]
    for place in sorted(range(len(columns)), key=lambda place: "?" in columns[place].marks):
        more = min(columns[place].width - found[place], room)
        found[place] += more
        room -= more
    return found


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
