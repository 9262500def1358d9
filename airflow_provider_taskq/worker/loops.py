"""The loops of a worker: threads that poll, call the handler, and commit what it or its Futures decided."""

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import ExitStack
from datetime import timedelta
from functools import partial
from typing import Any, TypeAlias, TypeVar

from airflow_provider_taskq.queue import Decision, LeaseLost, Polled, Result, Task
from airflow_provider_taskq.queue.backoff import Backoff
from airflow_provider_taskq.worker.batches import Batch
from airflow_provider_taskq.worker.calls import TaskPoller, UnansweredCommit
from airflow_provider_taskq.worker.commit import BatchCommitter
from airflow_provider_taskq.worker.executors import Threads, attempt, final
from airflow_provider_taskq.worker.handlers import (
    TaskResultException,
    complete_decisions,
    decision_on,
    failures_of_unreadable,
    is_undecided,
    start_batch,
)
from airflow_provider_taskq.worker.lease import HandlerStuck, InFlightBatch
from airflow_provider_taskq.worker.limiter import Token
from airflow_provider_taskq.worker.runtime import WorkerRuntime

log = logging.getLogger(__name__)
T = TypeVar("T")

Pause: TypeAlias = Callable[[int], None]  # waits before the next poll, unless there was a wake since this number

_IDLE_FACTOR = 4.0  # least pause after an empty poll, as a multiple of its duration
MAX_RECHECKS = 20  # polls in a row that get none of the ready tasks; they take about ten seconds


class Loop(ABC):
    """Base class of the loops of a worker. Each has a thread and a session, and room for some open batches.

    If a handler returns a Future, its batch is open until the Future is done. Then the thread commits the batch.
    """

    def __init__(self, runtime: WorkerRuntime, room: int) -> None:
        self._runtime = runtime
        self._session = runtime.session()
        self._committer = BatchCommitter(runtime, self._session)
        self._backoff = Backoff()
        self._room = room
        self._open: set[InFlightBatch] = set()
        self._decided: deque[tuple[InFlightBatch, Any]] = deque()  # with what the handler returned
        self._following: deque[InFlightBatch] = deque()  # of groups, in whose turn they are
        self._lock = threading.Lock()
        name = f"taskq {runtime.config.name}"
        # Calls the handler if it has a limit, so that another thread can take the place of a stuck one.
        self._caller = None if runtime.config.limit is None else Threads(1, name)
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.calling = self.thread  # the last thread that has called the handler

    @abstractmethod
    def _work_once(self) -> Pause | None:
        """Handle a batch, or end some that are decided. Return the pause that follows, if there is one."""

    def _commit(self, batch: InFlightBatch, decisions: Mapping[Task, Decision]) -> None:
        self._committer.complete(batch, decisions)

    def _run(self) -> None:
        while not self._runtime.stopping.is_set():
            wakes = self._runtime.idle_wait.wakes()
            if pause := self._run_step(self._work_once):
                pause(wakes)
        self._finish()
        self._session.close()

    def _run_step(self, step: Callable[[], T]) -> T | None:
        """Run one step and return its result. After an error, call `on_fatal`, pause, and return None."""
        wakes = self._runtime.idle_wait.wakes()
        try:
            result = step()
            self._backoff.reset()
        except Exception as error:  # noqa: BLE001 -- a worker survives all errors
            self._runtime.listeners.on_fatal(error)
            self._runtime.idle_wait.sleep(wakes, self._backoff.next())
            return None
        return result

    def _has_decided(self) -> bool:
        return bool(self._decided)

    def _has_room(self) -> bool:
        return len(self._open) < self._room

    def _handle(self, batch: InFlightBatch) -> None:
        """Call the handler, and commit what it decided, or leave the batch open."""
        call = partial(self._call, batch)
        self._runtime.watchdog.add(batch)
        if self._caller is None:
            returned = attempt(call)
        else:
            returned = attempt(partial(batch.batch.result_of, self._caller.run(call), self._runtime.handler_name))
        if isinstance(returned, Future) and not returned.done():
            self._leave_open(batch, returned)
        else:
            self._runtime.handler_ended(batch)
            self._end(batch, returned)

    def _call(self, batch: InFlightBatch) -> Any:
        self.calling = threading.current_thread()
        self._runtime.listeners.on_dispatched(batch.trace)
        with batch.batch.running(self._runtime.handler_name):
            return start_batch(self._runtime.handler, batch.batch)

    def _leave_open(self, batch: InFlightBatch, future: Future[Any]) -> None:
        self._open.add(batch)
        activity = ExitStack()

        def decide(_: object = None) -> None:
            with self._lock:
                if batch not in self._open:
                    return
                self._open.remove(batch)
                self._decided.append((batch, future))
            activity.close()
            self._runtime.handler_ended(batch)
            self._runtime.idle_wait.wake_decided()

        def abandon() -> None:
            future.cancel()
            decide()

        name = f"a Future of {self._runtime.handler_name}"
        activity.enter_context(batch.batch.running(name, lambda: "(not done)\n", abandon))
        future.add_done_callback(decide)
        if batch.batch.cancelled.is_set():  # abandoned before `running` registered the function
            abandon()

    def _go_on(self) -> None:
        """End all batches that are decided, and handle those that follow in their groups."""
        while self._decided or self._following:
            if self._decided:
                self._end(*self._decided.popleft())
            else:
                self._handle(self._following.popleft())

    def _finish(self) -> None:
        """End the open batches after the last poll."""
        while self._open or self._decided:
            self._runtime.idle_wait.wait_for(self._has_decided)
            self._run_step(self._go_on)

    def _end(self, batch: InFlightBatch, returned: Any) -> None:
        if batch.claim():
            outcome = self._outcome(batch, returned)
            if isinstance(outcome, BaseException):
                self._committer.fail(batch, outcome)
            else:
                self._commit(batch, outcome)
        elif isinstance(batch.abandoned_for, HandlerStuck):
            self._committer.fail(batch, batch.abandoned_for)
        else:
            return  # the lease is lost, or the worker has stopped
        if batch.following:
            self._follow(batch)

    def _outcome(self, batch: InFlightBatch, returned: Any) -> dict[Task, Decision] | BaseException:
        """Return the decisions of the handler, or the error that fails the whole batch."""
        runtime, tasks = self._runtime, batch.batch.tasks
        try:
            outcome = complete_decisions(runtime.handler_name, tasks, final(returned))
        except TaskResultException as error:
            outcome = {**dict.fromkeys(tasks, decision_on(error)), **failures_of_unreadable(tasks)}
        except BaseException as error:  # noqa: BLE001 -- also SystemExit: it ends the batch, not the worker
            return error
        if runtime.returned is None:  # the worker would poll an undecided task again without a pause
            snooze = Decision(Result.SUSPENSION, delay=runtime.config.pause)
            outcome = {task: snooze if is_undecided(decision) else decision for task, decision in outcome.items()}
        runtime.listeners.on_callback(batch.trace, outcome)
        return outcome

    def _follow(self, ended: InFlightBatch) -> None:
        """Let the next batch of a group start, or release the rest of the group."""
        groups = self._runtime.config.groups
        failed = groups is not None and any(map(groups.stops_after, ended.committed.values()))
        if not failed and not self._runtime.stopping.is_set():
            self._runtime.counters.add(batches=1)
            owner, following = ended.batch.owner, ended.following
            self._following.append(self._runtime.start_batch(following, owner.fence, ended.lease, ended.token))
        else:
            self._committer.release(InFlightBatch(Batch(ended.following), ended.lease, ended.token, ended.trace))


