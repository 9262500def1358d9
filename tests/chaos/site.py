"""A queue under load: a server, and producers, workers and readers in processes of their own."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import timedelta
from functools import partial
from itertools import chain
from pathlib import Path

import psycopg

from airflow_provider_taskq.queue import RetryPolicy, TaskQueue, TopicPolicy, connect, install
from demo.guardian import kill_family
from demo.postgres import EmbeddedPostgres
from tests.chaos.history import Event, Recorder, read_file
from tests.chaos.programs import ATTEMPT, EFFECTS, GROUP, SCHEMA, TOPIC, Options
from tests.faults.servers import ServerPair
from tests.faults.tcp_proxy import TcpProxy
from tests.internals import undecided_tasks
from tests.queue.conftest import until

ROOT = Path(__file__).parents[2]
START_SECONDS = 300.0  # for the first decisions
END_SECONDS = 300.0  # for a process that has got SIGTERM
FINISH = 900.0  # seconds for the work that is left at the end
SETTLE = 300.0  # seconds for the backlog of a fault
SETTINGS = {"max_connections": "120", "shared_buffers": "64MB"}
# A task whose worker is killed again and again is not to be FAILED for that.
POLICY = TopicPolicy(max_crashes=1_000_000)
RETRIED = replace(POLICY, retry=RetryPolicy(max_attempts=1_000, base=timedelta(0)))
Roles = Mapping[str, str]  # of each process, by its name
LOOPS: Roles = {"loop-1": "loop", "loop-2": "loop"}
WORKERS: Roles = {"producer": "produce", **LOOPS, "worker": "work", "reader-1": "read", "reader-2": "read"}
SPARK: Roles = {"producer": "produce", "driver": "drain", "reader-1": "read"}
UNFINISHED = "SELECT EXISTS (SELECT FROM taskq.tasks WHERE topic = %s AND state IN ('READY', 'ACTIVE'))"
UNREAD = (
    """SELECT EXISTS (SELECT payload ->> 'key' FROM taskq.task_info WHERE topic = %s EXCEPT SELECT key FROM reading)"""
)
READY = "SELECT count(*) FROM taskq.tasks WHERE topic = %s AND state = 'READY'"
ENDED = "SELECT count(*) FROM taskq.tasks WHERE topic = %s AND state = 'SUCCEEDED'"
ALL = "SELECT count(*) FROM taskq.tasks WHERE topic = %s"
LAST = """SELECT sequences <> '{{}}' FROM taskq.find_tasks(
    '{}', NULL, NULL, NULL, NULL, to_timestamp(%(since)s), NULL, NULL, NULL, NULL, NULL, true, 1)"""
READ = "SELECT EXISTS (SELECT FROM reading WHERE at > to_timestamp(%(since)s))"  # the group
# Whether a program of a role has done its work since a moment. The name of a worker's owner begins with that of its
# process.
PROGRESS = {
    "produce": LAST.format(TOPIC),
    "loop": "SELECT EXISTS (SELECT FROM effect WHERE owner LIKE %(name)s AND at > to_timestamp(%(since)s))",
    "work": "SELECT EXISTS (SELECT FROM effect WHERE owner LIKE %(name)s AND at > to_timestamp(%(since)s))",
    "drain": LAST.format(EFFECTS),
    "read": READ,
    "read in three": READ,
}
TASKS = """SELECT sequence, payload ->> 'key', identifier, taskq.state_name(state),
        extract(epoch FROM completed)::float, error_summary
    FROM taskq.task_info WHERE topic = %s ORDER BY sequence"""
FOLLOWED = """SELECT identifier, (payload ->> 'attempt')::int, payload ->> 'owner', (payload ->> 'fence')::bigint
    FROM taskq.task_info WHERE topic = %s"""


@dataclass(slots=True)
class Site:
    """The processes of a run, and the address that they connect to, which may differ from that of the server."""

    server: EmbeddedPostgres
    folder: Path
    options: Options
    address: str
    roles: Roles = field(default_factory=lambda: WORKERS)
    environment: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # of each process, "" for the others
    proxy: TcpProxy | None = None
    pair: ServerPair | None = None
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    struck: float = 0.0  # when a fault has struck last

    @property
    def proxied(self) -> TcpProxy:
        """The proxy between the processes and the server. Raises RuntimeError without one."""
        if self.proxy is None:
            raise RuntimeError("the processes of this scenario connect to the server itself")
        return self.proxy

    @property
    def servers(self) -> ServerPair:
        """The primary and its standby. Raises RuntimeError without them."""
        if self.pair is None:
            raise RuntimeError("the scenario has no standby")
        return self.pair

    @property
    def backlog(self) -> float:
        """The READY tasks from which on there is a backlog. A drain of Spark takes some seconds."""
        return self.options.rate * (8.0 if "drain" in self.roles.values() else 1.0)

    @property
    def soon(self) -> float:
        """Seconds in which a task ends without a backlog. Spark's tasks wait for the round at work, and their own."""
        return 16.0 if "drain" in self.roles.values() else 1.0

    @property
    def workers(self) -> list[str]:
        """The names of the processes that decide and record it."""
        return [name for name, role in self.roles.items() if role in ("loop", "work")]

    @property
    def dsn(self) -> str:
        """The DSN of the server itself."""
        return self.server.dsn

    @property
    def history(self) -> Path:
        """The folder of the history."""
        return self.folder / "history"

    def start(self, name: str, **options: float) -> None:
        """Starts a process, or starts it again. `options` replace those of the site."""
        role = self.roles.get(name, "produce")
        given = json.dumps(asdict(self.options) | options)
        if role == "drain":
            command = ["tests.chaos.spark_program", name, self.address, str(self.history), given]
        else:
            command = ["tests.chaos.programs", role, name, self.address, str(self.history), given]
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [sys.executable, "-m", *command],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT), **self.environment.get(name, self.environment.get("", {}))},
                stdin=subprocess.PIPE,  # it ends with this process
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def kill(self, name: str) -> None:
        """Ends a process by SIGKILL, with all that it has started."""
        with self.processes[name] as process:  # closes its standard input
            if process.poll() is None:
                kill_family(process.pid)

    def stop(self, *names: str) -> None:
        """Ends processes by SIGTERM. Raises RuntimeError if one does not end, or ends with an error."""
        for name in names:
            self.processes[name].terminate()
        for name in names:
            process = self.processes[name]
            if process.wait(END_SECONDS) != 0:
                raise RuntimeError((self.folder / f"{name}.log").read_text())
            with self.processes.pop(name):
                pass  # closes its standard input

    def close(self) -> None:
        """Kills what is left."""
        for name in self.processes:
            self.kill(name)

    def count(self, query: str) -> int:
        """The number of tasks that a query counts."""
        with psycopg.connect(self.dsn, autocommit=True) as conn:
            row = conn.execute(query.encode(), (TOPIC,)).fetchone()
            return 0 if row is None else int(row[0])

    def ready(self) -> int:
        """The number of READY tasks."""
        return self.count(READY)

    def pushed(self) -> int:
        """The number of tasks that are there."""
        return self.count(ALL)

    def holds_tasks(self, name: str, since: float) -> bool:
        """Whether a process has tasks of the topic, of which it has recorded the claims since a moment.

        No open transaction decides on them. A worker has an owner for each of its threads, and claims tasks ahead: it
        records these claims when it handles the tasks, so a successor would seem to be the first to claim them.
        """
        with psycopg.connect(self.dsn, autocommit=True) as conn:
            undecided = undecided_tasks(conn, TOPIC, f"{name}%")
            keys = conn.execute("SELECT payload ->> 'key' FROM taskq.task_info WHERE sequence = ANY (%s)", (undecided,))
            return any(key in self.claimed(name, since) for (key,) in keys.fetchall())

    def decisions_per_second(self, seconds: float) -> float:
        """The rate of decisions in the next seconds."""
        before, began = self.count(ENDED), time.monotonic()
        time.sleep(seconds)  # the length of the measurement
        return (self.count(ENDED) - before) / (time.monotonic() - began)

    def clock_of(self, name: str) -> float:
        """The difference between the clock of a process at its start and that of this process, in seconds."""
        return float((self.history / f"{name}.clock").read_text()) - clock()

    def goes_on(self, name: str, since: float) -> bool:
        """Whether a process has pushed or decided, or its group has read, since a moment of this machine's clock."""
        given = {"name": f"{name}%", "since": since + clock()}
        with psycopg.connect(self.dsn, autocommit=True) as conn:
            return conn.execute(PROGRESS[self.roles[name]].encode(), given).fetchone() == (True,)

    def claimed(self, name: str, since: float) -> set[str]:
        """The tasks of which a process has recorded claims since a moment."""
        return {each["task"] for each in self.recorded(name) if each["kind"] == "claim" and each["ended"] > since}

    def recorded(self, name: str) -> Iterator[Event]:
        """The history of a process until now."""
        return chain.from_iterable(map(read_file, self.history.glob(f"{name}-*.jsonl")))

    def settle(self, since: float, patience: float = SETTLE) -> list[str]:
        """Waits until all programs go on after a moment, and the workers have handled the backlog of a fault.

        Returns what did not come to an end.
        """
        standing: list[str] = []

        def all_go_on() -> bool:
            standing[:] = [name for name in self.roles if not self.goes_on(name, since)]
            return not standing

        try:
            until(all_go_on, SETTLE, patience / 3_000)
        except AssertionError:
            return [f"{name} has done nothing since" for name in standing]
        try:
            until(lambda: self.ready() < self.backlog, patience, patience / 3_000)
        except AssertionError:
            left, rate = self.ready(), self.decisions_per_second(20.0)
            return [
                f"there was a backlog for {patience:.0f} s; {left} tasks are left, at {rate:.0f} decisions a second"
            ]
        return []

    def finish(self) -> list[str]:
        """Lets the workers handle what was pushed. Then ends them, and records the end.

        Returns what did not come to an end.
        """
        idle: list[str] = []
        self.stop("producer")
        with connect(self.dsn, autocommit=True) as conn:
            for query, what in ((UNFINISHED, "some tasks are not finished"), (UNREAD, "some events are not read")):
                try:
                    until(partial(_is_done, conn, query), FINISH)
                except AssertionError:
                    idle.append(what)
            self.stop(*self.processes)
            with Recorder(self.history, "end") as recorder:
                record_end(conn, recorder)
        return idle


