"""The loop of one partition: reads events, calls their handlers, and stores its progress."""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

import psycopg

from airflow_provider_taskq.consumer.config import ConsumerConfig
from airflow_provider_taskq.consumer.group import EventHandler, Interrupted, NonTransient
from airflow_provider_taskq.consumer.progress import Progress, ProgressMoved
from airflow_provider_taskq.queue import (
    Cursor,
    InvalidArgument,
    InvalidTask,
    LeaseLost,
    PartitionBatch,
    PartitionLease,
    Task,
    TaskQueue,
    UnreadablePayload,
)
from airflow_provider_taskq.queue.backoff import Backoff, retrying
from airflow_provider_taskq.queue.errors import CallTimeout, first_line
from airflow_provider_taskq.queue.faults import Fault, classify, is_read_only
from airflow_provider_taskq.queue.handler_statements import handler_statements
from airflow_provider_taskq.worker.batches import BatchContext, BatchOwner
from airflow_provider_taskq.worker.handlers import HandlerFailed

log = logging.getLogger(__name__)

_MAX_TIMEOUTS = 3  # in a row, after which the handler is at fault and not the server


@dataclass(frozen=True, slots=True)
class EventFailure:
    """A failure of an event, which has failed `failures` times.

    The loop handles the event again after `delay`. If `delay` is None, it skips the event, or ends if `stopped`.
    """

    partition: int
    event: Task
    error: BaseException
    failures: int
    delay: timedelta | None
    stopped: bool


OnFailure = Callable[[EventFailure], None]


class LoopEnded(Exception):
    """Ends the loop without an error and without progress."""


