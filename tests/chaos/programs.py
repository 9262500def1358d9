"""The processes of a chaos run: producers, workers and readers that write their history and survive faults.

    python -m tests.chaos.programs ROLE NAME DSN FOLDER [OPTIONS AS JSON]

A task is known by the key in its payload, which the producer chooses, so a push without an answer can be judged. Each
effect is a row that the handler commits together with its decision. A program that loses its connection connects again
after a pause. It ends on SIGTERM, and with the process that has started it; a fault may end it with SIGKILL. Its log
has the errors that it has met.
"""

import json
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg

from airflow_provider_taskq.consumer import Consumer, ConsumerConfig, ConsumerGroup
from airflow_provider_taskq.queue import (
    Condition,
    Decision,
    NewTask,
    Owner,
    Result,
    Task,
    TaskQueue,
    TaskQueueError,
    connect,
)
from airflow_provider_taskq.queue.connection import CallLimit, limit_calls
from airflow_provider_taskq.worker import Batch, Timeouts, Worker, WorkerListener
from tests.chaos.history import Event, Recorder

TOPIC = "work"
EFFECTS = "effects"  # the topic of the follow-ups of Spark's decisions
GROUP = "readers"
SCHEMA = """CREATE TABLE effect (key text NOT NULL, attempt int NOT NULL, owner text NOT NULL, fence bigint NOT NULL,
        at timestamptz NOT NULL DEFAULT clock_timestamp());
    CREATE INDEX ON effect (at);
    CREATE TABLE reading (line bigint GENERATED ALWAYS AS IDENTITY, position bigint NOT NULL, key text NOT NULL,
        at timestamptz NOT NULL DEFAULT clock_timestamp());
    CREATE INDEX ON reading (at)"""
ATTEMPT = ("task", "attempt", "owner", "fence")
EFFECT = "INSERT INTO effect (key, attempt, owner, fence) VALUES (%s, %s, %s, %s)"
READY = "SELECT count(*) FROM (SELECT FROM taskq.tasks WHERE topic = %s AND state = 'READY' LIMIT %s) AS counted"
UPKEEP = 1.0  # seconds between two looks for lapsed leases
SIZE = 10  # tasks of a push, and of a poll
IDENTIFIERS = 50
PAUSE = 0.2  # seconds before another try, and after an empty poll
FAULTS = (psycopg.Error, TaskQueueError, OSError)


@dataclass(frozen=True, slots=True)
class Options:
    """What a program does, in tasks and seconds."""

    rate: float = 100.0  # tasks a second of a producer
    most: int | None = None  # READY tasks, from which on a producer lets the workers catch up
    hot: int = 10  # more identifiers, which get three of ten tasks: two of these in the same push
    lease: float = 5.0
    work: float = 0.01  # of a task
    dally: float = 0.0  # at most, in the transaction of a decision
    fails: float = 0.0  # the share of attempts that fail and are followed by another
    condition: str = Condition.SINGULAR_BY_IDENTIFIER


@dataclass(frozen=True, slots=True)
class Program:
    """One process: its name, where it connects, what it does, and where it writes."""

    name: str
    dsn: str
    options: Options
    recorder: Recorder
    stopping: threading.Event

    def until_stopped(self, step: Callable[[TaskQueue], None]) -> None:
        """Repeats a step. After an error of the connection or the queue, connects again."""
        while not self.stopping.is_set():
            try:
                with connect(self.dsn) as conn:
                    limit_calls(conn, CallLimit(self.options.lease))  # else a silent connection would block it forever
                    while not self.stopping.is_set():
                        step(TaskQueue(conn))
            except FAULTS as error:
                self.met(error)

    def met(self, error: Exception) -> None:
        """Notes an error, and waits a while."""
        sys.stderr.write(f"{time.monotonic():.3f} {type(error).__name__}: {error}\n")
        self.stopping.wait(PAUSE)

    def result(self) -> Result:
        """The result of an attempt."""
        return Result.FAILURE if random.random() < self.options.fails else Result.SUCCESS  # noqa: S311 -- any of them

    def dally(self) -> None:
        """Stays in a transaction."""
        self.stopping.wait(random.uniform(0.0, self.options.dally))  # noqa: S311 -- how long does not matter


