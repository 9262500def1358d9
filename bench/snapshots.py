"""Snapshots: the cost of a claim during long transactions, minute by minute, compared with a server without them.

Two servers do the same work in the same minutes. On one of them, four REPEATABLE READ readers and a writer that is idle
in its transaction are open from the start. Vacuum removes nothing there, so dead rows and index entries only grow. On
each server a producer pushes and a consumer drains by `exchange`. The shapes `ready` and `watch`, and those
whose names begin so, add a third process, and its calls are measured instead. Only the CPU of the measured session
counts.

One server does not suffice. A snapshot holds back vacuum in its own database only. But the transaction of the writer
has an ID, and each later snapshot in any database of the server keeps the rows that this transaction could see. So a
busy database is held back by a writer in another one, too.
"""

import time
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from itertools import count, product
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier, Event
from pathlib import Path
from statistics import median
from typing import Any

import psycopg

from airflow_provider_taskq.queue import (
    Condition,
    Decision,
    NewTask,
    Order,
    Owner,
    Result,
    RetryPolicy,
    Task,
    TaskQueue,
    TopicPolicy,
    connect,
)
from bench.rig import Rig, server_cpu
from demo.postgres import EmbeddedPostgres

TOPIC, GATES = "bench", "gates"
READERS = 4
BACKLOG = 20_000
CHUNK = 1_000  # tasks of a push, at most
PUSHES_PER_SECOND = 20  # at a fixed rate
WARM_UP = 20  # calls before the first minute
PAUSE = 0.005  # seconds after an empty poll or a full backlog
LONGEST_PAUSE = 0.5
START_SECONDS = 120.0
STOP_SECONDS = 30.0
RELEASE_EVERY = 10  # calls of the watcher
GATE_SIZE = 100  # tasks of a released group, at most

SINGULAR = Condition.SINGULAR_BY_IDENTIFIER
STATE = """SELECT (SELECT sum(n_dead_tup) FROM pg_stat_all_tables WHERE schemaname = 'taskq_internal')::bigint,
    coalesce((SELECT max(greatest(age(backend_xmin), age(backend_xid))) FROM pg_stat_activity
              WHERE pid <> pg_backend_pid()), 0)"""
WATCH = (
    "SELECT kind, position, number, waited"
    " FROM taskq.watch_tasks(%b::text[], %b::int[], %b::text[], %b::boolean[], %b::text[], %b::text[])"
    " UNION ALL SELECT 'juncture', position, number, NULL"
    " FROM taskq.watch_groups(%b::text[], %b::text[], %b::text[], %b::int[], %b::int[], %b::text[])"
)


@dataclass(frozen=True, slots=True)
class Shape:
    """The tasks of the producer, how the consumer drains them, and the call that is measured."""

    identifiers: int | None = None  # with None each task has its own
    priorities: int = 1
    delay: timedelta | None = None
    fails_once: int | None = None  # one task in this many
    order: Order = Order.FIRST_IN_FIRST_OUT
    condition: Condition = Condition.NONE
    call: str = "exchange"
    same_gates: bool = False  # whether all junctures have the same identifiers
    backlog: int = BACKLOG

    def tasks(self, start: int, number: int) -> list[NewTask]:
        """The next tasks of the producer."""
        return [
            NewTask(
                f"id/{place % self.identifiers if self.identifiers else place}",
                {"n": place},
                delay=self.delay,
                priority=place % self.priorities,
            )
            for place in range(start, start + number)
        ]

    def policy(self) -> TopicPolicy:
        """The policy of the topic."""
        return TopicPolicy(retry=RetryPolicy(max_attempts=3 if self.fails_once else 1, base=timedelta(seconds=1)))

    def largest_batch(self, size: int) -> int:
        """The number of tasks that a poll of a full queue returns."""
        is_singular = self.condition is not Condition.NONE
        return min(size, self.identifiers) if is_singular and self.identifiers else size

    def fails(self, task: Task) -> bool:
        """Whether this attempt fails."""
        return self.fails_once is not None and task.attempt == 1 and task.sequence % self.fails_once == 0


SHAPES = {
    "none": Shape(),
    "lifo": Shape(order=Order.LAST_IN_FIRST_OUT),
    "priorities": Shape(priorities=5),
    "singular-10": Shape(identifiers=10, condition=SINGULAR),
    "singular-1000": Shape(identifiers=1_000, condition=SINGULAR),
    "singular-distinct": Shape(condition=SINGULAR),
    "retries": Shape(fails_once=10),
    "delayed": Shape(delay=timedelta(seconds=5), backlog=10 * BACKLOG),  # most of these tasks are not due yet
    "ready": Shape(call="ready"),
    "ready-singular": Shape(identifiers=1_000, condition=SINGULAR, call="ready"),
    "watch": Shape(call="watch"),
    "watch-same-gates": Shape(call="watch", same_gates=True),
}
SIDES = ("pinned", "free")


