"""TaskQEventTrigger(mode="claim") on Airflow's shared streams, without a triggerer process."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from tests.airflow.release_marks import CLAIMS_SHARE_STREAMS

pytest.importorskip("airflow.triggers.shared_stream", reason=CLAIMS_SHARE_STREAMS)

from airflow.triggers.base import TriggerEvent
from airflow.triggers.shared_stream import AdvanceItem, AdvanceOutcome, SharedStreamManager, SharedStreamProducer

from airflow_provider_taskq.queue import LeaseLost, NewTask, Owner, State, TaskQueue
from airflow_provider_taskq.queue.backoff import Backoff
from airflow_provider_taskq.triggers.event import TaskQEventTrigger
from airflow_provider_taskq.triggers.event_debouncer import EventBatch
from airflow_provider_taskq.triggers.event_stream import EventStreamProducer
from tests.airflow.conftest import LINES, until

pytestmark = [
    pytest.mark.usefixtures("airflow_connection"),
    pytest.mark.promise("An event trigger ends a task only after its event is stored"),
]


class Picky(TaskQEventTrigger):
    """Rejects batches with the identifier `bad`."""

    def rejection(self, batch: EventBatch) -> str | None:
        return "bad identifier" if "bad" in batch.identifiers else None


class Triggerer:
    """Runs triggers of shared streams as Airflow's triggerer does. The test decides when events are stored."""

    def __init__(self, ack_timeout: float = 300.0) -> None:
        self.now = 0.0  # seconds; the test moves the clock by which Airflow waits for confirmations
        self.streams = SharedStreamManager(ack_timeout=ack_timeout, _now=lambda: self.now)
        self.events: list[tuple[int, TriggerEvent]] = []
        self.unstored: list[tuple[int, int]] = []
        self.stores = False  # whether events are stored immediately
        self.tasks: dict[int, asyncio.Task[None]] = {}
        self.before_taking: Callable[[], Awaitable[Any]] | None = None

    def start(self, trigger: TaskQEventTrigger, number: int = 1) -> None:
        self.tasks[number] = asyncio.create_task(self._run(number, trigger))

    async def stop(self) -> None:
        for task in self.tasks.values():
            task.cancel()
        await asyncio.gather(*self.tasks.values(), return_exceptions=True)
        await self.streams.stop_all()

    def store(self, *numbers: int) -> None:
        """Store the events of these triggers, or of all."""
        chosen = [(number, seq) for number, seq in self.unstored if not numbers or number in numbers]
        self.unstored = [entry for entry in self.unstored if entry not in chosen]
        self.streams.confirm_persisted([seq for _, seq in chosen])

    def sequences(self, number: int = 1) -> list[int]:
        return [sequence for one, event in self.events if one == number for sequence in event.payload["sequences"]]

    async def _run(self, number: int, trigger: TaskQEventTrigger) -> None:
        key = trigger.shared_stream_key()
        assert key is not None
        stream = self.streams.subscribe(trigger_id=number, trigger=trigger, key=key)
        try:
            async for event in trigger.filter_shared_stream(stream):
                if self.before_taking is not None:
                    await self.before_taking()
                seq = self.streams.bind_pending_event(trigger_id=number, key=key)
                self.events.append((number, event))
                if seq is not None and self.stores:
                    self.streams.confirm_persisted([seq])
                elif seq is not None:
                    self.unstored.append((number, seq))
        finally:
            await self.streams.unsubscribe(number, key)


@asynccontextmanager
async def triggerer(**arguments: Any) -> AsyncIterator[Triggerer]:
    running = Triggerer(**arguments)
    try:
        yield running
    finally:
        await running.stop()


def claiming(kind: type[TaskQEventTrigger] = TaskQEventTrigger, **arguments: Any) -> TaskQEventTrigger:
    return kind(**{"topic": "work", "mode": "claim", "poll_interval": 0.05, "cooldown": 0, **arguments})


def producer(trigger: TaskQEventTrigger) -> SharedStreamProducer:
    return type(trigger).create_shared_stream_producer(trigger.serialize()[1])


def states(queue: TaskQueue) -> dict[str, State]:
    return {task.identifier: task.state for task in queue.page("work", size=1000)}


def attempts(queue: TaskQueue) -> list[int]:
    return [task.attempt for task in queue.page("work")]


MISSING = "topic 'later' does not exist; create it with: taskq topics create later"
ENDED = f"SELECT pg_terminate_backend(pid) FROM ({LINES}) lines"


def count(queue: TaskQueue, state: State) -> int:
    return sum(one is state for one in states(queue).values())


