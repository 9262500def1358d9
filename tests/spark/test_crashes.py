"""A task that kills the processes of Spark's executors is isolated by the next drains, and the others succeed."""

import os
import re
from collections.abc import Mapping
from typing import Any

import pytest

from airflow_provider_taskq.queue import Condition, Result, Task, TaskQueue
from airflow_provider_taskq.spark import DrainResult, StopReason, by_task
from airflow_provider_taskq.spark.session import describe_error
from tests.spark.conftest import Drained, Push, states

pytestmark = [pytest.mark.slow, pytest.mark.promise("a task kills its process")]


def die_at_57(task: Task) -> Result:
    """Ends the process as the kernel's memory killer does."""
    if task.identifier == "item-57":
        os._exit(137)
    return Result.SUCCESS


def drained_until_it_ends(drained: Drained, most: int, **options: Any) -> tuple[int, DrainResult]:
    """Drains as often as Airflow would try it. Returns how many drains failed, and the result of the last."""
    for failed in range(most):
        try:
            return failed, drained(by_task(die_at_57), **options)
        except Exception as error:
            if not re.fullmatch("Lost task .*: Python worker exited unexpectedly .*", describe_error(error)):
                raise
    pytest.fail(f"{most} drains failed")


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, marks=pytest.mark.faults, id="one round"),
        pytest.param({"rounds": None, "size": 20}, id="rounds of 20"),
        pytest.param({"condition": Condition.SINGULAR_BY_IDENTIFIER}, marks=pytest.mark.faults, id="under a condition"),
    ],
)
def test_the_fourth_drain_ends_with_every_task_decided_but_the_cause(
    drained: Drained, queue: TaskQueue, push: Push, options: Mapping[str, Any]
) -> None:
    push(100)
    failed, result = drained_until_it_ends(drained, 4, **options)
    assert failed == 3
    assert result.stop_reason is StopReason.EMPTY
    assert states(queue) == {"FAILED": 1, "SUCCEEDED": 99}
    cause = queue.latest("work", ["item-57"])["item-57"]
    assert (cause.state.name, cause.crashes) == ("FAILED", 3)
    assert "while it held this task alone" in (cause.error or "")
