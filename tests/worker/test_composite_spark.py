"""Composites on Spark: errors, repeated commits, and the examples of docs/how-to/composites.md."""

import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from pyspark.sql import SparkSession

from airflow_provider_taskq.queue import (
    Condition,
    Decision,
    Insertion,
    NewTask,
    Owner,
    Result,
    State,
    Task,
    TaskQueue,
    TaskQueueError,
)
from airflow_provider_taskq.spark import drain
from airflow_provider_taskq.spark.application import _load_transform, _parser
from airflow_provider_taskq.spark.composite import CompositeTransform
from airflow_provider_taskq.spark.connection import ConnectionInfo
from airflow_provider_taskq.spark.driver_commit import DriverActions, commit_on_driver
from airflow_provider_taskq.spark.options import HeldOptions
from airflow_provider_taskq.spark.staging import StagedAttempt
from airflow_provider_taskq.spark.writers import CompleteWriter, open_stage
from airflow_provider_taskq.worker.batches import Batch
from airflow_provider_taskq.worker.commit import commit_batch
from airflow_provider_taskq.worker.composite import Composite
from tests.queue.conftest import until

pytestmark = [
    pytest.mark.promise("A composite gives the same results in threads and as a Spark plan"),
    pytest.mark.promise("The examples, and the code of each page of this site, run as they are written"),
]


SECONDS = 60  # the timeout for a program


def states(queue: TaskQueue) -> list[State]:
    return [task.state for task in queue.page("work")]


PROGRAM = """
import dataclasses, os

@dataclasses.dataclass
class Order:
    paid: bool

database = {"a": Order(True), "b": Order(False)}
dsn = os.environ["TASKQ_DSN"]
"""


def example(repository: Path, place: int) -> str:
    """A Python block of docs/how-to/composites.md: the composite, the worker, or the drain."""
    text = (repository / "docs" / "how-to" / "composites.md").read_text(encoding="utf-8")
    return str(re.findall(r"```python\n(.*?)```", text, re.DOTALL)[place])


def check_example(queue: TaskQueue) -> None:
    assert {task.identifier: task.state.name for task in queue.page("orders")} == {"a": "SUCCEEDED", "b": "SUSPENDED"}
    assert [task.identifier for task in queue.page("mail")] == ["a"]


@pytest.fixture
def example_topics(queue: TaskQueue) -> None:
    """Two orders, of which one is paid."""
    queue.create_topic("orders")
    queue.create_topic("mail")
    queue.push("orders", ["a", "b"])


@pytest.mark.slow
@pytest.mark.usefixtures("example_topics")
def test_the_example_of_the_page_runs_as_a_worker_until_sigterm(
    dsn: str, queue: TaskQueue, repository: Path, python_environment: Mapping[str, str]
) -> None:
    program = PROGRAM + example(repository, 0) + example(repository, 1)
    with subprocess.Popen([sys.executable, "-c", program], env={**python_environment, "TASKQ_DSN": dsn}) as worker:
        until(lambda: queue.count("orders")["orders"].keys() == {State.SUCCEEDED, State.SUSPENDED}, SECONDS)
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(SECONDS) == 0
    check_example(queue)


