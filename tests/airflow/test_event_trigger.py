import asyncio
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from airflow.exceptions import AirflowProviderDeprecationWarning
from airflow.models.trigger import Trigger
from airflow.providers.common.compat.sdk import AirflowException
from airflow.providers.common.messaging.triggers.msg_queue import MessageQueueTrigger
from airflow.triggers.base import BaseEventTrigger, TriggerEvent

from airflow_provider_taskq.queue import TaskQueue
from airflow_provider_taskq.queue.waits import Found
from airflow_provider_taskq.queues.taskq import TaskQMessageQueueProvider
from airflow_provider_taskq.triggers import event as event_module
from airflow_provider_taskq.triggers.event import NewTasksWait, TaskQEventTrigger
from tests.airflow.conftest import LINES, until
from tests.airflow.release_marks import CLAIMING
from tests.internals import block_verbs

pytestmark = [
    pytest.mark.usefixtures("airflow_connection"),
    pytest.mark.promise("An event trigger ends a task only after its event is stored"),
]

BLOCKED = f"{LINES} AND wait_event_type = 'Lock'"


class Peeking:
    """A trigger that runs concurrently with the test, and its events."""

    def __init__(self, **arguments: Any) -> None:
        self._events = TaskQEventTrigger(**{"topic": "work", "poll_interval": 0.05, **arguments}).run()
        self._next: asyncio.Task[TriggerEvent] | None = None

    async def event(self, seconds: float = 200) -> Any:
        """Return the next event, or None if there is none in time."""
        self._next = self._next or asyncio.create_task(anext(self._events))  # type: ignore[arg-type]
        done, _ = await asyncio.wait({self._next}, timeout=seconds)
        if not done:
            return None
        event, self._next = self._next.result(), None
        return event.payload


def drained(queue: TaskQueue) -> None:
    owner = queue.register("consumer")
    while tasks := queue.poll("work", owner, 100):
        queue.complete(owner, dict.fromkeys(tasks, 3))  # type: ignore[arg-type]


@pytest.mark.parametrize(("waited", "started_at", "outcome"), [(1.9, 12.0, 1), (2.1, 12.0, None), (0.1, 9.0, None)])
def test_a_task_is_new_only_if_it_certainly_became_ready_after_the_event(
    waited: float, started_at: float, outcome: int | None
) -> None:
    assert NewTasksWait("work", since=10.0).outcome([Found(1, waited, started_at)]) == outcome


async def test_a_peek_fires_once_while_the_same_tasks_are_ready(queue: TaskQueue) -> None:
    peeking = Peeking(min_tasks=2)
    queue.push("work", ["a"])
    assert await peeking.event(0.5) is None
    queue.push("work", ["b"])
    assert await peeking.event() == {"topic": "work", "ready": 2}
    queue.push("work", ["c"])
    assert await peeking.event(1.5) is None
    assert queue.ready("work", 10) == 3, "it claims none"


