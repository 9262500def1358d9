"""The trigger of TaskQSensor: waits until a topic has tasks, and claims tasks for a gate that claims."""

import asyncio
import logging
from asyncio import Future
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, Protocol

import psycopg
from airflow.providers.common.compat.sdk import AirflowException

from airflow_provider_taskq import metrics
from airflow_provider_taskq.parameters import parse_duration, parse_int, parse_optional_duration
from airflow_provider_taskq.queue import Condition, Order, TaskQueue, TaskQueueError
from airflow_provider_taskq.queue.claims import Claim, held_sequences
from airflow_provider_taskq.queue.metrics import POLLED
from airflow_provider_taskq.queue.waits import ReadyWait, check_wait
from airflow_provider_taskq.triggers.base import TaskQBaseTrigger
from airflow_provider_taskq.triggers.queue_thread import QueueThread, per_event_loop, permanent_error
from airflow_provider_taskq.triggers.watcher import get_watcher

log = logging.getLogger(__name__)

_LOCK_TIMEOUT = 2  # seconds; while one claim waits for a lock, the claims of all other gates wait


class TaskQTrigger(TaskQBaseTrigger):
    """Fires once, when a topic has enough tasks to poll.

    With `claim` and `ends_task` the trigger also claims. A trigger that only resumes the task leaves the claim to the
    worker. A triggerer that takes the trigger over finds the claim again, because the owner is the logical task.

    All triggers of a process on one Airflow connection share one database connection and one query per check. With
    `listen: true` in the extra, notifications wake them. Claims use another connection, which is open while gates
    claim. A lost connection is replaced. An unknown topic or a missing schema ends the wait.

    The event has `"status": "ready"` and the value that the gate returns, or the status `error` and a `message`.

    The parameters are those of TaskQSensor. Numbers and durations may be rendered text; a bare number is in seconds.
    """

    def __init__(
        self,
        *,
        topic: str,
        min_tasks: int | str = 1,
        condition: str = "NONE",
        max_wait: float | str | None = None,
        claim: int | str | None = None,
        claim_as: str | None = None,
        order: str = "FIRST_IN_FIRST_OUT",
        lease: float | str = 3600.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.topic = topic
        self.min_tasks = min_tasks
        self.condition = condition
        self.max_wait = max_wait
        self.claim = claim
        self.claim_as = claim_as
        self.order = order
        self.lease = lease

    wait_fields = ("topic", "min_tasks", "condition", "max_wait", "claim", "claim_as", "order", "lease")

    @property
    def wait(self) -> ReadyWait:
        """The wait for ready tasks."""
        return ready_wait(self)

    def event_payload(self, outcome: int) -> dict[str, Any]:
        """Return how many tasks are ready. The count stops at `min_tasks`."""
        return {"status": "ready", "topic": self.topic, "ready": outcome}

    async def _wait_until_open(self) -> dict[str, Any]:
        if parse_int("claim", self.claim, 1) is None or not self.ends_task:
            return await super()._wait_until_open()
        request = claim_request(self, self.claim_as or self.logical_task_name())
        while (claim := await self._try_claim(request)) is None:
            await get_watcher(self.taskq_conn_id).wait_for(request.wait, self.wait_log)
            if (claim := await self._try_claim(request)) is not None:
                break
            await asyncio.sleep(self.poke_interval)  # another consumer took the tasks first
        return {"status": "ready", **claim}

    async def _try_claim(self, request: "ClaimRequest") -> dict[str, Any] | None:
        claimed = await get_claim_executor(self.taskq_conn_id).claim(request)
        if claimed is None:
            return None
        claim, takeover = claimed
        if takeover is None:
            metrics.record_in_triggerer(POLLED, claim.claimed, topic=claim.topic)
        else:
            level, message = takeover.message(request, may_be_another_gate=bool(self.claim_as))
            self.log.log(level, message)
        return claim.as_dict()


class Gate(Protocol):
    """The fields that TaskQSensor and TaskQTrigger share. Numbers and durations may be rendered text."""

    topic: str
    min_tasks: Any
    condition: Any
    max_wait: Any
    poke_interval: Any
    claim: Any
    order: Any
    lease: Any


def ready_wait(gate: Gate) -> ReadyWait:
    """Return the wait of a gate. Raises InvalidArgument, which names the parameter."""
    max_wait = parse_optional_duration("max_wait", gate.max_wait)
    return ReadyWait(
        gate.topic,
        parse_int("min_tasks", gate.min_tasks, 1) or 1,
        Condition(gate.condition).value,
        None if max_wait is None else max_wait.total_seconds(),
        gate.poke_interval,
    )


def claim_request(gate: Gate, owner: str) -> "ClaimRequest":
    """Return the claim of a gate that claims, under an owner's name. Raises InvalidArgument."""
    size = parse_int("claim", gate.claim, 1) or 1
    return ClaimRequest(ready_wait(gate), owner, size, Order(gate.order), parse_duration("lease", gate.lease))


@dataclass(frozen=True, slots=True)
class Takeover:
    """The numbers of tasks that the owner held before the gate registered it: in the gate's topic, and in total."""

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
    """The parameters of a gate's claim: up to `size` tasks, once the wait has an outcome.

    :param lease: how long the claim lasts without a heartbeat.
    """

    wait: ReadyWait
    owner: str
    size: int
    order: Order = Order.FIRST_IN_FIRST_OUT
    lease: timedelta = timedelta(hours=1)

    def claim(self, queue: TaskQueue) -> tuple[Claim, Takeover | None] | None:
        """Take over the tasks that the owner holds in the topic; if it holds none, claim tasks. Commit.

        Return None if the gate stays closed, also if other consumers left fewer tasks than the gate needs. Then neither
        a lease nor a claimed task is left.
        """
        with queue.conn.transaction() as transaction:
            claimed = self._claim(queue)
            if claimed is None:
                raise psycopg.Rollback(transaction)
        return claimed

    @property
    def topic(self) -> str:
        """The topic of the claim."""
        return self.wait.topic

    def _claim(self, queue: TaskQueue) -> tuple[Claim, Takeover | None] | None:
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
        claimed = queue.claim(self.topic, owner, self.size, self.order, self.wait.condition)
        enough = min(self.wait.min_tasks, self.size) if ready >= self.wait.min_tasks else 1
        if claimed < enough and (not claimed or queue.max_claim(owner) is None):  # after a crash, a claim has fewer
            return None
        return Claim(self.topic, owner.name, owner.fence, claimed), takeover

    def _count_ready(self, queue: TaskQueue) -> int | None:
        return check_wait(queue, self.wait)


class ClaimExecutor:
    """Claims for deferred gates in a thread, one after another, on a connection that is open while gates claim.

    A claim may wait for a lock on its owner. On the watcher's connection, all waits of the triggerer would wait too.
    """

    def __init__(self, conn_id: str) -> None:
        self._queue = QueueThread(conn_id, _limit_locks)
        self._callers = 0

    async def claim(self, request: ClaimRequest) -> tuple[Claim, Takeover | None] | None:
        """Claim and commit. Return None if the gate stays closed, or after a transient error.

        Raises a permanent error, such as UnknownTopic. If the caller is cancelled while the thread claims, the claim is
        released afterwards.
        """
        self._callers += 1
        future = self._queue.call(request.claim)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            future.add_done_callback(self._release_abandoned)
            raise
        except (psycopg.Error, TaskQueueError, AirflowException, TimeoutError) as error:
            if permanent_error(error) is not None:
                raise
            log.warning("Cannot claim, will retry: topic=%s error=%s", request.topic, error)
            return None
        finally:
            self._callers -= 1
            if not self._callers:
                self._queue.close()

    def _release_abandoned(self, future: "Future[tuple[Claim, Takeover | None] | None]") -> None:
        """Release a claim whose caller was cancelled. A takeover stays: the tasks were held before the call."""
        if future.cancelled() or future.exception() is not None or (claimed := future.result()) is None:
            return
        claim, takeover = claimed
        if takeover is None:
            _ = self._queue.call(partial(_release, claim))
            self._queue.close()


def _limit_locks(_: object, connection: psycopg.Connection) -> None:
    connection.execute(f"SET lock_timeout = '{_LOCK_TIMEOUT}s'")


def _release(claim: Claim, queue: TaskQueue) -> None:
    try:
        if (owner := queue.owner(claim.owner, claim.fence)) is not None:
            queue.release(owner)
    except (psycopg.Error, TaskQueueError) as error:
        log.warning("Cannot release a claim, its lease will expire: owner=%s error=%s", claim.owner, error)


get_claim_executor = per_event_loop(ClaimExecutor)
