"""The measures of the table: push, drain, claim, latency, and load during long reads."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from statistics import median

import psycopg

from bench.peers.process import PeerFailedError
from bench.peers.sites import Site, Started
from bench.rig import Rig

Figures = dict[str, dict[str, list[float]]]  # peer: column: one figure a round

BACKLOG_OF_ONES = 10_000
BOXED = 40_000  # jobs for several processes of a peer that cannot end by itself: more than they handle in the time
CLAIMED = 100
CLAIMS = 9  # of 100 at 1,000 pending: none is left for a tenth
WARM = 20
READERS = 4


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is measured."""

    rounds: int = 3
    jobs: int = 100_000
    box: float = 5.0  # seconds of a drain that has no end of its own
    box_of_ones: float = 3.0
    processes: int = 4
    pending: tuple[int, ...] = (1_000, 100_000, 1_000_000)
    finished: int = 1_000_000
    pushes: int = 300  # of a latency
    rate: float = 20.0
    load: float = 30.0  # seconds with long readers, and the same without


def rounds(scale: Scale, peers: list[Started], once: Callable[[Started, Figures], None]) -> Figures:
    """The figures of all peers over some rounds: A B C, then C B A, so that a drift of the machine hits all alike."""
    figures: Figures = defaultdict(lambda: defaultdict(list))
    for number in range(scale.rounds):
        for peer in peers if number % 2 == 0 else peers[::-1]:
            try:
                once(peer, figures)
            except PeerFailedError as error:
                print(f"  round {number + 1}: {peer.spec.name} failed: {error}", flush=True)
                continue
            shown = ", ".join(f"{column} {values[-1]:,.1f}" for column, values in figures[peer.spec.name].items())
            print(f"  round {number + 1}: {peer.spec.name}: {shown}", flush=True)
    return figures


def push_and_drain(rig: Rig, scale: Scale, peer: Started, figures: Figures) -> None:
    """Pushes one by one and by one call, then drains in the best mode and one at a time, in one database."""
    spec, found = peer.spec, figures[peer.spec.name]
    with peer.site(rig) as site:
        singles = min(spec.singles, scale.jobs)
        found["push single"].append(singles / site.first.ask("push_singles", count=singles, mode={}))
        found["push batch"].append(scale.jobs / site.first.ask("push", count=scale.jobs))
        if not spec.best:
            return
        site.vacuum()
        count = scale.jobs + (0 if spec.script == "limits.py" else singles)
        found["drain best"].append(site.drain(spec.best, count, None if spec.drains else scale.box))
        site.first.ask("push", count=min(BACKLOG_OF_ONES, scale.jobs))
        site.vacuum()
        found["drain one"].append(site.drain_ones(min(BACKLOG_OF_ONES, scale.jobs), scale.box_of_ones))


def drain_by_many(rig: Rig, scale: Scale, peer: Started, figures: Figures) -> None:
    """Drains by several processes at once."""
    if not peer.spec.many:
        return
    count, seconds = (scale.jobs, None) if peer.spec.drains else (min(scale.jobs, BOXED), scale.box)
    with peer.site(rig) as site:
        site.first.ask("push", count=count)
        site.vacuum()
        rate = site.drain(peer.spec.many, count, seconds, scale.processes)
        figures[peer.spec.name]["drain many"].append(rate)


def claims(rig: Rig, scale: Scale, peer: Started, figures: Figures) -> None:
    """The median milliseconds of a claim of 100, by the numbers of pending and finished jobs."""
    found = figures[peer.spec.name]
    with peer.site(rig) as site:
        there = 0
        for pending in scale.pending:
            if not there:
                site.first.ask("push", count=1)
            site.clone_pending(pending - max(there, 1))
            there = pending - CLAIMED * CLAIMS
            cost = _claim(site)
            found[f"{pending:,}"].append(cost)
    if peer.spec.finished is None:
        return
    with peer.site(rig) as site:
        site.first.ask("push", count=1)
        site.drain_ones(1, 1.0)
        site.clone_finished(scale.finished - 1)
        site.first.ask("push", count=1)
        site.clone_pending(scale.pending[0] - 1)
        cost = _claim(site)
        found[f"{scale.pending[0]:,} + {scale.finished:,} finished"].append(cost)


def _claim(site: Site) -> float:
    site.vacuum()
    costs: list[float] = site.first.ask("claim", size=CLAIMED, repetitions=CLAIMS)
    return median(costs)


def latencies(rig: Rig, scale: Scale, peer: Started) -> Iterator[tuple[str, list[float]]]:
    """Milliseconds from push to handler start with an idle worker, by how it waits; the first pushes warm it."""
    for label, mode in peer.spec.serve.items():
        with peer.site(rig) as site:
            worker = site.process()
            count = scale.pushes + WARM
            worker.send("serve", count=count, mode=mode)
            site.first.ask("trickle", count=count, rate=scale.rate, mode=mode)
            yield f"{peer.spec.name}, {label}", worker.answer()[WARM:]


def beside_readers(rig: Rig, scale: Scale, peer: Started, figures: Figures) -> None:
    """Jobs a second of push and drain in turn, without and with sessions that hold old snapshots."""
    for column, sessions in (("without", 0), ("with", READERS)):
        with peer.site(rig) as site, _old_snapshots(site.dsn, sessions):
            figures[peer.spec.name][column].append(_load(site, scale.load))


def _load(site: Site, seconds: float) -> float:
    """Jobs a second of batches that are pushed and drained in turn, for so long; prints each tenth of the time."""
    size = 1_000
    start = mark = time.monotonic()
    done = marked = 0
    while (now := time.monotonic()) < start + seconds:
        site.first.ask("push", count=size)
        site.drain(site.spec.best, size, None if site.spec.drains else 1.0)
        done += size
        if now >= mark + seconds / 10:
            print(f"    {now - start:5.0f} s: {(done - marked) / (now - mark):,.0f}/s", flush=True)
            mark, marked = now, done
    return done / (time.monotonic() - start)


@contextmanager
def _old_snapshots(dsn: str, readers: int) -> Iterator[None]:
    """Readers whose snapshots begin now and last, and one session idle in a transaction that has written."""
    with ExitStack() as stack:
        for _ in range(readers):
            conn = stack.enter_context(psycopg.connect(dsn))
            conn.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            conn.execute("SELECT count(*) FROM pg_class")
        if readers:
            idle = stack.enter_context(psycopg.connect(dsn))
            idle.execute("CREATE TEMPORARY TABLE aside (n int)")
        yield
