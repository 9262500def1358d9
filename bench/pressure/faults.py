"""The section `faults`: what becomes of the jobs of each queue whose worker, server or network fails again and again.

Each queue has its worker in the mode of the section `pressure`. A supervisor starts the worker again a second after its
end. Each queue that can be told to notices a dead worker after ten seconds; see `NOTICES`. A job is missing if its push
was acknowledged, and no handler had it within 45 seconds of the last push, or later while the queue still handles its
backlog. It is repeated if a handler had it again: every queue does that to jobs whose worker dies. What a queue does
about effects of such jobs is not measured here.
"""

import random
import sys
import tempfile
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Event
from types import MappingProxyType
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
from bench.pressure.shapes import NAME, Shape, Site, Way, in_background, nothing, usual
from demo.postgres import EmbeddedPostgresError
from tests.faults.small_disk import filled
from tests.faults.tcp_proxy import TcpProxy

RATE = 2_000.0  # jobs a second at most: the faults are to be compared, and not the speed
SLOWER = {"procrastinate": 100.0}  # a loaded machine with 2 cores handled 50 to 110 of its jobs a second
PATIENCE = 180.0  # seconds more for a queue that still handles its backlog: that is slow, and loses nothing
LIMIT = 0.2  # seconds for a statement under the statement timeout
DISK = "1g"  # for the server whose disk is filled
END_SESSIONS = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s AND application_name <> %s"
LEASE = 10.0  # seconds after which a queue notices a dead worker, if it can be told
COMPARED = ("taskq", "graphile-worker", "pgqueuer", "oban", "procrastinate")
NOTICES: Mapping[str, str] = MappingProxyType(
    {
        "taskq": "10 s (`lease`; default 5 min)",
        "graphile-worker": "4 h (fixed)",
        "pgqueuer": "10 s (`heartbeat_timeout`, `dequeue_timeout` of 2 s; default 30 s each)",
        "oban": "10 s (`rescue_after` of `lifeline`, a look every 2 s; default 5 min, every minute)",
        "procrastinate": "10 s (`seconds_since_heartbeat` of the periodic task that its guide suggests, here every 2 s;"
        " default 30 s, and never without that task)",
    }
)
FAILED = "failed"


def _repeatedly(every: float, strike: Callable[[Site], None]) -> Callable[[Site], AbstractContextManager[None]]:
    """A fault that strikes at once, and then again and again. Its error fails the run."""

    @contextmanager
    def act(site: Site) -> Iterator[None]:
        def repeat(over: Event) -> None:
            strike(site)
            while not over.wait(every):
                strike(site)

        with in_background(repeat):
            yield

    return act


def _kill_consumer(site: Site) -> None:
    site.kill_consumer()


def _crash(site: Site) -> None:
    site.server.kill()
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
    """The primary is killed by SIGKILL, its synchronous standby is promoted, and the address moves to it."""
    if site.pair is None:
        raise RuntimeError("the shape has no standby")
    site.pair.lose_primary()
    _proxy(site).repoint("127.0.0.1", site.pair.standby.port)
    site.server = site.pair.standby
    site.dsn = make_conninfo(site.server.dsn, dbname=site.database)
    yield


@contextmanager
def _slow(site: Site) -> Iterator[None]:
    """Each packet arrives 50 ms late, in both directions."""
    _proxy(site).delay(0.05)
    yield
    _proxy(site).delay(0.0)


@contextmanager
def _disk_full(site: Site) -> Iterator[None]:
    """The disk of the server is full. Afterwards the server is started again, because it may have crashed."""
    with filled(site.server.folder):
        yield
    site.notes["no space"] = site.server.log.read_text(errors="replace").count("No space left on device")
    if not site.notes["no space"]:
        raise RuntimeError("the disk was never full")
    site.server.stop("immediate")
    site.server.start()


@contextmanager
def _statement_timeout(site: Site) -> Iterator[None]:
    """Statements of new sessions have a limit. Each second, another session locks the jobs for longer than that."""
    hit = "canceling statement due to statement timeout"
    with psycopg.connect(site.dsn, autocommit=True, application_name=NAME) as conn:
        conn.execute(f"ALTER ROLE CURRENT_USER SET statement_timeout = '{LIMIT}s'".encode())
        conn.execute(END_SESSIONS, (site.database, NAME))

        def lock(over: Event) -> None:
            while not over.wait(1.0):
                with conn.transaction():
                    conn.execute(f"LOCK TABLE {site.table} IN ACCESS EXCLUSIVE MODE".encode())
                    over.wait(2 * LIMIT)

        with in_background(lock):
            yield
        conn.execute("ALTER ROLE CURRENT_USER RESET statement_timeout")
        conn.execute(END_SESSIONS, (site.database, NAME))
    site.notes["canceled"] = site.server.log.read_text(errors="replace").count(hit)
    if not site.notes["canceled"]:
        raise RuntimeError("no statement reached its limit")


