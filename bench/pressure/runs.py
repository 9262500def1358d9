"""One run: a peer on a server of its own, a producer and a consumer, and a shape of pressure in the middle."""

import json
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from math import ceil
from pathlib import Path
from statistics import median
from threading import Event
from typing import Any

from bench.peers.load import RECORD
from bench.peers.process import Process
from bench.peers.sites import Started
from bench.pressure.lineup import Contender
from bench.pressure.shapes import SLOTS, Shape, Site, Way
from bench.pressure.watch import ServerLog, Service
from bench.rig import Rig, url
from demo.postgres import EmbeddedPostgres
from tests.faults.servers import ServerPair
from tests.faults.small_disk import small_disk
from tests.faults.tcp_proxy import TcpProxy
from tests.faults.wrong_clock import wrong_clock

DATABASE = "bench"
EVERY = 1.0  # seconds between two samples
OPENED_WITHIN = 60.0  # seconds for the start of both programs
SETTLE = 45.0  # most seconds after the last push in which jobs may still be handled
QUIET = 15.0  # seconds without progress after which a backlog counts as left
BACKLOG = 40_000  # jobs of the drain that measures what a peer can handle
BOX = 4.0  # its seconds, for peers that do not end by themselves
LIVES = 10_000_000  # numbers of jobs for each life of a producer

Series = list[float | None]


@dataclass(frozen=True, slots=True)
class Scale:
    """The most jobs a second that are offered, the seconds of pressure, and another server than the embedded."""

    rate: float = 3_000.0
    seconds: float = 30.0
    lead: float = 2.0  # seconds for the start of the worker, before the first push
    backlog: int = BACKLOG
    patience: float = 0.0  # more seconds than SETTLE in which a slow queue may handle its backlog
    at_once: bool = False  # whether a handled job is on record before it ends, or within a second
    programs: Path | None = None

    @property
    def around(self) -> float:
        """Seconds without pressure, before it and after it."""
        return max(3.0, self.seconds / 3)


def server(scale: Scale, disk: Path | None = None) -> EmbeddedPostgres:
    """A server for one run; on a small disk, with a log that fits there."""
    wal = {} if disk is None else {"max_wal_size": "64MB", "min_wal_size": "32MB"}
    folder = None if disk is None else disk / "server"
    return EmbeddedPostgres(folder, settings={"max_connections": str(SLOTS), **wal}, programs=scale.programs)


def capacity(started: Started, scale: Scale) -> float:
    """Jobs a second that a peer handles in its best mode with nothing else to do."""
    with server(scale) as running, started.site(Rig(running.dsn)) as site:
        site.first.ask("push", count=scale.backlog)
        site.vacuum()
        return site.drain(started.spec.best, scale.backlog, None if started.spec.drains else BOX)


def run(contender: Contender, started: Started, shape: Shape, scale: Scale, handles: float) -> dict[str, Any]:
    """Samples of a peer before, under and after a shape of pressure, and what became of its jobs."""
    rate = min(scale.rate, handles / 2)
    seconds = shape.lasts or scale.seconds
    begin, end = scale.around, scale.around + seconds
    plan = [[0.0, rate], [begin, shape.load(rate, handles)], [end, rate]]
    with ExitStack() as stack:
        site = _site(stack, contender, shape, scale, seconds)
        address = url(site.address)
        with Process(started.command, started.environment) as installer:
            installer.ask("open", dsn=address, payloads=str(started.payloads))
            installer.ask("install")
        files = Files(Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="taskq-bench-"))))
        timing: dict[str, float] = {}
        timed = Event()

        def arguments(**special: object) -> dict[str, object]:
            timed.wait()
            return {"timing": timing, "mode": contender.mode, **special}

        producer = Service(
            started,
            address,
            files.errors,
            "produce",
            lambda life: arguments(plan=plan, log=str(files.produced), first=life * LIVES),
        )
        clock = wrong_clock(shape.clock) if shape.clock else {}
        consumer = Service(
            replace(started, environment={**started.environment, **clock}),
            address,
            files.errors,
            "consume",
            lambda _life: arguments(log=str(files.consumed), at_once=scale.at_once),
        )
        site.kill_consumer = consumer.kill
        for service in (consumer, producer):
            service.start()
        for service in (consumer, producer):
            service.opened.wait(OPENED_WITHIN)
        timing |= {"origin": time.monotonic() + scale.lead, "every": EVERY, "until": end + scale.around}
        timed.set()
        log = ServerLog(site, timing["origin"], EVERY)
        log.start()
        _wait(timing["origin"] + begin)
        with shape.act(site):
            relieved = time.monotonic() - timing["origin"] if shape.name == "restart" else end
            _wait(timing["origin"] + end)
        _wait(timing["origin"] + timing["until"])
        _settle(files, timing["origin"] + timing["until"], scale.patience)
        producer.stop()
        files.stop.touch()
        consumer.stop()
        log.stop()
        found = _merge(files, log, begin, end)
        found["pause"], found["paused"] = _pause(files, begin, timing["until"])
    found["restarts"] = {"producer": len(producer.failures), "consumer": len(consumer.failures)}
    found["errors"] = sorted({failure[:200] for failure in producer.failures + consumer.failures})[:3]
    found["until"] = timing["until"]
    return {"rate": rate, "capacity": handles, "relieved": relieved, "notes": site.notes, **found}


