"""The scenarios: a fault, and the server, network and load in which it happens."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TypedDict

from psycopg.conninfo import make_conninfo

from demo.postgres import EmbeddedPostgres
from tests.chaos import faults
from tests.chaos.faults import Fault
from tests.chaos.programs import Options
from tests.chaos.site import SETTINGS, SETTLE, SPARK, WORKERS, Roles, Site, at_work, prepare
from tests.faults import pooler
from tests.faults.pooler import Pooler
from tests.faults.servers import ServerPair
from tests.faults.small_disk import can_mount, small_disk
from tests.faults.tcp_proxy import TcpProxy
from tests.faults.wrong_clock import wrong_clock
from tests.spark.session import SHORT_LIVED


class Way(StrEnum):
    """How the processes reach the server."""

    DIRECT = "direct"
    PROXY = "proxy"
    HOSTS = "hosts"  # a primary and its synchronous standby, both in the DSN
    MOVED = "moved"  # a primary and its synchronous standby behind one address, which moves
    POOLER = "pooler"


class Where(TypedDict):
    """What the scenarios of Spark have in common."""

    roles: Roles
    options: Options
    environment: Mapping[str, Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class Scenario:
    """A fault, and where it happens."""

    title: str
    fault: Fault
    way: Way = Way.DIRECT
    roles: Roles = field(default_factory=lambda: WORKERS)
    options: Options = field(default_factory=Options)
    pool: int = 10  # connections of a pooler
    disk: str | None = None  # the size of the disk of the server
    seconds: float | None = None  # of the fault, if they are not those of the run
    settle: float = SETTLE  # seconds for the backlog of the fault
    settings: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # of each process, "" for the others

    def missing(self) -> str | None:
        """What this machine lacks for the scenario, or None."""
        if self.way is Way.POOLER and not pooler.PROGRAM.exists():
            return "no PgBouncer (Debian's package pgbouncer)"
        if self.disk is not None and not can_mount():
            return "no right to mount a small file system (root has it)"
        libraries = {given["LD_PRELOAD"] for given in self.environment.values() if "LD_PRELOAD" in given}
        if not all(Path(library).exists() for library in libraries):
            return "no libfaketime (Debian's package libfaketime)"
        return None

    @contextmanager
    def site(self, folder: Path) -> Iterator[Site]:
        """The servers and the processes at work."""
        with ExitStack() as stack:
            site = self._server(stack, folder)
            prepare(site.dsn, self.options)
            yield stack.enter_context(at_work(site))

    def _server(self, stack: ExitStack, folder: Path) -> Site:
        pair = stack.enter_context(ServerPair(None, synchronous=True)) if self.way in (Way.HOSTS, Way.MOVED) else None
        if pair is not None:
            server = pair.primary
        else:
            disk = None if self.disk is None else stack.enter_context(small_disk(self.disk)) / "server"
            server = stack.enter_context(EmbeddedPostgres(disk, settings={**SETTINGS, **self.settings}))
        site = Site(server, folder, self.options, server.dsn, self.roles, self.environment, pair=pair)
        if self.way is Way.POOLER:
            site.address = stack.enter_context(Pooler(site.dsn, self.pool)).dsn
        if self.way in (Way.PROXY, Way.MOVED):
            site.proxy = stack.enter_context(TcpProxy("127.0.0.1", site.server.port))
            site.address = site.proxy.dsn(site.dsn)
        elif site.pair is not None:
            ports = f"{site.pair.primary.port},{site.pair.standby.port}"
            site.address = make_conninfo(
                site.dsn, host="127.0.0.1,127.0.0.1", port=ports, target_session_attrs="read-write"
            )
        return site


ON_SPARK = Where(
    roles=SPARK,
    options=Options(hot=0),  # one Spark task decides on all tasks of an identifier, one after the other
    environment={"": {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable, **SHORT_LIVED}},
)
SCENARIOS = {
    "quiet": Scenario("no fault", faults.wait),
    "processes": Scenario("each process killed by SIGKILL in turn, one a second", faults.kill_processes(1.0)),
    "worker": Scenario("one worker killed by SIGKILL while it has tasks", faults.kill_with_tasks(1.0, "worker")),
    "stopped": Scenario(
        "each worker and reader stopped for 8 s in turn, longer than its lease", faults.stop_processes(8.0)
    ),
    "sessions": Scenario("15 sessions a second ended by pg_terminate_backend", faults.terminate_sessions(15)),
    "failures": Scenario(
        "the same, and one attempt of ten fails",
        faults.terminate_sessions(15),
        options=Options(fails=0.1),
    ),
    "restart": Scenario("server stopped for 2 s, every 10 s", faults.restart_server),
    "crash": Scenario("server and its backends killed by SIGKILL, every 5 s", faults.crash_server),
    "disk": Scenario(
        "disk of the server full",
        faults.fill_disk,
        disk="700m",
        settings={"max_wal_size": "64MB", "min_wal_size": "32MB"},
    ),
    "idle": Scenario("300 idle connections", faults.occupy_connections(300), settings={"max_connections": "400"}),
    "full": Scenario("all connection slots taken, 2 sessions a second ended", faults.take_all_connections),
    "writer": Scenario("a producer idle in its transaction", faults.idle_in_transaction),
    "readers": Scenario("four REPEATABLE READ readers", faults.read_long),
    "clock": Scenario(
        "clocks of two workers five hours ahead and behind",
        faults.check_clocks({"loop-1": 5.0, "worker": -5.0}),
        environment={"loop-1": wrong_clock("+5h"), "worker": wrong_clock("-5h")},
    ),
    "cut": Scenario("all connections cut each second", faults.cut_connections(1.0), Way.PROXY),
    "silent": Scenario("half of the connections fall silent, every 2 s", faults.freeze_connections, Way.PROXY),
    "half-open": Scenario("the same, and the server sees no end of them", faults.leave_half_open, Way.PROXY),
    "slow": Scenario("each packet 50 ms late", faults.delay_connections, Way.PROXY),
    "hosts": Scenario("primary killed by SIGKILL, its standby promoted, both in the DSN", faults.fail_over, Way.HOSTS),
    "moved": Scenario(
        "primary killed by SIGKILL, its standby promoted, behind one address", faults.fail_over, Way.MOVED
    ),
    "switched": Scenario("switch-over to the standby, both in the DSN", faults.switch_over, Way.HOSTS),
    "pooler": Scenario("PgBouncer in between, 15 sessions a second ended", faults.terminate_sessions(15), Way.POOLER),
    "pool": Scenario("PgBouncer in between, 9 of its 10 connections taken", faults.exhaust_pool(9), Way.POOLER),
    "no-pool": Scenario("PgBouncer in between, all 10 connections taken", faults.exhaust_pool(10), Way.POOLER),
    "upgrade": Scenario("upgrade of the schema by the next release, and starts of this one after it", faults.upgrade),
    "statement_timeout": Scenario(
        "statement_timeout of 50 ms on the role",
        faults.limit_role("statement_timeout", "50ms", "canceling statement due to statement timeout"),
    ),
    "lock_timeout": Scenario(
        "lock_timeout of 10 ms on the role",
        faults.limit_role("lock_timeout", "10ms", "canceling statement due to lock timeout"),
    ),
    "idle_timeout": Scenario(
        "idle_in_transaction_session_timeout of 50 ms on the role",
        faults.limit_role("idle_in_transaction_session_timeout", "50ms", "due to idle-in-transaction timeout"),
        options=Options(rate=60.0, dally=0.055),
    ),
    "overload": Scenario(
        "1.5 times the tasks that the workers handle, for 10 minutes",
        faults.overload(1.5),
        options=Options(rate=20.0, work=0.02, hot=0),
        seconds=600.0,
        settle=1_800.0,
    ),
    "spark-driver": Scenario(
        "Spark: driver killed by SIGKILL while it has tasks, every 25 s, for 75 s",
        faults.kill_with_tasks(25.0, "driver"),
        seconds=75.0,
        **ON_SPARK,
    ),
    "spark-sessions": Scenario(
        "Spark: 3 sessions a second ended by pg_terminate_backend", faults.terminate_sessions(3), **ON_SPARK
    ),
    "spark-crash": Scenario(
        "Spark: server and its backends killed by SIGKILL, every 5 s", faults.crash_server, **ON_SPARK
    ),
    "spark-cut": Scenario("Spark: all connections cut, every 2 s", faults.cut_connections(2.0), Way.PROXY, **ON_SPARK),
    "spark-hosts": Scenario(
        "Spark: primary killed by SIGKILL, its standby promoted, both in the DSN",
        faults.fail_over,
        Way.HOSTS,
        **ON_SPARK,
    ),
}
