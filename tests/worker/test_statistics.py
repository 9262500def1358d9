"""The counters of a worker."""

import pytest

from airflow_provider_taskq.queue import Result, Task, TaskQueue
from airflow_provider_taskq.worker.statistics import WorkerCounters, percentile
from tests.queue.conftest import until
from tests.worker.conftest import MakeWorker

pytestmark = pytest.mark.promise("A worker reports its health, and serves its metrics to Prometheus")


def test_a_worker_counts_its_tasks_by_result(queue: TaskQueue, make_worker: MakeWorker) -> None:
    def decide(task: Task) -> Result:
        return Result[task.identifier]

    queue.push("work", ["SUCCESS", "SUCCESS", "FAILURE", "FILTER", "SUSPENSION"])
    worker = make_worker(decide, size=2)
    worker.start()
    until(lambda: worker.statistics().handled == 5)
    found = worker.statistics()
    assert (found.succeeded, found.failed, found.filtered, found.suspended) == (2, 1, 1, 1)
    assert (found.in_flight, found.abandoned, found.batches) == (0, 0, 3)
    assert 0 < found.minimum <= found.median <= found.p95 <= found.maximum


def test_times_are_those_of_the_last_thousand_batches() -> None:
    counters = WorkerCounters()
    for number in range(1, 1101):
        counters.handled(number)
    found = counters.snapshot()
    assert (found.minimum, found.maximum, found.batches) == (101, 1100, 1100)
    assert found.average == pytest.approx(600.5)
    assert found.p90 == pytest.approx(101 + 0.9 * 999)


def test_percentiles_are_interpolated_and_zero_for_an_empty_list() -> None:
    assert percentile([], 0.5) == 0
    assert percentile([1.0, 2.0, 3.0, 4.0], 0.5) == 2.5
    assert percentile([7.0], 0.99) == 7
