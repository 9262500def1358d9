"""Claims for Airflow's shared streams in ack mode (Airflow 3.3): a task is ended only after its event is stored."""

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Coroutine, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import psycopg
from airflow.providers.common.compat.sdk import AirflowException
from airflow.triggers.shared_stream import AdvanceItem, SharedStreamProducer

from airflow_provider_taskq import metrics
from airflow_provider_taskq.queue import LeaseLost, NotHeld, Result, TaskQueueError, UnknownTopic
from airflow_provider_taskq.queue.errors import first_line
from airflow_provider_taskq.triggers.async_owner import Claim, Holding, Settlement
from airflow_provider_taskq.triggers.event_burst import Burst
from airflow_provider_taskq.triggers.event_line import Line
from airflow_provider_taskq.triggers.waits import ReadyWait, unknown_topic
from airflow_provider_taskq.triggers.watcher import watcher

log = logging.getLogger(__name__)

_IN_FLIGHT = 128  # tasks whose events Airflow has not confirmed, at the most (or two batches); its own bound is 1,024
_LONGEST_BACK_OFF = 30.0
_PARTING = 5.0  # seconds that giving back may take at the end: the lease ends by itself, too

_LOST = (psycopg.OperationalError, psycopg.InterfaceError, TimeoutError, OSError)


@dataclass(frozen=True, slots=True)
class Claiming:
    """What is claimed, and how."""

    conn_id: str
    topic: str
    owner: str
    lease: float
    cooldown: float
    closing_events: int
    batch_size: int
    order: str
    condition: str
    poll_interval: float


