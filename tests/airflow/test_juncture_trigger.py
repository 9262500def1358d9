import asyncio
from typing import Any

import pytest
from airflow.triggers.base import TriggerEvent

from airflow_provider_taskq.queue import NewTask, State, TaskQueue
from airflow_provider_taskq.triggers import TaskQJunctureTrigger

pytestmark = [
    pytest.mark.usefixtures("airflow_connection", "queue"),
    pytest.mark.promise("A juncture releases each group once under its name, also after a crash"),
]

READY = {"status": "ready", "topic": "work", "groups": 2}


async def fired(trigger: TaskQJunctureTrigger) -> TriggerEvent:
    """Run a trigger, and return its only event."""
    async with asyncio.timeout(30):
        (event,) = [event async for event in trigger.run()]
        return event


def waiting(**arguments: Any) -> TaskQJunctureTrigger:
    given = {"name": "gate", "topic": "work", "groups": [["a", "b"], ["c"]], "poke_interval": 0.05}
    return TaskQJunctureTrigger(**{**given, **arguments})


def suspend(queue: TaskQueue, *names: str) -> None:
    """Push suspended tasks."""
    queue.push("work", [NewTask(name, suspended=True) for name in names])


async def released(queue: TaskQueue, identifier: str) -> None:
    """Wait until the task of an identifier has been released."""
    async with asyncio.timeout(30):
        while queue.latest("work", [identifier])[identifier].state is not State.READY:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


def test_releases_each_complete_group_and_fires_after_the_last(queue: TaskQueue) -> None:
    async def test() -> None:
        event = asyncio.create_task(fired(waiting()))
        suspend(queue, "a", "c")
        await released(queue, "c")
        assert queue.latest("work", ["a"])["a"].state is State.SUSPENDED
        assert not event.done()
        suspend(queue, "b")
        assert (await event).payload == READY
        assert {task.state for task in queue.page("work")} == {State.READY}

    asyncio.run(test())


def test_another_triggerer_continues_where_the_first_one_stopped(queue: TaskQueue) -> None:
    suspend(queue, "c")

    async def dies() -> None:
        event = asyncio.create_task(fired(waiting()))
        await released(queue, "c")
        event.cancel()

    asyncio.run(dies())
    suspend(queue, "c", "a", "b")
    assert asyncio.run(fired(waiting())).payload == READY
    assert [task.state for task in queue.page("work", identifier="c")] == [State.READY, State.SUSPENDED]


def test_accepts_tasks_in_any_state_under_an_eternal_junction(queue: TaskQueue) -> None:
    queue.push("work", ["a", "c"])
    suspend(queue, "b", "c")
    assert asyncio.run(fired(waiting(junction="ETERNAL"))).payload == READY