def _is_done(conn: psycopg.Connection, query: str) -> bool:
    return conn.execute(query.encode(), (TOPIC,)).fetchone() == (False,)


def record_end(conn: psycopg.Connection, recorder: Recorder) -> None:
    """Records the tasks, the effects, the log and what the group has read."""
    rows = conn.execute(TASKS.encode(), (TOPIC,)).fetchall()
    names = ("task", "identifier", "state", "completed", "error")
    tasks = ((key, name, state, at and at - clock(), error) for _, key, name, state, at, error in rows)
    recorder.final("task", (dict(zip(names, row, strict=True)) for row in tasks))
    recorder.final("logged", ({"position": place, "task": key, "identifier": name} for place, key, name, *_ in rows))
    effects = conn.execute("SELECT key, attempt, owner, fence FROM effect").fetchall()
    effects += conn.execute(FOLLOWED.encode(), (EFFECTS,)).fetchall()
    recorder.final("effect", (dict(zip(ATTEMPT, row, strict=True)) for row in effects))
    readings = "SELECT position, key, extract(epoch FROM at)::float - %s FROM reading ORDER BY line"
    for position, key, at in conn.execute(readings, (clock(),)).fetchall():
        recorder.write("read", at, at, [{"group": GROUP, "position": position, "task": key}])


def clock() -> float:
    """The clock of the machine, compared with that of the history."""
    return time.time() - time.monotonic()


@contextmanager
def at_work(site: Site) -> Iterator[Site]:
    """All processes at work, on a server that has the topic."""
    site.history.mkdir(parents=True)
    try:
        for name in site.roles:
            site.start(name)
        wait_for_work(site)
        yield site
    finally:
        site.close()


def prepare(dsn: str, options: Options) -> None:
    """Creates the topic, and the tables of the programs."""
    with connect(dsn, autocommit=True) as conn:
        install(conn)
        conn.execute(SCHEMA.encode())
        TaskQueue(conn).create_topic(TOPIC, RETRIED if options.fails else POLICY)
        TaskQueue(conn).create_topic(EFFECTS)


def wait_for_work(site: Site) -> None:
    """Waits until each process works, and there is no backlog."""
    if unsettled := site.settle(-clock(), START_SECONDS):
        raise RuntimeError(f"before the fault: {unsettled}")
