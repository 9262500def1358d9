"""What is measured while a peer is under pressure: its programs, kept alive, and the server, looked at each second."""

import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from threading import Event, Thread
from typing import Any

import psutil
import psycopg

from bench.peers.process import PeerFailedError, Process
from bench.peers.sites import Started
from bench.pressure.shapes import Site

RESTART_AFTER = 1.0  # seconds, as a supervisor of services waits
GRACE = 15.0  # seconds for the end of a program

LOOK = """SELECT coalesce(sum(n_dead_tup), 0)::bigint, pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint,
    pg_database_size(current_database()) FROM pg_stat_user_tables"""


class Service(Thread):
    """One program of a peer, which is started again a second after each unexpected end."""

    def __init__(self, peer: Started, dsn: str, errors: Path, verb: str, arguments: Callable[[int], Any]) -> None:
        super().__init__(daemon=True)
        self._peer = peer
        self._dsn = dsn
        self._errors = errors
        self._verb = verb
        self._arguments = arguments
        self._process: Process | None = None
        self._stopping = Event()
        self.opened = Event()
        self.failures: list[str] = []

    def run(self) -> None:
        """Runs the program until it ends as planned, or the service is stopped."""
        while not self._stopping.is_set():
            try:
                with (
                    self._errors.open("a", encoding="utf-8") as errors,
                    Process(self._peer.command, self._peer.environment, errors) as process,
                ):
                    self._process = process
                    process.ask("open", dsn=self._dsn, payloads=str(self._peer.payloads))
                    self.opened.set()
                    process.ask(self._verb, **self._arguments(len(self.failures)))
                    return
            except (PeerFailedError, OSError, ValueError, subprocess.TimeoutExpired) as error:
                self.failures.append(str(error))
                self._stopping.wait(RESTART_AFTER)

    def kill(self) -> None:
        """Ends the program by SIGKILL, if it runs. It is started again as after any other end."""
        if self._process:
            self._process.kill()

    def stop(self) -> None:
        """Waits for the end of the program, which was told to end; kills it if that takes long."""
        self._stopping.set()
        self.join(GRACE)
        if self.is_alive() and self._process:
            self._process.kill()
            self.join()


class ServerLog(Thread):
    """Dead rows, bytes of log, bytes of the database and seconds of CPU of a server, at each tick of a run."""

    def __init__(self, site: Site, origin: float, every: float) -> None:
        super().__init__(daemon=True)
        self._site = site
        self._origin = origin
        self._every = every
        self._over = Event()
        self._conn: psycopg.Connection | None = None
        self.rows: dict[int, tuple[int, int, int, float]] = {}

    def run(self) -> None:
        """Looks at the server until it is stopped; leaves out the ticks at which there is none."""
        tick = 0
        while not self._over.wait(max(0.0, self._origin + tick * self._every - time.monotonic())):
            try:
                self.rows[tick] = (*self._look(), server_cpu(self._site.server.pid))
            except (psycopg.Error, psutil.Error, KeyError):
                self._conn = None
            tick = max(tick, int((time.monotonic() - self._origin) / self._every)) + 1
        if self._conn:
            self._conn.close()

    def stop(self) -> None:
        """Ends the thread."""
        self._over.set()
        self.join()

    def _look(self) -> tuple[int, int, int]:
        if self._conn is None or self._conn.closed:
            self._conn = self._site.connect()
            self._conn.autocommit = True
        row = self._conn.execute(LOOK.encode()).fetchone()
        assert row is not None
        return row[0], row[1], row[2]


def server_cpu(postmaster: int) -> float:
    """Seconds of CPU of a server since its start: those of the postmaster, of its children, and of those that ended."""
    process = psutil.Process(postmaster)
    own = process.cpu_times()
    total = own.user + own.system + own.children_user + own.children_system
    for child in process.children():
        try:
            spent = child.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += spent.user + spent.system
    return float(total)