class Producing:
    """Pushes tasks at a steady rate. A push that fails is not repeated, so its tasks may be missing."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._number = 0
        self._due = time.monotonic()
        self._prefix = f"{program.name}-{time.monotonic_ns()}"  # a producer that starts again has other keys

    def run(self) -> None:
        """Pushes until the process is to end."""
        self._program.until_stopped(self._push)

    def _push(self, queue: TaskQueue) -> None:
        options = self._program.options
        self._due = max(self._due + SIZE / options.rate, time.monotonic() - 1.0)
        self._program.stopping.wait(max(0.0, self._due - time.monotonic()))
        if options.most is not None:
            self._let_catch_up(queue, options.most)
        rows: list[Event] = []
        for place in range(SIZE):
            self._number += 1
            rows.append({"task": f"{self._prefix}-{self._number}", "identifier": self._identifier(place)})
        began = time.monotonic()
        self._program.recorder.write("push", began, None, rows)  # it may be committed and never acknowledged
        queue.push(TOPIC, [NewTask(str(row["identifier"]), {"key": row["task"]}) for row in rows])
        queue.conn.commit()
        self._program.recorder.write("push", began, time.monotonic(), rows)

    def _let_catch_up(self, queue: TaskQueue, most: int) -> None:
        """Waits at the bound until a tenth is left: on a machine that is slower than the rate, no backlog would end."""
        if _ready(queue, most) == most:
            while _ready(queue, most) > most / 10 and not self._program.stopping.wait(PAUSE):
                pass

    def _identifier(self, place: int) -> str:
        """The identifier of the next task, at a place of its push."""
        options, push = self._program.options, self._number // SIZE
        if options.hot and place % 10 in (0, 4, 9):
            return f"hot-{(push + (place % 10 == 9)) % options.hot}"
        return f"id-{self._number % IDENTIFIERS}"


def _ready(queue: TaskQueue, most: int) -> int:
    """The number of READY tasks, or `most` if there are more."""
    row = queue.conn.execute(READY.encode(), (TOPIC, most)).fetchone()
    queue.conn.rollback()
    return 0 if row is None else int(row[0])


@dataclass(frozen=True, slots=True)
class Work:
    """Claimed tasks whose decision has no answer yet."""

    owner: Owner
    tasks: list[Task]
    claims: list[Event]
    results: list[Result]


class Looping:
    """Polls, commits effects and decisions in one transaction, and polls again: a loop over the verbs of the queue.

    If a decision got no answer, the loop repeats it: under its registration, which may be void by now, or after the
    next registration, which must refuse it.
    """

    def __init__(self, program: Program) -> None:
        self._program = program
        self._open: Work | None = None
        self._renewed = 0.0  # the begin of the last call that has extended the lease
        self._tended = 0.0  # when the loop has ended lapsed leases

    def run(self) -> None:
        """Works until the process is to end."""
        self._program.until_stopped(self._session)

    def _session(self, queue: TaskQueue) -> None:
        if random.random() < 0.5:  # noqa: S311 -- both orders occur
            self._repeat(queue)
        began = time.monotonic()
        owner = queue.register(self._program.name, timedelta(seconds=self._program.options.lease))
        queue.conn.commit()
        self._renewed = began
        work = self._claim(queue, owner, lambda: queue.held(owner, TOPIC)) if owner.resumed else None
        self._repeat(queue)
        while not self._program.stopping.is_set():
            work = work or self._claim(queue, owner, lambda: self._poll(queue, owner))
            if work.tasks:
                self._program.stopping.wait(self._program.options.work * len(work.tasks))
                self._decide(queue, work)
            else:
                self._program.stopping.wait(PAUSE)
            work, began = None, time.monotonic()
            queue.heartbeat(owner)
            queue.conn.commit()
            self._renewed = began
            if began > self._tended + UPKEEP:  # the worker does it too, unless it is stopped
                queue.expire()
                queue.conn.commit()
                self._tended = began

    def _poll(self, queue: TaskQueue, owner: Owner) -> list[Task]:
        return queue.poll(TOPIC, owner, SIZE, condition=self._program.options.condition)

    def _claim(self, queue: TaskQueue, owner: Owner, call: Callable[[], list[Task]]) -> Work:
        began = time.monotonic()
        tasks = call()
        queue.conn.commit()
        until = self._renewed + self._program.options.lease
        claims = [claim_of(task, owner.name, owner.fence, until) for task in tasks]
        self._program.recorder.write("claim", began, time.monotonic(), claims)
        return Work(owner, tasks, claims, [self._program.result() for _ in tasks])

    def _decide(self, queue: TaskQueue, work: Work) -> None:
        self._open = work
        results: dict[Task | int, Decision | Result | str] = dict(zip(work.tasks, work.results, strict=True))
        effects = [claim for claim, result in zip(work.claims, work.results, strict=True) if result is Result.SUCCESS]
        began, decisions = time.monotonic(), list(map(decision_of, work.claims, work.results))
        self._program.recorder.write("decision", began, None, decisions)  # it may be committed and never acknowledged
        with queue.conn.cursor() as cursor:
            cursor.executemany(EFFECT, [[claim[name] for name in ATTEMPT] for claim in effects])
        self._program.dally()
        queue.complete(work.owner, results)
        queue.conn.commit()
        self._open = None
        self._program.recorder.write("decision", began, time.monotonic(), decisions)

    def _repeat(self, queue: TaskQueue) -> None:
        """Asks again for a decision that got no answer. It may be committed, or the tasks may have another owner."""
        if self._open is not None:
            try:
                self._decide(queue, self._open)
            except TaskQueueError:  # refused
                queue.conn.rollback()
                self._open = None


class Working(WorkerListener):
    """The worker of the queue. Its handler records the claim, and a commit hook writes the effect.

    The handler does not know when its task was claimed, so the claim begins with the process. It does not know the
    answer to the commit either: the effect shows whether it was committed.
    """

    def __init__(self, program: Program) -> None:
        self._program = program
        self._began = time.monotonic()
        self._until: dict[int, float] = {}
        options = program.options
        self._worker = Worker(
            program.dsn,
            TOPIC,
            self._handle,
            size=SIZE,
            condition=Condition(options.condition),
            workers=2,
            prefetch=SIZE,
            pause=PAUSE,
            lease=options.lease,
            timeouts=Timeouts(handler_statement=options.lease),  # of the commit hook
            name=program.name,
            listener=self,
        )

    def on_start(self, tasks: Sequence[Task]) -> None:
        """Note the earliest end of the lease under which the worker has just claimed tasks."""
        # One of the leases of the two threads is that of these tasks, unless it is lost by now.
        now, left = time.monotonic(), self._worker.lease_seconds_left()
        until = now + (min(left) if len(left) == 2 else 0.0)
        self._until.update((task.sequence, until) for task in tasks)

    def run(self) -> None:
        """Works until the process is to end."""
        while not self._program.stopping.is_set():
            try:
                self._worker.start()
                break
            except FAULTS as error:
                self._program.met(error)
        self._program.stopping.wait()
        self._worker.stop(timedelta(seconds=self._program.options.lease))

    def _handle(self, task: Task, batch: Batch) -> None:
        claim = claim_of(task, batch.owner.name, batch.owner.fence, self._until[task.sequence])
        self._program.recorder.write("claim", self._began, time.monotonic(), [claim])
        self._program.stopping.wait(self._program.options.work)
        if self._program.result() is Result.FAILURE:
            self._program.recorder.write("decision", time.monotonic(), None, [decision_of(claim, Result.FAILURE)])
            raise RuntimeError("the attempt fails, and is followed by another")

        def note(queue: TaskQueue, _: Mapping[Task, Decision]) -> None:
            self._program.recorder.write("decision", time.monotonic(), None, [decision_of(claim)])
            queue.conn.execute(EFFECT, [claim[name] for name in ATTEMPT])
            self._program.dally()

        batch.in_commit(note, task)


class Reading:
    """A group of consumers, which writes a row for each event in the transaction that stores its place."""

    def __init__(self, program: Program, partitions: int = 2) -> None:
        self._program = program
        self._partitions = partitions

    def run(self) -> None:
        """Reads until the process is to end."""
        group = ConsumerGroup(GROUP)

        @group.on()
        def note(event: Task, queue: TaskQueue) -> None:
            queue.conn.execute("INSERT INTO reading (position, key) VALUES (%s, %s)", (event.sequence, key_of(event)))

        while not self._program.stopping.is_set():
            try:
                lease = timedelta(seconds=self._program.options.lease)
                timeouts = Timeouts(handler_statement=lease)
                config = ConsumerConfig(lease=lease, transactional=True, partitions=self._partitions, timeouts=timeouts)
                with Consumer(self._program.dsn, group, TOPIC, config):
                    self._program.stopping.wait()
            except FAULTS as error:
                self._program.met(error)


def key_of(task: Task) -> str:
    """The key that the producer has chosen."""
    return str(task.payload["key"]) if isinstance(task.payload, dict) else ""


def claim_of(task: Task, owner: str, fence: int, until: float) -> Event:
    """The row of a claim."""
    row = {"task": key_of(task), "identifier": task.identifier, "attempt": task.attempt}
    return {**row, "owner": owner, "fence": fence, "until": until}


def decision_of(claim: Event, result: Result = Result.SUCCESS) -> Event:
    """The row of a decision on a claimed task."""
    return {**{name: claim[name] for name in ATTEMPT}, "result": result.name}


ROLES: dict[str, Callable[[Program], Any]] = {
    "produce": Producing,
    "loop": Looping,
    "work": Working,
    "read": Reading,
    "read in three": lambda program: Reading(program, partitions=3),
}


def end_with_parent() -> None:
    """Ends this process at once when its standard input ends, because the process that has started it is gone."""

    def wait() -> None:
        while os.read(0, 1):
            pass
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def main(role: str, name: str, dsn: str, folder: str, options: str = "{}") -> None:
    """Runs one process until SIGTERM."""
    end_with_parent()
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    (Path(folder) / f"{name}.clock").write_text(str(time.time() - time.monotonic()))
    with Recorder(Path(folder), f"{name}-{time.monotonic_ns()}") as recorder:
        ROLES[role](Program(name, dsn, Options(**json.loads(options)), recorder, stopping)).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
