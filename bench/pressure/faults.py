"""The section `faults`: what becomes of the jobs of each queue whose worker, server or network fails again and again.

Each queue has its worker in the mode of the section `pressure`, which a supervisor starts again a second after its end.
TaskQ's worker has a lease of ten seconds. The others have their own times after which they hand out the jobs of a dead
worker again: 30 seconds for pgqueuer, an hour for Oban, four hours for graphile-worker, and none for procrastinate.
A job is missing if its push was acknowledged, and no handler had it within 45 seconds of the last push. It is repeated
if a handler had it again: every queue does that to jobs whose worker dies. What a queue does about effects of such jobs
is not measured here.
"""

import os
import random
import signal
import tempfile
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread
from typing import Any

import psycopg
from psycopg.conninfo import make_conninfo

from bench.peers.compare import installed, write_payloads
from bench.peers.process import PeerFailedError
from bench.peers.sites import Started
from bench.pressure import runs
from bench.pressure.lineup import LINEUP
from bench.pressure.runs import Scale
from bench.pressure.section import Figures
from bench.pressure.shapes import Shape, Site, Way
from tests.faults.tcp_proxy import TcpProxy

RATE = 2_000.0  # jobs a second at most: the faults are to be compared, and not the speed
SLOWER = {"procrastinate": 400.0}  # half of what it handles with nothing else to do, or less
LEASE = 10.0  # seconds of TaskQ's worker; its default of five minutes is longer than the section waits
COMPARED = ("taskq", "graphile-worker", "pgqueuer", "oban", "procrastinate")
COLUMNS = (
    "missing after 45 s",
    "repeated",
    "pushes refused, jobs",
    "handled/s before, in, after",
    "caught up after, s",
    "starts of the worker",
)


def _repeatedly(every: float, strike: Callable[[Site], None]) -> Callable[[Site], AbstractContextManager[None]]:
    """A fault that strikes at once, and then again and again, from a thread."""

    @contextmanager
    def act(site: Site) -> Iterator[None]:
        over = Event()

        def repeat() -> None:
            strike(site)
            while not over.wait(every):
                strike(site)

        thread = Thread(target=repeat, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    return act


def _kill_consumer(site: Site) -> None:
    site.kill_consumer()


def _crash(site: Site) -> None:
    os.killpg(os.getpgid(site.server.pid), signal.SIGKILL)
    site.server.stop()
    site.server.start()


def _cut(site: Site) -> None:
    _proxy(site).cut()


def _silence(site: Site) -> None:
    for link in _proxy(site).links():
        if random.random() < 0.5:
            link.freeze()


def _proxy(site: Site) -> TcpProxy:
    if site.proxy is None:
        raise RuntimeError("the programs of this shape connect to the server itself")
    return site.proxy


@contextmanager
def _fail_over(site: Site) -> Iterator[None]:
    """The primary becomes read-only, the standby is promoted, and the address moves to it."""
    if site.pair is None:
        raise RuntimeError("the shape has no standby")
    site.pair.fail_over()
    _proxy(site).repoint("127.0.0.1", site.pair.standby.port)
    site.pair.primary.stop("immediate")
    site.server = site.pair.standby
    site.dsn = make_conninfo(site.server.dsn, dbname=site.database)
    yield


def _usual(rate: float, _capacity: float) -> float:
    return rate


FAULTS = {
    shape.name: shape
    for shape in (
        Shape("worker-kills", "The worker is killed by SIGKILL, every 3 s", _repeatedly(3.0, _kill_consumer), _usual),
        Shape("crash", "The server is killed by SIGKILL, every 5 s", _repeatedly(5.0, _crash), _usual),
        Shape("cut", "All connections are cut each second", _repeatedly(1.0, _cut), _usual, way=Way.PROXY),
        Shape(
            "silent",
            "Half of the connections fall silent, every 2 s",
            _repeatedly(2.0, _silence),
            _usual,
            way=Way.PROXY,
        ),
        Shape("fail-over", "Fail-over to a standby behind a moved address", _fail_over, _usual, way=Way.MOVED),
    )
}


def add_arguments(parser: ArgumentParser) -> None:
    """The options of this section; `--seconds` is that of pressure, `--only` and `--cache` are those of the peers."""
    parser.add_argument("--faults", nargs="+", choices=FAULTS, default=list(FAULTS), help="of the section faults")


def run(options: Namespace) -> None:
    """Runs each fault over each queue, and prints a table per fault."""
    scale = Scale(rate=options.rate, seconds=options.seconds)
    with tempfile.TemporaryDirectory(prefix="taskq-bench-") as folder:
        payloads = write_payloads(Path(folder), scale.backlog)
        names = options.only or COMPARED
        by_spec = {LINEUP[name].spec.name: name for name in names}
        peers = installed([LINEUP[name].spec for name in names], options.cache, payloads)
        for shape in (FAULTS[name] for name in options.faults):
            print(f"\n{shape.title}\n\n| | {' | '.join(COLUMNS)} |\n|---" + "|--:" * len(COLUMNS) + "|", flush=True)
            for peer in peers:
                print(_row(by_spec[peer.spec.name], peer, shape, scale), flush=True)


def _row(name: str, peer: Started, shape: Shape, scale: Scale) -> str:
    scale = replace(scale, rate=min(scale.rate, SLOWER.get(name, RATE)))
    try:
        contender = LINEUP[name]
        if name == "taskq":
            contender = replace(contender, mode={**contender.mode, "lease": LEASE})
        found = runs.run(contender, peer, shape, scale, 2 * scale.rate)
    except (PeerFailedError, psycopg.Error) as error:
        return f"| {peer.spec.name} | failed: {str(error).splitlines()[0]} |"
    return f"| {peer.spec.name} | " + " | ".join(cells(found)) + " |"


def cells(found: dict[str, Any]) -> list[str]:
    """The figures of a run, in the order of `COLUMNS`."""
    figures, end = Figures(found), found["end"]
    rates = [runs.mean(found, "rate", since, until) for since, until in ((2, found["begin"]), (found["begin"], end))]
    rates.append(runs.mean(found, "rate", end, found["until"]))
    return [
        f"{found['missing']:,}",
        f"{found['repeated']:,}",
        f"{found['failed']:,}",
        ", ".join(f"{rate:,.0f}" for rate in rates),
        figures.number(figures.recovery()),
        f"{1 + found['restarts']['consumer']}",
    ]
