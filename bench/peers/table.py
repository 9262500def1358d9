"""The tables that go into docs/why/evidence/performance.md."""

from collections.abc import Iterable, Mapping, Sequence
from statistics import median

from bench.peers.measures import Figures


def rates(title: str, figures: Figures, columns: Mapping[str, str], ours: str) -> None:
    """A table of rates a second: medians with ranges, and how many times as fast as each peer TaskQ is."""
    print(f"\n{title}\n")
    print("| | " + " | ".join(columns.values()) + " |")
    print("|---" + "|--:" * len(columns) + "|")
    for name, row in figures.items():
        print(f"| {name} | " + " | ".join(_rate(row.get(key), figures[ours].get(key)) for key in columns) + " |")


def _rate(values: Sequence[float] | None, ours: Sequence[float] | None) -> str:
    if not values:
        return "-"
    ratio = f" {median(ours) / median(values):.2f}x" if ours else ""
    return f"{median(values):,.0f} [{min(values):,.0f}-{max(values):,.0f}]{ratio}"


def costs(title: str, figures: Figures) -> None:
    """A table of milliseconds, each with its ratio to the first of its row."""
    columns = list(dict.fromkeys(column for row in figures.values() for column in row))
    print(f"\n{title}\n")
    print("| | " + " | ".join(columns) + " |")
    print("|---" + "|--:" * len(columns) + "|")
    for name, row in figures.items():
        first = median(next(iter(row.values())))
        cells = [f"{median(row[key]):.2f} {median(row[key]) / first:.2f}x" if key in row else "-" for key in columns]
        print(f"| {name} | " + " | ".join(cells) + " |")


def percentiles(title: str, rows: Iterable[tuple[str, Sequence[float]]]) -> None:
    """A table of latencies in milliseconds."""
    print(f"\n{title}\n")
    print("| | p50 | p95 | p99 | most |\n|---|--:|--:|--:|--:|")
    for name, values in rows:
        ordered = sorted(values)
        shown = [ordered[min(len(ordered) - 1, int(len(ordered) * share))] for share in (0.5, 0.95, 0.99, 1)]
        print(f"| {name} | " + " | ".join(f"{value:.2f}" for value in shown) + " |", flush=True)
