"""Workers under failures: errors, lost connections, stops, kept and lost leases."""

import threading
import time
from collections.abc import Callable, Mapping
from datetime import timedelta

import psycopg
import pytest

from airflow_provider_taskq.queue import (
    Decision,
    Owner,
    Result,
    State,
    Task,
    TaskQueue,
)
from airflow_provider_taskq.queue.connection import CallLimit
from airflow_provider_taskq.worker import Batch, WorkerListener, batch
from airflow_provider_taskq.worker.lease import LeaseKeeper, UpkeepThread
from tests.queue.conftest import known, lapse, states, until
from tests.worker.conftest import MakeWorker

pytestmark = pytest.mark.promise("A worker continues after errors of polls, handlers and connections")


def test_errors_of_polls_are_reported_and_followed_by_growing_pauses(queue: TaskQueue, make_worker: MakeWorker) -> None:
    reported: list[float] = []

    class Listener(WorkerListener):
        def on_fatal(self, _: BaseException) -> None:
            reported.append(time.monotonic())

    worker = make_worker(lambda _: None, listener=Listener(), listen=False, pause=timedelta(milliseconds=5))
    worker.start()
    queue.drop_topic("work")
    until(lambda: len(reported) >= 4)
    assert reported[3] - reported[0] > 0.05 + 0.1 + 0.2 - 0.01
    queue.create_topic("work")
    queue.push("work", ["a"])
    until(lambda: states(queue) == [("a", State.SUCCEEDED)])


def test_a_worker_survives_a_lost_connection(queue: TaskQueue, make_worker: MakeWorker) -> None:
    worker = make_worker(lambda _: None, pause=timedelta(milliseconds=20), size=2, workers=2)
    worker.start()
    for turn in range(5):
        queue.push("work", [f"{turn}-{number}" for number in range(20)])
        _cut_all(queue.conn)
    until(lambda: [state for _, state in states(queue)] == [State.SUCCEEDED] * 100)
    until(lambda: worker.statistics().succeeded == 100)


def _cut_all(conn: psycopg.Connection) -> None:
    """Ends all other sessions on this database."""
    conn.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
        " AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
    )


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


@pytest.mark.promise("a worker is stopped")
def test_a_stop_waits_for_batches_in_flight_and_starts_no_new_one(queue: TaskQueue, make_worker: MakeWorker) -> None:
    started, go_on = threading.Event(), threading.Event()
    queue.push("work", ["a", "b"])

    def handle(_: Task) -> None:
        started.set()
        go_on.wait(10)

    worker = make_worker(handle)
    worker.start()
    assert started.wait(10)
    assert worker._runtime is not None
    worker._runtime.on_stopping.append(go_on.set)
    assert worker.stop(timedelta(seconds=10))
    assert states(queue) == [("a", State.SUCCEEDED), ("b", State.READY)]
    assert queue.owners() == []


def test_a_stop_releases_batches_that_exceed_its_timeout_and_ignores_their_handlers(
    queue: TaskQueue, make_worker: MakeWorker
) -> None:
    started, go_on, ended = threading.Event(), threading.Event(), threading.Event()
    [task] = queue.push("work", ["a"])

    def handle(batch: Batch) -> None:
        started.set()
        go_on.wait(10)
        assert batch.cancelled.is_set()
        ended.set()

    worker = make_worker(batch(handle))
    worker.start()
    assert started.wait(10)
    worker.stop(timedelta(milliseconds=50))
    assert (known(queue, task).state, known(queue, task).attempt) == (State.READY, 0)
    go_on.set()
    assert ended.wait(10)
    assert known(queue, task).state is State.READY
    assert worker.statistics().abandoned == 1


@pytest.mark.promise("A worker keeps its lease while a handler runs")
def test_a_worker_keeps_its_lease_while_a_handler_runs_longer(queue: TaskQueue, make_worker: MakeWorker) -> None:
    go_on = threading.Event()

    def handle(_: Task) -> None:
        go_on.wait(60)

    def has_lapsed(lease: Owner) -> bool:
        assert queue.expire() == 0
        found = queue.conn.execute("SELECT clock_timestamp() > %s", (lease.lease_until,)).fetchone()
        return found is not None and found[0]

    queue.push("work", ["a"])
    make_worker(handle, lease=timedelta(seconds=4)).start()
    until(lambda: states(queue) == [("a", State.ACTIVE)])
    [first] = queue.owners()
    until(lambda: has_lapsed(first))
    go_on.set()
    until(lambda: states(queue) == [("a", State.SUCCEEDED)])


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
def test_living_workers_expire_the_leases_of_dead_workers(queue: TaskQueue, make_worker: MakeWorker) -> None:
    dead = queue.register("dead")
    queue.push("work", ["a"])
    assert queue.poll("work", dead)
    lapse(queue, dead)
    make_worker(lambda _: None, lease=timedelta(seconds=0.9), pause=timedelta(milliseconds=50)).start()
    until(lambda: states(queue) == [("a", State.SUCCEEDED)])


def test_a_worker_removes_the_tasks_that_its_queue_has_kept_long_enough(
    queue: TaskQueue, make_worker: MakeWorker
) -> None:
    queue.create_topic("other", keep_succeeded=0)
    queue.push("other", [f"{number}" for number in range(1_200)])  # more than one call removes
    owner = queue.register("owner")
    queue.complete(owner, dict.fromkeys(queue.poll("other", owner, 1_200), Result.SUCCESS))
    make_worker(lambda _: None).start()
    until(lambda: states(queue, "other") == [])


def test_a_worker_handles_tasks_that_a_lost_lease_left_under_its_name(
    queue: TaskQueue, make_worker: MakeWorker
) -> None:
    started, go_on, seen = threading.Event(), threading.Event(), []

    def handle(task: Task) -> None:
        seen.append(task.identifier)
        if len(seen) == 1:
            started.set()
            go_on.wait(10)

    queue.push("work", ["a", "b"])
    worker = make_worker(handle, lease=timedelta(seconds=3))
    worker.start()
    assert started.wait(10)
    queue.register(queue.owners()[0].name)  # replaces the fence of the worker, and keeps its task ACTIVE
    until(lambda: worker.statistics().abandoned == 1)
    go_on.set()
    until(lambda: states(queue) == [("a", State.SUCCEEDED), ("b", State.SUCCEEDED)])
    assert sorted(seen) == ["a", "a", "b"]


def test_a_stop_waits_for_an_upkeep_that_is_under_way() -> None:
    asked, go_on = threading.Event(), threading.Event()

    def connect() -> psycopg.Connection:
        asked.set()
        go_on.wait(10)
        raise psycopg.OperationalError("no server")

    length = timedelta(seconds=0.03)
    keeper = LeaseKeeper(connect, length.total_seconds(), lambda _: None)
    upkeep = UpkeepThread(keeper.owner_names, connect, length, CallLimit(5))
    upkeep.start()
    assert asked.wait(10)
    stopping = threading.Thread(target=upkeep.stop, daemon=True)
    stopping.start()
    stopping.join(0.1)
    assert stopping.is_alive()
    go_on.set()
    stopping.join(10)
    assert not stopping.is_alive()
    assert not upkeep._thread.is_alive()
