"""The claim stream of TaskQEventTrigger, on Airflow's shared streams in ack mode (Airflow 3.3).

The stream completes a task only after Airflow has stored the task's event.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Coroutine, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import psycopg
from airflow.providers.common.compat.sdk import AirflowException
from airflow.triggers.shared_stream import AdvanceItem, SharedStreamProducer

from airflow_provider_taskq import metrics
from airflow_provider_taskq.queue import (
    Decision,
    LeaseLost,
    NotHeld,
    Owner,
    Result,
    Task,
    TaskQueue,
    TaskQueueError,
    UnknownTopic,
)
from airflow_provider_taskq.queue.backoff import Backoff
from airflow_provider_taskq.queue.errors import first_line
from airflow_provider_taskq.queue.faults import classify
from airflow_provider_taskq.queue.metrics import COMPLETED, LEASE_LOST, POLLED
from airflow_provider_taskq.queue.waits import ReadyWait, unknown_topic_error
from airflow_provider_taskq.triggers.event_debouncer import EventBatch, EventDebouncer
from airflow_provider_taskq.triggers.queue_thread import QueueThread
from airflow_provider_taskq.triggers.watcher import get_watcher

if TYPE_CHECKING:
    from airflow_provider_taskq.triggers.event import TaskQEventTrigger

log = logging.getLogger(__name__)

_MAX_IN_FLIGHT = 128  # tasks, or two batches; Airflow's own limit of unconfirmed events is 1,024
_MAX_BACKOFF = 30.0  # seconds
_RELEASE_TIMEOUT = 10.0  # seconds; if the release fails, the lease expires
_STORED = Decision(Result.SUCCESS)
_NOT_STORED = Decision(Result.SUSPENSION, delay=timedelta(seconds=5))  # so that a failure causes no busy loop

_ERRORS = (psycopg.Error, TaskQueueError, AirflowException, OSError)


class EventStreamProducer(SharedStreamProducer):
    """Claims tasks of a topic, keeps the lease, and settles the tasks after Airflow has stored their events.

    The owner's name is the same after a restart. So a new triggerer takes over the tasks of a killed one, and fires
    their events again. If two triggerers run the same stream, one is active. The other one waits until the owner had no
    heartbeat for half of its lease. Otherwise each of them would repeatedly take over the tasks of the other.

    An EventDebouncer holds the last batch of a burst back. The owner holds the tasks of that batch in the queue, so
    their events fire later even if this triggerer dies.

    A lost lease ends the stream with LeaseLost: Airflow restarts it, and events of unfinished tasks fire again. After
    any other error the stream retries with growing pauses, because nothing else restarts the trigger of a DAG.
    """

    def __init__(self, config: "TaskQEventTrigger", owner: str) -> None:
        self._config = config
        self._queue = QueueThread(config.taskq_conn_id)
        self._name = owner
        self._owner: Owner | None = None  # once this process has registered it
        # The stream sends heartbeats between its steps, on its own connection, so it needs no thread of worker.lease. A
        # sixth of the lease leaves time for two more attempts before another triggerer may take over, after a half.
        self._heartbeat_interval = config.lease / 6
        self._heartbeat_due = 0.0
        self._in_flight: dict[int, Task] = {}  # by sequence
        self._settled = asyncio.Event()
        self._debouncer = EventDebouncer(config.cooldown, config.closing_events)
        self._backoff = self._new_backoff()
        self._logged_error: str | None = None
        self._held_unknown = True  # the owner may hold tasks that are not in flight
        self._drained = True  # the last poll returned fewer tasks than requested
        self._standby_logged = False
        self._closed = False

    async def open_stream(self) -> AsyncIterator[tuple[EventBatch, EventBatch]]:
        """Yield each batch as an event for the triggers and as a payload for `advance`. Raises LeaseLost at the end."""
        try:
            while True:
                try:
                    batches = await self._next_batches()
                except LeaseLost:
                    metrics.record_in_triggerer(LEASE_LOST, 1, topic=self._config.topic)
                    raise
                except _ERRORS as error:
                    batches = []
                    await self._pause_after(error, self._backoff)
                for batch in batches:
                    yield batch, batch
        finally:
            self._closed = True

    async def advance(self, batch: Sequence[AdvanceItem]) -> None:
        """Complete the tasks of stored events, fail those of rejected ones, and return the others, in one transaction.

        A task needs no settlement if it was purged, or dropped with its topic, while Airflow stored its event.
        """
        decisions = {task: decision for item in batch for task, decision in _decisions(item).items()}
        left = decisions
        backoff = self._new_backoff()
        while left:
            try:
                if backoff.failures:  # the failed attempt may have committed
                    left = await self._unsettled(left)
                await self._queue.call(partial(_complete, self._registered, left))
                break
            except NotHeld as error:
                held = await self._unsettled(left)
                if len(held) == len(left):
                    raise
                log.warning("Tasks of stored events are gone: topic=%s error=%s", self._config.topic, first_line(error))
                left = held
            except (psycopg.Error, TaskQueueError, OSError) as error:
                if self._closed or not (isinstance(error, OSError) or classify(error).is_temporary):
                    raise
                await self._pause_after(error, backoff)
        self._remove_in_flight(decisions)
        now = asyncio.get_running_loop().time()
        for item in batch:
            self._debouncer.settle(item.broker_payload, now)
        self._settled.set()
        self._count_completed(decisions)

    async def aclose(self) -> None:
        """Release the held tasks. If that fails, the next triggerer takes them over, or the lease expires."""
        self._closed = True
        try:
            if self._owner is not None:
                async with asyncio.timeout(_RELEASE_TIMEOUT):
                    await self._queue.call(lambda queue: queue.release(self._registered))
        except _ERRORS as error:
            log.warning("Cannot release the tasks of an event stream: owner=%s error=%s", self._name, error)
        finally:
            self._queue.close()

    async def _next_batches(self) -> list[EventBatch]:
        """Take one step: register, heartbeat, wait or claim. A step ends before the next heartbeat is due."""
        config = self._config
        if self._owner is None and not await self._try_register():
            return []
        await self._heartbeat_if_due()
        if self._held_unknown:
            in_flight = set(self._in_flight)  # read before `held`: a task that settles meanwhile must not fire again
            held = await self._held()
            self._held_unknown = False
            return self._fire([task for task in held if task.sequence not in in_flight])
        if len(self._in_flight) + config.batch_size > max(_MAX_IN_FLIGHT, 2 * config.batch_size):
            await self._wait_for_any(None)
            return []
        wait = ReadyWait(config.topic, 1, config.condition, poll_interval=config.poll_interval)
        if self._drained and not await self._wait_for_any(get_watcher(config.taskq_conn_id).wait_for(wait)):
            self._record_success()
            return self._debouncer.due(asyncio.get_running_loop().time(), config.topic)
        batches = await self._claim()
        self._record_success()
        return batches

    async def _claim(self) -> list[EventBatch]:
        self._held_unknown = True  # a poll that fails may have committed
        config = self._config
        polled = await self._queue.call(
            lambda queue: queue.poll(config.topic, self._registered, config.batch_size, config.order, config.condition)
        )
        self._held_unknown = False
        metrics.record_in_triggerer(POLLED, len(polled), topic=self._config.topic)
        self._drained = len(polled) < self._config.batch_size
        if not polled:  # another consumer took the tasks first
            await asyncio.sleep(min(self._config.poll_interval, self._heartbeat_interval))
        return self._fire(polled)

    def _fire(self, tasks: Sequence[Task]) -> list[EventBatch]:
        """Mark tasks as in flight, split them into batches, and return the batches that fire their events now."""
        tasks = [replace(task, payload=None) for task in tasks]  # no event has it
        self._in_flight.update({task.sequence: task for task in tasks})
        size = self._config.batch_size
        batches = [
            EventBatch(self._config.topic, tuple(tasks[start : start + size])) for start in range(0, len(tasks), size)
        ]
        return self._debouncer.add(batches, asyncio.get_running_loop().time())

    def _remove_in_flight(self, settled: Iterable[Task]) -> None:
        for task in settled:
            if self._in_flight.get(task.sequence) is task:  # a later poll may have claimed it again
                del self._in_flight[task.sequence]

    @property
    def _registered(self) -> Owner:
        assert self._owner is not None  # noqa: S101  for the type checker: each step begins with the registration
        return self._owner

    async def _held(self) -> list[Task]:
        return await self._queue.call(lambda queue: queue.held(self._registered, self._config.topic))

    async def _unsettled(self, decisions: Mapping[Task, Decision]) -> dict[Task, Decision]:
        """Return the decisions on tasks that are still held in that attempt. Raises LeaseLost if the lease is gone."""
        await self._heartbeat()  # raises LeaseLost, while `held` would return no tasks
        attempts = {task: task.attempt for task in await self._held()}
        return {task: decision for task, decision in decisions.items() if attempts.get(task) == task.attempt}

    async def _try_register(self) -> bool:
        lease = timedelta(seconds=self._config.lease)
        # An owner without a sign of life for half of its lease counts as dead.
        active = await self._queue.call(lambda queue: queue.owners(lease / 2))
        if self._name in [owner.name for owner in active]:
            if not self._standby_logged:
                self._standby_logged = True
                log.info("Event stream on standby, another process is active: owner=%s", self._name)
            await asyncio.sleep(self._heartbeat_interval)
            return False
        self._owner = await self._queue.call(lambda queue: queue.register(self._name, lease))
        now = asyncio.get_running_loop().time()
        self._debouncer.start(now)
        self._heartbeat_due = now + self._heartbeat_interval
        return True

    async def _heartbeat(self) -> None:
        await self._queue.call(lambda queue: queue.heartbeat(self._registered))

    async def _heartbeat_if_due(self) -> None:
        loop = asyncio.get_running_loop()
        if loop.time() >= self._heartbeat_due:
            await self._heartbeat()
            self._heartbeat_due = loop.time() + self._heartbeat_interval

    async def _wait_for_any(self, event: Coroutine[Any, Any, object] | None) -> bool:
        """Wait for an event, a settlement, the debouncer or the next heartbeat; return whether the event happened."""
        due = min(self._heartbeat_due, self._debouncer.due_at or self._heartbeat_due)
        left = max(due - asyncio.get_running_loop().time(), 0.0)
        self._settled.clear()
        awaited = None if event is None else asyncio.ensure_future(event)
        futures = {asyncio.ensure_future(self._settled.wait()), *([awaited] if awaited else [])}
        try:
            done, _ = await asyncio.wait(futures, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for future in futures:
                future.cancel()
        if awaited is None or awaited not in done:
            return False
        awaited.result()
        return True

    async def _pause_after(self, error: Exception, backoff: Backoff) -> None:
        """Log an error if it is new, and sleep."""
        if isinstance(error, UnknownTopic):
            error = unknown_topic_error(self._config.topic)
        text = first_line(error)
        if text != self._logged_error:
            self._logged_error = text
            log.warning("Cannot claim for events, will retry: topic=%s error=%s", self._config.topic, text)
        self._held_unknown, self._heartbeat_due = True, 0.0  # the failed statement may have committed
        await asyncio.sleep(backoff.next())

    def _record_success(self) -> None:
        """Reset the back-off after a successful check or poll of the topic."""
        self._backoff.reset()
        if self._logged_error is not None:
            self._logged_error = None
            log.info("Can claim for events again: topic=%s", self._config.topic)

    def _new_backoff(self) -> Backoff:
        return Backoff(1.0, min(_MAX_BACKOFF, self._heartbeat_interval))

    def _count_completed(self, decisions: Mapping[Task, Decision]) -> None:
        numbers = Counter(decision.result for decision in decisions.values())
        for result in (Result.SUCCESS, Result.FAILURE):
            metrics.record_in_triggerer(COMPLETED, numbers[result], topic=self._config.topic, result=result.name)


def _complete(owner: Owner, decisions: Mapping[Any, Decision], queue: TaskQueue) -> None:
    queue.complete(owner, decisions)


def _decisions(item: AdvanceItem) -> dict[Task, Decision]:
    """Return the decisions on an event's tasks, by the outcome of the event."""
    batch: EventBatch = item.broker_payload
    if item.outcome.rejected:
        error = "; ".join(batch.rejections) or "rejected by the trigger"
        return dict.fromkeys(batch.tasks, Decision(Result.FAILURE, error=error))
    # Airflow counts a trigger as accepting that was cancelled after it took an event and before it fired one. So the
    # batch itself counts how many triggers have fired.
    stored = item.outcome.is_clean and batch.fired >= item.outcome.acked
    return dict.fromkeys(batch.tasks, _STORED if stored else _NOT_STORED)
