"""Claims of gates: in a worker, and in the triggerer for a deferred gate."""

import asyncio
import logging
from asyncio import Future
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta

import psycopg
from airflow.providers.common.compat.sdk import AirflowException

from airflow_provider_taskq import hooks
from airflow_provider_taskq.queue import Condition, Order, TaskQueue, TaskQueueError
from airflow_provider_taskq.queue.claims import Claim, held_sequences
from airflow_provider_taskq.queue.connection import CallLimit, limit_calls
from airflow_provider_taskq.triggers.connection import per_event_loop, permanent_error
from airflow_provider_taskq.triggers.snapshot import check_wait
from airflow_provider_taskq.triggers.waits import ReadyWait

log = logging.getLogger(__name__)

_CALL_TIMEOUT = 30.0  # seconds
_LOCK_TIMEOUT = 2  # seconds; other gates wait while a claim waits for a transaction that locks the same owner


@dataclass(frozen=True, slots=True)
class Takeover:
    """The tasks that the owner held before the gate registered it: in the gate's topic, and in all topics."""

    fence: int
    in_topic: int
    total: int

    def message(self, request: "ClaimRequest", *, may_be_another_gate: bool) -> tuple[int, str]:
        """Return the log level and the text for the gate's log."""
        if not may_be_another_gate:
            return logging.INFO, f"Took over {self.total} tasks that an earlier run of this task instance claimed."
        return logging.WARNING, (
            f"Took over {self.total} tasks ({self.in_topic} of topic {request.topic}) that owner {request.owner!r} "
            f"held under fence {self.fence}. If another gate uses the same claim_as, its claim is lost: give each gate "
            "a claim_as of its own."
        )


@dataclass(frozen=True, slots=True)
class ClaimRequest:
    """The parameters of a gate's claim: up to `size` tasks of a topic, once `min_tasks` are ready.

    :param max_wait: seconds; once the oldest due task has waited this long, one ready task is enough.
    :param lease: how long the claim lasts without a heartbeat.
    """

    topic: str
    owner: str
    size: int
    min_tasks: int = 1
    order: Order = Order.FIRST_IN_FIRST_OUT
    condition: Condition = Condition.NONE
    max_wait: float | None = None
    lease: timedelta = timedelta(hours=1)

    def claim(self, queue: TaskQueue) -> tuple[Claim, Takeover | None] | None:
        """Take over the tasks that the owner holds in the topic, or else claim tasks.

        Return None if the gate stays closed, also if other consumers left fewer tasks than the gate needs. Then roll
        back, so that the transaction leaves no lease.
        """
        previous = queue.owner(self.owner)
        takeover = None
        if previous is not None:
            owner = queue.register(self.owner, self.lease)
            if owner.resumed:
                held = len(held_sequences(queue.conn, owner, self.topic))
                takeover = Takeover(previous.fence, held, len(held_sequences(queue.conn, owner)))
                if held:
                    return Claim(self.topic, owner.name, owner.fence, held), takeover
        ready = self._count_ready(queue)
        if ready is None:
            return None
        owner = queue.register(self.owner, self.lease)
        claimed = queue.claim(self.topic, owner, self.size, self.order, self.condition)
        enough = min(self.min_tasks, self.size) if ready >= self.min_tasks else 1
        return (Claim(self.topic, owner.name, owner.fence, claimed), takeover) if claimed >= enough else None

    def _count_ready(self, queue: TaskQueue) -> int | None:
        """Return how many tasks are ready, or None if they do not open the gate."""
        return check_wait(queue.conn, ReadyWait(self.topic, self.min_tasks, self.condition.value, self.max_wait))


class ClaimExecutor:
    """Claims for deferred gates in a thread, one after another, on a connection that is open while gates claim.

    It does not share the watcher's connection: a claim may wait for the row of its owner, and all waits of the
    triggerer would wait with it.
    """

    def __init__(self, conn_id: str) -> None:
        self._conn_id = conn_id
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="taskq claims")
        self._callers = 0
        self._connection: psycopg.Connection | None = None

    async def claim(self, request: ClaimRequest) -> tuple[Claim, Takeover | None] | None:
        """Claim and commit. Return None if the gate stays closed, or after a transient error.

        Raise a permanent error, such as UnknownTopic. If the caller is cancelled, the thread may still claim: then
        release that claim.
        """
        loop = asyncio.get_running_loop()
        self._callers += 1
        future = loop.run_in_executor(self._thread, self._claim, request)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            future.add_done_callback(self._release_abandoned)
            raise
        finally:
            self._callers -= 1
            if not self._callers:
                self._thread.submit(self._close_if_idle)

    def _claim(self, request: ClaimRequest) -> tuple[Claim, Takeover | None] | None:
        try:
            connection = self._connected()
            with connection.transaction() as transaction:
                claimed = request.claim(TaskQueue(connection))
                if claimed is None:
                    raise psycopg.Rollback(transaction)
        except (psycopg.Error, TaskQueueError, AirflowException) as error:
            self._close()
            permanent = _permanent_error(error)
            if permanent is not None:
                raise permanent from error
            log.warning("Cannot claim, will retry: topic=%s error=%s", request.topic, error)
            return None
        return claimed

    def _connected(self) -> psycopg.Connection:
        if self._connection is None or self._connection.closed:
            self._connection = hooks.TaskQHook(taskq_conn_id=self._conn_id).get_conn()
            self._connection.autocommit = True
            limit_calls(self._connection, CallLimit(_CALL_TIMEOUT))
            self._connection.execute(f"SET lock_timeout = '{_LOCK_TIMEOUT}s'")
        return self._connection

    def _release_abandoned(self, future: "Future[tuple[Claim, Takeover | None] | None]") -> None:
        """Release a claim whose caller was cancelled, unless it is a takeover."""
        if future.cancelled() or future.exception() is not None or (claimed := future.result()) is None:
            return
        claim, takeover = claimed
        if takeover is None:
            self._thread.submit(self._release, claim)

    def _release(self, claim: Claim) -> None:
        try:
            queue = TaskQueue(self._connected())
            owner = queue.owner(claim.owner, claim.fence)
            if owner is not None:
                queue.release(owner)
        except (psycopg.Error, TaskQueueError, AirflowException) as error:
            log.warning("Cannot release a claim, its lease will expire: owner=%s error=%s", claim.owner, error)
        finally:
            self._close_if_idle()

    def _close_if_idle(self) -> None:
        if not self._callers:
            self._close()

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


get_claim_executor = per_event_loop(ClaimExecutor)


def _permanent_error(error: Exception) -> Exception | None:
    """As `permanent_error`; an error of the queue is transient if the error of psycopg that caused it is."""
    if isinstance(error, TaskQueueError):
        cause = error.__cause__
        return error if not isinstance(cause, psycopg.Error) or permanent_error(cause) is not None else None
    return permanent_error(error)