async def test_a_task_ends_only_after_its_event_is_stored(queue: TaskQueue) -> None:
    async with triggerer() as airflow:
        airflow.start(claiming())
        pushed = await asyncio.to_thread(queue.push, "work", [NewTask("a", payload="secret"), NewTask("b")])
        await until(lambda: len(airflow.events) == 2)
        assert [event.payload for _, event in airflow.events] == [
            {"topic": "work", "claimed": 1, "sequences": [task.sequence], "identifiers": [task.identifier]}
            for task in pushed
        ]
        assert set(states(queue).values()) == {State.ACTIVE}
        airflow.store()
        await until(lambda: set(states(queue).values()) == {State.SUCCEEDED})


async def test_a_rejected_task_fails_with_its_reason(queue: TaskQueue) -> None:
    queue.push("work", ["bad", "good"])
    async with triggerer() as airflow:
        airflow.start(claiming(Picky))
        await until(lambda: states(queue)["bad"] is State.FAILED)
        await until(lambda: len(airflow.events) == 1)
        airflow.store()
        await until(lambda: states(queue)["good"] is State.SUCCEEDED)
    (bad,) = (task for task in queue.page("work") if task.identifier == "bad")
    assert bad.error == "bad identifier"


@pytest.mark.slow
async def test_a_task_whose_event_is_not_stored_is_returned_and_fires_again(queue: TaskQueue) -> None:
    (task,) = queue.push("work", ["a"])
    async with triggerer(ack_timeout=0.5) as airflow:
        airflow.start(claiming(), 1)
        airflow.start(claiming(), 2)
        await until(lambda: len(airflow.events) == 2)
        airflow.store(1)  # the other trigger's event is never confirmed
        airflow.now += 1
        await until(lambda: airflow.tasks[2].done())
        await until(lambda: states(queue)["a"] is State.READY)
        assert attempts(queue) == [0]
        await until(lambda: airflow.sequences() == [task.sequence] * 2)
        airflow.store(1)
        await until(lambda: states(queue)["a"] is State.SUCCEEDED)


async def test_a_trigger_cancelled_before_it_fired_does_not_end_the_task(queue: TaskQueue) -> None:
    """Airflow counts such a trigger as accepting."""
    queue.push("work", ["a"])
    async with triggerer() as airflow:
        about_to = asyncio.Event()

        async def never() -> None:
            about_to.set()
            await asyncio.Event().wait()

        airflow.before_taking = never
        airflow.start(claiming())
        await about_to.wait()
        airflow.tasks[1].cancel()
        with suppress(asyncio.CancelledError):
            await airflow.tasks[1]
        assert not airflow.events
    assert states(queue) == {"a": State.READY}
    assert attempts(queue) == [0]


@pytest.mark.slow
async def test_events_of_a_killed_triggerer_fire_again_and_its_late_settlement_changes_nothing(
    queue: TaskQueue,
) -> None:
    (task,) = queue.push("work", ["a"])
    killed = producer(claiming(lease=20))
    stream = killed.open_stream()
    claim, _ = await anext(stream)  # then nothing more: no heartbeat, no release
    (old,) = queue.owners()
    async with triggerer() as airflow:
        airflow.start(claiming(lease=20))
        await until(lambda: airflow.sequences() == [task.sequence])
        (new,) = queue.owners()
        # After half of its lease, when it counts as dead, and before the lease lapses.
        assert new.name == old.name
        assert timedelta(seconds=10) <= new.lease_until - old.lease_until < timedelta(seconds=20)
        claim.fired = 1
        with pytest.raises(LeaseLost):
            await killed.advance([AdvanceItem(claim, AdvanceOutcome(acked=1, failed=0))])
        assert states(queue) == {"a": State.ACTIVE}
        airflow.store()
        await until(lambda: states(queue) == {"a": State.SUCCEEDED})
    await stream.aclose()  # type: ignore[attr-defined]
    await killed.aclose()


def claimed(airflow: Triggerer) -> list[int]:
    """Return the number of tasks in each event."""
    return [event.payload["claimed"] for _, event in airflow.events]


@pytest.mark.slow
async def test_no_event_is_empty_and_the_last_of_a_burst_fires_after_the_cooldown(queue: TaskQueue) -> None:
    """Events that follow each other quickly wait for the last one, whose run gets all of them."""
    async with triggerer() as airflow:
        airflow.start(claiming(cooldown=2))
        queue.push("work", ["a", "b", "c"])
        await until(lambda: len(airflow.events) == 2 and count(queue, State.ACTIVE) == 3)
        airflow.store()
        settled = time.monotonic()
        await until(lambda: len(airflow.events) == 3)
        assert time.monotonic() - settled >= 1.9
        airflow.store()
        await until(lambda: set(states(queue).values()) == {State.SUCCEEDED})
        await asyncio.sleep(4)  # for what must not come
        assert claimed(airflow) == [1, 1, 1]


