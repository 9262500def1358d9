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


async def fired(trigger: TaskQStateTrigger) -> TriggerEvent:
    """Run a trigger, and return its only event."""
    async with asyncio.timeout(30):
        (event,) = [event async for event in trigger.run()]
        return event


def waiting(**arguments: Any) -> TaskQStateTrigger:
    given = {"topic": "work", "identifiers": ["a", "b"], "poke_interval": 0.05}
    return TaskQStateTrigger(**{**given, **arguments})


def after_a_check(trigger: TaskQStateTrigger, act: Callable[[], object]) -> TriggerEvent:
    """Run a trigger, act after its first check, and return its event."""

    async def test() -> TriggerEvent:
        event = asyncio.create_task(fired(trigger))
        # A later wait is checked in the same query or in a later one. So when it ends, the first was checked too.
        await fired(waiting(identifiers=["known"], states=["READY"]))
        assert not event.done()
        await asyncio.to_thread(act)
        return await event

    return asyncio.run(test())


@pytest.fixture
def end(queue: TaskQueue, owner: Owner) -> Callable[..., None]:
    """Push the task `known`, and return a function that pushes tasks and ends each with a result."""
    queue.push("work", ["known"])

    def ended(**results: Result) -> None:
        tasks = queue.push("work", [NewTask(identifier, priority=1) for identifier in results])
        polled = queue.poll("work", owner, len(tasks))
        queue.complete(owner, {task: results[task.identifier] for task in polled})

    return ended


def test_fires_when_all_tasks_are_in_a_state(end: Callable[..., None]) -> None:
    end(a=Result.SUCCESS)
    event = after_a_check(waiting(states=["SUCCEEDED", "FILTERED"]), lambda: end(b=Result.FILTER))
    assert event.payload == {"status": "ready", "topic": "work", "states": {"FILTERED": 1, "SUCCEEDED": 1}}


def test_a_failed_task_ends_the_wait_before_the_others_end(end: Callable[..., None]) -> None:
    event = after_a_check(waiting(ends_task=True), lambda: end(b=Result.FAILURE))
    assert event.payload == {
        "status": "failed",
        "message": "1 of 2 tasks of topic 'work' are in a failed state: 'b' is FAILED",
    }


def test_continues_to_wait_after_a_failure_was_repaired(
    queue: TaskQueue, owner: Owner, end: Callable[..., None]
) -> None:
    end(a=Result.FAILURE, b=Result.SUCCESS)
    queue.revive("work", State.FAILED)
    (revived,) = queue.poll("work", owner)
    event = after_a_check(waiting(), lambda: queue.complete(owner, {revived: Result.SUCCESS}))
    assert event.payload == {"status": "ready", "topic": "work", "states": {"SUCCEEDED": 2}}


def test_a_failure_resumes_the_task_no_sooner_than_resume_after(end: Callable[..., None]) -> None:
    end(a=Result.FAILURE)

    async def test() -> float:
        began = asyncio.get_running_loop().time()
        await fired(waiting(resume_after=0.5))
        return asyncio.get_running_loop().time() - began

    assert asyncio.run(test()) >= 0.5


@pytest.mark.usefixtures("end")
def test_a_topic_that_is_dropped_ends_the_wait(queue: TaskQueue) -> None:
    queue.create_topic("other")
    event = after_a_check(waiting(topic="other", ends_task=True), lambda: queue.drop_topic("other"))
    assert event.payload["status"] == "error"
    assert "'other' was dropped; create it again" in event.payload["message"]
