"""The comparison: installs the chosen peers, measures them and TaskQ in turn, and prints the tables."""

import json
import tempfile
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable
from functools import partial
from pathlib import Path

from bench.peers import measures, table
from bench.peers.installing import NotInstalledError, command_of, default_cache
from bench.peers.measures import Figures, Scale
from bench.peers.sites import Started
from bench.peers.specs import SPECS, TASKQ, Spec
from bench.rig import Rig, tasks

MEASURES = ("push-drain", "many", "claims", "latency", "readers")
MORE = ("awa", "pgque", "absurd")  # which the section `pressure` measures only
USUAL = ("push-drain", "many", "claims", "latency")
SMALL = Scale(rounds=1, jobs=2_000, box=2, box_of_ones=1, pending=(1_000, 5_000), finished=5_000, pushes=40, load=5)


def add_arguments(parser: ArgumentParser) -> None:
    """Adds the options of the section `peers`."""
    parser.add_argument("--only", metavar="PEER", nargs="+", choices=[*SPECS, *MORE], help="all peers by default")
    parser.add_argument("--measures", nargs="+", choices=MEASURES, default=USUAL)
    parser.add_argument("--rounds", type=int, default=Scale().rounds)
    parser.add_argument("--small", action="store_true", help="everything once and small: does every peer run?")
    parser.add_argument("--minutes", type=float, default=Scale().load / 60, help="of load beside long readers")
    parser.add_argument("--cache", type=Path, default=default_cache(), help="the folder that the peers live in")


def run(rig: Rig, options: Namespace) -> None:
    """Measures the peers."""
    scale = SMALL if options.small else Scale(rounds=options.rounds, load=options.minutes * 60)
    with tempfile.TemporaryDirectory(prefix="taskq-bench-") as folder:
        payloads = write_payloads(Path(folder), max(scale.jobs, measures.BACKLOG_OF_ONES))
        peers = installed([SPECS[name] for name in options.only or SPECS if name in SPECS], options.cache, payloads)
        for measure in options.measures:
            start = time.monotonic()
            print(f"\n{measure}:", flush=True)
            _measure(rig, scale, peers, measure)
            print(f"  ({time.monotonic() - start:.0f} s)", flush=True)


def write_payloads(folder: Path, count: int) -> Path:
    """The jobs that every peer pushes, a line each."""
    file = folder / "payloads.jsonl"
    lines = (json.dumps([task.identifier, task.payload]) for task in tasks(count))
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return file


def installed(specs: Iterable[Spec], cache: Path, payloads: Path) -> list[Started]:
    """The peers that can be started; prints the reason for each other one."""
    peers = []
    for spec in specs:
        try:
            command, environment = command_of(spec, cache)
        except NotInstalledError as error:
            print(f"left out: {spec.name}: {error}", flush=True)
        else:
            peers.append(Started(spec, command, environment, payloads))
    return peers


def _measure(rig: Rig, scale: Scale, peers: list[Started], measure: str) -> None:
    queues = [peer for peer in peers if not peer.spec.is_limit]
    if measure == "push-drain":
        figures = measures.rounds(scale, peers, partial(measures.push_and_drain, rig, scale))
        columns = {
            "push batch": f"push of {scale.jobs:,} in one call, jobs/s",
            "push single": "push one per transaction, jobs/s",
            "drain one": "drain one at a time, jobs/s",
            "drain best": "drain in the best mode, jobs/s",
        }
        _rates("Push and drain", figures, columns)
    elif measure == "many":
        figures = measures.rounds(scale, peers, partial(measures.drain_by_many, rig, scale))
        _rates("Drain by several processes", figures, {"drain many": f"{scale.processes} processes, jobs/s"})
    elif measure == "claims":
        once = Scale(rounds=1, pending=scale.pending, finished=scale.finished)
        found = measures.rounds(once, queues, partial(measures.claims, rig, once))
        table.costs("Claim of 100, ms, by what is pending", found)
    elif measure == "latency":
        rows = (row for peer in queues for row in measures.latencies(rig, scale, peer))
        table.percentiles(f"Push to handler start at {scale.rate:.0f}/s, idle worker, ms", rows)
    else:
        once = Scale(rounds=1, load=scale.load)
        found = measures.rounds(once, queues, partial(measures.beside_readers, rig, once))
        _rates("Load beside long readers", found, {"without": "without, jobs/s", "with": "with, jobs/s"})


def _rates(title: str, figures: Figures, columns: dict[str, str]) -> None:
    ours = TASKQ.name if TASKQ.name in figures else next(iter(figures))
    table.rates(f"{title}: median [range], and how many times as fast {ours} is", figures, columns, ours)
