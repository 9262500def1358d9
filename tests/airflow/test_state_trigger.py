"""What TaskQStateTrigger adds to what every trigger does (test_sensor_conformance.py): failures end the wait."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from airflow.triggers.base import TriggerEvent

from airflow_provider_taskq.queue import NewTask, Owner, Result, State, TaskQueue
from airflow_provider_taskq.triggers import TaskQStateTrigger

pytestmark = [
    pytest.mark.usefixtures("airflow_connection", "queue"),
    pytest.mark.promise("A gate on task states opens once all are reached, and fails at a failed state"),
]


async def fired(**arguments: Any) -> TriggerEvent:
    """Run a trigger, and return its only event."""
    given = {"topic": "work", "identifiers": ["a", "b"], "poke_interval": 0.05, **arguments}
    (event,) = [event async for event in TaskQStateTrigger(**given).run()]
    return event


async def after_a_check(act: Callable[[], object], **arguments: Any) -> Any:
    """Run a trigger, act after its first check, and return the payload of its event."""
    event = asyncio.create_task(fired(**arguments))
    # A later wait is checked in the same query or in a later one. So when it ends, the first was checked too.
    await fired(identifiers=["known"], states=["READY"])
    assert not event.done()
    await asyncio.to_thread(act)
    return (await event).payload


@pytest.fixture
def end(queue: TaskQueue, owner: Owner) -> Callable[..., None]:
    """Push the task `known`, and return a function that pushes tasks and ends each with a result."""
    queue.push("work", ["known"])

    def ended(**results: Result) -> None:
        tasks = queue.push("work", [NewTask(identifier, priority=1) for identifier in results])
        polled = queue.poll("work", owner, len(tasks))
        queue.complete(owner, {task: results[task.identifier] for task in polled})

    return ended


async def test_fires_when_all_tasks_are_in_a_state(end: Callable[..., None]) -> None:
    end(a=Result.SUCCESS)
    payload = await after_a_check(lambda: end(b=Result.FILTER), states=["SUCCEEDED", "FILTERED"])
    assert payload == {"status": "ready", "topic": "work", "states": {"FILTERED": 1, "SUCCEEDED": 1}}


async def test_a_failed_task_ends_the_wait_before_the_others_end_no_sooner_than_resume_after(
    end: Callable[..., None],
) -> None:
    began = asyncio.get_running_loop().time()
    payload = await after_a_check(lambda: end(b=Result.FAILURE), resume_after=0.5)
    assert payload == {
        "status": "failed",
        "message": "1 of 2 tasks of topic 'work' are in a failed state: 'b' is FAILED",
    }
    assert asyncio.get_running_loop().time() - began >= 0.5


async def test_continues_to_wait_after_a_failure_was_repaired(
    queue: TaskQueue, owner: Owner, end: Callable[..., None]
) -> None:
    end(a=Result.FAILURE, b=Result.SUCCESS)
    queue.revive("work", State.FAILED)
    (revived,) = queue.poll("work", owner)
    payload = await after_a_check(lambda: queue.complete(owner, {revived: Result.SUCCESS}))
    assert payload == {"status": "ready", "topic": "work", "states": {"SUCCEEDED": 2}}
