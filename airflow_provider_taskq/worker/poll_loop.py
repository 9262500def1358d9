"""Poll loops: each polls under a lease of its own, in a thread, and handles and commits what it polls."""

import logging
import time
from abc import abstractmethod
from collections.abc import Mapping
from enum import Enum, auto
from typing import cast

from airflow_provider_taskq.queue import Condition, Decision, LeaseLost, Polled, Result, Task
from airflow_provider_taskq.queue.backoff import Backoff
from airflow_provider_taskq.worker.connection import DatabaseSession
from airflow_provider_taskq.worker.lease import InFlightBatch, Lease
from airflow_provider_taskq.worker.limiter import Token
from airflow_provider_taskq.worker.loop import Loop
from airflow_provider_taskq.worker.runtime import WorkerRuntime
from airflow_provider_taskq.worker.unanswered import UnansweredClaims, UnansweredCommit

log = logging.getLogger(__name__)

MAX_RECHECKS = 20  # polls in a row that get none of the ready tasks; they take about ten seconds


class TaskPoller:
    """Polls for one thread, as an owner of its own."""

    def __init__(self, runtime: WorkerRuntime, session: DatabaseSession, owner: str) -> None:
        self._runtime = runtime
        self._session = session
        self._owner = owner
        self._lease: Lease | None = None
        self.claims = UnansweredClaims(runtime.config.lease.total_seconds())

    @property
    def is_lost(self) -> bool:
        """Whether the lease is lost."""
        return self._lease is not None and self._lease.lost is not None

    def lease(self) -> Lease:
        """Return the lease to poll under. Register the owner if it has none, or has lost it."""
        if self._lease is None or self.is_lost:
            with self._session.queue() as queue:
                since = time.monotonic()
                owner = queue.register(self._owner, self._runtime.config.lease)
            self._lease = Lease(owner, since, on_abandon=self._runtime.on_abandoned)
            if owner.resumed:
                self.claims.expect()
            self._runtime.keeper.add(self._lease)
        return self._lease

    def poll(self, size: int) -> Polled:
        """Poll up to `size` tasks, or return tasks that the owner holds and this process does not know yet."""
        lease, config = self.lease(), self._runtime.config
        if self.claims.is_due():
            with self._session.queue() as queue:
                if found := self.claims.find(queue, lease, config.topic):
                    return found
        with self.claims.watched(), self._session.queue() as queue:
            if config.groups is not None:
                locked = config.groups.lock(queue, config.topic, self._runtime.owner_prefix)
                return config.groups.claim(queue, config.topic, lease.owner) if locked else Polled()
            return queue.poll(config.topic, lease.owner, size, config.order, config.condition)

    def exchange(self, batch: InFlightBatch, decisions: Mapping[Task, Decision]) -> Polled:
        """Complete a batch and poll, in one call."""
        config = self._runtime.config
        completed = cast("Mapping[Task | int, Decision | Result]", decisions)
        with self.claims.watched(), self._session.queue() as queue:
            return queue.exchange(
                batch.lease.owner, completed, config.topic, config.size, config.order, config.condition
            )

    def has_missed(self) -> bool:
        """Return whether another poll may find tasks after an empty one.

        Under a condition, a poll skips the identifiers that a concurrent poll examines. The concurrent poll may not
        claim them either, if it started before the last task of the identifier was completed.
        """
        config = self._runtime.config
        if config.condition is Condition.NONE:
            return False
        with self._session.queue() as queue:
            return queue.has_unclaimed(config.topic, config.condition)

    def release(self) -> None:
        """Release the lease and its tasks."""
        if self._lease is not None:
            self._runtime.keeper.release(self._session, self._lease)

    def recover(self, error: LeaseLost) -> None:
        """Extend the lease after a LeaseLost. If the lease is gone, abandon its batches."""
        lease = self._lease
        if lease is None or self.is_lost:
            return
        try:
            with self._session.queue() as queue:
                queue.heartbeat(lease.owner)
        except LeaseLost:
            self._runtime.keeper.lose(lease, error)


class LastPoll(Enum):
    """How the last poll of a loop ended, which decides when the next one follows."""

    NONE = auto()  # there was none, or it failed before the call
    UNANSWERED = auto()  # the next poll counts as a retry of it
    FOUND = auto()  # at once
    EMPTY = auto()  # after the worker's pause
    MISSED = auto()  # soon: another poll may find tasks


