"""A queue under load: a server, and producers, workers and readers in processes of their own."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

import psycopg

from airflow_provider_taskq.queue import TaskQueue, TopicPolicy, connect, install
from demo.postgres import EmbeddedPostgres
from tests.chaos.history import Recorder
from tests.chaos.programs import ATTEMPT, EFFECTS, GROUP, SCHEMA, TOPIC, Options
from tests.faults.servers import ServerPair
from tests.faults.tcp_proxy import TcpProxy
from tests.queue.conftest import until

ROOT = Path(__file__).parents[2]
START_SECONDS = 120.0  # for the first decisions
END_SECONDS = 60.0  # for a process that has got SIGTERM
FINISH_SECONDS = 900.0  # for the work that is left at the end
SETTINGS = {"max_connections": "120", "shared_buffers": "64MB"}
# A task whose worker is killed again and again is not to be FAILED for that.
POLICY = TopicPolicy(max_crashes=1_000_000)
Roles = Mapping[str, str]  # of each process, by its name
LOOPS: Roles = {"loop-1": "loop", "loop-2": "loop"}
WORKERS: Roles = {"producer": "produce", **LOOPS, "worker": "work", "reader": "read"}
SPARK: Roles = {"producer": "produce", "driver": "drain", "reader": "read"}
DECIDED = "SELECT EXISTS (SELECT FROM taskq.tasks WHERE topic = %s AND state = 'SUCCEEDED')"
UNFINISHED = "SELECT EXISTS (SELECT FROM taskq.tasks WHERE topic = %s AND state IN ('READY', 'ACTIVE'))"
UNREAD = "SELECT (SELECT count(*) FROM reading) < (SELECT count(*) FROM taskq.tasks WHERE topic = %s)"
TASKS = """SELECT s.sequence, t.payload ->> 'key', s.identifier, s.state,
        extract(epoch FROM s.completed)::float, s.error
    FROM taskq.tasks s JOIN taskq_internal.task t USING (sequence) WHERE s.topic = %s ORDER BY s.sequence"""
FOLLOWED = "SELECT identifier, (payload ->> 'attempt')::int, '', 0 FROM taskq.task_info WHERE topic = %s"


@dataclass(slots=True)
class Site:
    """The processes of a run, and the address that they connect to, which may differ from that of the server."""

    server: EmbeddedPostgres
    folder: Path
    options: Options
    address: str
    roles: Roles = field(default_factory=lambda: WORKERS)
    environment: Mapping[str, str] = field(default_factory=dict)
    proxy: TcpProxy | None = None
    pair: ServerPair | None = None
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def proxied(self) -> TcpProxy:
        """The proxy between the processes and the server. Raises RuntimeError without one."""
        if self.proxy is None:
            raise RuntimeError("the processes of this scenario connect to the server itself")
        return self.proxy

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
            command = ["tests.chaos.spark_program", name, self.address, given]
        else:
            command = ["tests.chaos.programs", role, name, self.address, str(self.history), given]
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [sys.executable, "-m", *command],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT), **self.environment},
                stdin=subprocess.PIPE,  # it ends with this process
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def kill(self, name: str) -> None:
        """Ends a process by SIGKILL, with all that it has started."""
        with self.processes[name] as process:  # closes its standard input
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)

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

    def finish(self) -> None:
        """Lets the workers and readers handle all that was pushed, ends all processes, and records what is left."""
        self.stop("producer")
        with connect(self.dsn, autocommit=True) as conn:
            until(lambda: conn.execute(UNFINISHED.encode(), (TOPIC,)).fetchone() == (False,), FINISH_SECONDS)
            until(lambda: conn.execute(UNREAD.encode(), (TOPIC,)).fetchone() == (False,), FINISH_SECONDS)
            self.stop(*self.processes)
            with Recorder(self.history, "end") as recorder:
                record_end(conn, recorder)


def record_end(conn: psycopg.Connection, recorder: Recorder) -> None:
    """Records the tasks, the effects, the log and what the group has read."""
    rows = conn.execute(TASKS.encode(), (TOPIC,)).fetchall()
    places = {key: sequence for sequence, key, *_ in rows}
    clock = time.time() - time.monotonic()  # the clock of the server, compared with that of the history
    names = ("task", "identifier", "state", "completed", "error")
    tasks = ((key, name, state, at and at - clock, error) for _, key, name, state, at, error in rows)
    recorder.final("task", (dict(zip(names, row, strict=True)) for row in tasks))
    recorder.final("logged", ({"position": place, "task": key, "identifier": name} for place, key, name, *_ in rows))
    effects = conn.execute("SELECT key, attempt, owner, fence FROM effect").fetchall()
    effects += conn.execute(FOLLOWED.encode(), (EFFECTS,)).fetchall()
    recorder.final("effect", (dict(zip(ATTEMPT, row, strict=True)) for row in effects))
    for (key,) in conn.execute("SELECT key FROM reading ORDER BY line").fetchall():
        recorder.final("read", [{"group": GROUP, "position": places[key], "task": key}])


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


def prepare(dsn: str) -> None:
    """Creates the topic, and the tables of the programs."""
    with connect(dsn, autocommit=True) as conn:
        install(conn)
        conn.execute(SCHEMA.encode())
        TaskQueue(conn).create_topic(TOPIC, POLICY)
        TaskQueue(conn).create_topic(EFFECTS)


def wait_for_work(site: Site) -> None:
    """Waits until each worker has decided."""

    def has_decided(name: str) -> bool:
        return any('"decision"' in file.read_text() for file in site.history.glob(f"{name}-*.jsonl"))

    workers = [name for name, role in site.roles.items() if role in ("loop", "work")]
    with connect(site.dsn, autocommit=True) as conn:
        until(lambda: all(map(has_decided, workers)), START_SECONDS)
        until(lambda: conn.execute(DECIDED.encode(), (TOPIC,)).fetchone() == (True,), START_SECONDS)
