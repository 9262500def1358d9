"""Programs that run a queue under load while one fault occurs repeatedly, and return the end of every task.

Each runs for TASKQ_FAULT_SECONDS (20 unless set), then lets the workers finish. The record is the table `effect`: a
handler's row is committed with the decision on its task, and a second row for one task breaks the primary key.
"""

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict

from airflow_provider_taskq.consumer import Consumer, ConsumerGroup, EventFailure
from airflow_provider_taskq.queue import NewTask, State, Task, TaskQueue, TopicPolicy, connect, install
from airflow_provider_taskq.worker import Batch, Worker
from tests.consumer.consumers import quick
from tests.faults.conftest import Named
from tests.faults.poison import POISON, poison
from tests.faults.servers import ServerPair, programs_of_tests
from tests.faults.tcp_proxy import TcpProxy
from tests.queue.conftest import until

SECONDS = float(os.environ.get("TASKQ_FAULT_SECONDS", "20"))
PATIENCE = 600.0  # seconds that the workers get to finish after the last fault
PUSH = 10  # tasks in a push
PAUSE = 0.1  # seconds between two pushes
LEASE = timedelta(seconds=9)
SOON = timedelta(milliseconds=50)
STATEMENT = timedelta(seconds=5)  # that the statement of a handler may take
# A task whose worker is cut off again and again is not to be FAILED for that.
POLICY = TopicPolicy(max_crashes=1_000)

Connect = Callable[[], psycopg.Connection[Any]]


@dataclass(slots=True)
class TaskRecord:
    """The tasks that were pushed, the effects that were committed, and the states in which the tasks ended."""

    pushed: set[int] = field(default_factory=set)
    poisoned: set[int] = field(default_factory=set)
    effects: set[int] = field(default_factory=set)
    read: list[int] = field(default_factory=list)  # by the consumer group, in order
    skipped: set[int] = field(default_factory=set)  # by the consumer group
    states: dict[State, set[int]] = field(default_factory=dict)
    faults: int = 0

    def judge(self, queue: TaskQueue) -> None:
        """Looks up the effects and the state of every task."""
        for (sequence,) in queue.conn.execute("SELECT sequence FROM effect").fetchall():
            self.effects.add(sequence)
        for info in queue.page("work", size=1_000_000):
            self.states.setdefault(info.state, set()).add(info.sequence)


def prepare(dsn: str) -> None:
    """Creates the topic and the table of effects."""
    with connect(dsn, autocommit=True) as conn:
        install(conn)
        conn.execute("CREATE TABLE effect (sequence bigint PRIMARY KEY)")
        TaskQueue(conn).create_topic("work", POLICY)


def handle(task: Task, batch: Batch) -> None:
    """Commits an effect with the decision on a task."""

    def note(queue: TaskQueue, _: object) -> None:
        queue.conn.execute("INSERT INTO effect VALUES (%s)", (task.sequence,))

    batch.in_commit(note, task)


