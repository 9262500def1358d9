"""Composites on both engines: a worker's threads and a Spark plan give the same results."""

import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol
from zlib import crc32

import psycopg
import pytest
from pyspark.sql import SparkSession

from airflow_provider_taskq.queue import (
    Condition,
    Decision,
    NewTask,
    Result,
    State,
    Task,
    TaskQueue,
)
from airflow_provider_taskq.spark import drain
from airflow_provider_taskq.worker.batches import Batch
from airflow_provider_taskq.worker.composite import Composite, outdated
from airflow_provider_taskq.worker.composite_run import StepMode
from airflow_provider_taskq.worker.handlers import TaskResultException
from airflow_provider_taskq.worker.listener import WorkerListener
from airflow_provider_taskq.worker.worker import Worker

pytestmark = pytest.mark.promise("A composite gives the same results in threads and as a Spark plan")


SECONDS = 60  # the timeout for an engine
FAILURE, SUSPENSION, FILTER, SUCCESS = Result


class Engine(Protocol):
    """Drains the topic `work` with a composite."""

    def __call__(self, composite: Composite, condition: Condition = Condition.NONE) -> None: ...


class Done(WorkerListener):
    """Sets an event when a poll finds nothing."""

    def __init__(self) -> None:
        self.empty = threading.Event()
        self.fatal: list[BaseException] = []

    def on_empty(self) -> None:
        self.empty.set()

    def on_fatal(self, error: BaseException) -> None:
        self.fatal.append(error)


@pytest.fixture(params=["worker", pytest.param("spark", marks=pytest.mark.slow)])
def engine(request: pytest.FixtureRequest, dsn: str, queue: TaskQueue) -> Engine:
    """Both engines, one after another."""

    def on_threads(composite: Composite, condition: Condition = Condition.NONE) -> None:
        done = Done()
        worker = Worker(dsn, "work", composite, size=100, condition=condition, listener=done)
        worker.start()
        try:
            assert done.empty.wait(SECONDS)
        finally:
            worker.stop()
        assert done.fatal == []

    def on_spark(composite: Composite, condition: Condition = Condition.NONE) -> None:
        session: SparkSession = request.getfixturevalue("spark")
        drain(session, "work", "me", composite, dsn=dsn, condition=condition, partitions=2)

    queue.create_topic("next")
    return on_threads if request.param == "worker" else on_spark


def states(queue: TaskQueue) -> list[State]:
    return [task.state for task in queue.page("work")]


def number_of(task: Task) -> int:
    assert isinstance(task.payload, dict)
    number = task.payload["number"]
    assert isinstance(number, int)
    return number


def push(queue: TaskQueue, count: int) -> list[Task]:
    return queue.push("work", [NewTask(f"item-{number}", {"number": number}) for number in range(count)])


def test_both_engines_merge_parallel_and_sequential_steps_to_the_same_results(queue: TaskQueue, engine: Engine) -> None:
    composite = Composite("all kinds")

    @composite.step()
    def load(task: Task, batch: Batch) -> None:
        batch.register(int, number_of(task), task)

    @composite.step(after=load)
    def left(task: Task, batch: Batch) -> Decision | None:
        number = batch.require(int, task)
        if number == 1:
            raise ValueError("no luck with 1")
        if number == 2:
            raise TaskResultException(SUSPENSION)
        return Decision(SUCCESS, f"left {number}") if number != 3 else Decision(FILTER, "filtered")

    @composite.step(after=load, mode=StepMode.SEQUENTIAL)
    async def right(task: Task, batch: Batch) -> Result:
        return FAILURE if batch.require(int, task) in (2, 4) else SUCCESS

    @composite.step(after=load, mode="BATCH")
    def some(tasks: Sequence[Task], batch: Batch) -> Mapping[Task, Decision]:
        known = Decision(SUCCESS, continued=True)
        return {task: known for task in tasks if batch.require(int, task) != 5}

    @composite.step(after=(left, right, some), mode="BATCH")
    async def end(tasks: Sequence[Task], batch: Batch) -> Mapping[Task, Decision | Result]:
        assert {batch.require(int, task) for task in tasks} <= {0, 6, 7}
        return {task: FILTER if batch.require(int, task) == 7 else Decision(SUCCESS, "end") for task in tasks}

    push(queue, 8)
    engine(composite)
    ended = queue.page("work")
    assert [(task.state.name, task.output) for task in ended] == [
        ("SUCCEEDED", "end"),
        ("FAILED", None),
        ("FAILED", None),
        ("FILTERED", "filtered"),
        ("FAILED", "left 4"),
        ("FAILED", "left 5"),
        ("SUCCEEDED", "end"),
        ("FILTERED", "left 7"),
    ]
    errors = {number: task.error for number, task in enumerate(ended) if task.error}
    assert sorted(errors) == [1, 5]
    assert errors[1].endswith("ValueError: no luck with 1\n")
    assert errors[5] == "step 'some' made no decision on this task"


