"""The program of every Python peer: it answers requests, one line of JSON each, until its input ends.

It runs in the peer's own virtual environment, so it imports nothing but the standard library.
"""

import asyncio
import json
import os
import random
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import Queue
from threading import Lock, Thread
from typing import Any

UNLIMITED = 2**31 - 1
PREPARED = 5  # psycopg's own default, so that all peers that use it prepare their statements alike


@dataclass(frozen=True, slots=True)
class Job:
    """A job to push, the same for every peer."""

    identifier: str
    payload: dict[str, Any]


class Meter:
    """The handler of every job; it counts the jobs, notes their times, and measures the latency since their push."""

    def __init__(self, most: int = UNLIMITED, seconds: float = float("inf")) -> None:
        self._most = most
        self._seconds = seconds
        self.handled = 0
        self.first = 0.0
        self.last = 0.0
        self.latencies: list[float] = []
        self.over = asyncio.Event()
        self._lock = Lock()  # handlers may run in several threads

    def handle(self, payload: dict[str, Any]) -> dict[str, Any]:
        """Does a job, and returns its output: a small document, which some peers store."""
        now = time.monotonic()
        with self._lock:
            self.first = self.first or now
            self.last = now
            self.handled += 1
        if "pushed" in payload:
            self.latencies.append((now - payload["pushed"]) * 1000)
        if self.handled >= self._most or now - self.first >= self._seconds:
            self.over.set()
        return {"delay": payload.get("arr_delay")}


class Peer(ABC):
    """A queue, used as its documentation recommends; `mode` holds the settings to measure."""

    def __init__(self) -> None:
        self.mode: Mapping[str, Any] = {}

    @abstractmethod
    async def open(self, dsn: str) -> None:
        """Connects, and prepares pushes and workers."""

    @abstractmethod
    async def install(self) -> None:
        """Makes the peer's schema and its queue in an empty database."""

    @abstractmethod
    async def push(self, jobs: list[Job]) -> None:
        """Pushes jobs by one call, in one transaction, and commits."""

    @abstractmethod
    async def push_one(self, job: Job) -> None:
        """Pushes one job, and commits."""

    @abstractmethod
    async def drain(self, meter: Meter) -> None:
        """Works until no job is left or the meter is over; returns when all handled jobs are committed."""

    @abstractmethod
    async def work(self, meter: Meter) -> None:
        """Works like an idle worker that waits for jobs, until the meter is over."""

    @abstractmethod
    async def claim(self, size: int) -> int:
        """Claims `size` jobs by the statement that its workers use, and commits."""

    async def recover(self, dsn: str) -> None:
        """Prepares pushes again after an error; does nothing if the library reconnects by itself."""
        await self.open(dsn)


class Program:
    """Carries out the requests of the benchmark on one peer."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self._jobs: list[Job] = []
        self._dsn = ""

    async def run(self) -> None:
        """Answers until the input ends: `{"ok": ...}`, or `{"error": ...}` and the end."""
        answers = sys.stdout
        sys.stdout = sys.stderr  # the output of a library is not an answer
        requests: Queue[str] = Queue()
        Thread(target=_read, args=(requests,), daemon=True).start()
        while True:
            request = json.loads(requests.get())
            try:
                self._peer.mode = request.pop("mode", {})
                answer = {"ok": await getattr(self, f"do_{request.pop('verb')}")(**request)}
            except Exception as error:  # noqa: BLE001 -- the benchmark gets any error of a library
                answer = {"error": f"{type(error).__name__}: {error}"}
            print(json.dumps(answer), file=answers, flush=True)

    async def do_open(self, dsn: str, payloads: str) -> None:
        """Reads the jobs to push, and connects."""
        self._dsn = dsn
        self._jobs = _jobs_in(Path(payloads))
        await self._peer.open(dsn)

    async def do_install(self) -> None:
        """Makes the schema."""
        await self._peer.install()

    async def do_push(self, count: int) -> float:
        """Seconds of one call that pushes `count` jobs."""
        jobs = self._taken(count)
        start = time.perf_counter()
        await self._peer.push(jobs)
        return time.perf_counter() - start

    async def do_push_singles(self, count: int) -> float:
        """Seconds of `count` pushes, each committed."""
        jobs = self._taken(count)
        start = time.perf_counter()
        for job in jobs:
            await self._peer.push_one(job)
        return time.perf_counter() - start

    async def do_drain(self, most: int | None, seconds: float | None, settled: bool) -> dict[str, float]:
        """The handled jobs, the start of the first, and the end of all; without `settled`, the start of the last."""
        meter = Meter(most or UNLIMITED, seconds or float("inf"))
        if seconds:  # if no job is left, no handler reads the clock
            asyncio.get_running_loop().call_later(2 * seconds, meter.over.set)
        await self._peer.drain(meter)
        return {"handled": meter.handled, "first": meter.first, "last": time.monotonic() if settled else meter.last}

    async def do_claim(self, size: int, repetitions: int) -> list[float]:
        """Milliseconds of each of `repetitions` claims."""
        costs = []
        for _ in range(repetitions):
            start = time.perf_counter()
            taken = await self._peer.claim(size)
            costs.append((time.perf_counter() - start) * 1000)
            if taken != size:
                raise RuntimeError(f"{taken} jobs were claimed instead of {size}")
        return costs

    async def do_serve(self, count: int) -> list[float]:
        """Works as an idle worker until `count` jobs are handled; milliseconds from push to handler of each."""
        meter = Meter(count)
        await self._peer.work(meter)
        return meter.latencies

    async def do_trickle(self, count: int, rate: float) -> None:
        """Pushes `rate` jobs a second, at random intervals, each with the moment of its push."""
        distances = random.Random(count)
        due = time.monotonic()
        for job in self._taken(count):
            due += distances.expovariate(rate)
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            await self._peer.push_one(Job(job.identifier, {**job.payload, "pushed": time.monotonic()}))

    async def do_produce(self, plan: list[list[float]], timing: dict[str, float], first: int, log: str) -> None:
        """Pushes jobs at the rates of a plan until the end of its last part, and logs what was pushed each second."""
        from bench.peers import load

        await load.Producer(self._peer, self._jobs, self._dsn, first).run(plan, load.Timing(**timing), Path(log))

    async def do_consume(self, timing: dict[str, float], log: str, at_once: bool) -> None:
        """Works as an idle worker until the file `log`.stop exists; records jobs each second, or each at once."""
        from bench.peers import load

        await load.consume(self._peer, load.Timing(**timing), Path(log), at_once=at_once)

    def _taken(self, count: int) -> list[Job]:
        if count > len(self._jobs):
            raise ValueError(f"there are payloads for {len(self._jobs)} jobs, not for {count}")
        return self._jobs[:count]


def _read(requests: Queue[str]) -> None:
    """Reads requests, and ends the program when its input ends, because the benchmark has ended."""
    for line in sys.stdin:
        requests.put(line)
    os._exit(0)


def _jobs_in(file: Path) -> list[Job]:
    return [Job(*json.loads(line)) for line in file.read_text(encoding="utf-8").splitlines()]


def in_threads(work: Callable[[], None], count: int) -> None:
    """Does the same work in `count` threads: one converts rows while the server works for another."""
    with ThreadPoolExecutor(count) as pool:
        for running in [pool.submit(work) for _ in range(count)]:
            running.result()


def serve(peer: Peer) -> None:
    """Runs the program of a peer."""
    asyncio.run(Program(peer).run())
