"""The loops of a worker: threads that poll, call the handler, and commit what it or its Futures decided."""

import logging
import threading
import time
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
from airflow_provider_taskq.worker.limiter import NO_TOKEN, Token
from airflow_provider_taskq.worker.runtime import WorkerRuntime

log = logging.getLogger(__name__)
T = TypeVar("T")

Pause: TypeAlias = Callable[[int], None]  # waits before the next poll, unless there was a wake since this number

_IDLE_FACTOR = 4.0  # least pause after an empty poll, as a multiple of its duration
MAX_RECHECKS = 20  # polls in a row that get none of the ready tasks; they take about ten seconds


class Ahead:
    """Batches that one loop has polled ahead for all loops. One loop at a time polls more, when none is left."""

    def __init__(self) -> None:
        self.batches: deque[InFlightBatch] = deque()
        self.poller: Loop | None = None

    def take(self, loop: "Loop") -> InFlightBatch | bool:
        """Return a batch, or True if this loop has to poll. The caller has the lock of the runtime's `IdleWait`."""
        if self.batches:
            return self.batches.popleft()
        self.poller = self.poller or loop
        return self.poller is loop


class Loop:
    """Polls, handles and commits batches in one thread, over one session, until the worker stops.

    If a handler returns a Future, its batch is open until the Future is done. Then the thread commits the batch. A loop
    has room for some open batches.

    It completes a batch in the same round trip as the next poll, unless the batch commits more than its decisions. With
    `prefetch`, the tasks of one poll become several batches, for all loops.
    """

    def __init__(self, runtime: WorkerRuntime, room: int, ahead: Ahead | None = None) -> None:
        self._runtime = runtime
        self._ahead = ahead
        self._session = runtime.session()
        self._poller = TaskPoller(runtime, self._session)
        self._committer = BatchCommitter(runtime, self._session)
        self._handled: tuple[InFlightBatch, Mapping[Task, Decision]] | None = None  # the next poll completes it
        self._poll_seconds = 0.0  # of the last empty poll
        self._recheck = Backoff(0.01, 1.0)
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
                self._decided.append((batch, future))
                self._open.remove(batch)  # then, as `_finish` ends when a batch is in neither
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
        """End the handled and the open batches after the last poll."""
        if self._handled is not None:
            (batch, decisions), self._handled = self._handled, None
            self._run_step(lambda: self._committer.complete(batch, decisions))
        while self._open or self._decided:
            self._runtime.idle_wait.wait_for(self._has_decided)
            self._run_step(self._go_on)
        if self._runtime.stopped.is_set():
            # The runtime has released its leases already, but this loop may have registered one since.
            self._run_step(self._poller.release)
        self._runtime.counters.poll_ended(self)

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

    def _work_once(self) -> Pause | None:
        """Handle a batch, or end some that are decided. Return the pause that follows an empty poll."""
        runtime = self._runtime
        self._go_on()
        try:
            self._poller.lease()
            runtime.has_lease.set()
            if runtime.stopping.is_set():  # the worker was stopped while the lease was registered
                return None
            if len(self._open) >= self._room:
                runtime.idle_wait.wait_for(self._has_decided, or_end=True)
                return None
            token = runtime.token(self._has_decided)
            return None if token is None else self._work_with_token(token)
        except LeaseLost as error:
            self._poller.recover(error)
            return None

    def _work_with_token(self, token: Token) -> Pause | None:
        found: InFlightBatch | Pause | None = None
        try:
            found = self._poll_batch() if self._ahead is None else self._take_or_poll(self._ahead)
        finally:
            if not isinstance(found, InFlightBatch):
                token.release()
        if not isinstance(found, InFlightBatch):
            return found
        found.token = token
        if found.abandoned_for is not None:  # while it waited
            token.release()
        else:
            self._handle(found)
            self._go_on()
        return None

    def _take_or_poll(self, ahead: Ahead) -> InFlightBatch | Pause | None:
        idle_wait = self._runtime.idle_wait
        found = idle_wait.wait_for(lambda: self._has_decided() or ahead.take(self), or_end=True)
        try:
            if self._runtime.stopping.is_set():  # the stop releases what no handler has got, with the leases
                return None
            if isinstance(found, InFlightBatch):
                return found
            return self._poll_batch() if ahead.poller is self else None
        finally:
            if ahead.poller is self:
                ahead.poller = None
                idle_wait.wake_decided()

    def _poll_batch(self) -> InFlightBatch | Pause | None:
        """Poll. Return the first batch, or the pause that follows an empty poll."""
        runtime, config, counters = self._runtime, self._runtime.config, self._runtime.counters
        mark = counters.poll_started(self, len(self._handled[0].batch.tasks) if self._handled is not None else 0)
        began, size = time.monotonic(), config.size + config.prefetch
        polled = self._poll(size)
        fresh = polled if runtime.returned is None else runtime.returned.without(polled)
        counters.poll_ended(self, fresh)
        if not polled:
            self._poll_seconds = time.monotonic() - began
            pause = self._pause_after(mark)
            runtime.listeners.on_empty()
            return pause
        self._recheck.reset()
        lease, step = self._poller.lease(), len(polled) if self._ahead is None else config.size
        parts = [fresh[place : place + step] for place in range(0, len(fresh), step)]
        batches = [runtime.start_batch(part, polled.fence, lease, NO_TOKEN) for part in parts]
        if self._ahead is not None and len(batches) > 1:
            counters.add(batches=len(batches) - 1)
            self._ahead.batches.extend(batches[1:])
        if config.workers > 1 and (len(polled) >= size or len(batches) > 1):
            runtime.idle_wait.wake()  # there may be more tasks, for other threads
        return batches[0] if batches else None

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

    def _commit(self, batch: InFlightBatch, decisions: Mapping[Task, Decision]) -> None:
        runtime, polls_next = self._runtime, self._handled is None and not self._runtime.stopping.is_set()
        if polls_next and runtime.completes_with_poll and not batch.batch.has_side_effects:
            self._handled = (batch, decisions)
        else:
            self._committer.complete(batch, decisions)


def pause_after(pause: timedelta, poll_seconds: float) -> float:
    """Return the seconds between an empty poll and the next one: empty polls take at most a fifth of the time."""
    return max(pause.total_seconds(), _IDLE_FACTOR * poll_seconds)


def loops_of(runtime: WorkerRuntime) -> list[Loop]:
    """Make the loops of a worker. They have room for as many batches as the handler's `open_batches` returns."""
    workers, open_batches = runtime.config.workers, getattr(runtime.handler, "open_batches", None)
    total = (open_batches(runtime.config.size) if open_batches else None) or workers
    ahead = Ahead() if runtime.config.prefetch else None
    return [Loop(runtime, max(1, total // workers + (place < total % workers)), ahead) for place in range(workers)]
