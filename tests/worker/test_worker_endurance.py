"""Workers under failures: errors, lost connections, stops, kept and lost leases."""

import threading
import time
from collections.abc import Callable, Mapping
from datetime import timedelta

import pytest

from airflow_provider_taskq.queue import (
    Decision,
    Owner,
    Result,
    State,
    Task,
    TaskQueue,
)
from airflow_provider_taskq.worker import Batch, FatalListener, GroupedWorker, Worker
from tests.queue.conftest import lapse, states, until
from tests.worker.conftest import MakeWorker

pytestmark = pytest.mark.promise("A worker continues after errors of polls, handlers and connections")


def test_errors_of_polls_are_reported_and_followed_by_growing_pauses(queue: TaskQueue, make_worker: MakeWorker) -> None:
    reported: list[float] = []

    listener = FatalListener(lambda _: reported.append(time.monotonic()))
    worker = make_worker(lambda _: None, listener=listener, listen=False, pause=timedelta(milliseconds=5))
    worker.start()
    queue.drop_topic("work")
    until(lambda: len(reported) >= 4)
    assert reported[3] - reported[0] > 0.05 + 0.1 + 0.2 - 0.01
    queue.create_topic("work")
    queue.push("work", ["a"])
    until(lambda: states(queue) == [("a", State.SUCCEEDED)])


@pytest.mark.promise("the connection is lost during a commit")
def test_a_commit_whose_answer_was_lost_is_neither_repeated_nor_forgotten(
    queue: TaskQueue, make_worker: MakeWorker, effects: Callable[[], list[str]]
) -> None:
    done: list[str] = []

    def handle(task: Task, batch: Batch) -> None:
        def write(own: TaskQueue, _: Mapping[Task, Decision]) -> None:
            own.conn.execute("INSERT INTO effect (identifier) VALUES (%s)", (task.identifier,))
            if task.identifier == "cut" and len(done) == 0:
                done.append("cut once")
                queue.conn.execute("SELECT pg_terminate_backend(%s)", (own.conn.info.backend_pid,))

        batch.in_commit(write, task)
        batch.after_commit(lambda: done.append(task.identifier))

    queue.push("work", ["cut", "whole"])
    make_worker(handle).start()
    until(lambda: [state for _, state in states(queue)] == [State.SUCCEEDED] * 2)
    until(lambda: done == ["cut once", "cut", "whole"])
    assert effects() == ["cut", "whole"]


@pytest.mark.promise("A worker keeps its lease while a handler runs")
def test_a_lost_lease_abandons_its_batch_and_commits_nothing(
    queue: TaskQueue, make_worker: MakeWorker, effects: Callable[[], list[str]]
) -> None:
    started, cancelled = threading.Event(), threading.Event()
    [task] = queue.push("work", ["a"])

    def write(own: TaskQueue, _: Mapping[Task, Decision]) -> None:
        own.conn.execute("INSERT INTO effect (identifier) VALUES ('a')")

    def handle(_: Task, batch: Batch) -> None:
        batch.in_commit(write)
        started.set()
        if batch.cancelled.wait(10):
            cancelled.set()

    worker = make_worker(handle, lease=timedelta(seconds=3))
    worker.start()
    assert started.wait(10)
    with queue.conn.transaction():  # so that the worker neither extends nor expires the lease meanwhile
        [owner] = queue.owners()
        lapse(queue, owner)
        assert queue.expire() == 1
        successor = queue.register("successor")
        assert queue.poll("work", successor) == [task]
    assert cancelled.wait(10)
    until(lambda: worker.statistics().abandoned == 1)
    queue.push("work", ["b"])
    assert effects() == []
    assert queue.held(successor) == [task]


@pytest.mark.promise("a worker is killed")
def test_a_worker_expires_the_leases_of_dead_workers_and_removes_tasks_that_were_kept_long_enough(
    queue: TaskQueue, make_worker: MakeWorker
) -> None:
    queue.create_topic("other", keep_succeeded=0)
    queue.push("other", [f"{number}" for number in range(1_200)])  # more than one call removes
    dead = queue.register("dead")
    queue.complete(dead, dict.fromkeys(queue.poll("other", dead, 1_200), Result.SUCCESS))
    queue.push("work", ["a"])
    assert queue.poll("work", dead)
    lapse(queue, dead)
    make_worker(lambda _: None, lease=timedelta(seconds=0.9), pause=timedelta(milliseconds=50)).start()
    until(lambda: states(queue) == [("a", State.SUCCEEDED)])
    until(lambda: states(queue, "other") == [])


@pytest.mark.promise("A worker keeps its lease while a handler runs")
@pytest.mark.parametrize("runner", [Worker, GroupedWorker])
def test_a_worker_keeps_its_lease_while_a_handler_runs_longer(
    dsn: str, queue: TaskQueue, runner: type[Worker | GroupedWorker]
) -> None:
    started, go_on = threading.Event(), threading.Event()

    def handle(_: Task) -> None:
        started.set()
        go_on.wait(60)

    def has_lapsed(lease: Owner) -> bool:
        assert queue.expire() == 0
        found = queue.conn.execute("SELECT clock_timestamp() > %s", (lease.lease_until,)).fetchone()
        return found is not None and found[0]

    queue.push("work", ["a"])
    worker = runner(dsn, "work", handle, lease=timedelta(seconds=2))
    worker.start()
    assert started.wait(60)
    [first] = queue.owners()
    until(lambda: has_lapsed(first))
    go_on.set()
    until(lambda: states(queue) == [("a", State.SUCCEEDED)])
    worker.stop()
