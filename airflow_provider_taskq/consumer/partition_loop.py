"""The loop of one partition: read, handle, make progress, until told to end or somebody else leads."""

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

import psycopg

from airflow_provider_taskq.consumer.attempts import AttemptCounter
from airflow_provider_taskq.consumer.config import ConsumerConfig
from airflow_provider_taskq.consumer.errors import HandlerFailed, Interrupted, NonTransient
from airflow_provider_taskq.consumer.group import ConsumerGroup, EventHandler
from airflow_provider_taskq.consumer.progress import CALLABLE_LEVEL, PartitionProgress, ProgressMoved
from airflow_provider_taskq.queue import (
    Cursor,
    InvalidTask,
    LeaseLost,
    PartitionBatch,
    PartitionLease,
    RetryPolicy,
    Task,
    TaskQueue,
    TaskQueueError,
    UnreadablePayload,
    partition_of,
)
from airflow_provider_taskq.queue.errors import CallTimeout, is_connection_lost, is_read_only, is_session_timeout
from airflow_provider_taskq.queue.errors import is_transient as may_pass

logger = logging.getLogger(__name__)

CUT_OFFS = 3  # in a row: then it is the handler that takes longer than the server allows

RECONNECTING = RetryPolicy.event_handling(initial=timedelta(milliseconds=200))


@dataclass(frozen=True, slots=True)
class EventFailure:
    """An event that a handler failed with, for the `failures`-th time, and what is done about it.

    `delay`: it is tried again after so long; None: it is skipped, or, where `stopped`, the loop ends.
    """

    partition: int
    event: Task
    error: BaseException
    failures: int
    delay: timedelta | None
    stopped: bool


OnFailure = Callable[[EventFailure], None]


class LoopEnded(Exception):
    """The loop ends quietly, without progress."""


class HandlerCutOff(psycopg.OperationalError):
    """A handler's statement or its transaction took longer than it may. The connection is closed."""


