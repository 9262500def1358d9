"""The load of `make bench ARGS=pressure`: a producer with a planned rate, and a consumer; both log each second.

It runs in the program of each Python peer, so it imports nothing but the standard library. load.js is for Node.
"""

import asyncio
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from struct import Struct
from threading import Event, Thread
from typing import Any

from bench.peers.program import Job, Meter, Peer

PERIOD = 0.025  # seconds between two pushes of a producer
LARGEST = 1_000  # jobs of one push
PERIODS = 4  # of which one push takes the jobs at most, when a producer is behind
RETRY_AFTER = 0.2  # seconds after a push that failed
LOOK = 0.25  # seconds between two looks for the file that ends a consumer
RECORD = Struct("<Qd")  # a job's number and the second of the run; no record crosses a page, so none is torn


@dataclass(frozen=True, slots=True)
class Timing:
    """The start of a run on the monotonic clock, the seconds between two lines of the log, and the end of pushes."""

    origin: float
    every: float
    until: float

    def now(self) -> float:
        """Seconds since the start of the run."""
        return time.monotonic() - self.origin


class Log:
    """Appends a line of JSON at each tick, from a thread of its own, also while the event loop is blocked."""

    def __init__(self, file: Path, timing: Timing, line: Callable[[], dict[str, Any]]) -> None:
        self._file = file
        self._timing = timing
        self._line = line
        self._closed = Event()
        self._thread = Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Writes the last line."""
        self._closed.set()
        self._thread.join()
        self._write()

    def _run(self) -> None:
        tick = int(self._timing.now() / self._timing.every) + 1
        while not self._closed.wait(max(0.0, tick * self._timing.every - self._timing.now())):
            self._write()
            tick = max(tick, int(self._timing.now() / self._timing.every)) + 1

    def _write(self) -> None:
        line = {"at": round(self._timing.now(), 3), "process": os.getpid(), **self._line()}
        with self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


class Producer:
    """Pushes numbered jobs at the rates of a plan; each job carries its number and the moment of its push."""

    def __init__(self, peer: Peer, jobs: list[Job], dsn: str, first: int) -> None:
        self._peer = peer
        self._jobs = cycle(jobs)
        self._dsn = dsn
        self._next = first
        self._pushed = 0
        self._failed = 0
        self._ranges: list[list[int]] = []  # first number and count of the pushes since the last line

    async def run(self, plan: list[list[float]], timing: Timing, file: Path) -> None:
        """Pushes as many jobs as the passed time demands; a delay of more than a second is not made up for."""
        log = Log(file, timing, self._line)
        try:
            await asyncio.sleep(max(0.0, -timing.now()))
            last, credit = timing.now(), 0.0
            while (now := timing.now()) < timing.until:
                rate = max((start, rate) for start, rate in plan if start <= now)[1]
                credit = min(credit + rate * (now - last), max(rate, 1.0))
                last = now
                largest = min(LARGEST, max(1, int(PERIODS * PERIOD * rate)))
                count = min(int(credit), largest)
                credit -= count
                if count:
                    await self._push(count)
                if credit < largest:
                    await asyncio.sleep(max(0.0, now + PERIOD - timing.now()))
        finally:
            log.close()

    async def _push(self, count: int) -> None:
        first, self._next = self._next, self._next + count
        try:
            await self._peer.push([self._job(number) for number in range(first, first + count)])
        except Exception as error:  # noqa: BLE001 -- any error of a library: the producer goes on, as a service does
            print(f"a push failed: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
            self._failed += count
            await asyncio.sleep(RETRY_AFTER)
            await self._recover()
        else:
            self._pushed += count
            self._ranges.append([first, count])

    async def _recover(self) -> None:
        try:
            await self._peer.recover(self._dsn)
        except Exception as error:  # noqa: BLE001 -- the server may be down; the next push fails, and tries again
            print(f"no new connection: {type(error).__name__}: {error}", file=sys.stderr, flush=True)

    def _job(self, number: int) -> Job:
        job = next(self._jobs)
        return Job(f"{number}", {**job.payload, "number": number, "pushed": time.monotonic()})

    def _line(self) -> dict[str, Any]:
        ranges, self._ranges = self._ranges, []
        return {"pushed": self._pushed, "failed": self._failed, "ranges": ranges}


class LoadMeter(Meter):
    """The handler under load: records each handled job and its repetitions; takes the latency of the first time.

    With `at_once`, the record is in the file before the job ends, so that a SIGKILL of the worker loses none.
    """

    def __init__(self, records: Path, timing: Timing, *, at_once: bool) -> None:
        super().__init__()
        self._timing = timing
        self._at_once = at_once
        self._seen = bytearray()
        self._unwritten = bytearray()
        self._file = os.open(records, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        for number, _ in RECORD.iter_unpack(records.read_bytes()):
            self._note(number)

    def handle(self, payload: dict[str, Any]) -> dict[str, Any]:
        """Does a job."""
        delay = (time.monotonic() - payload["pushed"]) * 1000
        with self._lock:
            self._unwritten += RECORD.pack(payload["number"], self._timing.now())
            if self._at_once:
                self._write()
            if self._note(payload["number"]):
                self.latencies.append(delay)
        return {"delay": payload.get("arr_delay")}

    def line(self) -> dict[str, Any]:
        """The line of the log: the latencies since the last line."""
        with self._lock:
            latencies, self.latencies = self.latencies, []
            self._write()
        latencies.sort()
        marks = {name: latencies[int(share * (len(latencies) - 1))] for name, share in SHARES} if latencies else {}
        return {name: round(value, 2) for name, value in marks.items()}

    def _write(self) -> None:
        os.write(self._file, self._unwritten)
        self._unwritten.clear()

    def _note(self, number: int) -> bool:
        """Whether a number is new."""
        if number >= len(self._seen):
            self._seen.extend(bytes(number + 100_000 - len(self._seen)))
        known, self._seen[number] = self._seen[number], 1
        return not known


SHARES = (("p50", 0.5), ("p99", 0.99), ("most", 1.0))


async def consume(peer: Peer, timing: Timing, file: Path, *, at_once: bool) -> None:
    """Works until the file that ends it exists."""
    meter = LoadMeter(file.with_suffix(".records"), timing, at_once=at_once)
    log = Log(file, timing, meter.line)
    loop = asyncio.get_running_loop()
    ended = Event()

    def look() -> None:
        stop = Path(f"{file}.stop")
        while not ended.wait(LOOK):
            if stop.exists():
                meter.over.set()  # workers that block the event loop ask for it
                loop.call_soon_threadsafe(meter.over.set)  # wakes those that wait for it
                return

    Thread(target=look, daemon=True).start()
    try:
        await peer.work(meter)
    finally:
        ended.set()
        log.close()
