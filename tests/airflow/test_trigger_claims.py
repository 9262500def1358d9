"""Claims of deferred gates in the triggerer."""

import asyncio
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from airflow.triggers.base import TaskSuccessEvent, TriggerEvent

from airflow_provider_taskq.queue import State, TaskQueue
from airflow_provider_taskq.triggers import TaskQTrigger
from airflow_provider_taskq.triggers.topic import claim_request, get_claim_executor
from tests.airflow.conftest import LINES, until

pytestmark = [
    pytest.mark.usefixtures("airflow_connection", "queue"),
    pytest.mark.promise("A gate claims in one transaction"),
]

NAME = "dag/run/gate/-1"
BLOCKED = f"{LINES} AND wait_event_type = 'Lock'"


def trigger(**arguments: Any) -> TaskQTrigger:
    """Return the trigger of a deferred gate that stores no result; tests with real processes cover that."""
    given = {"topic": "work", "claim": 2, "poke_interval": 0.05, "ends_task": True, "stores": "nothing", **arguments}
    made = TaskQTrigger(**given)
    if "claim_as" not in arguments:
        ti: Any = SimpleNamespace(dag_id="dag", run_id="run", task_id="gate", map_index=-1)
        made.task_instance = ti
    return made


async def event_of(waiting: TaskQTrigger) -> TriggerEvent:
    async for event in waiting.run():
        return event
    raise AssertionError("the trigger ended without an event")


def owners(queue: TaskQueue) -> list[str | None]:
    return [task.owner if task.state is State.ACTIVE else None for task in queue.page("work")]


async def test_claims_under_the_logical_task_and_ends_the_gate(queue: TaskQueue) -> None:
    waiting = asyncio.create_task(event_of(trigger()))
    await asyncio.sleep(0)
    queue.push("work", ["a", "b", "c"])
    assert isinstance(await waiting, TaskSuccessEvent)
    assert owners(queue) == [NAME, NAME, None]


async def test_a_triggerer_that_takes_over_finds_the_claim_and_claims_no_more(queue: TaskQueue) -> None:
    queue.push("work", ["a", "b", "c", "d"])
    first = await trigger()._wait_until_open()
    again = await trigger()._wait_until_open()
    assert again == {**first, "fence": again["fence"]}
    assert again["fence"] > first["fence"]
    assert owners(queue) == [NAME, NAME, None, None]


async def test_a_closed_gate_leaves_no_lease_behind(queue: TaskQueue) -> None:
    queue.push("work", ["a"])
    request = claim_request(trigger(min_tasks=2), NAME)
    assert await get_claim_executor("taskq_default").claim(request) is None
    assert queue.owner(NAME) is None
    assert owners(queue) == [None]


async def test_the_claim_of_a_cancelled_gate_is_released(queue: TaskQueue, dsn: str) -> None:
    queue.push("work", ["a"])
    session = psycopg.connect(dsn)
    TaskQueue(session).register(NAME)  # in an open transaction, so the claim waits for it
    waiting = asyncio.create_task(event_of(trigger()))
    await until(lambda: bool(queue.conn.execute(BLOCKED).fetchall()))
    waiting.cancel()
    session.commit()
    session.close()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await until(lambda: queue.owner(NAME) is None)
    assert owners(queue) == [None]
    assert queue.page("work")[0].attempt == 0


async def test_the_connection_is_open_only_while_gates_claim(queue: TaskQueue) -> None:
    queue.push("work", ["a"])
    await trigger()._wait_until_open()
    await until(lambda: not queue.conn.execute(LINES).fetchall())