NAMES = [f"s{place}" for place in range(9)]
WEB = {
    step: tuple(before for before in NAMES[:place] if crc32(f"{before}, {step}".encode()) % 5 < 2)
    for place, step in enumerate(NAMES)
}


def said(step: str, number: int) -> Decision:
    """The decision of a step of the graph on a task: SUCCESS for most tasks, and any other for some."""
    drawn = crc32(f"{step}/{number}".encode()) % 24
    return (
        Decision(Result(drawn), step, continued=[None, False, True][number % 3])
        if drawn < 3
        else Decision(SUCCESS, step)
    )


def woven(whole: bool) -> Composite:
    """A composite of nine steps with many dependencies; every other step is a batch step."""
    composite = Composite("web", threads=3)

    def add(step: str) -> None:
        def each(task: Task, batch: Batch) -> Decision:
            batch.push(task, "next", [f"{step}/{number_of(task)}"])
            return said(step, number_of(task))

        def every(tasks: Sequence[Task], batch: Batch) -> Mapping[Task, Decision]:
            return {task: each(task, batch) for task in tasks}

        if whole == (int(step[1:]) % 2 == 0):
            composite.step(name=step, after=WEB[step], mode="BATCH")(every)
        else:
            composite.step(name=step, after=WEB[step])(each)

    for step in WEB:
        add(step)
    return composite


def expected(number: int) -> tuple[State, str | None, set[str]]:
    """The expected state of a task of the graph, its message and its follow-ups, computed step by step."""
    seen: dict[str, Decision] = {}
    for step, before in WEB.items():
        if all(each in seen and seen[each].continued for each in before):
            seen[step] = said(step, number)
    result = min(each.result for each in seen.values())
    message = [step for step, each in seen.items() if each.result == result][-1]
    follows = {f"{step}/{number}" for step in seen} if all(each.continued for each in seen.values()) else set()
    return State(result + 3), message, follows


@pytest.mark.parametrize(
    ("engine", "whole"),
    [("worker", False), ("worker", True), pytest.param("spark", True, marks=pytest.mark.slow)],
    indirect=["engine"],
)
def test_both_engines_run_any_graph_of_steps_by_the_rules(queue: TaskQueue, engine: Engine, whole: bool) -> None:
    count = 400
    push(queue, count)
    engine(woven(whole))
    ended = queue.page("work", size=count)
    rules = [expected(number) for number in range(count)]
    assert [(task.state, task.output) for task in ended] == [rule[:2] for rule in rules]
    assert {state for state, _, _ in rules} == {State.FAILED, State.SUSPENDED, State.FILTERED, State.SUCCEEDED}
    followed = [task.identifier for task in queue.page("next", size=count * len(WEB))]
    assert sorted(followed) == sorted(name for rule in rules for name in rule[2])


def test_both_engines_push_and_then_release_for_continued_tasks_only(queue: TaskQueue, engine: Engine) -> None:
    queue.push("next", [NewTask(f"wait-{number}", suspended=True) for number in range(2)])
    composite = Composite("follow-ups")

    @composite.step()
    def send(task: Task, batch: Batch) -> Decision:
        number = number_of(task)
        batch.push(task, "next", [NewTask(f"follows-{number}", {"of": number}, priority=number)])
        batch.junction(task, "next", [[f"wait-{number}", f"joins-{number}"]])
        batch.push(task, "next", [NewTask(f"joins-{number}", suspended=True)])
        return Decision(Result(number), continued=True if number == 1 else None)

    push(queue, 4)
    engine(composite)
    found = {task.identifier: task for task in queue.page("next")}
    assert {name: task.state.name for name, task in found.items()} == {
        "wait-0": "SUSPENDED",
        "wait-1": "READY",
        "follows-1": "READY",
        "joins-1": "READY",
        "follows-3": "READY",
        "joins-3": "SUSPENDED",
    }
    follower = found["follows-3"]
    assert (follower.payload, follower.priority) == ({"of": 3}, 3)