@dataclass(frozen=True, slots=True)
class Minute:
    """Calls or tasks a second, and microseconds of CPU of one."""

    rate: float
    cpu: float


@dataclass(frozen=True, slots=True)
class Side:
    """One minute of one server: its figures, dead rows, and the age of the oldest snapshot in transactions."""

    minute: Minute
    dead: int
    age: int


@dataclass(frozen=True, slots=True)
class Measured:
    """The minutes of a shape: the pinned server, and the free one."""

    shape: str
    size: int
    minutes: list[tuple[Side, Side]]

    def cells(self, value: Callable[[Side], float]) -> str:
        """The medians of a figure, and its ratio in the first and last minute, as median and as range."""
        pairs = [(value(pinned), value(free)) for pinned, free in self.minutes]
        ratios = [_ratio(*pair) for pair in pairs]
        medians = [median(figures) for figures in zip(*pairs, strict=True)]
        return (
            f"{_number(medians[0])} | {_number(medians[1])} | {ratios[0]:.2f} | {ratios[-1]:.2f} |"
            f" {median(ratios):.2f} [{min(ratios):.2f} to {max(ratios):.2f}]"
        )


@dataclass(frozen=True, slots=True)
class Work:
    """What the processes of one server share."""

    dsn: str
    shape: Shape
    size: int
    rate: float | None
    minutes: int
    seconds: float
    pushed: Any  # raw values in shared memory, each written by one process
    done: Any
    barrier: Barrier
    stop: Event

    @contextmanager
    def queue(self) -> Iterator[TaskQueue]:
        """A connection that does not wait for the disk."""
        with connect(self.dsn, autocommit=True) as conn:
            conn.execute("SET synchronous_commit = off")
            yield TaskQueue(conn)

    @property
    def pause(self) -> float:
        """Seconds after a poll that did not return a full batch."""
        return min(LONGEST_PAUSE, self.size / self.rate) if self.rate else PAUSE


def parse(arguments: Sequence[str]) -> Namespace:
    """Reads the options of this section, which has a parser of its own because other sections use the same names."""
    parser = ArgumentParser(
        prog="python -m bench snapshots", description=__doc__, formatter_class=RawDescriptionHelpFormatter
    )
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 100, 1_000], help="tasks of a poll")
    parser.add_argument("--minutes", type=int, default=5, help="of each shape and size")
    parser.add_argument("--rate", type=float, help="of tasks a second; without it, as fast as it goes")
    parser.add_argument("--seconds", type=float, default=60.0, help="of a minute, for a short run")
    parser.add_argument("--programs", type=Path, help="the folder of another PostgreSQL")
    return parser.parse_args(arguments)


def run(options: Namespace) -> list[Measured]:
    """Measures the shapes one after the other, and prints a table of each and one of all."""
    everything = []
    with EmbeddedPostgres(programs=options.programs) as pinned, EmbeddedPostgres(programs=options.programs) as free:
        pace = f"{options.rate:,.0f} tasks/s" if options.rate else "as fast as it goes"
        print(f"\nBeside {READERS} readers and an idle writer (pinned), compared with a server without them: {pace}")
        for name, size in product(options.shapes, options.sizes):
            print(f"\n{name} by {size:,}\n\n{_MINUTE_HEAD}", flush=True)
            everything.append(_measure([Rig(pinned.dsn), Rig(free.dsn)], name, size, options))
    print(f"\nAll shapes: medians of {options.minutes} minutes of {options.seconds:g} s, and ratios pinned to free\n")
    print(_HEAD)
    for measured in everything:
        last = measured.minutes[-1]
        print(
            f"| {measured.shape} | {measured.size:,} | {measured.cells(lambda side: side.minute.rate)}"
            f" | {measured.cells(lambda side: side.minute.cpu)} | {last[0].dead:,} | {last[1].dead:,} |"
        )
    return everything