async def test_an_event_that_is_held_back_is_fired_by_the_next_triggerer(queue: TaskQueue) -> None:
    tasks = queue.push("work", ["a", "b"])
    async with triggerer() as airflow:
        airflow.start(claiming(cooldown=600))
        await until(lambda: len(airflow.events) == 1 and count(queue, State.ACTIVE) == 2)
        airflow.store()
        await until(lambda: count(queue, State.SUCCEEDED) == 1)
    async with triggerer() as after:
        after.start(claiming(cooldown=600))
        await until(lambda: len(after.events) == 1)
        assert airflow.sequences() + after.sequences() == [task.sequence for task in tasks]


async def test_if_the_last_task_of_a_burst_is_rejected_one_event_without_tasks_follows(queue: TaskQueue) -> None:
    async with triggerer() as airflow:
        airflow.start(claiming(Picky, cooldown=0.5))
        queue.push("work", ["a", "b", "bad"])
        await until(lambda: len(airflow.events) == 2)
        airflow.store()
        await until(lambda: claimed(airflow) == [1, 1, 0])
        airflow.store()
        await asyncio.sleep(2)  # for what must not come
        assert claimed(airflow) == [1, 1, 0]
        assert states(queue) == {"a": State.SUCCEEDED, "b": State.SUCCEEDED, "bad": State.FAILED}


async def test_a_batch_names_all_sequences_up_to_its_size_and_the_first_identifiers(queue: TaskQueue) -> None:
    tasks = queue.push("work", [NewTask(f"id-{number:03}", payload="private") for number in range(170)])
    async with triggerer() as airflow:
        airflow.start(claiming(batch_size=150))
        await until(lambda: len(airflow.events) == 2)
        assert airflow.events[0][1].payload == {
            "topic": "work",
            "claimed": 150,
            "sequences": [task.sequence for task in tasks[:150]],
            "identifiers": [f"id-{number:03}" for number in range(100)],
        }
        assert airflow.events[1][1].payload["claimed"] == 20
        airflow.store()
        await until(lambda: set(states(queue).values()) == {State.SUCCEEDED})