FAULTS = {
    shape.name: shape
    for shape in (
        Shape("worker-kills", "The worker is killed by SIGKILL, every 3 s", _repeatedly(3.0, _kill_consumer), usual),
        Shape("crash", "The server is killed by SIGKILL, 5 s after each start", _repeatedly(5.0, _crash), usual),
        Shape("cut", "All connections are cut each second", _repeatedly(1.0, _cut), usual, way=Way.PROXY),
        Shape(
            "silent",
            "Half of the connections fall silent, every 2 s",
            _repeatedly(2.0, _silence),
            usual,
            way=Way.PROXY,
        ),
        Shape("fail-over", "The primary is killed, and its standby promoted", _fail_over, usual, way=Way.MOVED),
        Shape("slow", "Each packet is 50 ms late", _slow, usual, way=Way.PROXY),
        Shape("disk", "The disk of the server is full", _disk_full, usual, disk=DISK),
        Shape("limit", "statement_timeout of 0.2 s, the jobs locked for 0.4 s each second", _statement_timeout, usual),
        Shape("clock", "The clock of the worker is five hours ahead", nothing, usual, clock="+5h"),
    )
}


def add_arguments(parser: ArgumentParser) -> None:
    """The options of this section; `--seconds` is that of pressure, `--only` and `--cache` are those of the peers."""
    parser.add_argument("--faults", nargs="+", choices=FAULTS, default=list(FAULTS), help="of the section faults")


def run(options: Namespace) -> None:
    """Runs each fault over each queue, and prints a table with a row per queue. The details go to standard error."""
    scale = Scale(rate=options.rate, seconds=options.seconds, at_once=True, patience=PATIENCE)
    shapes = [FAULTS[name] for name in options.faults]
    with tempfile.TemporaryDirectory(prefix="taskq-bench-") as folder:
        payloads = write_payloads(Path(folder), scale.backlog)
        names = options.only or COMPARED
        by_spec = {LINEUP[name].spec.name: name for name in names}
        peers = {
            by_spec[peer.spec.name]: peer
            for peer in installed([LINEUP[n].spec for n in names], options.cache, payloads)
        }
        print(f"\n| | {' | '.join(shape.title for shape in shapes)} |\n|---" + "|--:" * len(shapes) + "|", flush=True)
        for name, peer in peers.items():
            cells = [_cell(name, peer, shape, scale) for shape in shapes]
            print(f"| {peer.spec.name} | {' | '.join(cells)} |", flush=True)
    print(f"\n{legend(list(peers), scale)}", flush=True)


def _cell(name: str, peer: Started, shape: Shape, scale: Scale) -> str:
    contender = replace(LINEUP[name], mode={**LINEUP[name].mode, "lease": LEASE})
    rate = _rate(name, scale)
    try:
        found = runs.run(contender, peer, shape, replace(scale, rate=rate), 2 * rate)
    except (PeerFailedError, EmbeddedPostgresError, psycopg.Error, OSError) as error:
        print(f"{peer.spec.name}, {shape.name}: {FAILED}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        return FAILED
    print(f"{peer.spec.name}, {shape.name}: {details(found)}", file=sys.stderr, flush=True)
    return cell(found)


def _rate(name: str, scale: Scale) -> float:
    return min(scale.rate, SLOWER.get(name, RATE))


def cell(found: dict[str, Any]) -> str:
    """The figures of a run, in the order that the legend says."""
    pause = f"{'> ' if found['paused'] else ''}{found['pause']:.1f} s"
    return f"{found['missing']:,} / {found['repeated']:,} / {pause}"


def details(found: dict[str, Any]) -> str:
    """The figures of a run that the table has no room for."""
    begin, end = found["begin"], found["end"]
    spans = ((2, begin), (begin, end), (end, found["until"]))
    rates = ", ".join(f"{runs.mean(found, 'rate', *span):,.0f}" for span in spans)
    recovery = Figures.number(Figures(found).recovery())
    return (
        f"{cell(found)}, pushed {found['pushed']:,}, refused {found['failed']:,}, handled/s before, in, after"
        f" {rates}, caught up after {recovery} s, {1 + found['restarts']['consumer']} workers"
    )


def legend(names: Sequence[str], scale: Scale) -> str:
    """What the cells mean, and what each queue was told."""
    rates = ", ".join(f"{LINEUP[name].spec.name} {_rate(name, scale):,.0f}" for name in names)
    notices = "; ".join(f"{LINEUP[name].spec.name} {NOTICES.get(name, 'its default')}" for name in names)
    return (
        f"Each cell: jobs missing {runs.SETTLE:.0f} s after the last push, or later while the backlog shrinks / jobs"
        f" handled again / longest time without a handled job, up to the last push (>: it went on). Each fault lasts"
        f" {scale.seconds:.0f} s."
        f" Jobs pushed a second: {rates}. A queue hands out the jobs of a dead worker again after: {notices}."
    )
