"""The watcher: checks the waits of all triggers of an event loop on one Airflow connection, by one query per check."""

import asyncio
import copy
import logging
import random
from asyncio import Future
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import Context
from functools import partial
from typing import TYPE_CHECKING, Any

import psycopg

from airflow_provider_taskq.queue import TaskQueue, TaskQueueError
from airflow_provider_taskq.queue.backoff import Backoff
from airflow_provider_taskq.queue.errors import CallTimeout, first_line
from airflow_provider_taskq.queue.faults import Fault, classify, is_read_only
from airflow_provider_taskq.queue.waits import Found, Outcome, Wait
from airflow_provider_taskq.triggers.queue_thread import QueueThread, per_event_loop, permanent_error
from airflow_provider_taskq.triggers.wait_log import WaitLog

if TYPE_CHECKING:
    from airflow_provider_taskq.hooks import TaskQHook

log = logging.getLogger(__name__)

_REST_FACTOR = 4.0  # a check that took t seconds is not repeated for 4 t, so checks take a fifth of the time
_MIN_WAKE_INTERVAL = 0.05  # seconds between two checks that notifications cause
_STATUS_INTERVAL = 10.0  # seconds between two queries for the status of all topics, for the logs of the waits
_STATUS_REST_FACTOR = 20.0  # a status query that took t seconds is not repeated for 20 t
_UPKEEP_INTERVAL = 60.0
_UPKEEP_REST_FACTOR = 20.0  # an upkeep that took t seconds and has left work is not repeated for 20 t
_MIN_UPKEEP_PAUSE = 1.0
_UPKEEP_PAUSE_AFTER_TIMEOUT = 600.0
_YIELD_EVERY = 100  # futures or log lines between two yields to the event loop