@pytest.mark.slow
async def test_a_missing_topic_is_logged_once_and_retried_with_growing_pauses(
    queue: TaskQueue, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[int] = []
    pause_after = EventStreamProducer._pause_after

    async def noted(self: EventStreamProducer, error: Exception, backoff: Backoff) -> None:
        pauses.append(backoff.failures + 1)
        await pause_after(self, error, backoff)

    monkeypatch.setattr(EventStreamProducer, "_pause_after", noted)

    caplog.set_level(logging.INFO)
    async with triggerer() as airflow:
        airflow.start(claiming(topic="later"))
        await until(lambda: len(pauses) >= 3)
        queue.create_topic("later")
        queue.push("later", ["a"])
        await until(lambda: len(airflow.events) == 1)
        airflow.store()
        await until(lambda: "Can claim for events again" in caplog.text)
        queue.drop_topic("later")
        await until(lambda: caplog.text.count(MISSING) == 2)
    assert pauses[:3] == [1, 2, 3], "a heartbeat that works ends no back-off"
    assert caplog.text.count(MISSING) == 2


@pytest.mark.parametrize("gone", ["purged", "dropped"])
async def test_a_stream_continues_if_tasks_are_gone_when_their_event_is_stored(queue: TaskQueue, gone: str) -> None:
    async with triggerer() as airflow:
        airflow.start(claiming(batch_size=2))
        first, _ = queue.push("work", ["a", "b"])
        await until(lambda: len(airflow.events) == 1)
        if gone == "purged":
            queue.purge("work", first.sequence, first.sequence, state=State.ACTIVE)
        else:
            queue.drop_topic("work")
            queue.create_topic("work")
        airflow.store()
        queue.push("work", ["c"])
        await until(lambda: len(airflow.events) == 2)
        airflow.store()
        remaining = {"b", "c"} if gone == "purged" else {"c"}
        await until(lambda: states(queue) == dict.fromkeys(remaining, State.SUCCEEDED))


@pytest.mark.slow
async def test_closing_events_follow_a_burst_and_a_start_if_requested(queue: TaskQueue) -> None:
    """If a DAG has reached its limit of runs, its last events wait until another event comes."""
    async with triggerer() as airflow:
        airflow.start(claiming(cooldown=0.5, closing_events=3))

        airflow.stores = True
        await until(lambda: claimed(airflow) == [0, 0, 0])
        await asyncio.sleep(3)
        assert claimed(airflow) == [0, 0, 0]
        queue.push("work", ["a", "b"])
        await until(lambda: claimed(airflow) == [0, 0, 0, 1, 1, 0, 0, 0])
        assert set(states(queue).values()) == {State.SUCCEEDED}


async def test_the_stream_claims_no_more_tasks_than_airflow_stores(queue: TaskQueue) -> None:
    queue.push("work", [str(number) for number in range(200)])
    async with triggerer() as airflow:
        airflow.start(claiming())
        await until(lambda: len(airflow.events) == 128)
        await asyncio.sleep(0.5)
        assert len(airflow.events) == count(queue, State.ACTIVE) == 128
        airflow.store()
        await until(lambda: len(airflow.events) == 200)
        airflow.store()
        await until(lambda: count(queue, State.SUCCEEDED) == 200)
        assert len(set(airflow.sequences())) == 200


async def test_a_lost_connection_loses_no_task_and_fires_none_twice(queue: TaskQueue) -> None:
    pushed = queue.push("work", ["a"])
    async with triggerer() as airflow:
        airflow.start(claiming())
        await until(lambda: len(airflow.events) == 1)
        assert queue.conn.execute(ENDED).fetchall()
        pushed += queue.push("work", ["b"])
        await until(lambda: len(airflow.events) == 2)
        assert queue.conn.execute(ENDED).fetchall()
        airflow.store()
        await until(lambda: set(states(queue).values()) == {State.SUCCEEDED})
        assert airflow.sequences() == [task.sequence for task in pushed]


async def test_tasks_of_a_poll_whose_answer_was_lost_still_fire(queue: TaskQueue) -> None:
    queue.push("work", ["a"])
    async with triggerer() as airflow:
        airflow.start(claiming(lease=10))
        await until(lambda: len(airflow.events) == 1)
        (owner,) = queue.owners()
        with queue.conn.transaction():  # the poll of the stream, whose answer is lost
            (lost,) = queue.push("work", ["lost"])
            assert [task.sequence for task in queue.poll("work", owner)] == [lost.sequence]
        assert queue.conn.execute(ENDED).fetchall()
        await until(lambda: lost.sequence in airflow.sequences())
        airflow.store()
        await until(lambda: set(states(queue).values()) == {State.SUCCEEDED})


class PickyOnce(TaskQEventTrigger):
    """Rejects its first batch."""

    rejected = False

    def rejection(self, batch: EventBatch) -> str | None:  # noqa: ARG002
        if self.rejected:
            return None
        self.rejected = True
        return "not yet"


@pytest.mark.slow
async def test_a_rejection_whose_answer_was_lost_is_not_repeated_on_the_next_attempt(
    queue: TaskQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    complete = TaskQueue.complete
    lost: list[object] = []

    def complete_and_lose_the_answer(completing: TaskQueue, owner: Owner, decisions: Any) -> None:
        complete(completing, owner, decisions)
        if not lost:
            lost.append(decisions)
            raise psycopg.OperationalError("the answer is lost")

    monkeypatch.setattr(TaskQueue, "complete", complete_and_lose_the_answer)
    queue.alter_topic("work", base=0, max_attempts=2)
    (task,) = queue.push("work", ["a"])
    async with triggerer() as airflow:
        airflow.start(claiming(PickyOnce))
        await until(lambda: airflow.sequences() == [task.sequence])
        await asyncio.sleep(3)  # the repeated settlement
        assert (states(queue)["a"], attempts(queue)) == (State.ACTIVE, [2])
        airflow.store()
        await until(lambda: states(queue)["a"] is State.SUCCEEDED)
    assert lost


async def test_a_lost_lease_ends_the_stream_and_airflow_restarts_it(queue: TaskQueue) -> None:
    (task,) = queue.push("work", ["a"])
    async with triggerer() as airflow:
        airflow.start(claiming(lease=10))
        await until(lambda: len(airflow.events) == 1)
        (owner,) = queue.owners()
        queue.release(owner)
        airflow.store()
        with pytest.raises(LeaseLost):
            await airflow.tasks[1]
        assert states(queue) == {"a": State.READY}
        airflow.start(claiming(lease=10))
        await until(lambda: airflow.sequences() == [task.sequence] * 2)