class BasePollLoop(Loop):
    """Base class of loops that poll until their worker stops. Pauses after a failed poll, longer each time."""

    def __init__(self, runtime: WorkerRuntime, room: int) -> None:
        super().__init__(runtime, room)
        self._poller = self._new_poller()
        self._recheck = Backoff(0.01, 1.0)
        self._last = LastPoll.NONE
        self._poll_seconds = 0.0  # of the last poll

    @abstractmethod
    def _capacity(self) -> int:
        """Wait until the loop can take tasks, and return their number. Return 0 for no poll now."""

    @abstractmethod
    def _dispatch(self, batch: InFlightBatch) -> None:
        """Handle a polled batch, or pass it on."""

    def _poll(self, size: int) -> Polled:
        return self._poller.poll(size)

    def _completed_by_poll(self) -> int:
        """Return the number of tasks that the next poll completes."""
        return 0

    def _on_lease_lost(self, error: LeaseLost) -> None:
        self._poller.recover(error)

    def _new_poller(self) -> TaskPoller:
        return TaskPoller(self._runtime, self._session, self._runtime.next_owner_name())

    def _work(self) -> None:
        runtime = self._runtime
        if self._poller.is_lost:  # while a handler was stuck: another owner may hold its tasks under the old name
            self._poller = self._new_poller()
        while not runtime.stopping.is_set():
            wakes = runtime.idle_wait.wakes()
            if self._run_step(self._poll_once) and self._last in (LastPoll.EMPTY, LastPoll.MISSED):
                runtime.listeners.on_empty()
                self._wait(wakes)
        self._finish()
        if runtime.stopped.is_set():
            # The runtime has released its leases already, but this loop may have registered one since.
            self._run_step(self._poller.release)
        if self._last is LastPoll.UNANSWERED:
            runtime.counters.poll_ended(None)

    def _poll_once(self) -> bool:
        """Poll and dispatch a batch. Return False if there was no poll."""
        runtime = self._runtime
        self._go_on()
        self._poller.lease()
        runtime.has_lease.set()
        if runtime.stopping.is_set():  # the worker was stopped while the lease was registered
            return False
        size = self._capacity()
        token = runtime.token(self._has_decided) if size else None
        if token is None:
            return False
        try:
            batch = self._counted_poll(size, token)
            if batch is not None:
                self._dispatch(batch)
            else:
                token.release()
        except BaseException:
            token.release()
            raise
        return True

    def _counted_poll(self, size: int, token: Token) -> InFlightBatch | None:
        """Poll, and set `idle` if the topic is drained."""
        runtime = self._runtime
        is_retry, self._last = self._last is LastPoll.UNANSWERED, LastPoll.UNANSWERED
        quiet = runtime.counters.poll_started(self._completed_by_poll(), retried=is_retry)
        began = time.monotonic()
        polled = self._poll(size)
        self._poll_seconds = time.monotonic() - began
        if polled:
            batch = runtime.start_batch(polled, self._poller.lease(), token)
            self._last = LastPoll.FOUND
            self._recheck.reset()
            if batch is None:  # a drain has tried all these tasks before
                runtime.counters.poll_ended(quiet)
            return batch
        missed = self._has_missed(quiet)
        stayed_quiet = runtime.counters.poll_ended(quiet)
        if stayed_quiet and not missed:
            runtime.idle.set()
        missed = missed or (stayed_quiet is False and not runtime.idle.is_set())
        self._last = LastPoll.MISSED if missed else LastPoll.EMPTY
        return None

    def _has_missed(self, quiet: int | None) -> bool:
        """Return whether to poll again soon, because the poll left ready tasks."""
        runtime = self._runtime
        if runtime.idle.is_set() or not runtime.counters.is_quiet(quiet) or not self._poller.has_missed():
            return False
        if self._recheck.failures < MAX_RECHECKS:
            return True
        # Gives up, because the transaction of another program may stay open.
        log.warning(
            "ready tasks are left, as an open transaction locks them: worker=%s topic=%s",
            runtime.config.name,
            runtime.config.topic,
        )
        return False

    def _wait(self, wakes: int) -> None:
        if self._last is LastPoll.MISSED:
            self._runtime.idle_wait.sleep(wakes, self._recheck.next(), self._has_decided)
        else:
            self._recheck.reset()
            self._runtime.idle_wait.wait(wakes, self._poll_seconds, self._has_decided)


class PollLoop(BasePollLoop):
    """Polls, handles and commits batches in one thread.

    Completes a batch in the same round trip as the next poll, unless the batch commits more than its decisions.
    """

    def __init__(self, runtime: WorkerRuntime, room: int) -> None:
        super().__init__(runtime, room)
        self._handled: tuple[InFlightBatch, Mapping[Task, Decision]] | None = None

    def _finish(self) -> None:
        if self._handled is not None:
            (batch, decisions), self._handled = self._handled, None
            self._run_step(lambda: self._committer.complete(batch, decisions))
        super()._finish()

    def _capacity(self) -> int:
        if self._has_room():
            return self._runtime.config.size
        self._runtime.idle_wait.wait_for(self._has_decided, or_end=True)
        return 0

    def _completed_by_poll(self) -> int:
        return len(self._handled[0].batch.tasks) if self._handled is not None else 0

    def _poll(self, size: int) -> Polled:
        if self._handled is None:
            return self._poller.poll(size)
        (batch, decisions), self._handled = self._handled, None
        commit = UnansweredCommit()
        if not self._poller.claims.is_due():
            try:
                tasks = self._poller.exchange(batch, decisions)
            except Exception as error:  # noqa: BLE001 -- commits the batch first; the next poll raises the error again
                commit.failed(error)
            else:
                self._committer.completed(batch, decisions)
                return tasks
        self._committer.complete(batch, decisions, commit)
        return self._poller.poll(size)

    def _dispatch(self, batch: InFlightBatch) -> None:
        config = self._runtime.config
        if config.workers > 1 and len(batch.batch.tasks) >= config.size:
            self._runtime.idle_wait.wake()  # there may be more tasks, for other threads
        self._handle(batch)
        self._go_on()

    def _commit(self, batch: InFlightBatch, decisions: Mapping[Task, Decision]) -> None:
        runtime, polls_next = self._runtime, self._handled is None and not self._runtime.stopping.is_set()
        if polls_next and runtime.completes_with_poll and not batch.batch.has_side_effects:
            self._handled = (batch, decisions)
        else:
            super()._commit(batch, decisions)


def polling_loops(runtime: WorkerRuntime) -> list[Loop]:
    """Make the loops of a worker whose threads poll for themselves."""
    return [PollLoop(runtime, room) for room in runtime.rooms()]