@pytest.fixture
def notes(conn: psycopg.Connection[Any]) -> Iterator[psycopg.Connection[Any]]:
    """A user's own table in the queue's database."""
    conn.execute("CREATE TABLE notes (number int PRIMARY KEY, result text)")
    yield conn
    conn.execute("DROP TABLE notes")


@pytest.mark.promise("Effects in the same database happen once")
@pytest.mark.parametrize("engine", ["worker"], indirect=True)
def test_a_commit_hook_writes_with_the_decisions_and_adds_its_own(
    notes: psycopg.Connection[Any], queue: TaskQueue, engine: Engine, tmp_path: Path
) -> None:
    composite = Composite("auditing")

    @composite.step()
    def decide(task: Task, batch: Batch) -> Result:
        def only_this(queue: TaskQueue, decisions: Mapping[Task, Decision]) -> Mapping[Task, Decision]:
            queue.conn.execute("INSERT INTO notes VALUES (%s, 'alone')", (100 + len(decisions),))
            return dict.fromkeys(decisions, Decision(FILTER, "by the commit hook"))

        if number_of(task) == 2:
            batch.in_commit(only_this, task)
            batch.push(task, "next", ["never"])
        return FAILURE if number_of(task) == 1 else SUCCESS

    @composite.context
    def audit(batch: Batch, decisions: Mapping[Task, Decision]) -> None:
        folder = str(tmp_path)
        rows = {task: (number_of(task),) for task in decisions}

        def write(queue: TaskQueue, decisions: Mapping[Task, Decision]) -> None:
            for task, made in decisions.items():
                queue.conn.execute("INSERT INTO notes VALUES (%s, %s)", (*rows[task], made.result.name))

        def write_file() -> None:
            for (number,) in rows.values():
                Path(folder, str(number)).touch()

        batch.in_commit(write)
        batch.after_commit(write_file)

    push(queue, 4)
    engine(composite)
    written = notes.execute("SELECT number, result FROM notes ORDER BY number").fetchall()
    assert written == [(0, "SUCCESS"), (1, "FAILURE"), (2, "FILTER"), (3, "SUCCESS"), (101, "alone")]
    assert states(queue) == [State.SUCCEEDED, State.FAILED, State.FILTERED, State.SUCCEEDED]
    assert queue.page("work")[2].output == "by the commit hook"
    assert queue.page("next") == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1", "2", "3"]


@pytest.mark.promise("Effects in the same database happen once")
@pytest.mark.parametrize("engine", ["worker"], indirect=True)
def test_a_commit_hook_that_fails_fails_its_tasks_and_its_writes_are_undone(
    notes: psycopg.Connection[Any], queue: TaskQueue, engine: Engine
) -> None:
    composite = Composite("failing")

    @composite.step()
    def decide(task: Task, batch: Batch) -> None:
        number = number_of(task)

        def write(queue: TaskQueue, decisions: Mapping[Task, Decision]) -> Mapping[Task, Decision]:
            queue.conn.execute("INSERT INTO notes VALUES (%s)", (number,))
            if number == 1:
                queue.conn.execute("SELECT 1 / 0")
            return {} if number == 2 else decisions

        batch.in_commit(write, task)
        batch.push(task, "next", [task.identifier])

    push(queue, 4)
    engine(composite)
    assert states(queue) == [State.SUCCEEDED, State.FAILED, State.FAILED, State.SUCCEEDED]
    assert notes.execute("SELECT number FROM notes ORDER BY number").fetchall() == [(0,), (3,)]
    assert sorted(task.identifier for task in queue.page("next")) == ["item-0", "item-3"]
    error = queue.page("work")[2].error
    assert error is not None
    assert "write returned no decisions for tasks that it got" in error


def test_tasks_of_one_identifier_are_in_one_batch_in_their_order(queue: TaskQueue, engine: Engine) -> None:
    composite = Composite("outdated").with_step(outdated, mode="BATCH")

    @composite.step(after="outdated", mode="BATCH")
    def place(tasks: Sequence[Task], batch: Batch) -> Mapping[Task, Decision]:
        of = [task for task in batch.tasks if task.identifier == "a"]
        return {task: Decision(SUCCESS, [each.payload for each in of]) for task in tasks}

    queue.push(
        "work", [NewTask("a", 1), NewTask("b", 2), NewTask("a", 3, priority=1), NewTask("c", 4), NewTask("a", 5)]
    )
    engine(composite)
    ended = queue.page("work")
    assert [task.state.name for task in ended] == ["FILTERED", "SUCCEEDED", "FILTERED", "SUCCEEDED", "SUCCEEDED"]
    assert ended[4].output == [3, 1, 5]
