"""The shapes of pressure, after hardbyte/postgresql-job-queue-benchmarking: what each does to server or load."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from threading import Event

import psycopg

from demo.postgres import EmbeddedPostgres
from tests.faults.servers import ServerPair
from tests.faults.tcp_proxy import TcpProxy

READERS = 4
SCAN_EVERY = 0.1  # seconds between two scans of a reader
KILL_EVERY = 0.5  # seconds
DOWN = 1 / 6  # of the time of pressure, while the server restarts
OVERLOAD = 1.5  # times what the peer handles with nothing else to do
BURST = 10.0  # seconds of work that are pushed on top
BURST_OVER = 3.0  # the seconds in which they are pushed
NAME = "taskq-bench"  # of the benchmark's own sessions, which are not killed
SLOTS = 100  # connections that the server has

KILL = """SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE datname = %s AND application_name <> %s AND state IN ('active', 'idle in transaction')"""


class Way(StrEnum):
    """How the programs of a peer reach the server."""

    DIRECT = "direct"
    PROXY = "proxy"
    MOVED = "moved"  # a primary and its standby behind one address, which moves


@dataclass(slots=True)
class Site:
    """What a shape acts on: the server of a peer, its database, the table of its waiting jobs, and its consumer."""

    server: EmbeddedPostgres
    dsn: str
    database: str
    table: str
    seconds: float  # of pressure
    notes: dict[str, int]  # what the shape did, for the report
    kill_consumer: Callable[[], None] = lambda: None
    proxy: TcpProxy | None = None
    pair: ServerPair | None = None

    @property
    def address(self) -> str:
        """The DSN of the programs."""
        return self.dsn if self.proxy is None else self.proxy.dsn(self.dsn)

    def connect(self) -> psycopg.Connection:
        """A session of the benchmark in the database of the peer."""
        return psycopg.connect(self.dsn, application_name=NAME)


@dataclass(frozen=True, slots=True)
class Shape:
    """A kind of pressure: what it does, and how many jobs a second are offered while it lasts."""

    name: str
    title: str
    act: Callable[[Site], AbstractContextManager[None]]
    load: Callable[[float, float], float]  # the rate under pressure, of the usual rate and of what the peer can handle
    lasts: float | None = None  # seconds of the pressure, if they do not depend on the option
    way: Way = Way.DIRECT
    disk: str | None = None  # the size of the disk of the server
    clock: str | None = None  # how wrong the clock of the consumer is, from its start on


@contextmanager
def in_background(work: Callable[[Event], None], threads: int = 1) -> Iterator[None]:
    """Run `work` in threads until the block ends, which sets the event. Then raise the error of a thread."""
    over = Event()
    with ThreadPoolExecutor(threads) as pool:
        running = [pool.submit(work, over) for _ in range(threads)]
        try:
            yield
        finally:
            over.set()
    for thread in running:
        thread.result()


@contextmanager
def nothing(_site: Site) -> Iterator[None]:
    """Leave the server and the programs alone."""
    yield


@contextmanager
def _idle_in_transaction(site: Site) -> Iterator[None]:
    """A session that has a transaction id, and does nothing."""
    with site.connect() as conn:
        conn.execute("SELECT pg_current_xact_id()")
        yield
        conn.rollback()


@contextmanager
def _readers(site: Site) -> Iterator[None]:
    """Readers that count the waiting jobs again and again, each in one REPEATABLE READ transaction."""

    def read(over: Event) -> None:
        with site.connect() as conn:
            conn.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            while not over.wait(SCAN_EVERY):
                conn.execute(f"SELECT count(*) FROM {site.table}".encode())

    with in_background(read, READERS):
        yield


@contextmanager
def _kills(site: Site) -> Iterator[None]:
    """Ends each session of the peer that is at work at this moment, twice a second."""

    def kill(over: Event) -> None:
        with psycopg.connect(site.server.dsn, autocommit=True, application_name=NAME) as conn:
            while not over.wait(KILL_EVERY):
                ended = conn.execute(KILL, (site.database, NAME)).fetchall()
                site.notes["killed"] = site.notes.get("killed", 0) + len(ended)

    with in_background(kill):
        yield


@contextmanager
def _restart(site: Site) -> Iterator[None]:
    """A server that stops at once, stays down for a while, and comes back."""
    site.server.stop()
    time.sleep(site.seconds * DOWN)  # the time without a server is what the shape measures
    site.server.start()
    yield


@contextmanager
def _full_server(site: Site) -> Iterator[None]:
    """Idle sessions in every connection slot of the server that is left."""
    with ExitStack() as stack:
        for _ in range(SLOTS):
            try:
                stack.enter_context(site.connect())
            except psycopg.OperationalError:
                break
            site.notes["held"] = site.notes.get("held", 0) + 1
        yield


def usual(rate: float, _capacity: float) -> float:
    """The rate without pressure."""
    return rate


def _overload(_rate: float, capacity: float) -> float:
    return OVERLOAD * capacity


def _burst(rate: float, _capacity: float) -> float:
    return rate * (1 + BURST / BURST_OVER)


SHAPES = {
    shape.name: shape
    for shape in (
        Shape("idle-in-transaction", "One session idle in a transaction", _idle_in_transaction, usual),
        Shape("active-readers", "Four readers with old snapshots", _readers, usual),
        Shape("overload", "Overload, 1.5 times what the queue can handle", nothing, _overload),
        Shape("burst", "A burst of ten seconds of work", nothing, _burst, BURST_OVER),
        Shape("backend-kills", "Sessions at work are killed twice a second", _kills, usual),
        Shape("restart", "The server restarts", _restart, usual),
        Shape("full-server", "No connection slot is left", _full_server, usual),
    )
}
