"""Claims for deferred gates: what the triggers of a process claim through one Airflow connection, one after another."""

import asyncio
import logging
from asyncio import AbstractEventLoop, Future
from concurrent.futures import ThreadPoolExecutor
from weakref import WeakKeyDictionary

import psycopg
from airflow.providers.common.compat.sdk import AirflowException

from airflow_provider_taskq.queue import TaskQueue, TaskQueueError
from airflow_provider_taskq.queue.claims import Claim
from airflow_provider_taskq.queue.connection import CallLimit, limit_calls
from airflow_provider_taskq.triggers.claim_request import ClaimRequest, TakenOver
from airflow_provider_taskq.triggers.passing import final

log = logging.getLogger(__name__)

Taken = tuple[Claim, TakenOver | None]

_CALL_SECONDS = 30.0  # after which a server that does not answer counts as lost
_LOCK_SECONDS = 2  # a claim waits no longer for a transaction that uses the same owner: other gates wait behind it


class Claimer:
    """Claims in a thread, on a database connection that is open while gates claim.

    The watcher's connection is not used: a claim may have to wait for the row of its owner, and every wait of the
    triggerer would wait with it.
    """

    def __init__(self, conn_id: str) -> None:
        self._conn_id = conn_id
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="taskq claims")
        self._asking = 0
        self._connection: psycopg.Connection | None = None

    async def take(self, request: ClaimRequest) -> Taken | None:
        """The claim, committed; None if the gate stays closed, or if the database cannot be reached now.

        Raises what would come again at every attempt, such as UnknownTopic. When the caller is cancelled, a claim that
        is made all the same is released.
        """
        loop = asyncio.get_running_loop()
        self._asking += 1
        taking = loop.run_in_executor(self._thread, self._take, request)
        try:
            return await asyncio.shield(taking)
        except asyncio.CancelledError:
            taking.add_done_callback(self._release_unclaimed)
            raise
        finally:
            self._asking -= 1
            if not self._asking:
                self._thread.submit(self._close_if_idle)

    def _take(self, request: ClaimRequest) -> Taken | None:
        """Claims in a transaction of its own."""
        try:
            connection = self._connected()
            with connection.transaction() as transaction:
                taken = request.take(TaskQueue(connection))
                if taken is None:
                    raise psycopg.Rollback(transaction)
        except (psycopg.Error, TaskQueueError, AirflowException) as error:
            self._close()
            reason = _final(error)
            if reason is not None:
                raise reason from error
            log.warning("Cannot claim now, will try again: topic=%s error=%s", request.topic, error)
            return None
        return taken

    def _connected(self) -> psycopg.Connection:
        """The open connection, or a new one."""
        from airflow_provider_taskq.hooks.taskq import TaskQHook

        if self._connection is None or self._connection.closed:
            self._connection = TaskQHook(taskq_conn_id=self._conn_id).get_conn()
            self._connection.autocommit = True
            limit_calls(self._connection, CallLimit(_CALL_SECONDS))
            self._connection.execute(f"SET lock_timeout = '{_LOCK_SECONDS}s'")
        return self._connection

    def _release_unclaimed(self, taking: "Future[Taken | None]") -> None:
        """Gives back a claim for which nothing waits any more; not one that was taken over."""
        if taking.cancelled() or taking.exception() is not None or (taken := taking.result()) is None:
            return
        claim, taken_over = taken
        if taken_over is None:
            self._thread.submit(self._release, claim)

    def _release(self, claim: Claim) -> None:
        """Releases; if that fails, the lease ends the claim."""
        try:
            queue = TaskQueue(self._connected())
            owner = queue.owner(claim.owner, claim.fence)
            if owner is not None:
                queue.release(owner)
        except (psycopg.Error, TaskQueueError, AirflowException) as error:
            log.warning("Cannot release a claim, its lease will end it: owner=%s error=%s", claim.owner, error)
        finally:
            self._close_if_idle()

    def _close_if_idle(self) -> None:
        """Closes the connection when no gate claims."""
        if not self._asking:
            self._close()

    def _close(self) -> None:
        """Closes the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _final(error: Exception) -> Exception | None:
    """The error to end a wait with; None for one that may pass, such as a lost connection."""
    if isinstance(error, TaskQueueError):
        cause = error.__cause__
        return error if not isinstance(cause, psycopg.Error) or final(cause) is not None else None
    return final(error)


_claimers: WeakKeyDictionary[AbstractEventLoop, dict[str, Claimer]] = WeakKeyDictionary()


def claimer(conn_id: str) -> Claimer:
    """The claimer of the running event loop for an Airflow connection."""
    mine = _claimers.setdefault(asyncio.get_running_loop(), {})
    if conn_id not in mine:
        mine[conn_id] = Claimer(conn_id)
    return mine[conn_id]
