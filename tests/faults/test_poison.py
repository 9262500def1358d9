"""A payload that Python cannot decode fails its own task and stops nothing else."""

from collections.abc import Mapping
from datetime import timedelta

import pytest

from airflow_provider_taskq.consumer import Consumer
from airflow_provider_taskq.queue import Condition, NewTask, Result, State, Task, TaskQueue
from airflow_provider_taskq.worker import Batch, TaskResultException, batch, each
from airflow_provider_taskq.worker.grouped import GroupedWorker, GroupMode
from tests.conftest import SharedDatabase
from tests.consumer.consumers import Heard, quick, until_at_end
from tests.faults.poison import POISON, poison
from tests.queue.conftest import everything, states
from tests.worker.conftest import MakeWorker, make_worker

pytestmark = pytest.mark.promise("A payload that no client can decode fails its own task and stops nothing else")

__all__ = ["make_worker"]  # fixtures that pytest finds here

SOON = timedelta(milliseconds=50)


@pytest.fixture
def dsn(shared_database: SharedDatabase) -> str:
    """The database that is emptied for each test, because no test here cuts connections."""
    shared_database.empty()
    return shared_database.dsn


unreadable = pytest.mark.parametrize("text", POISON.values(), ids=POISON.keys())


def with_poison(queue: TaskQueue, text: str, count: int = 23, place: int = 11) -> Task:
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


@unreadable
@pytest.mark.parametrize(
    "options", [{}, {"prefetch": 10, "workers": 2, "pause": SOON}, {"condition": Condition.SINGULAR_BY_IDENTIFIER}]
)
def test_a_drain_ends_with_every_task_handled_but_the_unreadable_one(
    queue: TaskQueue, make_worker: MakeWorker, text: str, options: Mapping[str, object]
) -> None:
    bad = with_poison(queue, text)
    seen: list[str] = []
    done = make_worker(lambda task: seen.append(task.identifier), size=5, **options).drain()
    assert (done.succeeded, done.failed) == (22, 1)
    assert only_failure(queue) == bad
    assert bad.identifier not in seen, "the handler never sees it"
    assert not queue.held(queue.register("another"))


@unreadable
def test_a_handler_of_batches_gets_the_rest_of_the_batch(queue: TaskQueue, make_worker: MakeWorker, text: str) -> None:
    bad = with_poison(queue, text)
    batches: list[int] = []

    def handle(batch: Batch) -> None:
        batches.append(len(batch.tasks))

    assert make_worker(batch(handle), size=23).drain().failed == 1
    assert only_failure(queue) == bad
    assert batches == [22]


def test_a_result_that_a_handler_raises_is_not_that_of_an_unreadable_task(
    queue: TaskQueue, make_worker: MakeWorker
) -> None:
    bad = with_poison(queue, POISON["a number beyond a double"])

    def handle(_: Batch) -> None:
        raise TaskResultException(Result.SUCCESS)

    assert make_worker(batch(handle), size=23).drain().failed == 1
    assert only_failure(queue) == bad


@unreadable
def test_a_handler_in_another_process_gets_the_rest_of_the_batch(
    queue: TaskQueue, make_worker: MakeWorker, text: str
) -> None:
    bad = with_poison(queue, text)
    assert make_worker(each(length_of_payload, processes=1), size=23).drain().failed == 1
    assert only_failure(queue) == bad


def length_of_payload(task: Task) -> None:
    """A handler that a process finds by its name."""
    assert isinstance(task.payload, dict)


def test_a_worker_that_takes_over_an_unreadable_task_fails_it(queue: TaskQueue, make_worker: MakeWorker) -> None:
    bad = with_poison(queue, POISON["brackets 2,000 deep"], count=3, place=1)
    crashed = queue.register("crashed")
    assert len(queue.poll("work", crashed, 3)) == 3
    queue.release(crashed)
    assert make_worker(lambda _: None).drain().failed == 1
    assert only_failure(queue) == bad


@unreadable
@pytest.mark.parametrize("mode", GroupMode)
def test_a_grouped_worker_fails_an_unreadable_task_and_handles_every_other_group(
    dsn: str, queue: TaskQueue, text: str, mode: GroupMode
) -> None:
    bad = with_poison(queue, text)
    tally = GroupedWorker(dsn, "work", length_of_payload, mode=mode).run_once()
    assert (tally.succeeded, tally.failed) == (22, 1)
    assert only_failure(queue) == bad


def test_a_grouped_worker_fails_a_task_whose_sort_key_cannot_be_computed(dsn: str, queue: TaskQueue) -> None:
    queue.push(
        "work", [NewTask("a", {"place": 2}), NewTask("a", {}), NewTask("a", {"place": 1}), NewTask("b", {"place": 1})]
    )
    seen: list[object] = []

    def handle(task: Task) -> None:
        seen.append(task.payload)

    def place(task: Task) -> object:
        assert isinstance(task.payload, dict)
        return task.payload["place"]

    tally = GroupedWorker(dsn, "work", handle, sorter=place).run_once()
    assert (tally.succeeded, tally.failed) == (3, 1)
    assert seen == [{"place": 1}, {"place": 2}, {"place": 1}]
    assert [info.identifier for info in everything(queue) if "KeyError: 'place'" in str(info.error)] == ["a"]


def test_a_grouped_worker_fails_a_group_whose_sort_keys_do_not_compare(dsn: str, queue: TaskQueue) -> None:
    queue.push("work", [NewTask("a", 1), NewTask("a", "1"), NewTask("b", 1)])
    tally = GroupedWorker(dsn, "work", lambda _: None, sorter=lambda task: task.payload).run_once()
    assert (tally.succeeded, tally.failed) == (1, 2)
    assert states(queue) == [("a", State.FAILED), ("a", State.FAILED), ("b", State.SUCCEEDED)]


@unreadable
@pytest.mark.parametrize(
    "options", [{}, {"transaction_size": 5, "transactional": True}, {"transactional": True}, {"progress": "memory"}]
)
def test_a_consumer_skips_an_unreadable_event_at_its_first_failure(
    dsn: str, queue: TaskQueue, text: str, options: Mapping[str, object]
) -> None:
    bad = with_poison(queue, text)
    heard = Heard()
    heard.group.on()(heard.hear)
    with Consumer(dsn, heard.group, "work", quick(**options), on_failure=heard.fail):
        heard.wait(22)
        [failure] = heard.wait_failures(1)
    assert (failure.event, failure.delay, failure.stopped) == (bad, None, False)
    assert bad.identifier not in heard.identifiers
    assert heard.identifiers == [f"id-{n}" for n in range(23) if f"id-{n}" != bad.identifier]


@unreadable
def test_a_consumer_of_kinds_reports_an_unreadable_event(dsn: str, queue: TaskQueue, text: str) -> None:
    tasks = queue.push("work", [NewTask(f"id-{n}", {"type": "added"}) for n in range(3)])
    poison(queue.conn, tasks[1], text)
    heard = Heard()
    heard.group.on("added")(heard.hear)
    with Consumer(dsn, heard.group, "work", quick(), on_failure=heard.fail):
        heard.wait(2)
        until_at_end(queue)
    assert [failure.event for failure in heard.failures] == [tasks[1]]
