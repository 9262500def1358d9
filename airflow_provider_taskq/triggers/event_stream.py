"""The claim stream of TaskQEventTrigger, on Airflow's shared streams in ack mode (Airflow 3.3).

The stream completes a task only after Airflow has stored the task's event.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import psycopg
from airflow.providers.common.compat.sdk import AirflowException
from airflow.triggers.shared_stream import AdvanceItem, SharedStreamProducer

from airflow_provider_taskq import metrics
from airflow_provider_taskq.queue import LeaseLost, NotHeld, Result, TaskQueueError, UnknownTopic
from airflow_provider_taskq.queue.backoff import Backoff
from airflow_provider_taskq.queue.encoding import interval_text
from airflow_provider_taskq.queue.errors import first_line
from airflow_provider_taskq.queue.faults import classify
from airflow_provider_taskq.queue.metrics import COMPLETED, LEASE_LOST, POLLED
from airflow_provider_taskq.triggers.connection import ReconnectingConnection
from airflow_provider_taskq.triggers.event_debouncer import EventBatch, EventDebouncer
from airflow_provider_taskq.triggers.waits import ReadyWait, unknown_topic_error
from airflow_provider_taskq.triggers.watcher import get_watcher

log = logging.getLogger(__name__)

_MAX_IN_FLIGHT = 128  # tasks, or two batches; Airflow's own limit of unconfirmed events is 1,024
_MAX_BACKOFF = 30.0  # seconds
_RELEASE_TIMEOUT = 5.0  # seconds; if the release fails, the lease expires
_RETRY_DELAY = "5 seconds"  # of a task whose event Airflow did not store, so that a failure causes no busy loop

_ERRORS = (psycopg.Error, TaskQueueError, AirflowException, OSError)


@dataclass(frozen=True, slots=True)
class EventStreamConfig:
    """The parameters of a claim stream; see TaskQEventTrigger."""

    taskq_conn_id: str
    topic: str
    owner: str
    lease: float
    cooldown: float
    closing_events: int
    batch_size: int
    order: str
    condition: str
    poll_interval: float


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

    def __init__(self, config: EventStreamConfig) -> None:
        self._config = config
        self._connection = ReconnectingConnection(config.taskq_conn_id)
        self._owner = AsyncOwner(self._connection, config)
        # The stream sends heartbeats between its steps, on its own connection, so it needs no thread of worker.lease. A
        # sixth of the lease leaves time for two more attempts before another triggerer may take over, after a half.
        self._heartbeat_interval = config.lease / 6
        self._heartbeat_due = 0.0
        self._in_flight: dict[int, int] = {}  # the attempts of tasks by sequence
        self._settled = asyncio.Event()
        self._debouncer = EventDebouncer(config.cooldown, config.closing_events)
        self._backoff = self._new_backoff()
        self._logged_error: str | None = None
        self._topic_existed = False
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
        settlements = [one for item in batch for one in _settlements(item, self._in_flight)]
        left = settlements
        backoff = self._new_backoff()
        while left:
            try:
                if backoff.failures:  # the failed attempt may have committed
                    left = await self._owner.unsettled(left)
                if left:
                    await self._owner.settle(left)
                break
            except NotHeld as error:
                held = await self._owner.unsettled(left)
                if len(held) == len(left):
                    raise
                log.warning("Tasks of stored events are gone: topic=%s error=%s", self._config.topic, first_line(error))
                left = held
            except (psycopg.Error, TaskQueueError, OSError) as error:
                if self._closed or not (isinstance(error, OSError) or classify(error).is_temporary):
                    raise
                await self._pause_after(error, backoff)
        self._remove_in_flight(settlements)
        now = asyncio.get_running_loop().time()
        for item in batch:
            self._debouncer.settle(item.broker_payload, now)
        self._settled.set()
        self._count_completed(settlements)

    async def aclose(self) -> None:
        """Release the held tasks. If that fails, the next triggerer takes them over, or the lease expires."""
        self._closed = True
        try:
            if self._owner.registered:
                async with asyncio.timeout(_RELEASE_TIMEOUT * 2):
                    await self._owner.release(_RELEASE_TIMEOUT)
        except _ERRORS as error:
            log.warning("Cannot release the tasks of an event stream: owner=%s error=%s", self._config.owner, error)
        finally:
            await self._connection.close()

    async def _next_batches(self) -> list[EventBatch]:
        """Take one step: register, heartbeat, wait or claim. A step ends before the next heartbeat is due."""
        config = self._config
        if not self._owner.registered and not await self._try_register():
            return []
        await self._heartbeat_if_due()
        if self._held_unknown:
            in_flight = set(self._in_flight)  # read before `held`: a task that settles meanwhile must not fire again
            held = [task for task in await self._owner.held() if task[0] not in in_flight]
            self._held_unknown = False
            return self._fire(held)
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
        polled = await self._owner.poll(self._config.batch_size)
        self._held_unknown = False
        metrics.record_in_triggerer(POLLED, len(polled), topic=self._config.topic)
        self._drained = len(polled) < self._config.batch_size
        if not polled:  # another consumer took the tasks first
            await asyncio.sleep(min(self._config.poll_interval, self._heartbeat_interval))
        return self._fire(polled)

    def _fire(self, tasks: Sequence[tuple[int, str, int]]) -> list[EventBatch]:
        """Mark tasks as in flight, split them into batches, and return the batches that fire their events now."""
        self._in_flight.update({sequence: attempt for sequence, _, attempt in tasks})
        size = self._config.batch_size
        batches = [
            EventBatch(
                self._config.topic,
                tuple(sequence for sequence, _, _ in tasks[start : start + size]),
                tuple(identifier for _, identifier, _ in tasks[start : start + size]),
            )
            for start in range(0, len(tasks), size)
        ]
        return self._debouncer.add(batches, asyncio.get_running_loop().time())

    def _remove_in_flight(self, settlements: "Sequence[Settlement]") -> None:
        for one in settlements:
            if self._in_flight.get(one.sequence) == one.attempt:  # a later poll may have claimed the task again
                self._in_flight.pop(one.sequence, None)

    async def _try_register(self) -> bool:
        if await self._owner.is_active_elsewhere():
            if not self._standby_logged:
                self._standby_logged = True
                log.info("Event stream on standby, another process is active: owner=%s", self._config.owner)
            await asyncio.sleep(self._heartbeat_interval)
            return False
        await self._owner.register()
        now = asyncio.get_running_loop().time()
        self._debouncer.start(now)
        self._heartbeat_due = now + self._heartbeat_interval
        return True

    async def _heartbeat_if_due(self) -> None:
        loop = asyncio.get_running_loop()
        if loop.time() >= self._heartbeat_due:
            await self._owner.heartbeat()
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
            error = unknown_topic_error(self._config.topic, existed=self._topic_existed)
        text = first_line(error)
        if text != self._logged_error:
            self._logged_error = text
            log.warning("Cannot claim for events, will retry: topic=%s error=%s", self._config.topic, text)
        self._held_unknown, self._heartbeat_due = True, 0.0  # the failed statement may have committed
        await asyncio.sleep(backoff.next())

    def _record_success(self) -> None:
        """Reset the back-off after a successful check or poll of the topic."""
        self._backoff.reset()
        self._topic_existed = True
        if self._logged_error is not None:
            self._logged_error = None
            log.info("Can claim for events again: topic=%s", self._config.topic)

    def _new_backoff(self) -> Backoff:
        return Backoff(1.0, min(_MAX_BACKOFF, self._heartbeat_interval))

    def _count_completed(self, settlements: "Sequence[Settlement]") -> None:
        for result in (Result.SUCCESS, Result.FAILURE):
            number = sum(one.result is result for one in settlements)
            metrics.record_in_triggerer(COMPLETED, number, topic=self._config.topic, result=result.name)


@dataclass(frozen=True, slots=True)
class Settlement:
    """The result of a claimed task in one attempt. SUSPENSION returns the task to the topic."""

    sequence: int
    attempt: int | None
    result: Result
    error: str | None = None


class AsyncOwner:
    """One owner in one topic, for an event loop: the queue's verbs without payloads."""

    def __init__(self, connection: ReconnectingConnection, config: EventStreamConfig) -> None:
        self._connection = connection
        self._config = config
        self._name = config.owner
        self._lease = timedelta(seconds=config.lease)
        self._fence: int | None = None

    @property
    def registered(self) -> bool:
        """Whether this process has registered the owner."""
        return self._fence is not None

    async def is_active_elsewhere(self) -> bool:
        """Return whether the owner's lease runs and had a heartbeat within half its length."""
        rows = await self._connection.fetch_all(
            "SELECT name FROM taskq.owners(%s::interval) WHERE name = %s::text",
            (interval_text(self._lease / 2), self._name),
        )
        return bool(rows)

    async def register(self) -> None:
        """Register the owner, take over the tasks of its name, and lock earlier registrations out."""
        rows = await self._connection.fetch_all(
            "SELECT fence FROM taskq.register(%s::text, %s::interval)", (self._name, interval_text(self._lease))
        )
        self._fence = int(rows[0][0])

    async def heartbeat(self) -> None:
        """Extend the lease. Raises LeaseLost if it is gone."""
        await self._connection.fetch_all("SELECT taskq.heartbeat(%s::text, %s::bigint)", (self._name, self._fence))

    async def poll(self, size: int) -> list[tuple[int, str, int]]:
        """Claim up to `size` tasks, and return their sequences, identifiers and attempts."""
        return await self._connection.fetch_all(
            "SELECT sequence, identifier, attempt"
            " FROM taskq.poll(%s::text, %s::text, %s::bigint, %s::int, %s::text, %s::text)",
            (self._config.topic, self._name, self._fence, size, self._config.order, self._config.condition),
        )

    async def held(self) -> list[tuple[int, str, int]]:
        """Return the sequences, identifiers and attempts of held tasks, in polled order; none if the lease is gone."""
        return await self._connection.fetch_all(
            "SELECT sequence, identifier, attempt FROM taskq.held(%s::text, %s::bigint, %s::text)",
            (self._name, self._fence, self._config.topic),
        )

    async def settle(self, settlements: Sequence[Settlement]) -> None:
        """Complete or return all of the tasks, or none. Raises LeaseLost, and NotHeld if one of them is not held."""
        delays = [_RETRY_DELAY if one.result is Result.SUSPENSION else None for one in settlements]
        await self._connection.fetch_all(
            "SELECT taskq.complete(%s::text, %s::bigint, %b::bigint[], %b::smallint[], NULL, %b::text[],"
            " %b::text[]::interval[], NULL, %b::int[])",
            (
                self._name,
                self._fence,
                [one.sequence for one in settlements],
                [int(one.result) for one in settlements],
                [one.error for one in settlements],
                delays if any(delays) else None,
                [one.attempt for one in settlements],
            ),
        )

    async def unsettled(self, settlements: Collection[Settlement]) -> list[Settlement]:
        """Return the settlements whose tasks are still held in that attempt. Raises LeaseLost if the lease is gone."""
        await self.heartbeat()  # raises LeaseLost, while `held` would return no tasks
        held = {sequence: attempt for sequence, _, attempt in await self.held()}
        return [one for one in settlements if one.sequence in held and one.attempt in (None, held[one.sequence])]

    async def release(self, timeout: float) -> None:  # noqa: ASYNC109
        """Release all held tasks, and end the lease. `timeout`: seconds to wait for an answer."""
        await self._connection.fetch_all(
            "SELECT taskq.release(%s::text, %s::bigint)", (self._name, self._fence), timeout=timeout
        )
        self._fence = None


def _settlements(item: AdvanceItem, attempts: Mapping[int, int]) -> list[Settlement]:
    """Return the results of an event's tasks, by the outcome of the event."""
    batch: EventBatch = item.broker_payload
    if item.outcome.rejected:
        error = "; ".join(batch.rejections) or "rejected by the trigger"
        return [Settlement(sequence, attempts.get(sequence), Result.FAILURE, error) for sequence in batch.sequences]
    # Airflow counts a trigger as accepting that was cancelled after it took an event and before it fired one. So the
    # batch itself counts how many triggers have fired.
    stored = item.outcome.is_clean and batch.fired >= item.outcome.acked
    result = Result.SUCCESS if stored else Result.SUSPENSION
    return [Settlement(sequence, attempts.get(sequence), result) for sequence in batch.sequences]
