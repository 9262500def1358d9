"""The claim that a gate returns: how the next tasks of the DAG read it, and the registration that holds it."""

from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_taskq.queue import InvalidArgument, LeaseLost, TaskQueue
from airflow_provider_taskq.queue.claims import Claim
from airflow_provider_taskq.queue.waits import ReadyWait
from airflow_provider_taskq.triggers.topic import ClaimRequest

pytestmark = pytest.mark.promise("A retry, a cleared task and a restarted triggerer find the same claim")

GIVEN: dict[str, Any] = {"topic": "work", "owner": "dag/run/gate/-1", "fence": 7, "claimed": 2}


@pytest.mark.parametrize(
    "given",
    [GIVEN, str(GIVEN), '{"topic": "work", "owner": "dag/run/gate/-1", "fence": 7, "claimed": 2}', Claim(**GIVEN)],
    ids=["dict", "rendered dict", "JSON", "claim"],
)
def test_a_claim_is_read_from_the_values_that_a_dag_passes(given: Any) -> None:
    claim = Claim.parse(given)
    assert claim == Claim("work", "dag/run/gate/-1", 7, 2)
    assert claim.as_dict() == GIVEN


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        (None, "invalid claim None"),
        ("None", "invalid claim None"),
        ("secret", "invalid claim of type str"),
        ({"topic": "work", "ready": 1}, r"invalid claim of type dict with the keys \['ready', 'topic'\]"),
        ({"topic": "work", "fence": 7, "claimed": 2}, "KeyError 'owner'"),
        ({**GIVEN, "fence": "x"}, "ValueError"),
    ],
)
def test_an_invalid_claim_is_refused_without_showing_its_contents(given: Any, shown: str) -> None:
    with pytest.raises(InvalidArgument, match=shown) as refused:
        Claim.parse(given)
    assert "secret" not in str(refused.value)


@pytest.fixture
def claim(queue: TaskQueue) -> Claim:
    """A claim of one task."""
    queue.push("work", ["a"])
    owner = queue.register("gate")
    return Claim("work", "gate", owner.fence, queue.claim("work", owner, 1))


def test_a_task_that_took_the_claim_over_holds_it(queue: TaskQueue, claim: Claim) -> None:
    assert claim.holder(queue).fence == claim.fence
    first = queue.take_over("gate", claim.fence)
    retry = queue.take_over("gate", claim.fence, timedelta(minutes=1))
    assert retry.resumed
    assert retry.fence > first.fence > claim.fence
    assert claim.holder(queue).fence == retry.fence
    with pytest.raises(LeaseLost):
        queue.heartbeat(first)


@pytest.mark.parametrize("taken_over", [False, True])
def test_a_later_claim_of_the_same_owner_ends_the_claim(queue: TaskQueue, claim: Claim, taken_over: bool) -> None:
    if taken_over:
        queue.take_over("gate", claim.fence)
    later = queue.register("gate")
    with pytest.raises(LeaseLost, match=f"a later registration of the same owner, fence {later.fence}.*claim_as"):
        claim.holder(queue)
    with pytest.raises(LeaseLost):
        queue.take_over("gate", claim.fence)
    assert queue.owner("gate", claim.fence) is None
    assert queue.owner("gate") is not None


@pytest.mark.promise("a task kills its process")
def test_a_gate_opens_with_fewer_tasks_than_it_needs_after_a_crash(queue: TaskQueue) -> None:
    queue.push("work", [f"item-{number}" for number in range(16)])
    died = queue.register("died")
    assert queue.claim("work", died, 16) == 16
    queue.release(died, crashed=True)
    claimed = ClaimRequest(ReadyWait("work", 16), "gate", 16).claim(queue)
    assert claimed is not None
    assert claimed[0].claimed == 4