def _measure(rigs: Sequence[Rig], name: str, size: int, options: Namespace) -> Measured:
    shape, context = SHAPES[name], get_context("spawn")
    minutes: list[tuple[Side, Side]] = []
    with ExitStack() as stack:
        databases = [stack.enter_context(rig.database()) for rig in rigs]
        observers = [stack.enter_context(connect(dsn, autocommit=True)) for dsn in databases]
        for conn in observers:
            TaskQueue(conn).create_topic(TOPIC, shape.policy())
            TaskQueue(conn).create_topic(GATES)
        stack.enter_context(_long_transactions(databases[0]))
        stop, barrier = context.Event(), context.Barrier(len(databases))
        pipes: list[Connection] = []
        processes: list[Any] = []

        def end() -> None:
            stop.set()
            for process in processes:
                process.join(STOP_SECONDS)
                if process.is_alive():
                    process.kill()
                    process.join()

        stack.callback(end)
        for dsn in databases:
            pushed, done = (context.Value("q", 0, lock=False) for _ in range(2))
            pace = options.rate, options.minutes, options.seconds
            work = Work(dsn, shape, size, *pace, pushed, done, barrier, stop)
            targets: list[Callable[[Work, Connection | None], None]] = [produce, consume]
            if shape.call != "exchange":
                targets.append(call)
            for place, target in enumerate(targets):
                ours, theirs = context.Pipe(duplex=False)
                is_measured = place == len(targets) - 1
                process = context.Process(target=target, args=(work, theirs if is_measured else None), daemon=True)
                process.start()
                processes.append(process)
                theirs.close()
                if is_measured:
                    pipes.append(ours)
        for number in range(options.minutes):
            got = [_receive(pipe, processes) for pipe in pipes]
            pinned, free = (Side(minute, *_state(conn)) for minute, conn in zip(got, observers, strict=True))
            minutes.append((pinned, free))
            print(_minute_row(number + 1, pinned, free), flush=True)
    return Measured(name, size, minutes)


def _receive(pipe: Connection, processes: Sequence[Any]) -> Minute:
    """The next figures of a measured process. An error, if any process has failed."""
    while not pipe.poll(1.0):
        if any(process.exitcode for process in processes):
            raise RuntimeError("a process of the benchmark has failed")
    try:
        minute: Minute = pipe.recv()
    except EOFError:
        raise RuntimeError("a measured process of the benchmark has failed") from None
    return minute


def _state(conn: psycopg.Connection) -> tuple[int, int]:
    row: tuple[int, int] | None = conn.execute(STATE.encode()).fetchone()
    assert row is not None
    return row[0], row[1]


@contextmanager
def _long_transactions(dsn: str) -> Iterator[None]:
    """Opens the readers, and a transaction that has written a row of a table of its own and is idle."""
    with ExitStack() as stack:
        with psycopg.connect(dsn) as conn:
            conn.execute("CREATE TABLE idle (number int)")
        for number in range(READERS + 1):
            conn = stack.enter_context(psycopg.connect(dsn))
            conn.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ if number else None
            conn.execute("SELECT count(*) FROM taskq_internal.live" if number else "INSERT INTO idle VALUES (1)")
        yield


# The processes


def produce(work: Work, _pipe: Connection | None) -> None:
    """Keeps a backlog, or pushes at a rate until there is a backlog."""
    chunk = max(1, min(CHUNK, int(work.rate / PUSHES_PER_SECOND))) if work.rate else CHUNK
    with work.queue() as queue:
        start = time.monotonic()
        while not work.stop.is_set():
            pushed = work.pushed.value
            is_ahead = work.rate and pushed >= work.rate * (time.monotonic() - start)
            if is_ahead or pushed - work.done.value >= work.shape.backlog:
                time.sleep(PAUSE)  # the producer keeps a rate and a backlog, and no event reports either
                continue
            queue.push_stream(TOPIC, work.shape.tasks(pushed, chunk))
            work.pushed.value = pushed + chunk


def consume(work: Work, pipe: Connection | None) -> None:
    """Completes and polls until the end."""
    shape, full = work.shape, work.shape.largest_batch(work.size)
    held: dict[Task | int, Decision | Result | str] = {}
    with work.queue() as queue:
        owner = queue.register("consumer", timedelta(days=1))

        def exchange() -> int:
            nonlocal held
            found = queue.exchange(owner, held, TOPIC, work.size, shape.order, shape.condition)
            ended = sum(result is Result.SUCCESS for result in held.values())
            work.done.value += ended
            held = {task: Result.FAILURE if shape.fails(task) else Result.SUCCESS for task in found}
            if not found or (work.rate and len(found) < full):
                time.sleep(work.pause)  # a consumer of this bench polls by its pause, as without notifications
            return ended

        _work(work, pipe, queue.conn, exchange)


