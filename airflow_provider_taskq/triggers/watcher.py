"""One look for all waits: what the triggers of a process ask of one Airflow connection, in one query."""

import asyncio
import logging
import random
from asyncio import AbstractEventLoop, Future
from collections.abc import Collection
from contextvars import Context
from dataclasses import dataclass
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import psycopg
from airflow.providers.common.compat.sdk import AirflowNotFoundException
from psycopg.rows import TupleRow

from airflow_provider_taskq.queue import UnknownTopic
from airflow_provider_taskq.queue.errors import own_error

if TYPE_CHECKING:
    from airflow_provider_taskq.hooks.taskq import TaskQAsyncHook

log = logging.getLogger(__name__)

_PATIENCE = 30.0  # seconds after which a server that neither answers nor refuses counts as lost
_LONGEST_BACK_OFF = 30.0


@dataclass(frozen=True, slots=True)
class Wait:
    """What one trigger waits for, and how often it wants to have it looked at."""

    topic: str
    min_tasks: int
    poll_interval: float
    condition: str = "NONE"

    @property
    def subject(self) -> tuple[str, str]:
        """What is counted for it: the topic, under the condition."""
        return self.topic, self.condition


class Watcher:
    """Looks, on one database connection, for all waits of one event loop on one Airflow connection.

    It works in a task of its own, which begins with the first wait and ends with the last. Every look is one query over
    the distinct topics and conditions, so ten thousand waits cost one connection and, at most, a query in the shortest
    interval.
    A database that cannot be reached is tried again with growing pauses, for as long as the waits go on: Airflow
    limits those, by the sensor's timeout. What would not get better by waiting ends the waits that it concerns.
    """

    def __init__(self, conn_id: str) -> None:
        self._conn_id = conn_id
        self._waits: dict[Future[int], Wait] = {}
        self._arrived = asyncio.Event()
        self._looking: asyncio.Task[None] | None = None
        self._left_behind: set[asyncio.Task[None]] = set()

    async def ready(self, wait: Wait) -> int:
        """Returns how many tasks are ready, once they are enough; counted no further than the most waited for."""
        answer: Future[int] = asyncio.get_running_loop().create_future()
        self._waits[answer] = wait
        self._arrived.set()
        if self._looking is None:
            # In a context of its own: what it logs is not one trigger's, but all of them's.
            self._looking = asyncio.create_task(self._look_on(), context=Context())
        try:
            return await answer
        finally:
            self._waits.pop(answer, None)

    async def _look_on(self) -> None:
        """Looks until nobody waits any more."""
        connection: psycopg.AsyncConnection[TupleRow] | None = None
        failures = 0
        try:
            while self._waits:
                try:
                    connection = connection or await self._connected()
                    await self._look_with_patience(connection)
                    failures = 0
                except TimeoutError as error:
                    connection, failures = None, self._judged(error, failures)
                except Exception as error:  # noqa: BLE001  whatever it is, no wait may be left behind
                    await _close(connection)
                    connection, failures = None, self._judged(error, failures)
                await self._pause(failures)
        finally:
            # Nothing is awaited between the last look at the waits and here, so no wait is overlooked.
            self._looking = None
            await _close(connection)

    async def _connected(self) -> psycopg.AsyncConnection[TupleRow]:
        """A new connection; the Airflow connection is read anew too, as its password or token may have changed."""
        hook = await asyncio.to_thread(_hook, self._conn_id)
        return await hook.get_async_conn()

    async def _look_with_patience(self, connection: psycopg.AsyncConnection[TupleRow]) -> None:
        """Looks; TimeoutError where the server neither answers nor refuses, and the connection is to be forgotten.

        psycopg, when cancelled, goes on waiting for a server that stands still. So it is left behind and not awaited;
        the connection is closed when it ends, not before: its number could be given to the next one meanwhile.
        """
        look = asyncio.create_task(self._look(connection))
        done, _ = await asyncio.wait({look}, timeout=_PATIENCE)
        if not done:
            look.add_done_callback(lambda _: connection.pgconn.finish())
            look.cancel()
            self._left_behind.add(look)
            look.add_done_callback(self._left_behind.discard)
            raise TimeoutError(f"no answer within {_PATIENCE:.0f} seconds")
        look.result()

    async def _look(self, connection: psycopg.AsyncConnection[TupleRow]) -> None:
        """Asks once for all topics and conditions, and answers the waits that are over."""
        bounds: dict[tuple[str, str], int] = {}
        for wait in self._waits.values():
            bounds[wait.subject] = max(wait.min_tasks, bounds.get(wait.subject, 0))
        subjects = list(bounds)
        cursor = await connection.execute(
            'SELECT "position", ready FROM taskq.ready_many(%s::text[], %s::int[], %s::text[])',
            ([topic for topic, _ in subjects], list(bounds.values()), [condition for _, condition in subjects]),
        )
        ready = {subjects[position - 1]: count async for position, count in cursor}
        for answer, wait in self._open(ready):
            count = ready[wait.subject]
            if count is None:
                answer.set_exception(UnknownTopic(f"topic {wait.topic!r} is not known, it was dropped"))
            elif count >= wait.min_tasks:
                answer.set_result(count)

    def _open(self, subjects: Collection[tuple[str, str]]) -> list[tuple[Future[int], Wait]]:
        """The waits on these subjects that were not answered or cancelled meanwhile."""
        waits = self._waits.items()
        return [(answer, wait) for answer, wait in waits if wait.subject in subjects and not answer.done()]

    def _judged(self, error: Exception, failures: int) -> int:
        """Ends all waits if the error would come again and again; else returns the number of failures so far."""
        if (final := _final(error)) is not None:
            for answer in self._waits:
                if not answer.done():
                    answer.set_exception(final)
            return 0
        log.warning(
            "%d waits on Airflow connection %s cannot be looked after now: %s", len(self._waits), self._conn_id, error
        )
        return failures + 1

    async def _pause(self, failures: int) -> None:
        """Sleeps until the next look is due; a wait that comes in meanwhile may want it sooner."""
        loop = asyncio.get_running_loop()
        looked = loop.time()
        spread = random.uniform(0.8, 1.2)  # noqa: S311  it only keeps triggerers from asking in step
        while self._waits:
            self._arrived.clear()
            interval = min(wait.poll_interval for wait in self._waits.values())
            if failures:
                interval = min(max(interval, 1.0) * 2.0 ** (failures - 1), _LONGEST_BACK_OFF)
            left = looked + interval * spread - loop.time()
            if left <= 0:
                return
            try:
                await asyncio.wait_for(self._arrived.wait(), left)
            except TimeoutError:
                return


_watchers: WeakKeyDictionary[AbstractEventLoop, dict[str, Watcher]] = WeakKeyDictionary()


def watcher(conn_id: str) -> Watcher:
    """The watcher of the running event loop for an Airflow connection."""
    mine = _watchers.setdefault(asyncio.get_running_loop(), {})
    if conn_id not in mine:
        mine[conn_id] = Watcher(conn_id)
    return mine[conn_id]


def _hook(conn_id: str) -> "TaskQAsyncHook":
    """The hook; called in a thread, as the first import of what it builds on takes seconds."""
    from airflow_provider_taskq.hooks.taskq import TaskQAsyncHook

    return TaskQAsyncHook(taskq_conn_id=conn_id)


async def _close(connection: psycopg.AsyncConnection[TupleRow] | None) -> None:
    """Closes a connection, whatever has become of it."""
    if connection is not None:
        await connection.close()


def _final(error: Exception) -> Exception | None:
    """The error to end all waits with, or None for one that passes: a server that is down, restarts or is slow."""
    if isinstance(error, AirflowNotFoundException):
        return error
    if isinstance(error, psycopg.Error) and not isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
        return own_error(error) or error
    return None