def _site(stack: ExitStack, contender: Contender, shape: Shape, scale: Scale, seconds: float) -> Site:
    """The server of a run with an empty database, and what stands between it and the programs."""
    pair = stack.enter_context(ServerPair(scale.programs, synchronous=True)) if shape.way is Way.MOVED else None
    disk = stack.enter_context(small_disk(shape.disk)) if shape.disk else None
    running = pair.primary if pair else stack.enter_context(server(scale, disk))
    dsn = running.create_database(DATABASE)
    site = Site(running, dsn, DATABASE, contender.table, seconds, {}, pair=pair)
    if shape.way is not Way.DIRECT:
        site.proxy = stack.enter_context(TcpProxy("127.0.0.1", running.port))
    return site


class Files:
    """The files that the programs of a run write."""

    def __init__(self, folder: Path) -> None:
        self.produced = folder / "producer.jsonl"
        self.consumed = folder / "consumer.jsonl"
        self.records = folder / "consumer.records"
        self.stop = folder / "consumer.jsonl.stop"
        self.errors = folder / "errors.txt"

    def pushed(self) -> list[tuple[int, int]]:
        """First number and count of each push that was acknowledged."""
        return [(first, count) for line in lines(self.produced) for first, count in line["ranges"]]

    def handled(self) -> list[tuple[int, float]]:
        """Number and moment of each handled job, and of each repetition."""
        written = self.records.read_bytes() if self.records.exists() else b""
        return list(RECORD.iter_unpack(written))

    def missing(self) -> int:
        """How many jobs were pushed and not handled yet."""
        handled = {number for number, _ in self.handled()}
        return sum(number not in handled for first, count in self.pushed() for number in range(first, first + count))


def lines(file: Path) -> list[dict[str, Any]]:
    """The complete lines of a log."""
    if not file.exists():
        return []
    *whole, _ = file.read_text(encoding="utf-8").split("\n")
    return [json.loads(line) for line in whole]


def _wait(moment: float) -> None:
    time.sleep(max(0.0, moment - time.monotonic()))  # the pressure follows a time table


def _settle(files: Files, last_push: float, patience: float) -> None:
    """Waits until each job that was pushed is handled, for a while; with patience, longer if their number falls."""
    time.sleep(2 * EVERY)  # the producer writes its last line by then; a file sends no event
    deadline, least = last_push + SETTLE, sys.maxsize
    while (missing := files.missing()) and time.monotonic() < deadline:
        if missing < least:
            least = missing
            deadline = max(deadline, min(time.monotonic() + QUIET, last_push + SETTLE + patience))
        time.sleep(EVERY)  # the programs of the queues report by files, which send no event