class PartitionLoop:
    """Handles the events of one partition under a lease, in a thread of its own.

    `ended` is a Future of the end. It has the error that ended the loop, or Interrupted if a handler did so.
    """

    ended: Future[None]
    thread: threading.Thread | None = None

    def __init__(
        self,
        lease: PartitionLease,
        handlers: Sequence[EventHandler],
        config: ConsumerConfig,
        member: str,
        connect: Callable[[], psycopg.Connection],
        on_failure: OnFailure,
    ) -> None:
        self.lease = lease
        self._handlers = handlers
        self._config = config
        self._batch = BatchContext(BatchOwner(member, lease.fence))
        self._connect = connect
        self._on_failure = on_failure
        self._failures = 0  # of the event `_failed`
        self._failed: int | None = None
        self._reconnects = Backoff(0.2)
        self._timeouts = 0
        self._stopping = False
        self._wake = threading.Event()

    def stop(self) -> None:
        """Let the loop end after the current event, or at once if it pauses. Do not wait for the end."""
        self._stopping = True
        self._wake.set()

    def wake(self) -> None:
        """Let the loop read now instead of after its pause."""
        self._wake.set()

    def run(self) -> None:
        """Handle events until `stop`, or until the lease is lost. Raise the error that ends the loop earlier."""
        self.thread = threading.current_thread()
        with suppress(LoopEnded, LeaseLost):
            wait = partial(self._wait, may_wake=False)
            retrying(self._run_connected, self._may_reconnect, wait, self._reconnects)

    def _may_reconnect(self, error: Exception) -> bool:
        # A timeout in a handler, or one of the server. A handled event in between ends the row.
        self._timeouts += classify(error.__cause__ or error) is Fault.TIMEOUT and not isinstance(error, CallTimeout)
        if not classify(error).is_temporary or self._timeouts >= _MAX_TIMEOUTS:
            return False
        named = (self.lease.group, self.lease.topic, self.lease.partition, type(error).__name__)
        log.warning("connection lost, will retry: group=%s topic=%s partition=%s error=%s", *named)
        return True

    def _run_connected(self) -> None:
        progress = Progress(self._connect(), self.lease, self._config)
        try:
            while not self._stopping:
                try:
                    if is_read_only(progress.conn):
                        raise psycopg.OperationalError("the server has become read-only")
                    events = progress.read(self._config.size)
                    self._reconnects.reset()
                    self._handle_all(progress, events)
                except ProgressMoved:
                    continue
                if not events:
                    self._wait(self._config.pause.total_seconds(), may_wake=True)
        finally:
            progress.conn.close()

    def _handle_all(self, progress: Progress, events: PartitionBatch) -> None:
        # Events without a handler need no call of their own: the next handled event, or the end, stores their progress.
        after = events.after
        for begin in range(0, len(events), self._config.transaction_size):
            some = events[begin : begin + self._config.transaction_size]
            if len(some) > 1:
                with suppress(HandlerFailed):  # then one by one, to find the event that fails
                    if self._proceed(progress, some, after):
                        after = some[-1][0]
                    continue
            for each in some:
                if self._handle(progress, each, after):
                    after = each[0]
        if after < events.cursor:
            progress.skip(after, events.cursor)

    def _handle(self, progress: Progress, at: tuple[Cursor, Task], after: Cursor) -> bool:
        """Handle one event until it succeeds or is skipped. Return False if the event has no handler."""
        while True:
            try:
                return self._proceed(progress, [at], after)
            except HandlerFailed as failed:
                error = failed.__cause__ or failed
                delay = self._delay_after(at[1], error)
            if delay is None:
                progress.skip(after, at[0], error)
                self._failures = 0
                return True
            self._wait(delay.total_seconds(), may_wake=False)

    def _proceed(self, progress: Progress, events: Sequence[tuple[Cursor, Task]], after: Cursor) -> bool:
        """Handle events and store progress, both or nothing. Return False, with no effect, if none has a handler."""
        if self._stopping:
            raise LoopEnded
        try:
            calls = [(handlers, event) for _, event in events if (handlers := self._handlers_of(event))]
            if calls:
                progress.proceed(partial(_call_all, calls, self._batch), after, events[-1][0])
                self._failures = self._timeouts = 0
            return bool(calls)
        except HandlerFailed as failed:
            if not progress.conn.closed:
                raise
            cause = failed.__cause__ or failed
            # The text of other errors may have a payload.
            reason = first_line(cause) if classify(cause) is Fault.TIMEOUT else type(cause).__name__
            raise psycopg.OperationalError(f"the connection was lost in a handler: {reason}") from cause

    def _handlers_of(self, event: Task) -> list[EventHandler]:
        """Return the handlers of an event. Raises HandlerFailed if a predicate fails or the payload is unreadable."""
        try:
            if not self._config.concerns(event) or not self._is_ours(event):
                return []
            if isinstance(event.payload, UnreadablePayload):
                raise InvalidTask(event.payload.reason)  # noqa: TRY301 -- fails this event, as a handler does
            return [each for each in self._handlers if each.matches(event)]
        except Exception as error:
            raise HandlerFailed from error

    def _is_ours(self, event: Task) -> bool:
        try:
            return self._config.partition(event) in (None, self.lease.partition)
        except InvalidArgument as error:
            raise NonTransient(str(error)) from error

    def _delay_after(self, event: Task, error: BaseException) -> timedelta | None:
        """Report a failure. Return the delay until the next attempt, None to skip the event, or raise to end here."""
        if isinstance(error, Interrupted | CancelledError) or _is_executor_shutdown(error):
            raise Interrupted from error
        if isinstance(error, NonTransient):
            self._report(event, error, None, stopped=True)
            raise error
        self._failures = self._failures + 1 if event.sequence == self._failed else 1
        self._failed = event.sequence
        # No retry makes a payload readable.
        delay = None if isinstance(event.payload, UnreadablePayload) else self._config.retry_delay(self._failures)
        self._report(event, error, delay, stopped=False)
        return delay

    def _report(self, event: Task, error: BaseException, delay: timedelta | None, *, stopped: bool) -> None:
        outcome = "partition ends" if stopped else "skipped" if delay is None else f"will retry in {delay}"
        failures = self._failures + stopped
        named = (outcome, self.lease.group, event.topic, event.sequence, failures)
        trace = error if delay is None else None
        log.warning("event failed, %s: group=%s topic=%s sequence=%s failures=%s", *named, exc_info=trace)
        self._on_failure(EventFailure(self.lease.partition, event, error, failures, delay, stopped))

    def _wait(self, seconds: float, *, may_wake: bool) -> None:
        """Wait for `seconds`, or until `wake()` if `may_wake`. Raises LoopEnded after `stop()`."""
        deadline = time.monotonic() + seconds
        while not self._stopping and (left := deadline - time.monotonic()) > 0:
            if self._wake.wait(left) and not self._stopping:
                self._wake.clear()
                if may_wake:
                    return
        if self._stopping:
            raise LoopEnded


def _call_all(calls: list[tuple[list[EventHandler], Task]], batch: BatchContext, queue: TaskQueue | None) -> None:
    try:
        for handlers, event in calls:
            with handler_statements(queue.conn) if queue is not None else nullcontext():
                for handler in handlers:
                    handler.function(event, batch=batch, queue=queue)
    except Exception as error:
        raise HandlerFailed from error


def _is_executor_shutdown(error: BaseException) -> bool:
    # concurrent.futures raises a plain RuntimeError if the executor of a handler is shut down.
    return isinstance(error, RuntimeError) and "cannot schedule new futures after" in str(error)