class PollLoop(Loop):
    """Polls, handles and commits batches in one thread, until the worker stops.

    Completes a batch in the same round trip as the next poll, unless the batch commits more than its decisions. Pauses
    after a failed poll, longer each time.
    """

    def __init__(self, runtime: WorkerRuntime, room: int) -> None:
        super().__init__(runtime, room)
        self._poller = TaskPoller(runtime, self._session)
        self._recheck = Backoff(0.01, 1.0)
        self._poll_seconds = 0.0  # of the last poll
        self._handled: tuple[InFlightBatch, Mapping[Task, Decision]] | None = None  # the next poll completes it

    def _finish(self) -> None:
        if self._handled is not None:
            (batch, decisions), self._handled = self._handled, None
            self._run_step(lambda: self._committer.complete(batch, decisions))
        super()._finish()
        if self._runtime.stopped.is_set():
            # The runtime has released its leases already, but this loop may have registered one since.
            self._run_step(self._poller.release)
        self._runtime.counters.poll_ended(self)

    def _work_once(self) -> Pause | None:
        runtime = self._runtime
        self._go_on()
        try:
            self._poller.lease()
            runtime.has_lease.set()
            if runtime.stopping.is_set():  # the worker was stopped while the lease was registered
                return None
            if not (size := self._capacity()) or (token := runtime.token(self._has_decided)) is None:
                return None
            return self._poll_with_token(size, token)
        except LeaseLost as error:
            self._poller.recover(error)
            return None

    def _poll_with_token(self, size: int, token: Token) -> Pause | None:
        runtime, batch = self._runtime, None
        completing = len(self._handled[0].batch.tasks) if self._handled is not None else 0
        mark = runtime.counters.poll_started(self, completing)
        began = time.monotonic()
        try:
            polled = self._poll(size)
            fresh = polled if runtime.returned is None else runtime.returned.without(polled)
            runtime.counters.poll_ended(self, fresh)
            if fresh:
                batch = runtime.start_batch(fresh, polled.fence, self._poller.lease(), token)
        finally:
            if batch is None:
                token.release()
        if batch is not None:
            self._dispatch(batch)
        if polled:
            self._recheck.reset()
            return None
        self._poll_seconds = time.monotonic() - began
        pause = self._pause_after(mark)
        runtime.listeners.on_empty()
        return pause

    def _pause_after(self, mark: int) -> Pause:
        """Return the pause that follows an empty poll, and set `idle` if the topic is drained."""
        runtime, counters = self._runtime, self._runtime.counters
        if runtime.idle.is_set() or not counters.is_quiet():
            return self._pause
        # Another poll may have completed a batch, and pushed tasks, since this one began.
        if counters.is_quiet(mark) and not self._has_missed() and counters.is_quiet(mark):
            runtime.idle.set()
            return self._pause
        return self._pause_shortly

    def _has_missed(self) -> bool:
        """Return whether to poll again soon, because the poll left ready tasks."""
        config = self._runtime.config
        if not self._poller.has_missed():
            return False
        if self._recheck.failures < MAX_RECHECKS:
            return True
        # Gives up, because the transaction of another program may stay open.
        log.warning(
            "ready tasks are left, as an open transaction locks them: worker=%s topic=%s", config.name, config.topic
        )
        return False

    def _pause(self, wakes: int) -> None:
        self._recheck.reset()
        seconds = pause_after(self._runtime.config.pause, self._poll_seconds)
        self._runtime.idle_wait.sleep(wakes, seconds, self._has_decided, takes_turns=True)

    def _pause_shortly(self, wakes: int) -> None:
        self._runtime.idle_wait.sleep(wakes, self._recheck.next(), self._has_decided)

    def _capacity(self) -> int:
        """Wait until the loop can take tasks, and return their number. Return 0 for no poll now."""
        if self._has_room():
            return self._runtime.config.size
        self._runtime.idle_wait.wait_for(self._has_decided, or_end=True)
        return 0

    def _poll(self, size: int) -> Polled:
        if self._handled is None:
            return self._poller.poll(size)
        (batch, decisions), self._handled = self._handled, None
        commit = UnansweredCommit()
        if not self._poller.must_look:
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
        """Handle a polled batch, or pass it on."""
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


