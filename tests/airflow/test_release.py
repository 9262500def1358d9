from typing import Any

import pytest
from airflow.sdk import DAG

from airflow_provider_taskq.operators import TaskQCompleteOperator, TaskQReleaseOperator
from airflow_provider_taskq.queue import InvalidArgument, LeaseLost, State, TaskQueue
from airflow_provider_taskq.sensors import TaskQSensor
from tests.airflow.conftest import claim_of, context_of

pytestmark = [pytest.mark.usefixtures("airflow_connection", "queue"), pytest.mark.promise("the DAG run fails for good")]


def release(claim: Any) -> int:
    operator = TaskQReleaseOperator(task_id="release", claim=claim)
    operator.render_template_fields(context_of())
    released: int = operator.execute(context_of())["released"]
    return released


def test_releases_the_tasks_that_are_not_completed(queue: TaskQueue) -> None:
    claim = claim_of(queue, "a", "b")
    first = queue.page("work")[0].sequence
    TaskQCompleteOperator(task_id="complete", claim=claim, sequences=[first]).execute(context_of())
    assert release(claim) == 1
    done, back = queue.page("work")
    assert (done.state, back.state, back.attempt) == (State.SUCCEEDED, State.READY, 0)


def test_releases_the_tasks_of_a_killed_drain_and_locks_it_out(queue: TaskQueue) -> None:
    claim = claim_of(queue, "a")
    drain = queue.take_over(claim["owner"], claim["fence"])
    assert release(claim) == 1
    with pytest.raises(LeaseLost):
        queue.heartbeat(drain)


def test_a_claim_that_is_gone_is_a_success(queue: TaskQueue) -> None:
    claim = claim_of(queue, "a")
    assert [release(claim), release(claim)] == [1, 0]


def test_does_not_release_a_later_claim_of_the_same_name(queue: TaskQueue) -> None:
    first = claim_of(queue, "a")
    second = claim_of(queue, "b")
    assert release(first) == 0
    assert [task.state for task in queue.page("work")] == [State.ACTIVE] * 2
    assert release(second) == 2


@pytest.mark.parametrize("claim", [None, "None", "", "{{ none }}"])
def test_a_gate_that_claimed_nothing_is_a_success(claim: str | None) -> None:
    assert release(claim) == 0


def test_an_invalid_claim_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="invalid claim"):
        release({"topic": "work", "ready": 1})


def test_can_be_the_teardown_of_its_gate() -> None:
    with DAG("dag", schedule=None):
        gate = TaskQSensor(task_id="gate", topic="work", claim=1)
        teardown = TaskQReleaseOperator(task_id="release", claim=gate.output).as_teardown(setups=gate)
    assert teardown.is_teardown
    assert teardown.upstream_task_ids == {"gate"}
