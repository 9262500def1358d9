"""The watcher: checks the waits of all triggers of an event loop on one Airflow connection, by one query per check."""

import asyncio
import copy
import logging
import random
from asyncio import Future
from collections.abc import Awaitable, Callable, Collection, Iterable
from contextvars import Context
from functools import partial
from typing import Any, TypeVar

import psycopg

from airflow_provider_taskq.queue.backoff import Backoff
from airflow_provider_taskq.queue.errors import first_line
from airflow_provider_taskq.queue.faults import Fault, classify, is_read_only
from airflow_provider_taskq.triggers.connection import (
    Connection,
    call_with_timeout,
    create_async_hook,
    permanent_error,
)
from airflow_provider_taskq.triggers.queue_thread import per_event_loop
from airflow_provider_taskq.triggers.wait_queries import (
    QueryBatch,
    RegisteredQuery,
    Subscription,
    WaitRegistry,
    read_statuses,
    subscriptions_of,
)
from airflow_provider_taskq.triggers.waits import NO_RESULT, QueryResult, Wait, WaitLog

log = logging.getLogger(__name__)

Outcome = TypeVar("Outcome")

_CALL_TIMEOUT = 30.0  # seconds
_MAX_READ_ONLY_SECONDS = 30.0  # after which a connection to a read-only server is opened again
_STATUS_INTERVAL = 10.0  # seconds between two queries for the status of all topics, for the logs of the waits
_STATUS_REST_FACTOR = 20.0  # a status query that took t seconds is not repeated for 20 t
_UPKEEP_INTERVAL = 60.0
_UPKEEP_REST_FACTOR = 20.0  # an upkeep that took t seconds and has left work is not repeated for 20 t
_MIN_UPKEEP_PAUSE = 1.0
_UPKEEP_PAUSE_AFTER_TIMEOUT = 600.0
_YIELD_EVERY = 100  # futures or log lines between two yields to the event loop