def call(work: Work, pipe: Connection | None) -> None:
    """Calls `ready` or `watch` while others push and drain."""
    with work.queue() as queue, work.queue() as other:
        if work.shape.call == "watch":
            _work(work, pipe, queue.conn, Watcher(work, queue, other).call)
        else:

            def ready() -> int:
                queue.ready(TOPIC, work.size, work.shape.condition)
                return 1

            _work(work, pipe, queue.conn, ready)


class Watcher:
    """Waits of gates: ready tasks of a topic, states of identifiers, and a juncture that each tenth call releases.

    Another session pushes the suspended tasks of the juncture, and ends them after their release.
    """

    def __init__(self, work: Work, queue: TaskQueue, other: TaskQueue) -> None:
        self._work = work
        self._queue = queue
        self._other = other
        self._owner: Owner = other.register("gates", timedelta(days=1))
        self._calls = count()

    def call(self) -> int:
        """Calls `watch` once."""
        number = next(self._calls)
        juncture = number // RELEASE_EVERY
        prefix = "gate" if self._work.shape.same_gates else f"gate {juncture}"
        members = [f"{prefix}/{member}" for member in range(min(self._work.size, GATE_SIZE))]
        is_complete = number % RELEASE_EVERY == RELEASE_EVERY - 1
        if is_complete:
            self._other.push_stream(GATES, [NewTask(member, suspended=True) for member in members])
        newest = self._work.pushed.value
        states = [f"id/{max(0, newest - BACKLOG // 2 - place)}" for place in range(self._work.size)]
        rows = self._queue.conn.execute(
            WATCH,
            (
                *([TOPIC], [self._work.size], ["NONE"], [True], [TOPIC] * len(states), states),
                *([f"juncture {juncture}"], [GATES], ["SINGULAR"]),
                *([1] * len(members), [1] * len(members), members),
            ),
        ).fetchall()
        if is_complete:
            if any(row[0] == "juncture" and row[2] for row in rows):
                raise RuntimeError("the watcher did not release the group")
            while found := self._other.poll(GATES, self._owner, GATE_SIZE):
                self._other.complete(self._owner, dict.fromkeys(found, Result.SUCCESS))
        return 1


def _work(work: Work, pipe: Connection | None, conn: psycopg.Connection, step: Callable[[], int]) -> None:
    """Repeats a step, which returns how many tasks or calls it did; measures each minute if there is a pipe."""
    if pipe is None:
        while not work.stop.is_set():
            step()
        return
    while not work.stop.is_set() and not work.rate and work.pushed.value < work.shape.backlog:
        time.sleep(PAUSE)  # no event reports the length of the backlog
    warm = 0
    while not work.stop.is_set() and warm < WARM_UP:
        warm += step() > 0
    work.barrier.wait(START_SECONDS)
    start = time.monotonic()
    for minute in range(1, work.minutes + 1):
        began, spent, done = time.monotonic(), server_cpu(conn), 0
        while time.monotonic() < start + minute * work.seconds and not work.stop.is_set():
            done += step()
        cpu = (server_cpu(conn) - spent) / max(done, 1) * 1e6
        pipe.send(Minute(done / (time.monotonic() - began), cpu))


# The tables

_MINUTE_HEAD = (
    "| minute | a second, pinned | free | ratio | µs CPU of one, pinned | free | ratio | dead rows, pinned | free"
    " | oldest snapshot in transactions, pinned | free |\n|--:" + "|--:" * 10 + "|"
)
_HEAD = (
    "| shape | by | a second, pinned | free | ratio, first | last | median [range]"
    " | µs CPU of one, pinned | free | ratio, first | last | median [range] | dead rows at the end, pinned | free |\n"
    "|---" + "|--:" * 13 + "|"
)


def _minute_row(number: int, pinned: Side, free: Side) -> str:
    one, other = pinned.minute, free.minute
    return (
        f"| {number} | {_number(one.rate)} | {_number(other.rate)} | {_ratio(one.rate, other.rate):.2f}"
        f" | {_number(one.cpu)} | {_number(other.cpu)} | {_ratio(one.cpu, other.cpu):.2f}"
        f" | {pinned.dead:,} | {free.dead:,} | {pinned.age:,} | {free.age:,} |"
    )


def _ratio(pinned: float, free: float) -> float:
    return pinned / free if free else float("nan")


def _number(value: float) -> str:
    return f"{value:,.1f}" if value < 1_000 else f"{value:,.0f}"
