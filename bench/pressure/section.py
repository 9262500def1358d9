"""The section `pressure`: its options, its runs, the samples that it writes, its charts and its tables."""

import json
import platform
import tempfile
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psycopg

from bench.peers.compare import installed, write_payloads
from bench.peers.process import PeerFailedError
from bench.peers.sites import Started
from bench.pressure import runs
from bench.pressure.chart import Chart, Line, Panel, Point
from bench.pressure.lineup import LINEUP
from bench.pressure.runs import Scale
from bench.pressure.shapes import SHAPES, Shape

PICTURES = Path("docs/pictures/pressure")
RECOVERED = 0.5  # a backlog of this many seconds of the usual rate, or less

SHARED = ("wal", "cpu")  # what the jobs of a second share; without a line where there are
FEW = 0.05  # of the usual rate
COLUMNS = (
    "offered/s",
    "handled/s before, under",
    "p99 before, under, ms",
    "most waiting",
    "dead rows at the end of it",
    "WAL a job, bytes",
    "CPU a job before, under, µs",
    "caught up after, s",
    "restarts",
    "missing",
)

Found = dict[str, Any]  # what a run returns, or what the file of a shape holds


def add_arguments(parser: ArgumentParser) -> None:
    """The options of this section; `--only` and `--cache` are those of the peers."""
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES), help="of the section pressure")
    parser.add_argument("--seconds", type=float, default=Scale().seconds, help="of pressure; a third before and after")
    parser.add_argument("--rate", type=float, default=Scale().rate, help="of jobs a second under pressure")
    parser.add_argument("--to", type=Path, default=PICTURES, help="the folder of the samples and charts of pressure")
    parser.add_argument("--draw", action="store_true", help="only draw the charts of pressure again from the samples")


def run(options: Namespace) -> None:
    """Measures each peer under each shape, on servers of their own; writes the samples and a chart of each shape."""
    if options.draw:
        for name in options.shapes:
            if (options.to / f"{name}.json").is_file():
                draw(options.to, SHAPES[name])
        print(overview(options.to))
        return
    scale = Scale(rate=options.rate, seconds=options.seconds)
    with tempfile.TemporaryDirectory(prefix="taskq-bench-") as folder:
        payloads = write_payloads(Path(folder), scale.backlog)
        names = [name for name in options.only or LINEUP if name in LINEUP]
        by_spec = {LINEUP[name].spec.name: name for name in names}
        specs = [LINEUP[name].spec for name in names]
        peers = {by_spec[peer.spec.name]: peer for peer in installed(specs, options.cache, payloads)}
        measure(peers, [SHAPES[name] for name in options.shapes], scale, options.to)
        print(overview(options.to))


def measure(peers: Mapping[str, Started], shapes: Sequence[Shape], scale: Scale, folder: Path) -> dict[str, Found]:
    """Runs the shapes over the peers; writes after each run, so that an interrupted section leaves what it has."""
    folder.mkdir(parents=True, exist_ok=True)
    handles = {}
    for name, peer in peers.items():
        try:
            handles[name] = runs.capacity(peer, scale)
        except (PeerFailedError, psycopg.Error, RuntimeError) as error:
            print(f"left out: {peer.spec.name}: {error}", flush=True)
        else:
            print(f"  {peer.spec.name} handles {handles[name]:,.0f} jobs a second", flush=True)
    all_found = {}
    for shape in shapes:
        found: Found = {"shape": shape.name, "seconds": scale.seconds, "machine": _machine(scale), "peers": {}}
        for name, able in handles.items():
            peer = peers[name]
            try:
                found["peers"][name] = runs.run(LINEUP[name], peer, shape, scale, able)
            except (PeerFailedError, psycopg.Error) as error:
                print(f"  {shape.name}: {peer.spec.name} failed: {error}", flush=True)
                continue
            file = folder / f"{shape.name}.json"
            file.write_text(json.dumps(found, separators=(",", ":")) + "\n", encoding="utf-8")
            print(f"  {shape.name}: {peer.spec.name}: {_summary(found['peers'][name])}", flush=True)
        if found["peers"]:
            draw(folder, shape)
        all_found[shape.name] = found
    return all_found


def draw(folder: Path, shape: Shape) -> None:
    """Draws the chart of a shape from its samples, and prints its table."""
    found = json.loads((folder / f"{shape.name}.json").read_text(encoding="utf-8"))
    (folder / f"{shape.name}.svg").write_text(chart(shape, found).draw(), encoding="utf-8")
    print(f"\n{shape.title}\n\n{table(found)}\n", flush=True)


def chart(shape: Shape, found: Found) -> Chart:
    """The chart of a shape."""
    peers = found["peers"]
    some = next(iter(peers.values()))
    whole = {name: _full_rate(shape, one) for name, one in peers.items()}
    panels = [
        Panel(
            "Handled, % of the usual rate", _lines(peers, "rate", {name: 100 / whole[name] for name in peers}), most=200
        ),
        Panel("Not handled yet, jobs", _lines(peers, "depth"), logarithmic=True),
        Panel("Push to handler, p50, ms", _lines(peers, "p50"), logarithmic=True),
        Panel("Push to handler, p99, ms", _lines(peers, "p99"), logarithmic=True),
        Panel("Dead rows in all tables", _lines(peers, "dead"), logarithmic=True),
        Panel("Write-ahead log of a job, bytes", _lines(peers, "wal"), logarithmic=True),
        Panel("Server CPU of a job, µs", _lines(peers, "cpu"), logarithmic=True),
        Panel("Size of the database, MB", _lines(peers, "bytes", dict.fromkeys(peers, 1e-6))),
    ]
    end = min(max(one["samples"]["at"][-1] for one in peers.values()), some["end"] + 2 * (some["end"] - some["begin"]))
    usual = sorted({_rounded(whole[name]) for name in peers})
    span = f"{usual[0]:,}" if len(usual) == 1 else f"{usual[0]:,} to {usual[-1]:,}"
    note = f"Shaded: the pressure. 100 % are {span} jobs a second. A gap in a line: nothing was handled, or no server."
    return Chart(shape.title, panels, (some["begin"], some["end"]), end, notes=[note])


