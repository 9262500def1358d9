"""Tables that fit: what a terminal has no room for is shortened or left out, never broken into pieces."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

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
        for column, width in zip(kept, _widths(kept, options.max_width), strict=True):
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


def _widths(columns: Sequence[Column], width: int) -> list[int]:
    """What each column gets: what it needs, and then what it wants, those that may be left out last."""
    room = max(0, width - sum(column.least + GAP for column in columns) + GAP)
    found = [column.least for column in columns]
    for place in sorted(range(len(columns)), key=lambda place: "?" in columns[place].marks):
        more = min(columns[place].width - found[place], room)
        found[place] += more
        room -= more
    return found