class Watcher:
    """Checks all waits of one event loop on one Airflow connection, over one database connection.

    The watcher runs in an asyncio task that starts with the first wait and ends with the last. Each check is one SQL
    query over the distinct queries of the waits. So ten thousand waits need one connection and, while no task changes,
    about one query a second. With `listen: true` in the extra of the Airflow connection, a second connection receives
    notifications, and the watcher checks the topics that they name. If that connection is lost, or if a pooler drops
    notifications, the next full check answers the waits.

    While any wait is open, the watcher also carries out upkeep of the queue once a minute (`TaskQueue.maintain`).

    After a transient error the watcher retries with growing pauses while waits are open. Airflow limits a wait by the
    sensor's timeout. A permanent error ends the waits that it concerns.
    """

    def __init__(self, conn_id: str) -> None:
        self._conn_id = conn_id
        self._registry = WaitRegistry()
        self._schedule = PollSchedule()
        self._notified_topics: set[str] = set()
        self._wake = asyncio.Event()
        self._has_new_waits = False
        self._full_batch: tuple[int, QueryBatch] | None = None  # the batch of all queries at a version of the registry
        self._task: asyncio.Task[None] | None = None
        self._connected_at = 0.0
        self._connected_read_only = False
        self._undescribed: dict[Wait[Any], None] = {}  # waits whose logs have no line yet
        self._status_due = 0.0
        self._upkeep_due = 0.0
        self._may_maintain = True
        self._last_error: str | None = None
        self._receiver = NotificationReceiver(self._open_connection, self._on_notification)

    async def wait_for(self, wait: Wait[Outcome], wait_log: WaitLog | None = None) -> Outcome:
        """Wait, and return the outcome. Raises UnknownTopic if the topic does not exist or is dropped.

        :param wait_log: gets the description of the wait and each change of it.
        """
        if not wait.queries:
            outcome = wait.outcome(())
            assert outcome is not None  # noqa: S101  for the type checker: a wait without queries has an outcome
            return outcome
        loop = asyncio.get_running_loop()
        future: Future[Outcome] = loop.create_future()
        self._registry.add(wait, future, wait_log)
        self._has_new_waits = True
        if wait_log is not None:
            self._undescribed[wait] = None
        if self._schedule.hasten(loop.time(), wait.poll_interval):
            self._wake.set()
        if self._task is None:
            # In the context of this trigger, Airflow would write the watcher's log lines into the log of this trigger.
            self._task = asyncio.create_task(self._run(), context=Context())
        try:
            return await future
        finally:
            self._registry.remove(wait, future)
            if not self._registry:
                self._wake.set()  # close the connections now, not when the next check is due

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        connection: Connection | None = None
        self._schedule = PollSchedule()
        try:
            while self._registry:
                full = loop.time() >= self._schedule.due
                batch = self._batch_of_all() if full else self._batch_of_notified()
                try:
                    if connection is not None and self._is_outdated(connection):
                        await connection.close()
                        connection = None
                    connection = connection or await self._connect()
                    if full or len(batch):
                        await self._check(batch, connection, full=full)
                    if full:
                        await self._log_statuses(connection)
                    if loop.time() >= self._upkeep_due:
                        await self._maintain(connection)
                except TimeoutError as error:
                    connection = None
                    await self._handle_failure(error)
                except Exception as error:  # noqa: BLE001  any error is retried or ends the waits
                    await _close(connection)
                    connection = None
                    await self._handle_failure(error)
                await self._sleep()
        finally:
            # No await comes between the last test of the registry and this line. So no new wait is overlooked.
            self._task = None
            self._receiver.stop()
            await _close(connection)

    async def _connect(self) -> Connection:
        # Read the Airflow connection again, because its password or token may have changed.
        hook = await create_async_hook(self._conn_id)
        # Before the connection is opened: an await after that could be cancelled, and leave the connection open.
        listen = await hook.wants_notifications()
        connection = await hook.get_async_conn()
        self._connected_at = asyncio.get_running_loop().time()
        self._connected_read_only = is_read_only(connection)
        if listen:
            self._receiver.start()
        return connection

    async def _open_connection(self) -> Connection:
        return await (await create_async_hook(self._conn_id)).get_async_conn()

    def _is_outdated(self, connection: Connection) -> bool:
        """Return whether the connection's address may lead to another server now."""
        # After a failover the server may be read-only. A connection that is read-only from the start, to a standby or
        # by a role that may only read, is opened again after a while, so that it also follows a failover.
        if not is_read_only(connection):
            return False
        age = asyncio.get_running_loop().time() - self._connected_at
        return not self._connected_read_only or age > _MAX_READ_ONLY_SECONDS

    def _on_notification(self, topic: str) -> None:
        if topic in self._registry:
            self._notified_topics.add(topic)
            self._wake.set()

    def _batch_of_all(self) -> QueryBatch:
        self._notified_topics.clear()
        if self._full_batch is None or self._full_batch[0] != self._registry.version:
            self._full_batch = self._registry.version, QueryBatch(self._registry.queries())
        return self._full_batch[1]

    def _batch_of_notified(self) -> QueryBatch:
        batch = QueryBatch(self._registry.queries(self._notified_topics))
        self._notified_topics.clear()
        return batch

    async def _check(self, batch: QueryBatch, connection: Connection, *, full: bool) -> None:
        """Run the queries, end the waits that have an outcome, and schedule the next check."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        new_waits, self._has_new_waits = self._has_new_waits and full, self._has_new_waits and not full
        results = await call_with_timeout(self._read(batch, connection), connection, _CALL_TIMEOUT)
        took = loop.time() - began
        for query in batch.queries:
            query.update(results.get(query, NO_RESULT))
        ended = await self._end_ready_waits(results)
        if full:
            eventful = bool(ended) or new_waits
            self._schedule.checked(loop.time(), self._registry.shortest_interval, eventful=eventful, took=took)
        else:
            self._schedule.woken(loop.time(), took)

    async def _log_statuses(self, connection: Connection) -> None:
        """Log the descriptions of new waits, and at intervals the changed descriptions of all waits.

        One query reads the status of all topics. It costs more than a check, so it runs rarely. If it fails, no wait
        ends.
        """
        began = asyncio.get_running_loop().time()
        if self._last_error is not None:
            self._last_error, self._status_due = None, 0.0
            await self._write(each.log_recovery for one in self._registry.subscriptions() for each in one.logs)
        all_waits = began >= self._status_due
        new, self._undescribed = self._undescribed, {}
        subscriptions = [one for one in self._registry.subscriptions(None if all_waits else new) if one.logs]
        if not subscriptions:
            return
        topics = list({(one.wait.topic, one.wait.condition): None for one in subscriptions})
        try:
            statuses = await call_with_timeout(read_statuses(connection, topics), connection, _CALL_TIMEOUT)
        except psycopg.Error as error:
            if connection.closed:
                raise
            log.warning("Cannot read topic statuses: topics=%d error=%s", len(topics), first_line(error))
            statuses = {}
        await self._write(
            partial(each.log_status, one.describe(status), status)
            for one in subscriptions
            if (status := statuses.get((one.wait.topic, one.wait.condition))) is not None
            for each in one.logs
        )
        if all_waits:
            now = asyncio.get_running_loop().time()
            self._status_due = now + max(_STATUS_INTERVAL, _STATUS_REST_FACTOR * (now - began))

    async def _maintain(self, connection: Connection) -> None:
        """Carry out upkeep, so that the tasks of a dead worker become ready and the gates that wait for them open.

        A failure of the upkeep never ends a wait. A role that may only read leaves the upkeep to other programs.
        """
        loop = asyncio.get_running_loop()
        began = loop.time()
        self._upkeep_due = began + _UPKEEP_INTERVAL
        if is_read_only(connection):
            return
        try:
            has_more = await call_with_timeout(_call_maintain(connection), connection, _CALL_TIMEOUT)
        except TimeoutError:  # a lease with very many tasks has lapsed: programs without this time limit end it
            self._upkeep_due = loop.time() + _UPKEEP_PAUSE_AFTER_TIMEOUT
            raise
        except psycopg.errors.InsufficientPrivilege as error:
            if self._may_maintain:
                log.info("Leaving upkeep to other programs: conn_id=%s error=%s", self._conn_id, first_line(error))
            self._may_maintain = False
            return
        except psycopg.Error as error:
            if connection.closed:
                raise
            log.warning("Cannot carry out upkeep: conn_id=%s error=%s", self._conn_id, first_line(error))
            return
        self._may_maintain = True
        if has_more:
            now = loop.time()
            self._upkeep_due = now + max(_MIN_UPKEEP_PAUSE, _UPKEEP_REST_FACTOR * (now - began))

    async def _write(self, lines: Iterable[Callable[[], None]]) -> None:
        for count, write in enumerate(lines, start=1):
            write()
            if count % _YIELD_EVERY == 0:
                await asyncio.sleep(0)

    async def _read(self, batch: QueryBatch, connection: Connection) -> dict[RegisteredQuery, QueryResult]:
        """Run a batch. If one query makes the batch fail, find it by bisection, and end the waits that need it."""
        try:
            return await batch.read(connection)
        except psycopg.Error as error:
            permanent = permanent_error(error)
            if permanent is None or classify(error) is not Fault.INVALID:
                raise
            if len(batch) == 1:
                await self._end_with_error(subscriptions_of(batch.queries), permanent)
                return {}
            first, second = batch.halves()
            return await self._read(first, connection) | await self._read(second, connection)

    async def _end_ready_waits(self, queries: Collection[RegisteredQuery]) -> int:
        """End the waits that have an outcome. Return a count that is 0 if these queries have no waits."""
        count = 0
        for subscription in subscriptions_of(queries):
            try:
                outcome = subscription.outcome()
            except Exception as error:  # noqa: BLE001  the topic is unknown, or a newer release wrote the result
                count += await self._end_with_error([subscription], error)
                continue
            count += 1  # also counts waits without an outcome, so that a long loop yields
            if outcome is None:
                if count % _YIELD_EVERY == 0:
                    await asyncio.sleep(0)
                continue
            for future in list(subscription.futures):
                if not future.done():
                    future.set_result(outcome)
                    count += 1
                    if count % _YIELD_EVERY == 0:
                        await asyncio.sleep(0)
        return count

    async def _end_with_error(self, subscriptions: Iterable[Subscription], error: Exception) -> int:
        """End each waiting future with a copy of the error, and return their number."""
        count = 0
        for future in [future for one in subscriptions for future in one.futures]:
            if not future.done():
                future.set_exception(copy.copy(error))
                count += 1
                if count % _YIELD_EVERY == 0:
                    await asyncio.sleep(0)
        return count

    async def _handle_failure(self, error: Exception) -> None:
        """End all waits after a permanent error, and schedule a retry after any other."""
        self._receiver.stop()  # its connection may be lost too, and report no error
        if (permanent := permanent_error(error)) is not None:
            await self._end_with_error(self._registry.subscriptions(), permanent)
        else:
            text = first_line(error)
            if text != self._last_error:
                log.warning(
                    "Cannot check waits, will retry: conn_id=%s waits=%d error=%s",
                    self._conn_id,
                    len(self._registry),
                    text,
                )
            self._last_error = text
            await self._write(
                partial(each.log_error, text) for one in self._registry.subscriptions() for each in one.logs
            )
        now = asyncio.get_running_loop().time()
        self._schedule.failed(now)
        # After an outage, owners get the time to extend their lapsed leases.
        self._upkeep_due = max(self._upkeep_due, now + _UPKEEP_INTERVAL)

    async def _sleep(self) -> None:
        """Sleep until the next check is due; a new wait or a notification may make it due earlier."""
        loop = asyncio.get_running_loop()
        while self._registry:
            self._wake.clear()
            due = min(self._schedule.due, self._upkeep_due)
            if self._notified_topics:
                due = min(due, self._schedule.wake_due)
            left = due - loop.time()
            if left <= 0:
                return
            try:
                await asyncio.wait_for(self._wake.wait(), left)
            except TimeoutError:
                return


get_watcher = per_event_loop(Watcher)


class NotificationReceiver:
    """Listens on the channel `taskq`, and calls `on_topic` with each notified topic. Reconnects after a loss."""

    def __init__(self, connect: Callable[[], Awaitable[Connection]], on_topic: Callable[[str], None]) -> None:
        self._connect = connect
        self._on_topic = on_topic
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start to listen, unless the receiver listens already."""
        if self._task is None:
            self._task = asyncio.create_task(self._run(), context=Context())

    def stop(self) -> None:
        """Stop, without waiting for a server that may hang."""
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _run(self) -> None:
        backoff = Backoff(1.0, 60.0)
        while True:
            try:
                async with asyncio.timeout(_CALL_TIMEOUT):
                    connection = await self._connect()
                backoff.reset()
                await self._listen(connection)
            except Exception as error:  # noqa: BLE001  no wait depends on notifications
                log.info("Cannot listen for notifications, will retry: error=%s", error)
            await asyncio.sleep(backoff.next())

    async def _listen(self, connection: Connection) -> None:
        try:
            async with asyncio.timeout(_CALL_TIMEOUT):
                await connection.execute("LISTEN taskq")
            async for notification in connection.notifies():
                self._on_topic(notification.payload)
        finally:
            await connection.close()