def pause_after(pause: timedelta, poll_seconds: float) -> float:
    """Return the seconds between an empty poll and the next one: empty polls take at most a fifth of the time."""
    return max(pause.total_seconds(), _IDLE_FACTOR * poll_seconds)


class Prefetcher(PollLoop):
    """Polls while fewer than `prefetch` tasks wait to be handled, as one owner for all threads that handle batches.

    Its threads wait for each other with the runtime's `IdleWait`, whose lock guards the batches.
    """

    def __init__(self, runtime: WorkerRuntime) -> None:
        super().__init__(runtime, 0)
        self._waiting: deque[InFlightBatch] = deque()

    def take(self) -> InFlightBatch | None:
        """Remove a batch, if there is one, under the lock. A stop releases those that are left, with their lease."""
        if not self._waiting or self._runtime.stopping.is_set():
            return None
        self._runtime.idle_wait.wake_decided()  # there is room again
        return self._waiting.popleft()

    def _capacity(self) -> int:
        return min(self._runtime.config.size, self._runtime.idle_wait.wait_for(self._room_left, or_end=True))

    def _room_left(self) -> int:
        left = self._runtime.config.prefetch - sum(len(batch.batch.tasks) for batch in self._waiting)
        return 0 if self._runtime.stopping.is_set() else max(0, left)

    def _dispatch(self, batch: InFlightBatch) -> None:
        self._waiting.append(batch)
        self._runtime.idle_wait.wake_decided()


class HandleLoop(Loop):
    """Handles and commits the batches of a Prefetcher."""

    def __init__(self, runtime: WorkerRuntime, room: int, prefetcher: Prefetcher) -> None:
        super().__init__(runtime, room)
        self._prefetcher = prefetcher

    def _work_once(self) -> None:
        self._go_on()
        found = self._runtime.idle_wait.wait_for(self._next, or_end=True)
        if isinstance(found, InFlightBatch) and found.abandoned_for is None:  # else it was abandoned while it waited
            self._handle(found)

    def _next(self) -> InFlightBatch | bool | None:
        return self._has_decided() or (self._prefetcher.take() if self._has_room() else None)


def loops_of(runtime: WorkerRuntime) -> list[Loop]:
    """Make the loops of a worker: each polls for itself, or with `prefetch` one polls for the others."""
    if not runtime.config.prefetch:
        return [PollLoop(runtime, room) for room in runtime.rooms()]
    prefetcher = Prefetcher(runtime)
    return [prefetcher, *(HandleLoop(runtime, room, prefetcher) for room in runtime.rooms())]
