"""The owner of a batch: a name and a fence, by which an outside system tells a late handler from its successor."""

import threading
from datetime import timedelta

import pytest

from airflow_provider_taskq.consumer import Consumer, ConsumerGroup
from airflow_provider_taskq.queue import Owner, Task, TaskQueue
from airflow_provider_taskq.worker import Batch, BatchContext, BatchOwner
from tests.consumer.consumers import quick, state
from tests.queue.conftest import lapse, until
from tests.worker.conftest import MakeWorker

pytestmark = pytest.mark.promise("Each batch has an owner with a greater fence than any delivery before")

SECONDS = 60


def test_a_task_that_comes_back_to_an_earlier_registration_has_a_greater_fence(queue: TaskQueue) -> None:
    queue.push("work", ["a"])
    early, late = queue.register("early"), queue.register("late")
    first = queue.poll("work", late)
    lapse(queue, late)
    queue.expire()
    second = queue.poll("work", early)
    assert [*second] == [*queue.held(early)] != []
    assert early.fence < late.fence < first.fence < second.fence
    assert queue.draw_fence(early) > second.fence
    assert queue.heartbeat(early).fence == early.fence


def test_a_poll_without_tasks_draws_no_fence_and_an_exchange_draws_one(queue: TaskQueue, owner: Owner) -> None:
    assert queue.poll("work", owner).fence == 0
    queue.push("work", ["a", "b"])
    first = queue.poll("work", owner)
    second = queue.exchange(owner, dict.fromkeys(first, "SUCCESS"), "work")
    assert [task.identifier for task in (*first, *second)] == ["a", "b"]
    assert owner.fence < first.fence < second.fence


def test_the_owner_of_a_batch_stays_readable_after_the_worker_has_abandoned_it(
    queue: TaskQueue, make_worker: MakeWorker
) -> None:
    inside, abandoned, seen = threading.Event(), threading.Event(), list[BatchOwner]()

    def handle(task: Task, batch: Batch) -> None:
        seen.append(batch.owner)
        inside.set()
        assert abandoned.wait(SECONDS)
        assert batch.cancelled.is_set()
        seen.append(batch.owner)
        raise AssertionError(f"the decision on {task} does not count")

    queue.push("work", ["a"])
    worker = make_worker(handle)
    worker.start()
    assert inside.wait(SECONDS)
    [holder] = queue.owners()
    worker.stop(timedelta(0))
    again = queue.poll("work", queue.register("successor"))
    abandoned.set()
    until(lambda: len(seen) == 2, SECONDS)
    assert seen[0] == seen[1]
    assert seen[0].name == holder.name
    assert holder.fence < seen[0].fence < again.fence


def test_each_batch_of_a_worker_has_a_greater_fence(queue: TaskQueue, make_worker: MakeWorker) -> None:
    seen: list[int] = []
    queue.push("work", ["a", "b", "c"])
    make_worker(lambda _, batch: seen.append(batch.owner.fence)).drain()
    make_worker(lambda _, batch: seen.append(batch.owner.fence), prefetch=2).drain()
    assert seen == sorted(set(seen))
    assert len(seen) == 3


def test_a_worker_that_finds_tasks_under_its_name_has_a_fence_for_them(
    queue: TaskQueue, make_worker: MakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[BatchOwner] = []
    queue.push("work", ["a"])
    polled = TaskQueue.poll

    def poll_without_answer(*arguments: object) -> object:
        polled(*arguments)  # type: ignore[arg-type]
        monkeypatch.undo()
        raise ConnectionError("the answer was lost")

    monkeypatch.setattr(TaskQueue, "poll", poll_without_answer)
    make_worker(lambda _, batch: seen.append(batch.owner)).drain()
    [owner] = seen
    assert owner.fence > 0


def test_a_successor_on_a_partition_has_a_greater_fence(dsn: str, queue: TaskQueue) -> None:
    group, seen = ConsumerGroup("readers"), list[BatchOwner]()

    @group.on()
    def handle(_: Task, batch: BatchContext) -> None:
        seen.append(batch.owner)

    for count in (1, 2):
        queue.push("work", ["a"])
        with Consumer(dsn, group, "work", quick()) as consumer:
            until(lambda count=count: len(seen) == count, SECONDS)  # type: ignore[misc]
            assert seen[-1] == BatchOwner(consumer.member_id, state(queue).fence or 0)
    assert seen[0].fence < seen[1].fence


def test_a_batch_that_no_runner_has_made_has_no_owner() -> None:
    with pytest.raises(LookupError, match="this batch has no owner"):
        _ = Batch([]).owner