def _merge(files: Files, log: ServerLog, begin: float, end: float) -> dict[str, Any]:
    """The samples of a run as columns, and its totals."""
    produced, consumed = _by_tick(lines(files.produced)), _by_tick(lines(files.consumed))
    ticks = range(1, max([*produced, *consumed, 1]) + 1)
    records = files.handled()
    first = dict(reversed(records))  # the moment of the first time
    moments = Counter(max(1, ceil(at / EVERY)) for at in first.values())
    rates = [float(moments[tick]) for tick in ticks]
    pushed, handled = _totals(produced, "pushed", ticks), list(accumulate(rates))
    samples: dict[str, Series] = {
        "at": [tick * EVERY for tick in ticks],
        "depth": [max(0.0, there - done) for there, done in zip(pushed, handled, strict=True)],
        "offered": [(after - before) / EVERY for before, after in zip([0.0, *pushed], pushed, strict=False)],
        "rate": [rate / EVERY for rate in rates],
        **{name: [_first(consumed.get(tick, []), name) for tick in ticks] for name in ("p50", "p99")},
        "dead": [log.rows[tick][0] if tick in log.rows else None for tick in ticks],
        "bytes": [log.rows[tick][2] if tick in log.rows else None for tick in ticks],
        "wal": _per_task(log, 1, ticks, rates, 1.0),
        "cpu": _per_task(log, 3, ticks, rates, 1e6),
    }
    ranges = files.pushed()
    return {
        "begin": begin,
        "end": end,
        "samples": {name: [_short(value) for value in series] for name, series in samples.items()},
        "pushed": sum(count for _, count in ranges),
        "failed": sum(_last_of_each(lines(files.produced), "failed")),
        "handled": len(first),
        "repeated": len(records) - len(first),
        "missing": files.missing(),
    }


def _pause(files: Files, begin: float, until: float) -> tuple[float, bool]:
    """The longest time without a handled job, from the begin of the pressure to the last push; whether it lasts on."""
    moments = sorted(at for _, at in files.handled() if begin < at < until)
    pause, end = max((after - before, after) for before, after in pairwise([begin, *moments, until]))
    return pause, end == until


def _short(value: float | None) -> float | None:
    """A value without digits that say nothing."""
    return None if value is None else int(value) if value == int(value) else round(value, 2)


def _by_tick(log: list[dict[str, Any]]) -> dict[int, list[dict[str, Any]]]:
    found: dict[int, list[dict[str, Any]]] = {}
    for line in log:
        found.setdefault(max(1, round(line["at"] / EVERY)), []).append(line)
    return found


def _totals(log: dict[int, list[dict[str, Any]]], name: str, ticks: range) -> list[float]:
    """The sum over all processes of a total that each process counts from zero."""
    latest: dict[int, float] = {}
    sums = []
    for tick in ticks:
        for line in log.get(tick, []):
            latest[line["process"]] = line[name]
        sums.append(sum(latest.values()))
    return sums


def _last_of_each(log: list[dict[str, Any]], name: str) -> list[int]:
    return list({line["process"]: line[name] for line in log}.values())


def _first(log: list[dict[str, Any]], name: str) -> float | None:
    """The figure of a tick; the largest if there are lines of several processes."""
    return max((line[name] for line in log if name in line), default=None)


def _per_task(log: ServerLog, column: int, ticks: range, rates: list[float], factor: float) -> Series:
    """The growth of a column of the server's log at each tick, for one job that was handled."""
    found: Series = []
    for tick, rate in zip(ticks, rates, strict=True):
        before, after = log.rows.get(tick - 1), log.rows.get(tick)
        growth = after[column] - before[column] if before and after else -1
        found.append(round(growth / rate * factor, 2) if growth >= 0 and rate > 0 else None)
    return found


def mean(found: dict[str, Any], name: str, begin: float, end: float) -> float:
    """The mean of a column between two moments."""
    samples = found["samples"]
    values = [value for at, value in zip(samples["at"], samples[name], strict=True) if begin < at <= end]
    return float(sum(values) / len(values)) if values else 0.0


def middle(found: dict[str, Any], name: str, begin: float, end: float) -> float | None:
    """The median of a column between two moments."""
    samples = found["samples"]
    values = [
        value for at, value in zip(samples["at"], samples[name], strict=True) if begin < at <= end and value is not None
    ]
    return float(median(values)) if values else None
