"""A payload that Python cannot decode fails its own task and stops nothing else, whatever runs the tasks."""

from collections.abc import Callable
from datetime import timedelta
from functools import partial

import pytest

from airflow_provider_taskq.consumer import Consumer, MemoryTracker
from airflow_provider_taskq.queue import Condition, NewTask, Result, State, Task, TaskQueue
from airflow_provider_taskq.worker import Batch, TaskResultException, batch, each
from airflow_provider_taskq.worker.config import GroupMode, Groups
from tests.conftest import SharedDatabase
from tests.consumer.consumers import Heard, quick, until_at_end
from tests.faults.poison import POISON, poison
from tests.queue.conftest import everything, states
from tests.worker.conftest import MakeWorker, make_worker

pytestmark = pytest.mark.promise("A payload that no client can decode fails its own task and stops nothing else")

__all__ = ["make_worker"]  # fixtures that pytest finds here

SOON = timedelta(milliseconds=50)
NUMBER = POISON["a number beyond a double"]


@pytest.fixture
def dsn(shared_database: SharedDatabase) -> str:
    """The database that is emptied for each test, because no test here cuts connections."""
    shared_database.empty()
    return shared_database.dsn


def with_poison(queue: TaskQueue, text: str = NUMBER, count: int = 23, place: int = 11) -> Task:
    """Pushes tasks, makes the payload of one undecodable, and returns this task."""
    tasks = queue.push("work", [NewTask(f"id-{n}", {"n": n}) for n in range(count)])
    poison(queue.conn, tasks[place], text)
    return tasks[place]


def only_failure(queue: TaskQueue) -> Task:
    """Returns the only FAILED task, after checking that all others SUCCEEDED."""
    found = [info for info in everything(queue) if info.state is not State.SUCCEEDED]
    assert [info.state for info in found] == [State.FAILED], states(queue)
    assert "InvalidTask: " in str(found[0].error)
    return found[0]


Runner = Callable[[MakeWorker, str, list[str]], int]


def drain(make_worker: MakeWorker, _dsn: str, seen: list[str], **options: object) -> int:
    """Handles one task at a time."""
    return int(make_worker(lambda task: seen.append(task.identifier), size=5, **options).drain().failed)


def drain_batches(make_worker: MakeWorker, _dsn: str, seen: list[str]) -> int:
    """Handles tasks in batches: the handler gets the rest of the batch."""
    handle = batch(lambda batch: seen.extend(task.identifier for task in batch.tasks))
    return int(make_worker(handle, size=23).drain().failed)


def drain_in_processes(make_worker: MakeWorker, _dsn: str, _seen: list[str]) -> int:
    """Handles tasks in another process."""
    return int(make_worker(each(check_payload, processes=1), size=23).drain().failed)


def group(make_worker: MakeWorker, _dsn: str, _seen: list[str], mode: GroupMode) -> int:
    """Handles tasks by groups."""
    return int(make_worker(check_payload, groups=Groups(mode=mode)).drain().failed)


def check_payload(task: Task) -> None:
    """A handler that a process finds by its name."""
    assert isinstance(task.payload, dict)


RUNNERS: dict[str, Runner] = {
    "a drain": drain,
    "a drain with threads": partial(drain, prefetch=10, workers=2, pause=SOON),
    "a drain by identifier": partial(drain, condition=Condition.SINGULAR_BY_IDENTIFIER),
    "batches": drain_batches,
    "processes": drain_in_processes,
    **{f"groups, {mode.name}": partial(group, mode=mode) for mode in GroupMode},
}


@pytest.mark.parametrize("runner", RUNNERS)
@pytest.mark.parametrize("text", POISON.values(), ids=POISON.keys())
def test_a_drain_ends_with_every_task_handled_but_the_unreadable_one(
    dsn: str, queue: TaskQueue, make_worker: MakeWorker, runner: str, text: str
) -> None:
    bad, seen = with_poison(queue, text), list[str]()
    assert RUNNERS[runner](make_worker, dsn, seen) == 1
    assert only_failure(queue) == bad
    assert bad.identifier not in seen, "the handler never sees it"
    assert not queue.held(queue.register("another"))


def test_a_result_that_a_handler_raises_is_not_that_of_an_unreadable_task(
    queue: TaskQueue, make_worker: MakeWorker
) -> None:
    bad = with_poison(queue)

    def handle(_: Batch) -> None:
        raise TaskResultException(Result.SUCCESS)

    assert make_worker(batch(handle), size=23).drain().failed == 1
    assert only_failure(queue) == bad


CONSUMERS: dict[str, dict[str, object]] = {
    "one by one": {},
    "transactions of five": {"transaction_size": 5, "transactional": True},
    "transactional": {"transactional": True},
    "progress in memory": {"progress": MemoryTracker()},
}


@pytest.mark.parametrize("options", CONSUMERS.values(), ids=CONSUMERS)
def test_a_consumer_skips_an_unreadable_event_at_its_first_failure(
    dsn: str, queue: TaskQueue, options: dict[str, object]
) -> None:
    bad = with_poison(queue)
    heard = Heard()
    heard.group.on()(heard.hear)
    with Consumer(dsn, heard.group, "work", quick(**options), on_failure=heard.fail):
        heard.wait(22)
        [failure] = heard.wait_failures(1)
    assert (failure.event, failure.delay, failure.stopped) == (bad, None, False)
    assert heard.identifiers == [f"id-{n}" for n in range(23) if f"id-{n}" != bad.identifier]


def test_a_consumer_of_kinds_reports_an_unreadable_event(dsn: str, queue: TaskQueue) -> None:
    tasks = queue.push("work", [NewTask(f"id-{n}", {"type": "added"}) for n in range(3)])
    poison(queue.conn, tasks[1], NUMBER)
    heard = Heard()
    heard.group.on("added")(heard.hear)
    with Consumer(dsn, heard.group, "work", quick(), on_failure=heard.fail):
        heard.wait(2)
        until_at_end(queue)
    assert [failure.event for failure in heard.failures] == [tasks[1]]
