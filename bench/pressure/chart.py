"""Charts of lines over time as SVG: small, without scripts, readable on light and dark pages.

A module of our own instead of a library: it needs no environment, its files are a tenth of those of matplotlib, their
text stays text, and they follow the color scheme of the reader.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 300, 150  # of the area of one panel
LEFT, TOP, GAP, FOOT = 58, 30, 26, 40  # around a panel: for its scale, title, neighbor, and axis
HEAD = 34  # for the title of the chart
LEGEND_ROW = 20
POINTS = 120  # most points of a line; more are joined by their medians
PRINTED = {0: "0", 3: "k", 6: "M", 9: "G"}

STYLE = """
svg{font:12px system-ui,sans-serif;color-scheme:light dark}
svg{--paper:#fff;--ink:#1f2328;--faint:#6b7280;--rule:#e2e5e9;--shade:#f1e4e4}
@media (prefers-color-scheme:dark){svg{--paper:#15181d;--ink:#e6e8eb;--faint:#9aa3ad;--rule:#2c323a;--shade:#33262a}}
.p{fill:var(--paper)}.s{fill:var(--shade)}.g{stroke:var(--rule)}text{fill:var(--ink)}.f{fill:var(--faint);font-size:11px}
.h{font-weight:600;font-size:15px}.t{font-weight:600}path{fill:none;stroke-width:1.3;stroke-linejoin:round}.o{stroke-width:2.6}
"""

Point = tuple[float, float | None]


@dataclass(frozen=True, slots=True)
class Line:
    """One line: points without a value interrupt it."""

    name: str
    color: str
    points: Sequence[Point]
    is_ours: bool = False


@dataclass(frozen=True, slots=True)
class Panel:
    """One diagram with a title that names the unit; `logarithmic` for values of several orders of magnitude."""

    title: str
    lines: Sequence[Line]
    logarithmic: bool = False
    most: float | None = None  # where the scale ends


@dataclass(frozen=True, slots=True)
class Chart:
    """Panels over the same seconds, two in a row, with a shaded span."""

    title: str
    panels: Sequence[Panel]
    shaded: tuple[float, float]
    end: float
    columns: int = 2
    notes: Sequence[str] = field(default_factory=tuple)

    def draw(self) -> str:
        """The chart as an SVG document."""
        names = {line.name: line for panel in self.panels for line in panel.lines}
        wide = self.columns * (LEFT + WIDTH) + GAP
        legend, legend_height = _legend(list(names.values()), wide)
        rows = math.ceil(len(self.panels) / self.columns)
        top = HEAD + legend_height
        high = top + rows * (TOP + HEIGHT + FOOT) + 18 * len(self.notes) + 6
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" role="img"',
            f' aria-label="{escape(self.title)}"><style>{STYLE.strip()}</style>',
            f'<rect class="p" width="{wide}" height="{high}" rx="6"/>',
            f'<text class="h" x="14" y="24">{escape(self.title)}</text>',
            *legend,
        ]
        for index, panel in enumerate(self.panels):
            x = LEFT + index % self.columns * (LEFT + WIDTH)
            y = top + TOP + index // self.columns * (TOP + HEIGHT + FOOT)
            parts += self._panel(panel, x, y)
        for index, note in enumerate(self.notes):
            parts.append(
                f'<text class="f" x="14" y="{high - 8 - 18 * (len(self.notes) - 1 - index)}">{escape(note)}</text>'
            )
        return "\n".join([*parts, "</svg>"]) + "\n"

    def _panel(self, panel: Panel, x: float, y: float) -> Iterable[str]:
        scale = Scale.of(panel)
        begin, end = (x + WIDTH * moment / self.end for moment in self.shaded)
        yield f'<text class="t" x="{x}" y="{y - 10}">{escape(panel.title)}</text>'
        yield f'<rect class="s" x="{begin:.0f}" y="{y}" width="{end - begin:.0f}" height="{HEIGHT}"/>'
        for value in scale.ticks:
            at = y + HEIGHT * (1 - scale.place(value))
            yield f'<path class="g" d="M{x} {at:.1f}h{WIDTH}"/>'
            yield f'<text class="f" x="{x - 6}" y="{at + 4:.1f}" text-anchor="end">{number(value)}</text>'
        step = next(step for step in (5, 10, 20, 30, 60, 120, 300, 600, 1200, 3600, 10**9) if self.end / step <= 8)
        for second in range(0, int(self.end) + 1, step):
            at = x + WIDTH * second / self.end
            yield f'<text class="f" x="{at:.0f}" y="{y + HEIGHT + 15}" text-anchor="middle">{second}</text>'
        yield f'<text class="f" x="{x + WIDTH}" y="{y + HEIGHT + 29}" text-anchor="end">seconds</text>'
        for line in sorted(panel.lines, key=lambda line: line.is_ours):
            path = self._path(line, scale, x, y)
            kind = ' class="o"' if line.is_ours else ""
            yield f'<path{kind} stroke="{line.color}" d="{path}"><title>{escape(line.name)}</title></path>'

    def _path(self, line: Line, scale: "Scale", x: float, y: float) -> str:
        steps, pen_is_down = [], False
        for moment, value in thinned([point for point in line.points if point[0] <= self.end]):
            if value is None:
                pen_is_down = False
                continue
            steps.append(
                f"{'L' if pen_is_down else 'M'}{x + WIDTH * moment / self.end:.0f}"
                f" {y + HEIGHT * (1 - scale.place(value)):.0f}"
            )
            pen_is_down = True
        return "".join(steps)


@dataclass(frozen=True, slots=True)
class Scale:
    """The vertical scale of a panel."""

    least: float
    most: float
    ticks: Sequence[float]
    logarithmic: bool

    @classmethod
    def of(cls, panel: Panel) -> "Scale":
        """The scale that the values of a panel need."""
        values = [value for line in panel.lines for _, value in line.points if value is not None]
        largest = panel.most or max([*values, 1.0])
        if not panel.logarithmic:
            step = 10 ** math.floor(math.log10(largest / 2))
            step *= next(factor for factor in (1, 2, 5, 10) if largest / (step * factor) <= 5)
            count = math.ceil(largest / step - 1e-9)
            return cls(0, step * count, [step * index for index in range(count + 1)], logarithmic=False)
        smallest = min([value for value in values if value > 0], default=1.0)
        low, high = math.floor(math.log10(max(smallest, largest / 1e6))), math.ceil(math.log10(largest))
        high = max(high, low + 1)
        return cls(10.0**low, 10.0**high, [10.0**power for power in range(low, high + 1)], logarithmic=True)

    def place(self, value: float) -> float:
        """Where a value stands, from 0 at the bottom to 1 at the top."""
        value = min(max(value, self.least), self.most)
        if not self.logarithmic:
            return (value - self.least) / (self.most - self.least)
        return math.log(value / self.least) / math.log(self.most / self.least)


def thinned(points: Sequence[Point]) -> list[Point]:
    """The points, or the medians of groups of them if there are too many to see."""
    size = math.ceil(len(points) / POINTS)
    if size <= 1:
        return list(points)
    found: list[Point] = []
    for start in range(0, len(points), size):
        group = points[start : start + size]
        values = [value for _, value in group if value is not None]
        found.append((group[len(group) // 2][0], median(values) if values else None))
    return found


def number(value: float) -> str:
    """A number of a scale: 20, 1.5, 3k, 2M."""
    if value >= 1_000:
        power = min(9, int(math.log10(value) + 1e-9) // 3 * 3)
        return f"{value / 10**power:g}{PRINTED[power]}"
    return f"{value:g}"


def _legend(lines: Sequence[Line], wide: float) -> tuple[list[str], float]:
    """The names of the lines, ours first, in as many rows as they need, and their height."""
    parts, x, y = [], 14.0, HEAD + 8.0
    for line in sorted(lines, key=lambda line: not line.is_ours):
        length = 34 + 7 * len(line.name)
        if x + length > wide:
            x, y = 14.0, y + LEGEND_ROW
        kind, weight = (' class="o"', ' class="t"') if line.is_ours else ("", "")
        parts.append(f'<path{kind} stroke="{line.color}" d="M{x:.0f} {y - 4:.0f}h16"/>')
        parts.append(f'<text{weight} x="{x + 21:.0f}" y="{y:.0f}">{escape(line.name)}</text>')
        x += length
    return parts, y - HEAD + LEGEND_ROW / 2
