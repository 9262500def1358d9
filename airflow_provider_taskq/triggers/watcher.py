"""One watcher for all waits: what the triggers of a process ask of one Airflow connection, in one query a look."""

import asyncio
import copy
import logging
from asyncio import AbstractEventLoop, Future
from collections.abc import Callable, Collection, Coroutine, Iterable
from contextvars import Context
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary

import psycopg
from psycopg.rows import TupleRow

from airflow_provider_taskq.queue.errors import first_line, is_read_only
from airflow_provider_taskq.triggers.listener import Listener
from airflow_provider_taskq.triggers.pace import Pace
from airflow_provider_taskq.triggers.passing import concerns_all, final
from airflow_provider_taskq.triggers.snapshot import Look, statuses
from airflow_provider_taskq.triggers.wait_log import WaitLog
from airflow_provider_taskq.triggers.wait_registry import Asked, Ledger, Standing, concerned
from airflow_provider_taskq.triggers.waits import NOTHING, Seen, Wait

if TYPE_CHECKING:
    from airflow_provider_taskq.hooks.taskq import TaskQAsyncHook

log = logging.getLogger(__name__)

Outcome = TypeVar("Outcome")
Answer = TypeVar("Answer")

_PATIENCE = 30.0  # seconds after which a server that neither answers nor refuses counts as lost
_READ_ONLY_SECONDS = 30.0  # for which a connection to a server that is read-only is used
_STATUS_SECONDS = 10.0  # between two looks at the status of all topics, for the logs of the waits
_STATUS_REST = 20.0  # times what such a look took
_AT_ONCE = 100  # so many waits are answered before everybody else in the event loop gets their turn


