"""What each call on hostile input does: it ends in time, it answers or refuses, and a refusal changes nothing."""

import re
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TypeVar

import psycopg

from airflow_provider_taskq.queue import InvalidArgument, InvalidState, InvalidTask, TaskQueueError, UnknownTopic
from tests.fuzz.inputs import LONGEST
from tests.internals import stored_rows

Answer = TypeVar("Answer")

# Errors about the arguments of a call. Others are about its connection, the schema, or a deadlock.
REFUSALS: tuple[type[TaskQueueError], ...] = (InvalidTask, InvalidArgument, UnknownTopic, InvalidState)
_QUOTED = re.compile(r"""'.*'|".*\"""", re.DOTALL)  # names in a message, which may have any character
_LEAST_SHARE = 0.05


def attempt(call: Callable[[], Answer], *also: type[TaskQueueError]) -> Answer | TaskQueueError:
    """Return the answer of a call, or the error by which it refuses its arguments.

    :param also: further types of a refusal by this call. A subclass of such a type is none.
    """
    try:
        with limited_time():
            return call()
    except TaskQueueError as error:
        check_refusal(error, *also)
        return error


def check_refusal(error: TaskQueueError, *also: type[TaskQueueError]) -> None:
    """Fails for an error that does not refuse an argument, and for a message that a person cannot use."""
    assert type(error) in (*REFUSALS, *also), repr(error)
    message = str(error)
    own = _QUOTED.sub("", message)
    assert message.strip(), repr(error)
    assert len(own.splitlines()) <= 1, repr(message)
    assert "Traceback" not in own, repr(message)
    assert "relation" not in own, repr(message)


@contextmanager
def limited_time() -> Iterator[None]:
    """Fails if the block takes longer than LONGEST. A block that only computes is interrupted at that time."""
    seconds = LONGEST.total_seconds()
    signal.signal(signal.SIGVTALRM, _interrupt)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    started = time.monotonic()
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    assert time.monotonic() - started < seconds, "the call took too long"


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise AssertionError("the call computes for too long")


def check_shares(outcomes: Counter[bool]) -> None:
    """Fails if few of the inputs were accepted (True), or few were refused (False): the test would test little."""
    least = _LEAST_SHARE * outcomes.total()
    assert min(outcomes[True], outcomes[False]) >= least, outcomes


class StoredState:
    """Tells whether a call has changed a row of the queue, by the place and the contents of each row version."""

    def __init__(self, conn: psycopg.Connection) -> None:
        conn.prepare_threshold = 0
        self._conn = conn
        self.remember()

    def remember(self) -> None:
        """Take the rows of this moment for those that the next calls may not change."""
        self._seen = self._transactions()
        self._rows = stored_rows(self._conn)

    def changed_tables(self) -> list[str]:
        """Return the tables of which a row was added, changed or removed since `remember`."""
        transactions = self._transactions()
        if transactions == self._seen:  # then no transaction of this server has changed anything
            return []
        now = stored_rows(self._conn)
        changed = sorted(table for table in now.keys() | self._rows.keys() if now.get(table) != self._rows.get(table))
        if not changed:
            self._seen = transactions
        return changed

    def check_unchanged(self) -> None:
        """Fails if a row was added, changed or removed since `remember`."""
        assert self.changed_tables() == []

    def _transactions(self) -> object:
        return self._conn.execute("SELECT pg_current_snapshot()::text").fetchone()
