"""The section `spark` of the benchmarks: its parts, its options and its scale."""

import logging
from argparse import ArgumentParser, Namespace
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from bench.rig import Rig

ALL = 336_776  # the flights of 2013
# One module each, imported on demand: the other benchmarks need no PySpark.
PARTS = ("drains", "modes", "cores", "memory", "adbc")


@dataclass(frozen=True, slots=True)
class Scale:
    """The flights, the tasks of the part `memory`, the rounds, and the folder of the environment with adbc."""

    flights: int
    tasks: int
    rounds: int
    cache: Path


def add_arguments(parser: ArgumentParser) -> None:
    """The options of this section; `--rounds`, `--small` and `--cache` are those of the peers."""
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="of the section spark")
    parser.add_argument("--flights", type=int, default=ALL, help="for all parts of spark but memory")
    parser.add_argument("--tasks", type=int, default=500_000, help="for the part memory of spark")


def run(rig: Rig, options: Namespace) -> None:
    """Measures the selected parts."""
    scale = Scale(options.flights, options.tasks, options.rounds, options.cache)
    if options.small:
        scale = Scale(20_000, 50_000, 1, options.cache)
    for talkative in ("airflow_provider_taskq.spark", "py4j"):
        logging.getLogger(talkative).setLevel(logging.WARNING)
    for part in options.parts:
        import_module(f"bench.spark.{part}").run(rig, scale)