async def test_a_late_answer_repeats_no_event(queue: TaskQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server measures the age of a task. When the wait evaluates it, the event may be older than that."""
    watch, late, answers = TaskQueue.watch, [0.0], list[object]()

    def slowly(watching: TaskQueue, waits: Any) -> Any:
        seen = watch(watching, waits)
        time.sleep(late[0])  # as in a slow network
        answers.append(seen)
        return seen

    monkeypatch.setattr(TaskQueue, "watch", slowly)
    peeking = Peeking()
    pushed = time.monotonic()
    queue.push("work", ["a"])
    assert await peeking.event() is not None
    late[0] = time.monotonic() - pushed + 0.1  # longer than the age of the task at the event
    answers.clear()
    event = asyncio.create_task(peeking.event())
    await until(lambda: len(answers) == 3 or event.done())
    assert not event.done()
    event.cancel()


async def test_a_task_pushed_during_a_check_is_found_by_the_next_check(
    queue: TaskQueue, open_queue: Callable[[], TaskQueue]
) -> None:
    """A slow check cannot decide whether the task became ready after the event."""
    peeking = Peeking(cooldown=600)
    queue.push("work", ["a"])
    assert await peeking.event() is not None
    answered_at = time.monotonic()
    drained(queue)
    queue.push("work", ["b"])
    age = time.monotonic() - answered_at
    blocking = open_queue()
    block_verbs(blocking.conn)
    event = asyncio.create_task(peeking.event())
    await until(lambda: queue.conn.execute(BLOCKED).fetchall() != [])
    await asyncio.sleep(age)
    blocking.conn.rollback()
    assert await event is not None


@pytest.mark.slow
async def test_a_peek_repeats_its_event_only_while_tasks_remain(queue: TaskQueue) -> None:
    peeking = Peeking(cooldown=0.5)
    queue.push("work", ["a"])
    for _ in range(3):
        assert await peeking.event(5) is not None
    drained(queue)
    await peeking.event(1.0)  # one event may have been under way
    assert await peeking.event(1.5) is None


async def test_a_peek_fires_immediately_for_tasks_pushed_after_the_topic_was_drained(queue: TaskQueue) -> None:
    peeking = Peeking(cooldown=600)
    for pause in (0, 0, 1.5):  # with and without a check while the topic is empty
        queue.push("work", ["a"])
        assert await peeking.event() is not None
        drained(queue)
        await asyncio.sleep(pause)


async def test_a_peek_waits_for_a_missing_topic(conn: psycopg.Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_module, "_RETRY_SECONDS", 0.2)
    peeking = Peeking()
    assert await peeking.event(0.5) is None
    queue = TaskQueue(conn)
    queue.create_topic("work")
    queue.push("work", ["a"])
    assert await peeking.event() is not None


def identity(trigger: BaseEventTrigger) -> int:
    return BaseEventTrigger.hash(*trigger.serialize())


@pytest.mark.parametrize(
    "arguments",
    [{}, pytest.param({"mode": "claim", "owner": "me", "batch_size": 5}, marks=CLAIMING)],
    ids=["peek", "claim"],
)
def test_airflow_distinguishes_triggers_by_their_arguments(arguments: dict[str, Any]) -> None:
    """Also after serialization: otherwise each parse of the DAG file would create a new trigger."""
    trigger = TaskQEventTrigger(topic="work", **arguments)
    stored = Trigger.from_object(trigger)
    assert BaseEventTrigger.hash(stored.classpath, stored.kwargs) == identity(trigger)
    assert identity(TaskQEventTrigger(topic="work", **stored_arguments(stored))) == identity(trigger)
    assert identity(TaskQEventTrigger(topic="other", **arguments)) != identity(trigger)
    assert identity(TaskQEventTrigger(topic="work", **arguments, cooldown=61)) != identity(trigger)


def stored_arguments(stored: Trigger) -> dict[str, Any]:
    return {name: value for name, value in stored.kwargs.items() if name != "topic"}


@CLAIMING
def test_claims_with_equal_arguments_share_one_stream_and_peeks_have_none() -> None:
    claim = TaskQEventTrigger(topic="work", mode="claim").shared_stream_key()
    assert claim == TaskQEventTrigger(topic="work", mode="claim").shared_stream_key()
    assert hash(claim) == hash(TaskQEventTrigger(topic="work", mode="claim").shared_stream_key())
    assert claim != TaskQEventTrigger(topic="work", mode="claim", batch_size=2).shared_stream_key()
    assert TaskQEventTrigger(topic="work").shared_stream_key() is None


@pytest.mark.promise("A feature that an older Airflow lacks is refused by name")
def test_below_airflow_3_3_a_claim_names_the_required_release_and_a_peek_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(BaseEventTrigger, "create_shared_stream_producer", raising=False)
    assert TaskQEventTrigger(topic="work").mode == "peek"
    with pytest.raises(AirflowException, match=r"needs the shared streams of Airflow 3\.3 .*: use mode='peek' here"):
        TaskQEventTrigger(topic="work", mode="claim")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"mode": "take"}, "expected 'peek' or 'claim'"),
        ({"min_tasks": 0}, "at least 1"),
        ({"batch_size": 0}, "at least 1"),
        ({"batch_size": 1.5}, "invalid batch_size 1.5"),
        ({"closing_events": True}, "invalid closing_events True"),
        ({"lease": "1s"}, "invalid lease of 1 seconds"),
        ({"cooldown": -1}, "invalid cooldown -1 s"),
        ({"poll_interval": timedelta(seconds=-1)}, "invalid poll_interval -1 s"),
    ],
)
def test_invalid_arguments_are_refused_when_the_dag_is_parsed(arguments: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        TaskQEventTrigger(topic="work", **arguments)


@pytest.mark.parametrize(
    "arguments",
    [{"min_tasks": 5}, pytest.param({"mode": "claim", "batch_size": 5}, marks=CLAIMING)],
    ids=str,
)
def test_a_message_queue_of_scheme_taskq_is_our_trigger(arguments: dict[str, Any]) -> None:
    trigger = MessageQueueTrigger(scheme="taskq", topic="work", **arguments)
    assert trigger.serialize() == TaskQEventTrigger(topic="work", **arguments).serialize()


@pytest.mark.parametrize(
    ("uri", "topic", "conn_id"),
    [
        ("taskq://other_db/work", "work", "other_db"),
        ("taskq:///work", "work", "taskq_default"),
        ("taskq://other_db/a%2Fb%20c", "a/b c", "other_db"),
    ],
)
def test_a_message_queue_may_be_named_by_a_uri(uri: str, topic: str, conn_id: str) -> None:
    with pytest.warns(AirflowProviderDeprecationWarning):
        trigger = MessageQueueTrigger(queue=uri, min_tasks=2)
    expected = TaskQEventTrigger(topic=topic, taskq_conn_id=conn_id, min_tasks=2)
    assert trigger.serialize() == expected.serialize()


@pytest.mark.parametrize("uri", ["taskq://conn", "taskq://conn/", "taskq://conn/a/b", "taskq://conn/a?mode=claim"])
def test_a_uri_without_a_topic_is_refused(uri: str) -> None:
    with pytest.raises(ValueError, match="taskq://conn_id/topic"):
        TaskQMessageQueueProvider().trigger_kwargs(uri)


def test_without_the_messaging_provider_the_error_says_what_to_install(repository: Path) -> None:
    program = (
        "import sys; sys.modules['airflow.providers.common.messaging.providers.base_provider'] = None\n"
        "try:\n    import airflow_provider_taskq.queues.taskq\n"
        "except Exception as error:\n    print(type(error).__name__, error)"
    )
    result = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, cwd=repository)
    assert "AirflowOptionalProviderFeatureException" in result.stdout
    assert "pip install 'apache-airflow-providers-common-messaging>=2'" in result.stdout