class PollSchedule:
    """Decides when the next check is due: soon after an event, later while no wait ends or while checks fail.

    All times are readings of the caller's clock, in seconds.
    """

    IDLE_INTERVAL = 1.0
    REST_FACTOR = 4.0  # a check that took t seconds is not repeated for 4 t, so checks take a fifth of the time
    _SLOWDOWN = 1.5
    _MIN_WAKE_INTERVAL = 0.05  # between two checks that notifications cause

    def __init__(self) -> None:
        self.due = 0.0
        self.wake_due = 0.0  # the earliest time of a check that a notification causes
        self._interval = 0.0
        self._backoff = Backoff(0.5, 10.0, jitter=0.3)

    def checked(self, now: float, shortest: float, *, eventful: bool, took: float) -> None:
        """Schedule the next check after a full one, which was eventful if it ended a wait or checked a new one.

        :param shortest: the shortest poll interval of the waits.
        :param took: how long the check took.
        """
        self._backoff.reset()
        longest = max(self.IDLE_INTERVAL, shortest)
        self._interval = shortest if eventful else min(max(self._interval, shortest) * self._SLOWDOWN, longest)
        # Random intervals keep several triggerers from checking at the same moments.
        self.due = now + max(self._interval * random.uniform(0.8, 1.2), self.REST_FACTOR * took)  # noqa: S311
        self.woken(now, took)

    def woken(self, now: float, took: float) -> None:
        """Schedule after a check that a notification caused. The server rests at least as long as the check took."""
        self.wake_due = now + max(self._MIN_WAKE_INTERVAL, took)

    def failed(self, now: float) -> None:
        """Schedule after a check that failed."""
        self.due = self.wake_due = now + self._backoff.next()

    def hasten(self, now: float, interval: float) -> bool:
        """Bring the next check forward for a new wait. Return whether that changed the schedule."""
        if self._backoff.failures or now + interval >= self.due:
            return False
        self.due = now + interval
        return True


async def _call_maintain(connection: Connection) -> bool:
    """Carry out upkeep. Return whether work is left."""
    cursor = await connection.execute("SELECT more FROM taskq.maintain()")
    row = await cursor.fetchone()
    return row is not None and bool(row[0])


async def _close(connection: Connection | None) -> None:
    if connection is not None:
        await connection.close()