class Producer:
    """Pushes tasks through its own connection until it is stopped."""

    def __init__(self, connect: Connect, record: TaskRecord, *, poisons: bool = False) -> None:
        self._connect = connect
        self._record = record
        self._poisons = poisons
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="producer", daemon=True)
        self.error: BaseException | None = None

    def __enter__(self) -> "Producer":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()
        if self.error is not None:
            raise self.error

    def _run(self) -> None:
        try:
            with self._connect() as conn:
                conn.autocommit = True
                queue = TaskQueue(conn)
                while not self._stopping.wait(PAUSE):
                    self._push(queue)
        except BaseException as error:  # noqa: BLE001 -- raised again where the program waits for the thread
            self.error = error

    def _push(self, queue: TaskQueue) -> None:
        """Pushes some tasks. Every third push has a payload that no client can decode."""
        number = len(self._record.pushed)
        with queue.conn.transaction():
            tasks = queue.push("work", [NewTask(f"id-{(number + n) % 97}", {"n": number + n}) for n in range(PUSH)])
            bad = tasks[number // PUSH % PUSH] if self._poisons and number // PUSH % 3 == 0 else None
            if bad is not None:
                poison(queue.conn, bad, [*POISON.values()][number // PUSH // 3 % len(POISON)])
        self._record.pushed.update(task.sequence for task in tasks)
        if bad is not None:
            self._record.poisoned.add(bad.sequence)


@contextmanager
def working(*connects: Connect, **options: Any) -> Iterator[list[Worker]]:
    """Runs workers of the topic, one for each way to connect."""
    common = {"pause": SOON, "lease": LEASE, "size": 5, "handler_statement_timeout": STATEMENT, **options}
    workers = [Worker(each, "work", handle, **common) for each in connects]
    with ExitStack() as stack:
        for worker in workers:
            stack.callback(worker.stop, timedelta(seconds=10))
            worker.start()
        yield workers


def finish(queue: TaskQueue, record: TaskRecord) -> None:
    """Waits until no task is READY or ACTIVE, and fills the record."""
    waiting = "SELECT NOT EXISTS (SELECT FROM taskq.tasks WHERE state IN ('READY', 'ACTIVE'))"
    until(lambda: queue.conn.execute(waiting.encode()).fetchone() == (True,), PATIENCE)
    record.judge(queue)


def await_progress(conn: psycopg.Connection[Any]) -> None:
    """Waits until workers have committed another effect."""

    def effects() -> int:
        [(count,)] = conn.execute("SELECT count(*) FROM effect").fetchall()
        return int(count)

    before = effects()
    until(lambda: effects() > before, PATIENCE)


def rounds(seconds: float) -> Iterator[int]:
    """Counts until the time is up, and at least to four."""
    deadline, number = time.monotonic() + seconds, 0
    while number < 4 or time.monotonic() < deadline:
        yield number
        number += 1


def poison_payloads(dsn: str) -> TaskRecord:
    """Every third push has a payload that no client can decode. Workers and a consumer group read the topic."""
    prepare(dsn)
    record = TaskRecord()
    group = ConsumerGroup("readers")
    group.on()(lambda event: record.read.append(event.sequence))

    def skipped(failure: EventFailure) -> None:
        record.skipped.add(failure.event.sequence)

    def connected() -> psycopg.Connection[Any]:
        return connect(dsn, autocommit=True)

    with (
        connected() as conn,
        working(connected, workers=2),
        working(connected, prefetch=20),
        Consumer(dsn, group, "work", quick(lease=LEASE), on_failure=skipped),
    ):
        with Producer(connected, record, poisons=True):
            threading.Event().wait(SECONDS)  # the load goes on
        record.faults = len(record.poisoned)
        queue = TaskQueue(conn)
        finish(queue, record)
        until(lambda: len(record.read) + len(record.skipped) >= len(record.pushed), PATIENCE)
    return record


def silent_connections(dsn: str) -> TaskRecord:
    """Connections fall silent forever, in turn: those of heartbeats, of work, of expiries, and all of them."""
    prepare(dsn)
    record = TaskRecord()
    address = conninfo_to_dict(dsn)
    with ExitStack() as stack:
        proxy = stack.enter_context(TcpProxy(str(address["host"]), int(str(address["port"]))))
        conn = stack.enter_context(connect(dsn, autocommit=True))
        through = Named(proxy.dsn(dsn))
        stack.enter_context(working(through, through, workers=2))
        with Producer(lambda: connect(dsn), record):
            for number in rounds(SECONDS):
                for link in proxy.links(("heartbeat", "work", "expiry", None)[number % 4]):
                    link.freeze()
                await_progress(conn)
                record.faults += 1
        finish(TaskQueue(conn), record)
    return record


def read_only_servers() -> TaskRecord:
    """The address of the primary leads to its standby repeatedly. At the end the standby is promoted."""
    record = TaskRecord()
    with ExitStack() as stack:
        pair = stack.enter_context(ServerPair(programs_of_tests()))
        prepare(pair.primary.dsn)
        pair.catch_up()
        ends = [conninfo_to_dict(each.dsn) for each in (pair.primary, pair.standby)]
        primary, standby = [(str(each["host"]), int(str(each["port"]))) for each in ends]
        proxy = stack.enter_context(TcpProxy(*primary))
        conn = stack.enter_context(connect(pair.primary.dsn, autocommit=True))
        through = proxy.dsn(pair.primary.dsn)
        stack.enter_context(working(*[lambda: connect(through, autocommit=True)] * 2, workers=2))
        with Producer(lambda: connect(pair.primary.dsn), record):
            for _ in rounds(SECONDS * 0.75):
                mislead(proxy, primary, standby)
                await_progress(conn)
                record.faults += 1
        pair.fail_over()
        proxy.repoint(*standby)
        with connect(pair.standby.dsn, autocommit=True) as conn:
            await_promotion(conn)
            with Producer(lambda: connect(pair.standby.dsn), record):
                threading.Event().wait(SECONDS * 0.25)  # the load goes on
            finish(TaskQueue(conn), record)
    return record


def mislead(proxy: TcpProxy, primary: tuple[str, int], standby: tuple[str, int]) -> None:
    """Leads every client to the standby and leaves it there. Only new connections reach the primary again."""
    proxy.repoint(*standby)
    last = max((link.number for link in proxy.links()), default=0)
    proxy.cut()
    proxy.wait_for(after=last, seconds=PATIENCE)
    threading.Event().wait(1)  # for the other connections, whose number is unknown
    proxy.repoint(*primary)


def await_promotion(conn: psycopg.Connection[Any]) -> None:
    """Waits until a standby accepts writes."""
    until(lambda: conn.execute("SELECT pg_is_in_recovery()").fetchone() == (False,), PATIENCE)
