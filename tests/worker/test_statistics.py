"""The counters of a worker, and its waits for tasks."""

import pytest

from airflow_provider_taskq.worker.runtime import IdleWait
from airflow_provider_taskq.worker.statistics import WorkerCounters

pytestmark = pytest.mark.promise("A worker reports its health, and serves its metrics to Prometheus")


def test_times_are_those_of_the_last_thousand_batches() -> None:
    counters = WorkerCounters()
    for number in range(1, 1101):
        counters.handled(number)
    found = counters.snapshot()
    assert (found.minimum, found.maximum, found.batches) == (101, 1100, 1100)
    assert found.average == pytest.approx(600.5)
    assert found.p90 == pytest.approx(101 + 0.9 * 999)


@pytest.mark.promise("The cost of a call does not grow with the other tasks of the queue")
def test_empty_polls_take_at_most_a_fifth_of_the_time() -> None:
    pause = IdleWait(1.0)
    assert [pause.seconds_after(took) for took in (0.0, 0.25, 1.5)] == [1.0, 1.0, 6.0]