class Watcher:
    """Looks, on one database connection, for all waits of one event loop on one Airflow connection.

    It works in a task of its own, which begins with the first wait and ends with the last. Every look is one query over
    the distinct questions, so ten thousand waits cost one connection and, while nothing happens, about a query a
    second. With `listen: true` in the Airflow connection's extra, a second connection hears at once which topics have
    something new, and only those are looked at; when it is lost, or a pooler swallows what it would hear, the waits
    are answered by the next look as ever.
    A database that cannot be reached is tried again with growing pauses, for as long as the waits go on: Airflow
    limits those, by the sensor's timeout. What would not get better by waiting ends the waits that it concerns.
    """

    def __init__(self, conn_id: str) -> None:
        self._conn_id = conn_id
        self._ledger = Ledger()
        self._pace = Pace()
        self._woken: set[str] = set()
        self._stirred = asyncio.Event()
        self._newcomers = False
        self._whole: tuple[int, Look] | None = None
        self._looking: asyncio.Task[None] | None = None
        self._left_behind: set[asyncio.Task[Any]] = set()
        self._renewed = 0.0  # when the connection was opened, by the loop's clock
        self._reads_only = False  # whether it was read-only then
        self._untold: dict[Wait[Any], None] = {}  # waits whose logs do not say yet what they wait for
        self._status_due = 0.0
        self._lost: str | None = None  # why the last look failed
        self._listener = Listener(self._listening_connection, self._hear)

    async def until(self, wait: Wait[Outcome], wait_log: WaitLog | None = None) -> Outcome:
        """Waits, and returns the wait's outcome. UnknownTopic once its topic is none.

        What the wait is about, and each change of that, goes into `wait_log`.
        """
        if not wait.questions:
            outcome = wait.outcome(())
            assert outcome is not None  # noqa: S101  for the type checker: what asks nothing waits for nothing
            return outcome
        loop = asyncio.get_running_loop()
        answer: Future[Outcome] = loop.create_future()
        self._ledger.add(wait, answer, wait_log)
        self._newcomers = True
        if wait_log is not None:
            self._untold[wait] = None
        if self._pace.hasten(loop.time(), wait.poll_interval):
            self._stirred.set()
        if self._looking is None:
            # In a context of its own: what it logs is not one trigger's, but all of them's.
            self._looking = asyncio.create_task(self._look_on(), context=Context())
        try:
            return await answer
        finally:
            self._ledger.remove(wait, answer)
            if not self._ledger:
                self._stirred.set()  # nobody is left: the connections end now, not when the next look was due

    async def _look_on(self) -> None:
        """Looks until nobody waits any more."""
        loop = asyncio.get_running_loop()
        connection: psycopg.AsyncConnection[TupleRow] | None = None
        self._pace = Pace()
        try:
            while self._ledger:
                whole = loop.time() >= self._pace.due
                look = self._look_at_all() if whole else self._look_at_woken()
                try:
                    if connection is not None and self._is_outdated(connection):
                        await connection.close()
                        connection = None
                    connection = connection or await self._connected()
                    await self._take(look, connection, whole=whole)
                    if whole:
                        await self._log_changes(connection)
                except TimeoutError as error:
                    connection = None
                    await self._failed(error)
                except Exception as error:  # noqa: BLE001  whatever it is, no wait may be left behind
                    await _close(connection)
                    connection = None
                    await self._failed(error)
                await self._pause()
        finally:
            # Nothing is awaited between the last look at the waits and here, so no wait is overlooked.
            self._looking = None
            self._listener.stop()
            await _close(connection)

    async def _connected(self) -> psycopg.AsyncConnection[TupleRow]:
        """A new connection; the Airflow connection is read anew too, as its password or token may have changed."""
        hook = await asyncio.to_thread(_hook, self._conn_id)
        listen = await hook.wants_notifications()  # before the connection, which a cancelled wait would leave open
        connection = await hook.get_async_conn()
        self._renewed = asyncio.get_running_loop().time()
        self._reads_only = is_read_only(connection)
        if listen:
            self._listener.start()
        return connection

    def _is_outdated(self, connection: psycopg.AsyncConnection[TupleRow]) -> bool:
        """Whether the connection's address may lead to another server by now.

        It does if the server became read-only, as after a failover. A connection that was read-only from the start,
        to a standby or for a role that only reads, is used for a short time: a failover is noticed there too.
        """
        if not is_read_only(connection):
            return False
        return not self._reads_only or asyncio.get_running_loop().time() - self._renewed > _READ_ONLY_SECONDS

    async def _listening_connection(self) -> psycopg.AsyncConnection[TupleRow]:
        """One more connection."""
        hook = await asyncio.to_thread(_hook, self._conn_id)
        return await hook.get_async_conn()

    def _hear(self, topic: str) -> None:
        """A topic may have something for those who wait for it, or anybody's topic for nobody here."""
        if topic in self._ledger:
            self._woken.add(topic)
            self._stirred.set()

    def _look_at_all(self) -> Look:
        """A look for all waits; made anew only where what is asked has changed."""
        self._woken.clear()
        if self._whole is None or self._whole[0] != self._ledger.changes:
            self._whole = self._ledger.changes, Look(self._ledger.asked())
        return self._whole[1]

    def _look_at_woken(self) -> Look:
        """A look for the waits on topics that were heard of."""
        woken = Look(self._ledger.asked(self._woken))
        self._woken.clear()
        return woken

    async def _take(self, look: Look, connection: psycopg.AsyncConnection[TupleRow], *, whole: bool) -> None:
        """Takes a look, answers those whom it concerns, and settles when the next one is due."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        newcomers, self._newcomers = self._newcomers and whole, self._newcomers and not whole
        told = await self._with_patience(self._apart(look, connection), connection)
        took = loop.time() - began
        for asked in look.asked:
            asked.answer(told.get(asked, NOTHING))
        answered = await self._answer(told)
        if whole:
            eventful = bool(answered) or newcomers
            self._pace.looked(loop.time(), self._ledger.shortest_interval, eventful=eventful, took=took)
        else:
            self._pace.breathe(loop.time(), took)

    async def _log_changes(self, connection: psycopg.AsyncConnection[TupleRow]) -> None:
        """Writes into the logs of new waits what they wait for, and now and then what has changed for the others.

        One query for all of them, which costs more than a look: so it comes rarely, and never ends a wait.
        """
        began = asyncio.get_running_loop().time()
        if self._lost is not None:
            self._lost, self._status_due = None, 0.0
            await self._tell(log.back for one in self._ledger.standing() for log in one.logs)
        everything = began >= self._status_due
        new, self._untold = self._untold, {}
        standing = [one for one in self._ledger.standing(None if everything else new) if one.logs]
        if not standing:
            return
        topics = list({(one.wait.topic, one.wait.condition): None for one in standing})
        try:
            found = await self._with_patience(statuses(connection, topics), connection)
        except psycopg.Error as error:
            if connection.closed:
                raise
            log.warning("The status of %d topics could not be read: %s", len(topics), first_line(error))
            found = {}
        await self._tell(
            partial(each.status, one.sentence(status), status)
            for one in standing
            if (status := found.get((one.wait.topic, one.wait.condition))) is not None
            for each in one.logs
        )
        if everything:
            now = asyncio.get_running_loop().time()
            self._status_due = now + max(_STATUS_SECONDS, _STATUS_REST * (now - began))

    async def _tell(self, lines: Iterable[Callable[[], None]]) -> None:
        """Writes lines into logs, some at a time."""
        for count, write in enumerate(lines, start=1):
            write()
            if count % _AT_ONCE == 0:
                await asyncio.sleep(0)

    async def _with_patience(
        self, looking: Coroutine[Any, Any, Answer], connection: psycopg.AsyncConnection[TupleRow]
    ) -> Answer:
        """Looks; TimeoutError where the server neither answers nor refuses, and the connection is to be forgotten.

        psycopg, when cancelled, goes on waiting for a server that stands still. So it is left behind and not awaited;
        the connection is closed when it ends, not before: its number could be given to the next one meanwhile.
        """
        taking = asyncio.create_task(looking)
        done, _ = await asyncio.wait({taking}, timeout=_PATIENCE)
        if not done:
            taking.add_done_callback(lambda _: connection.pgconn.finish())
            taking.cancel()
            self._left_behind.add(taking)
            taking.add_done_callback(self._left_behind.discard)
            raise TimeoutError(f"no answer within {_PATIENCE:.0f} seconds")
        return taking.result()

    async def _apart(self, look: Look, connection: psycopg.AsyncConnection[TupleRow]) -> dict[Asked, Seen]:
        """Looks, and where one question makes the whole look fail, finds it and ends the waits that ask it."""
        try:
            return await look.taken_on(connection)
        except psycopg.Error as error:
            reason = final(error)
            if reason is None or concerns_all(error):
                raise
            if len(look) == 1:
                await self._end(concerned(look.asked), reason)
                return {}
            first, second = look.halves()
            return await self._apart(first, connection) | await self._apart(second, connection)

    async def _answer(self, told: Collection[Asked]) -> int:
        """Answers the waits that are over by what was told, some at a time; returns how many that were."""
        count = 0
        for standing in concerned(told):
            try:
                outcome = standing.outcome()
            except Exception as error:  # noqa: BLE001  the topic is unknown, or says what this release cannot read
                count += await self._end([standing], error)
                continue
            count += 1  # of waits looked through, to let others in between
            if outcome is None:
                if count % _AT_ONCE == 0:
                    await asyncio.sleep(0)
                continue
            for answer in list(standing.answers):
                if not answer.done():
                    answer.set_result(outcome)
                    count += 1
                    if count % _AT_ONCE == 0:
                        await asyncio.sleep(0)
        return count

    async def _end(self, standing: Iterable[Standing], reason: Exception) -> int:
        """Ends waits with an error, some at a time, each with one of its own; returns how many that were."""
        count = 0
        for answer in [answer for one in standing for answer in one.answers]:
            if not answer.done():
                answer.set_exception(copy.copy(reason))
                count += 1
                if count % _AT_ONCE == 0:
                    await asyncio.sleep(0)
        return count

    async def _failed(self, error: Exception) -> None:
        """Ends all waits if the error would come again and again; else settles when to try again."""
        self._listener.stop()  # its connection may be as dead, without anybody telling it
        if (reason := final(error)) is not None:
            await self._end(self._ledger.standing(), reason)
        else:
            text = first_line(error)
            if text != self._lost:
                log.warning(
                    "%d waits on Airflow connection %s cannot be looked after now: %s",
                    len(self._ledger),
                    self._conn_id,
                    text,
                )
            self._lost = text
            await self._tell(partial(each.lost, text) for one in self._ledger.standing() for each in one.logs)
        self._pace.failed(asyncio.get_running_loop().time())

    async def _pause(self) -> None:
        """Sleeps until the next look is due; a wait that comes in, or a notification, may want it sooner."""
        loop = asyncio.get_running_loop()
        while self._ledger:
            self._stirred.clear()
            due = min(self._pace.due, self._pace.breath_until) if self._woken else self._pace.due
            left = due - loop.time()
            if left <= 0:
                return
            try:
                await asyncio.wait_for(self._stirred.wait(), left)
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