class TaskClaims(SharedStreamProducer):
    """Claims tasks of a topic under an owner whose lease it keeps, and settles them by what became of their events.

    The owner's name is the same after a restart, so what a killed triggerer held is taken over and fired again. Where
    two triggerers run the same stream, one leads: the other waits until the owner gives no sign of life for half its
    lease, so that the two do not take each other's tasks away for ever.

    Airflow leaves an event that comes soon after another to the run that the next event starts. So the last claim of a
    burst is held back until `cooldown` seconds after the event before was settled: its event starts a run, which gets
    all that was left. The tasks of a claim that is held back are held in the queue too, so whatever becomes of this
    triggerer, they have their event later. An event without tasks is fired only if that claim was refused, or if the
    trigger asks for `closing_events`.

    A lease that is lost after all ends the stream; Airflow starts it anew, and what is not ended is fired again.
    Everything else is tried again with growing pauses: an event-driven DAG has nobody who would restart its trigger.
    """

    def __init__(self, claiming: Claiming) -> None:
        self._claiming = claiming
        self._lease = timedelta(seconds=claiming.lease)
        self._line = Line(claiming.conn_id)
        self._holding = Holding(
            self._line, claiming.topic, claiming.owner, self._lease, claiming.order, claiming.condition
        )
        self._in_flight: dict[int, None] = {}
        self._settled = asyncio.Event()
        self._beat_due = 0.0
        self._burst = Burst(claiming.cooldown, claiming.closing_events)
        self._failures = 0
        self._trouble: str | None = None  # what was logged of the failure that goes on
        self._topic_known = False
        self._doubtful = True  # whether something may be held that is not in flight
        self._drained = True  # whether the last poll found less than it asked for
        self._waiting_told = False
        self._ended = False

    async def open_stream(self) -> AsyncIterator[tuple[Claim, Claim]]:
        """Yields claims, each as what the triggers see and what is settled; ends with an error only: LeaseLost."""
        try:
            while True:
                try:
                    claims = await self._next()
                except LeaseLost:
                    metrics.count(metrics.LEASE_LOST, 1, topic=self._claiming.topic, in_triggerer=True)
                    raise
                except (*_LOST, psycopg.Error, TaskQueueError, AirflowException) as error:
                    claims = []
                    self._failures += 1
                    await self._wait_after(error, self._failures)
                for claim in claims:
                    yield claim, claim
        finally:
            self._ended = True

    async def advance(self, batch: Sequence[AdvanceItem]) -> None:
        """Ends the tasks of stored events, fails those of refused ones, gives back the others; one transaction.

        A task that was purged, or dropped with its topic, while its event was stored has nothing left to end.
        """
        settlements = [one for item in batch for one in _settled(item)]
        left = settlements
        failures = 0
        while left:
            try:
                if failures:  # nobody knows whether the last try was carried out
                    left = await self._holding.unsettled(left)
                if left:
                    await self._holding.settle(left)
                break
            except NotHeld as error:
                held = await self._holding.unsettled(left)
                if len(held) == len(left):
                    raise
                log.warning("Topic %r: tasks of stored events are gone: %s", self._claiming.topic, first_line(error))
                left = held
            except _LOST as error:
                failures += 1
                if self._ended:
                    raise
                await self._wait_after(error, failures)
        for one in settlements:
            self._in_flight.pop(one.sequence, None)
        now = asyncio.get_running_loop().time()
        for item in batch:
            self._burst.settled(item.broker_payload, now)
        self._settled.set()
        self._count(settlements)

    async def aclose(self) -> None:
        """Gives back what is held; if that fails, the next triggerer takes it over, or the lease lapses."""
        self._ended = True
        try:
            if self._holding.registered:
                async with asyncio.timeout(_PARTING * 2):
                    await self._holding.release(_PARTING)
        except (*_LOST, psycopg.Error, TaskQueueError, AirflowException) as error:
            log.warning("Owner %r could not give back its tasks: %s", self._claiming.owner, error)
        finally:
            await self._line.close()

    async def _next(self) -> list[Claim]:
        """Goes one step: leads, keeps the lease, waits for work or claims some. Never longer than to the next beat."""
        if not self._holding.registered and not await self._leads():
            return []
        await self._keep_lease()
        if self._doubtful:
            known = set(self._in_flight)  # before the question: what is settled meanwhile is not to be fired again
            held = [one for one in await self._holding.held() if one[0] not in known]
            self._doubtful = False
            return self._fired(held)
        if not self._has_room():
            await self._wait(None)
            return []
        wait = ReadyWait(self._claiming.topic, 1, self._claiming.condition, poll_interval=self._claiming.poll_interval)
        if self._drained and not await self._wait(watcher(self._claiming.conn_id).until(wait)):
            self._works()
            return self._burst.due(asyncio.get_running_loop().time(), self._claiming.topic)
        claims = await self._claim()
        self._works()
        return claims

    async def _claim(self) -> list[Claim]:
        """Polls a batch."""
        self._doubtful = True  # should this poll fail, it may have claimed
        polled = await self._holding.poll(self._claiming.batch_size)
        self._doubtful = False
        metrics.count(metrics.POLLED, len(polled), topic=self._claiming.topic, in_triggerer=True)
        self._drained = len(polled) < self._claiming.batch_size
        if not polled:  # others were faster
            await asyncio.sleep(min(self._claiming.poll_interval, self._beat))
        return self._fired(polled)

    def _fired(self, tasks: Sequence[tuple[int, str]]) -> list[Claim]:
        """Makes batches of tasks, which are in flight from now on; those whose events are to be fired now."""
        self._in_flight.update(dict.fromkeys(sequence for sequence, _ in tasks))
        size = self._claiming.batch_size
        batches = [tasks[start : start + size] for start in range(0, len(tasks), size)]
        claims = [
            Claim(
                self._claiming.topic,
                tuple(sequence for sequence, _ in batch),
                tuple(identifier for _, identifier in batch),
            )
            for batch in batches
        ]
        return self._burst.fired(claims, asyncio.get_running_loop().time())

    async def _leads(self) -> bool:
        """Becomes the owner, unless another triggerer is it and alive."""
        if await self._holding.kept_by_another(self._lease / 2):
            if not self._waiting_told:
                self._waiting_told = True
                log.info("Owner %r is alive in another process; its tasks are left to it", self._claiming.owner)
            await asyncio.sleep(self._beat)
            return False
        await self._holding.register()
        self._burst.started(asyncio.get_running_loop().time())
        self._beat_due = asyncio.get_running_loop().time() + self._beat
        return True

    async def _keep_lease(self) -> None:
        """Extends the lease where that is due."""
        loop = asyncio.get_running_loop()
        if loop.time() >= self._beat_due:
            await self._holding.heartbeat()
            self._beat_due = loop.time() + self._beat

    async def _wait(self, event: Coroutine[Any, Any, object] | None) -> bool:
        """Waits for something, or until a claim comes back or something else is due; whether it happened."""
        due = min(self._beat_due, self._burst.due_at or self._beat_due)
        left = max(due - asyncio.get_running_loop().time(), 0.0)
        self._settled.clear()
        awaited = None if event is None else asyncio.ensure_future(event)
        waits = {asyncio.ensure_future(self._settled.wait()), *([awaited] if awaited else [])}
        try:
            done, _ = await asyncio.wait(waits, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in waits:
                one.cancel()
        if awaited is None or awaited not in done:
            return False
        awaited.result()
        return True

    async def _wait_after(self, error: Exception, failures: int) -> None:
        """Sleeps, after a failure; what was asked last may have been carried out."""
        pause = min(2.0 ** min(failures - 1, 10), _LONGEST_BACK_OFF, self._beat) * random.uniform(0.5, 1.0)  # noqa: S311
        if isinstance(error, UnknownTopic):
            error = unknown_topic(self._claiming.topic, known=self._topic_known)
        text = first_line(error)
        if text != self._trouble:
            self._trouble = text
            log.warning("Topic %r cannot be claimed, tried again until it can: %s", self._claiming.topic, text)
        self._doubtful, self._beat_due = True, 0.0
        await asyncio.sleep(pause)

    def _works(self) -> None:
        """Notes that the topic could be looked at, or polled: what else works says nothing about that."""
        self._failures, self._topic_known = 0, True
        if self._trouble is not None:
            self._trouble = None
            log.info("Topic %r can be claimed again.", self._claiming.topic)

    def _has_room(self) -> bool:
        size = self._claiming.batch_size
        return len(self._in_flight) + size <= max(_IN_FLIGHT, 2 * size)

    @property
    def _beat(self) -> float:
        """Seconds between two signs of life."""
        return self._claiming.lease / 6

    def _count(self, settlements: Sequence[Settlement]) -> None:
        for result in (Result.SUCCESS, Result.FAILURE):
            number = sum(one.result is result for one in settlements)
            metrics.count(metrics.COMPLETED, number, topic=self._claiming.topic, in_triggerer=True, result=result.name)


def _settled(item: AdvanceItem) -> list[Settlement]:
    """What becomes of the tasks of an event."""
    claim: Claim = item.broker_payload
    if item.outcome.rejected:
        reason = "; ".join(claim.refusals) or "refused by the trigger"
        return [Settlement(sequence, Result.FAILURE, reason) for sequence in claim.sequences]
    result = Result.SUCCESS if _stored(item) else Result.SUSPENSION
    return [Settlement(sequence, result) for sequence in claim.sequences]


def _stored(item: AdvanceItem) -> bool:
    """Whether the event of each trigger is stored.

    Airflow counts a trigger that was cancelled after it took an event, and before it fired one, among those that
    accepted it. So a claim counts itself how many triggers have handed theirs over.
    """
    return item.outcome.is_clean and item.broker_payload.fired >= item.outcome.acked