def overview(folder: Path) -> str:
    """A table in Markdown of all shapes that the folder has: handled under pressure, p99, and the time to catch up."""
    found = {
        name: json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
        for name in SHAPES
        if (folder / f"{name}.json").is_file()
    }
    rows = [f"| | {' | '.join(name.replace('-', ' ') for name in found)} |", "|---" + "|---" * len(found) + "|"]
    for peer, contender in LINEUP.items():
        cells = []
        for name, one in found.items():
            cells.append(Figures(one["peers"][peer]).cell(SHAPES[name]) if peer in one["peers"] else "-")
        rows.append(f"| {contender.spec.name} | " + " | ".join(cells) + " |")
    return "\n".join(rows)


def table(found: Found) -> str:
    """The table of a shape in Markdown."""
    rows = [f"| | {' | '.join(COLUMNS)} |", "|---" + "|--:" * len(COLUMNS) + "|"]
    for name, one in found["peers"].items():
        figures = Figures(one)
        cells = (
            f"{one['rate']:,.0f}",
            figures.pair("rate"),
            figures.pair("p99"),
            f"{max(one['samples']['depth']):,.0f}",
            figures.number(figures.last("dead")),
            figures.number(figures.under("wal")),
            figures.pair("cpu"),
            figures.number(figures.recovery()),
            f"{one['restarts']['consumer']}",
            f"{one['missing']:,}",
        )
        rows.append(f"| {LINEUP[name].spec.name} | " + " | ".join(cells) + " |")
    return "\n".join(rows)


class Figures:
    """The figures of one run."""

    def __init__(self, one: Found) -> None:
        self._one = one

    def before(self, column: str) -> float | None:
        """The median before the pressure."""
        return runs.middle(self._one, column, 2, self._one["begin"])

    def under(self, column: str) -> float | None:
        """The median of the last half of the pressure."""
        half = (self._one["begin"] + self._one["end"]) / 2
        return runs.middle(self._one, column, half, self._one["end"])

    def last(self, column: str) -> float | None:
        """The last value under pressure."""
        pairs = zip(self._one["samples"]["at"], self._one["samples"][column], strict=True)
        return next(
            (value for at, value in reversed(list(pairs)) if at <= self._one["end"] and value is not None), None
        )

    def mean(self, column: str) -> float:
        """The mean under pressure."""
        return runs.mean(self._one, column, self._one["begin"], self._one["end"])

    def recovery(self) -> float | None:
        """Seconds from the end of the pressure until the backlog is small; None if it stays."""
        pairs = zip(self._one["samples"]["at"], self._one["samples"]["depth"], strict=True)
        small = RECOVERED * self._one["rate"]
        moments = (at for at, depth in pairs if at >= self._one["relieved"] and depth <= small)
        moment = next(moments, None)
        return None if moment is None else moment - self._one["relieved"]

    def cell(self, shape: Shape) -> str:
        """The cell of the overview: % of the usual rate that was handled, p99, seconds to catch up."""
        handled = self.mean("rate")
        share = f"{handled / self._one['rate']:.0%}"
        if shape.name == "overload":  # one producer may push less than it should
            share = f"{handled:,.0f}/s of {self.mean('offered'):,.0f}/s"
        recovery, p99 = self.recovery(), self.number(self.under("p99"))
        caught = "not caught up" if recovery is None else f"{recovery:.0f} s"
        missing = f", **{self._one['missing']:,} missing**" if self._one["missing"] else ""
        return f"{share}, {p99} ms, {caught}{missing}"

    def pair(self, column: str) -> str:
        """Before and under pressure."""
        return f"{self.number(self.before(column))}, {self.number(self.under(column))}"

    @staticmethod
    def number(value: float | None) -> str:
        """A figure of the table."""
        if value is None:
            return "-"
        return f"{value:,.1f}" if abs(value) < 100 and value != int(value) else f"{value:,.0f}"


def _summary(one: Found) -> str:
    figures = Figures(one)
    return (
        f"{one['rate']:,.0f}/s offered, handled/s {figures.pair('rate')}, p99 {figures.pair('p99')} ms,"
        f" CPU {figures.pair('cpu')} us, {one['missing']} missing, restarts {one['restarts']}"
    )


def _full_rate(shape: Shape, one: Found) -> float:
    """What 100 % are: the usual rate, or what the peer handles alone if it is offered more than that."""
    return float(one["capacity"] if shape.name == "overload" else one["rate"])


def _lines(peers: Found, column: str, factors: Mapping[str, float] | None = None) -> list[Line]:
    lines = []
    for name, one in peers.items():
        factor = factors[name] if factors else 1.0
        columns = zip(one["samples"]["at"], one["samples"][column], one["samples"]["rate"], strict=True)
        least = FEW * one["rate"] if column in SHARED else -1
        points: list[Point] = [
            (at, None if value is None or rate < least else value * factor) for at, value, rate in columns
        ]
        contender = LINEUP[name]
        lines.append(Line(contender.spec.name, contender.color, points, is_ours=name == "taskq"))
    return lines


def _rounded(value: float) -> int:
    return int(float(f"{value:.2g}"))


def _machine(scale: Scale) -> str:
    return f"{platform.machine()}, Python {platform.python_version()}, {scale.programs or 'embedded PostgreSQL'}"