class Watcher:
    """Checks all waits of one event loop on one Airflow connection, over one database connection.

    The watcher runs in an asyncio task that starts with the first wait and ends with the last; its calls run in a
    thread. Each check is one SQL query over the distinct waits. So ten thousand waits need one connection and about one
    query a second. With `listen: true` in the extra of the Airflow connection, it receives notifications between
    checks, and checks the topics that they name. If a pooler drops them, the next full check answers.

    While any wait is open, the watcher also carries out upkeep of the queue once a minute (`TaskQueue.maintain`).

    After a transient error the watcher retries with growing pauses while waits are open. Airflow limits a wait by the
    sensor's timeout. A permanent error ends the waits that it concerns.
    """

    def __init__(self, conn_id: str) -> None:
        self._conn_id = conn_id
        self._queue = QueueThread(conn_id, self._listen)
        self._listens = False
        self._waits: dict[Wait[Any], dict[Future[Any], WaitLog | None]] = {}
        self._found: dict[Wait[Any], Sequence[Found]] = {}  # by the last full check
        self._undescribed: dict[Wait[Any], None] = {}  # waits whose logs have no line yet
        self._notified: set[str] = set()
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._backoff = Backoff(0.5, 10.0, jitter=0.3)
        # By the loop's clock: the next full check, the next check that a notification may cause, and so on.
        self._due = self._wake_due = self._status_due = self._upkeep_due = 0.0
        self._may_maintain = True
        self._last_error: str | None = None

    async def wait_for(self, wait: Wait[Outcome], wait_log: WaitLog | None = None) -> Outcome:
        """Wait, and return the outcome. Raises UnknownTopic if the topic does not exist or is dropped.

        :param wait_log: gets the description of the wait and each change of it.
        """
        if not wait.rows:
            outcome = wait.outcome(())
            assert outcome is not None  # noqa: S101  for the type checker: a wait without rows has an outcome
            return outcome
        loop = asyncio.get_running_loop()
        future: Future[Outcome] = loop.create_future()
        self._waits.setdefault(wait, {})[future] = wait_log
        if wait_log is not None:
            self._undescribed[wait] = None
        if not self._backoff.failures and loop.time() + wait.poll_interval < self._due:
            self._due = loop.time() + wait.poll_interval
            self._wake.set()
        if self._task is None:
            # In the context of this trigger, Airflow would write the watcher's log lines into the log of this trigger.
            self._task = asyncio.create_task(self._run(), context=Context())
        try:
            return await future
        finally:
            del self._waits[wait][future]
            if not self._waits[wait]:
                del self._waits[wait]
            if not self._waits:
                self._wake.set()  # close the connection now, not when the next check is due

    async def _run(self) -> None:
        self._due = 0.0
        self._backoff.reset()
        try:
            while self._waits:
                try:
                    await self._step()
                    await self._sleep()
                except Exception as error:  # noqa: BLE001  any error is retried or ends the waits
                    await self._handle_failure(error)
        finally:
            # No await comes between the last test of the waits and this line. So no new wait is overlooked.
            self._task = None
            self._queue.close()

    def _listen(self, hook: "TaskQHook", connection: psycopg.Connection) -> None:
        self._listens = hook.wants_notifications() and not is_read_only(connection)  # no standby can listen
        if self._listens:
            connection.execute("LISTEN taskq")

    async def _step(self) -> None:
        """Do what is due: check all waits, or those whose topics were notified, and carry out upkeep."""
        loop = asyncio.get_running_loop()
        if loop.time() >= self._due:
            self._found, took = await self._check(list(self._waits))
            self._backoff.reset()
            shortest = min((wait.poll_interval for wait in self._waits), default=0.0)
            # Random intervals keep several triggerers from checking at the same moments.
            self._due = loop.time() + max(shortest * random.uniform(0.8, 1.2), _REST_FACTOR * took)  # noqa: S311
            await self._log_statuses()
        elif self._notified and loop.time() >= self._wake_due:
            await self._check([wait for wait in self._waits if wait.topic in self._notified])
        if loop.time() >= self._upkeep_due:
            await self._maintain()

    async def _check(self, waits: list[Wait[Any]]) -> tuple[dict[Wait[Any], Sequence[Found]], float]:
        """Check waits, and end those that have an outcome. Return what was found, and how many seconds that took."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        self._notified.clear()
        found, outcomes = await self._queue.call(partial(_check_all, waits))
        took = loop.time() - began
        # A check that a notification causes lets the server rest at least as long as it took.
        self._wake_due = loop.time() + max(_MIN_WAKE_INTERVAL, took)
        await self._end(outcomes)
        return found, took

    async def _log_statuses(self) -> None:
        """Log the descriptions of new waits, and at intervals the changed descriptions of all waits.

        One query reads the status of all topics. It costs more than a check, so it runs rarely. If it fails, no wait
        ends.
        """
        began = asyncio.get_running_loop().time()
        if self._last_error is not None:
            self._last_error, self._status_due = None, 0.0
            await self._log_each(self._waits, lambda _: WaitLog.log_recovery)
        all_waits = began >= self._status_due
        chosen = list(self._waits if all_waits else self._undescribed)
        self._undescribed = {wait: None for wait in self._undescribed if wait not in self._found}
        logged = [wait for wait in chosen if wait in self._found and self._logs_of(wait)]
        if not logged:
            return
        topics = list({(wait.topic, wait.condition): None for wait in logged})
        try:
            statuses = await self._queue.call(lambda queue: queue.topic_statuses(topics))
        except (psycopg.Error, TaskQueueError) as error:
            if classify(error).ends_session:
                raise
            log.warning("Cannot read topic statuses: topics=%d error=%s", len(topics), first_line(error))
            statuses = {}

        def describe(wait: Wait[Any]) -> Callable[[WaitLog], None]:
            description = wait.describe(self._found[wait], statuses[wait.topic, wait.condition])
            return lambda each: each.log_status(description)

        await self._log_each([wait for wait in logged if (wait.topic, wait.condition) in statuses], describe)
        if all_waits:
            now = asyncio.get_running_loop().time()
            self._status_due = now + max(_STATUS_INTERVAL, _STATUS_REST_FACTOR * (now - began))

    def _logs_of(self, wait: Wait[Any]) -> list[WaitLog]:
        return [each for each in self._waits.get(wait, {}).values() if each is not None]

    async def _log_each(
        self, waits: Iterable[Wait[Any]], line: Callable[[Wait[Any]], Callable[[WaitLog], None]]
    ) -> None:
        """Write a line into each log of these waits. Yield to the event loop now and then."""
        count = 0
        for wait in list(waits):
            write = line(wait)
            for each in self._logs_of(wait):
                write(each)
                count += 1
                if count % _YIELD_EVERY == 0:
                    await asyncio.sleep(0)

    async def _maintain(self) -> None:
        """Carry out upkeep, so that the tasks of a dead worker become ready and the gates that wait for them open.

        A failure of the upkeep never ends a wait. A role that may only read leaves the upkeep to other programs.
        """
        loop = asyncio.get_running_loop()
        began = loop.time()
        self._upkeep_due = began + _UPKEEP_INTERVAL
        if self._queue.connection is None or is_read_only(self._queue.connection):
            return
        try:
            has_more = (await self._queue.call(TaskQueue.maintain)).more
        except CallTimeout:  # a lease with very many tasks has lapsed: programs without this time limit end it
            self._upkeep_due = loop.time() + _UPKEEP_PAUSE_AFTER_TIMEOUT
            raise
        except psycopg.errors.InsufficientPrivilege as error:
            if self._may_maintain:
                log.info("Leaving upkeep to other programs: conn_id=%s error=%s", self._conn_id, first_line(error))
            self._may_maintain = False
            return
        except (psycopg.Error, TaskQueueError) as error:
            if classify(error).ends_session:
                raise
            log.warning("Cannot carry out upkeep: conn_id=%s error=%s", self._conn_id, first_line(error))
            return
        self._may_maintain = True
        if has_more:
            now = loop.time()
            self._upkeep_due = now + max(_MIN_UPKEEP_PAUSE, _UPKEEP_REST_FACTOR * (now - began))

    async def _end(self, outcomes: Mapping[Wait[Any], Any]) -> None:
        """End waits with their outcomes, or each future with a copy of its error."""
        ended = [(future, outcome) for wait, outcome in outcomes.items() for future in self._waits.get(wait, ())]
        for count, (future, outcome) in enumerate(ended, start=1):
            if future.done():
                continue
            if isinstance(outcome, Exception):
                future.set_exception(copy.copy(outcome))
            else:
                future.set_result(outcome)
            if count % _YIELD_EVERY == 0:
                await asyncio.sleep(0)

    async def _handle_failure(self, error: Exception) -> None:
        """End all waits after a permanent error, and schedule a retry after any other."""
        if permanent_error(error) is not None:
            await self._end(dict.fromkeys(self._waits, error))
        else:
            text, waits = first_line(error), len(self._waits)
            if text != self._last_error:
                log.warning("Cannot check waits, will retry: conn_id=%s waits=%d error=%s", self._conn_id, waits, text)
            self._last_error = text
            await self._log_each(self._waits, lambda _: partial(WaitLog.log_error, error=text))
        now = asyncio.get_running_loop().time()
        self._due = self._wake_due = now + self._backoff.next()
        # After an outage, owners get the time to extend their lapsed leases.
        self._upkeep_due = max(self._upkeep_due, now + _UPKEEP_INTERVAL)

    async def _sleep(self) -> None:
        """Sleep until something is due; a new wait or a notification may make it due earlier."""
        if self._listens and self._queue.connection is not None:  # None after a failure, until the next check
            self._notified |= await self._queue.call(_notified_topics) & {wait.topic for wait in self._waits}
        connection = self._queue.connection if self._listens else None
        if not self._waits:
            return
        loop = asyncio.get_running_loop()
        due = min(self._due, self._upkeep_due, *([self._wake_due] if self._notified else []))
        self._wake.clear()
        if connection is not None:
            loop.add_reader(descriptor := connection.fileno(), self._wake.set)
        try:
            async with asyncio.timeout(max(due - loop.time(), 0.0)):
                await self._wake.wait()
        except TimeoutError:
            return
        finally:
            if connection is not None:
                loop.remove_reader(descriptor)


get_watcher = per_event_loop(Watcher)


def _check_all(
    waits: list[Wait[Any]], queue: TaskQueue
) -> tuple[dict[Wait[Any], Sequence[Found]], dict[Wait[Any], Any]]:
    """Check waits. Return what was found for each, and the outcomes or errors of those that end."""
    found: dict[Wait[Any], Sequence[Found]] = {}
    ended: dict[Wait[Any], Any] = {}
    try:
        found.update(queue.watch(waits))
    except TaskQueueError as error:
        if len(waits) == 1 or classify(error) is not Fault.INVALID:
            raise
        for wait in waits:  # one by one, so that only the one with refused values ends
            try:
                found.update(queue.watch([wait]))
            except TaskQueueError as refused:
                if classify(refused) is not Fault.INVALID:
                    raise
                ended[wait] = refused
    for wait, rows in found.items():
        try:
            outcome = wait.outcome(rows)
        except Exception as error:  # noqa: BLE001  the topic is unknown, or a newer release wrote the state
            outcome = error
        if outcome is not None:
            ended[wait] = outcome
    return found, ended


def _notified_topics(queue: TaskQueue) -> set[str]:
    return {notification.payload for notification in queue.conn.notifies(timeout=0)}