class PartitionLoop:
    """Handles the events of one led partition, in a thread of its own.

    `error` tells what ended it, `interrupted` that a handler did so quietly.
    """

    def __init__(
        self,
        led: PartitionLease,
        group: ConsumerGroup,
        settings: ConsumerConfig,
        connected: Callable[[], PartitionProgress],
        on_failure: OnFailure,
    ) -> None:
        self.led = led
        self.group = group
        self.settings = settings
        self.error: BaseException | None = None
        self.interrupted = False
        self.on_end: Callable[[], None] = _nothing
        self._connected = connected
        self._on_failure = on_failure
        self._attempts = AttemptCounter(settings.policy)
        self._reconnects = AttemptCounter(RECONNECTING)
        self._cut_offs = 0
        self._halted = False
        self._bell = threading.Event()
        name = f"reader {led.group} {led.topic} {led.partition}"
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)

    def halt(self) -> None:
        """Asks the loop to end: after the event at hand, or in the middle of a wait."""
        self._halted = True
        self._bell.set()

    def wake(self) -> None:
        """Ends the pause before the next look at the log."""
        self._bell.set()

    def _run(self) -> None:
        """Goes on, with another connection where one is lost, until it is over."""
        try:
            while not self._is_over():
                pass
        except (LoopEnded, LeaseLost):
            pass
        except (Interrupted, SystemExit, KeyboardInterrupt):
            self.interrupted = True
        except BaseException as error:  # noqa: BLE001 - a thread's last word is kept for whoever asks
            self.error = error
        finally:
            self.on_end()

    def _is_over(self) -> bool:
        """Goes on over one connection; False where it was lost, or none could be had."""
        try:
            self._with_connection()
        except Exception as error:
            if not is_transient(error) or self._is_cut_off_for_good(error):
                raise
            self._reconnect(error)
            return False
        return True

    def _is_cut_off_for_good(self, error: Exception) -> bool:
        """Whether the server has ended one transaction after the other, with nothing done between."""
        self._cut_offs += isinstance(error, HandlerCutOff) or (
            is_session_timeout(error) and not isinstance(error, CallTimeout)
        )
        return self._cut_offs >= CUT_OFFS

    def _reconnect(self, error: Exception) -> None:
        """Waits before another try; nothing is skipped for a database that is away."""
        logger.warning("partition %s of %s: %s; trying again", self.led.partition, self.led.group, type(error).__name__)
        self._wait(self._reconnects.failed() or timedelta(seconds=30), whole=True)

    def _with_connection(self) -> None:
        progress = self._connected()
        try:
            while not self._halted:
                try:
                    if is_read_only(progress.conn):
                        raise psycopg.OperationalError("the server has become read-only")
                    handed = progress.read(self.settings.size)
                    self._reconnects.reset()
                    self._handle_all(progress, handed)
                except ProgressMoved:
                    continue
                if handed.at_end:
                    return
                if not handed:
                    self._wait(self.settings.pause, whole=False)
        finally:
            progress.conn.close()

    def _handle_all(self, progress: PartitionProgress, handed: PartitionBatch) -> None:
        """Handles what was read, one after the other; progress passes by what is for nobody, with what comes next."""
        after = handed.after
        for begin in range(0, len(handed), self.settings.transaction_size):
            some = handed[begin : begin + self.settings.transaction_size]
            if len(some) > 1 and self._handle_together(progress, some, after):
                after = some[-1][0]
                continue
            for place, event in some:
                if self._halted:
                    raise LoopEnded
                if self._handle(progress, event, after, place):
                    after = place
        if after < handed.cursor:
            progress.skip(after, handed.cursor)

    def _handle_together(self, progress: PartitionProgress, some: list[tuple[Cursor, Task]], after: Cursor) -> bool:
        """Handles events in one transaction; False, and nothing done, where one fails or none is for us.

        Then they are taken one by one, which tells whose the failure is.
        """
        if self._halted:
            raise LoopEnded
        try:
            calls = [(handlers, event) for _, event in some if (handlers := self._handlers_of(event))]
            if calls:
                progress.proceed(partial(_call_all, calls), after, some[-1][0])
                self._cut_offs = 0
        except HandlerFailed as failed:
            if progress.conn.closed:
                raise _lost_in_handler(failed.__cause__ or failed) from failed.__cause__
            return False
        return bool(calls)

    def _handle(self, progress: PartitionProgress, event: Task, after: Cursor, place: Cursor) -> bool:
        """Handles one event until it is done, skipped or the loop is to end; False where it is for nobody."""
        while True:
            try:
                handlers = self._handlers_of(event)
                if handlers:
                    progress.proceed(partial(_call, handlers, event), after, place)
                    self._attempts.reset()
                    self._cut_offs = 0
                return bool(handlers)
            except HandlerFailed as failed:
                cause = failed.__cause__ or failed
                if progress.conn.closed:
                    raise _lost_in_handler(cause) from cause
                delay = self._judge(event, cause)
            if delay is None:
                progress.skip(after, place)
                self._attempts.reset()
                return True
            self._wait(delay, whole=True)

    def _handlers_of(self, event: Task) -> list[EventHandler]:
        """The handlers of an event; a predicate that fails is a handler that fails, and so is an unreadable payload."""
        try:
            if not self.settings.concerns(event) or not self._is_ours(event):
                return []
            if isinstance(event.payload, UnreadablePayload):
                raise InvalidTask(event.payload.reason)  # noqa: TRY301 -- a failure of this event like any other
            return self.group.handlers_of(event)
        except Exception as error:
            raise HandlerFailed from error

    def _is_ours(self, event: Task) -> bool:
        """Whether an event is of this partition, if a callable of the settings decides and not the database."""
        resolver = self.settings.resolver
        if resolver is None or self.led.level != CALLABLE_LEVEL:
            return True
        return partition_of(resolver(event), self.led.partitions) == self.led.partition

    def _judge(self, event: Task, error: BaseException) -> timedelta | None:
        """How long to wait before the next try, None to skip; ends the loop for errors that no retry is meant for."""
        if isinstance(error, Interrupted | CancelledError) or _is_rejection(error):
            raise Interrupted from error
        if isinstance(error, NonTransient):
            self._tell(event, error, None, stopped=True)
            raise error
        delay = self._attempts.failed(event.sequence)
        if isinstance(event.payload, UnreadablePayload):
            delay = None  # no retry makes it readable
        self._tell(event, error, delay, stopped=False)
        return delay

    def _tell(self, event: Task, error: BaseException, delay: timedelta | None, *, stopped: bool) -> None:
        """Tells of a failure: the log, and whoever listens."""
        outcome = "the loop ends" if stopped else "skipped" if delay is None else f"tried again in {delay}"
        failures = self._attempts.failures + stopped
        told = (self.led.group, event.topic, event.sequence, failures, outcome)
        logger.warning(
            "group %s, topic %s, sequence %s failed %s times: %s", *told, exc_info=error if delay is None else None
        )
        self._on_failure(EventFailure(self.led.partition, event, error, failures, delay, stopped))

    def _wait(self, duration: timedelta, *, whole: bool) -> None:
        """Waits so long, or, unless for the `whole` of it, until somebody wakes us; Ended where the loop is to end."""
        deadline = time.monotonic() + duration.total_seconds()
        while not self._halted and (left := deadline - time.monotonic()) > 0:
            if self._bell.wait(left) and not self._halted:
                self._bell.clear()
                if not whole:
                    return
        if self._halted:
            raise LoopEnded


def _call(handlers: list[EventHandler], event: Task, queue: TaskQueue | None) -> None:
    """Calls all handlers of an event; what one raises is told from what the queue does."""
    try:
        for handler in handlers:
            handler(event, queue)
    except Exception as error:
        raise HandlerFailed from error


def _call_all(calls: list[tuple[list[EventHandler], Task]], queue: TaskQueue | None) -> None:
    """Calls the handlers of several events, in order."""
    for handlers, event in calls:
        _call(handlers, event, queue)


def _nothing() -> None:
    """What follows the end of a loop, unless somebody says what."""


def _is_rejection(error: BaseException) -> bool:
    """Whether an executor that is being shut down took no more work."""
    return isinstance(error, RuntimeError) and "cannot schedule new futures after" in str(error)


def _lost_in_handler(cause: BaseException) -> psycopg.OperationalError:
    """The error of a connection that was closed while a handler used it."""
    if is_session_timeout(cause):
        return HandlerCutOff(f"{type(cause).__name__} in a handler: {cause}")
    return psycopg.OperationalError("the connection was lost in a handler")


def is_transient(error: BaseException) -> bool:
    """Whether another connection may do: errors of connections, of opening one, and transactions that were ended.

    A server that is read-only counts as lost, as its address may lead to another one later.
    """
    return (
        isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
        or (type(error) is TaskQueueError and "cannot connect" in str(error))
        or is_connection_lost(error)
        or may_pass(error)
    )