@pytest.mark.usefixtures("example_topics")
def test_the_example_of_the_page_runs_as_a_spark_plan(
    spark: SparkSession, dsn: str, queue: TaskQueue, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TASKQ_DSN", dsn)
    names = {"__name__": "__main__", "spark": spark, "owner": "me"}
    exec(PROGRAM + example(repository, 0) + example(repository, 2), names)  # noqa: S102 -- our own page
    check_example(queue)


@pytest.mark.usefixtures("example_topics")
def test_the_examples_of_contexts_and_wrappers_on_the_page_run(
    conn: psycopg.Connection[Any], queue: TaskQueue, owner: Owner, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TASKQ_DSN", "")
    seen: list[str] = []

    @contextmanager
    def span(name: str) -> Iterator[None]:
        seen.append(name)
        yield

    tracer = SimpleNamespace(start_as_current_span=span)
    names = {"__name__": "__main__", "tracer": tracer, "Mapping": Mapping, "Sequence": Sequence}
    names |= {"Callable": Callable, "Decision": Decision, "TaskQueue": TaskQueue}
    exec(PROGRAM + example(repository, 0) + example(repository, 3) + example(repository, 4), names)  # noqa: S102
    composite = names["orders"]
    assert isinstance(composite, Composite)
    conn.execute("CREATE TEMP TABLE audit (identifier text, result text)")
    batch = Batch(queue.poll("orders", owner, 2))
    commit_batch(queue, owner, batch, composite.handle(batch))
    assert sorted(conn.execute("SELECT * FROM audit").fetchall()) == [("a", "SUCCESS"), ("b", "SUSPENSION")]
    assert seen == ["orders/load", "orders/check", "orders/send"]
    check_example(queue)


def test_a_composite_that_spark_cannot_run_raises_one_sentence_and_releases_its_tasks(
    spark: SparkSession, dsn: str, queue: TaskQueue
) -> None:
    queue.push("work", ["a", "b"])
    taking_part = Composite("taking part").with_step(lambda _, batch: batch.in_commit(lambda *_: None), name="a")
    locked = threading.Lock()
    unpicklable = Composite("locked").with_step(lambda _: locked.locked() and None, name="a")
    for composite, condition, words in (
        (Composite("empty"), Condition.NONE, "composite 'empty' has no steps"),
        (unpicklable, Condition.NONE, "composite 'locked': cannot send it to Spark's executors"),
        (taking_part, Condition.SINGULAR_BY_IDENTIFIER, "supports no in_commit, no after_commit"),
    ):
        with pytest.raises(TaskQueueError, match=words):
            drain(spark, "work", "me", composite, dsn=dsn, condition=condition)
        assert states(queue) == [State.READY] * 2


def test_the_program_takes_a_composite_by_name() -> None:
    named = ["--topic", "work", "--owner", "me", "--composite"]
    transform = _load_transform(_parser().parse_args([*named, "tests.worker.orders:orders"]))
    assert isinstance(transform, CompositeTransform)
    assert [step.name for step in transform.composite.steps] == ["load", "name_handler"]
    with pytest.raises(TaskQueueError, match=r"module tests\.worker\.orders has no composite 'load'"):
        _load_transform(_parser().parse_args([*named, "tests.worker.orders:load"]))


def commit_staged(
    dsn: str, owner: Owner, stage: str, batch: Batch, decisions: Mapping[Task, Decision], times: int = 1
) -> None:
    """Stages the decisions as an executor does, and commits them with the batch's actions as the driver does."""
    info = ConnectionInfo.resolve(dsn)
    actions = DriverActions.of("orders", batch, decisions, Condition.NONE).pickled()
    with info.connect() as conn:
        for task, made in decisions.items():
            conn.execute(
                "INSERT INTO taskq.staged (stage, part, attempt, sequence, result) VALUES (%s, 0, 1, %s, %s)",
                (stage, task.sequence, made.result),
            )
    options = HeldOptions(mode="complete", owner=owner.name, fence=owner.fence, topic="work", partitions=1, stage=stage)
    for _ in range(times):
        commit_on_driver(CompleteWriter(options, stage, info), [StagedAttempt(0, 1, len(decisions))], [actions])


def test_a_repeated_commit_calls_no_commit_hook_twice(
    conn: psycopg.Connection[Any], dsn: str, queue: TaskQueue, owner: Owner, tmp_path: Path
) -> None:
    conn.execute("CREATE TABLE noted (number int)")
    queue.create_topic("next")
    queue.push("work", ["a"])
    (task,) = queue.poll("work", owner)
    batch, made = Batch([task]), Decision(Result.SUCCESS)

    def note(queue: TaskQueue, _: Mapping[Task, Decision]) -> None:
        queue.conn.execute("INSERT INTO noted VALUES (1)")

    batch.in_commit(note)
    batch.push(task, "next", ["b"], Insertion.REPLACE)
    batch.after_commit((tmp_path / "committed").touch)
    stage = open_stage(conn, owner.name, owner.fence)
    commit_staged(dsn, owner, stage, batch, {task: made}, times=2)  # again because the answer was lost
    assert conn.execute("SELECT count(*) FROM noted").fetchall() == [(1,)]
    assert [task.identifier for task in queue.page("next")] == ["b"]
    assert states(queue) == [State.SUCCEEDED]
    assert (tmp_path / "committed").exists()
    conn.execute("DROP TABLE noted")


def test_no_follow_up_is_pushed_for_a_decision_that_a_drain_of_rounds_drops(
    conn: psycopg.Connection[Any], dsn: str, queue: TaskQueue, owner: Owner
) -> None:
    queue.create_topic("next")
    queue.push("work", [NewTask("young", ttl=timedelta(hours=1)), NewTask("old")])
    young, old = queue.poll("work", owner, 2)
    made = Decision(Result.FAILURE, continued=True)
    batch = Batch([young, old])
    for task in (young, old):
        batch.push(task, "next", [f"after {task.identifier}"], Insertion.REPLACE)
    opening = "SELECT taskq.open_stage(%s, %s, 'NONE', true)::text"
    [(stage,)] = conn.execute(opening, (owner.name, owner.fence)).fetchall()
    commit_staged(dsn, owner, stage, batch, {young: made, old: made})
    assert [task.identifier for task in queue.page("next")] == ["after old"]
    assert [task.identifier for task in queue.held(owner)] == ["young"]
