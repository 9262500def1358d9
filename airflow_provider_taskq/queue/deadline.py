"""Deadlines for calls on a connection: a server that stays silent for too long counts as lost."""

import threading
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import psycopg

T = TypeVar("T")

_CANCEL_SECONDS = 1.0  # how long to wait until the server has taken the request to cancel a call
_GROWTH = 2.0
_MOST = 8.0  # times the limit, however often calls were given up
_MEMORY = 10.0  # after this many limits without a call given up, the limit is the base again


class CallTimeout(psycopg.OperationalError):
    """The server sent nothing for as long as a call may wait. The connection is closed, the outcome is not known."""


class CallLimit:
    """How long a call may wait for the server's next answer, in seconds.

    `seconds`: for calls of the queue. `handler_statements`: for statements of user code in the queue's transaction.
    After a call was given up the limit doubles, up to eight times, and shrinks again after a while. So a call that
    takes longer than the limit on a healthy server succeeds at a later attempt. `grows=False` keeps the limit.
    """

    def __init__(self, seconds: float, handler_statements: float | None = None, *, grows: bool = True) -> None:
        self._queue_calls = seconds
        self._handler_statements = max(seconds, handler_statements or 0.0)
        self._base = seconds
        self._grows = grows
        self._factor = 1.0
        self._exceeded = 0.0

    @property
    def seconds(self) -> float:
        """The limit for the next call."""
        if self._factor > 1 and time.monotonic() - self._exceeded > _MEMORY * self._factor * self._base:
            self._factor = 1.0
        return self._base * self._factor

    def exceed(self) -> None:
        """Notes that a call was given up."""
        if self._grows:
            self._factor = min(self._factor * _GROWTH, _MOST)
            self._exceeded = time.monotonic()

    @contextmanager
    def for_handler_statements(self) -> Iterator[None]:
        """Applies the limit for statements of user code inside the block."""
        self._base = self._handler_statements
        try:
            yield
        finally:
            self._base = self._queue_calls


class _Silent(Exception):
    """The deadline of a call has passed."""


def limit_calls(conn: psycopg.Connection[Any], limit: CallLimit) -> None:
    """Makes every call on a connection raise CallTimeout, and close the connection, after `limit` without an answer.

    The statement is also cancelled on the server if the server can be reached, so that it does not keep its locks.
    """
    wait = conn.wait

    def limited(generator: Generator[Any, Any, T], *args: Any, **options: Any) -> T:
        seconds = limit.seconds
        try:
            return wait(_silent_for(generator, seconds), *args, **options)
        except _Silent:
            limit.exceed()
            _abandon(conn)
            message = f"the server sent no answer within {seconds:.3g} seconds; the connection was closed"
            raise CallTimeout(message) from None

    # Every blocking call of psycopg waits by this method; a subclass would not cover connections that users open.
    conn.wait = limited  # type: ignore[method-assign, assignment]


def _silent_for(generator: Generator[Any, Any, T], seconds: float) -> Generator[Any, Any, T]:
    """The steps of a call; raises _Silent if nothing arrives for so long. psycopg resumes it ten times a second."""
    try:
        wanted = next(generator)
        heard = time.monotonic()
        while True:
            ready = yield wanted
            now = time.monotonic()
            if ready:
                heard = now
            elif now - heard > seconds:
                raise _Silent
            wanted = generator.send(ready)
    except StopIteration as end:
        value: T = end.value
        return value


def _abandon(conn: psycopg.Connection[Any]) -> None:
    """Cancels what runs on a connection, and closes it."""

    def cancel() -> None:
        with suppress(Exception):  # the server may be out of reach
            conn.cancel_safe(timeout=_CANCEL_SECONDS)

    # A thread, because a cancellation through an old libpq blocks without a limit.
    thread = threading.Thread(target=cancel, name="taskq cancel", daemon=True)
    thread.start()
    thread.join(_CANCEL_SECONDS)
    conn.close()
