"""Errors of the queue: their types, their translation from PostgreSQL, and their text as it is stored."""

import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self

import psycopg


class TaskQueueError(Exception):
    """Base of all errors of the queue. The message says what to do."""


class UnknownTopic(TaskQueueError):
    """The database has no topic of that name. Create it with `taskq topics create` or `create_topic`, or correct it."""


class InvalidTask(TaskQueueError):
    """A task, or an argument about tasks, breaks a rule.

    The message about a push has the position of the task, counted from 0. Correct that task, and repeat the call: the
    failed call has stored none of its tasks.
    """


class InvalidState(TaskQueueError):
    """The state of a task does not allow the operation. `taskq why` says which state it is in and why."""


class NotHeld(TaskQueueError):
    """The owner does not hold these tasks now: they are completed or released, or another owner has them.

    A completion also raises it for a task that the owner has claimed again since: the decision is for the attempt of an
    earlier poll.

    Do not repeat the call. Poll again: tasks that are not done are handed out again.
    """


class LeaseLost(NotHeld):
    """The owner's lease is gone, or has lapsed and the operation needs a valid one.

    Discard the work on the held tasks, because other owners may have them, and register again. If it happens often,
    send heartbeats more often or use a longer lease.
    """


class InvalidArgument(TaskQueueError, ValueError):
    """An invalid argument; also a ValueError, as Python's own functions raise. Correct the argument."""


class SchemaMismatch(TaskQueueError):
    """The schema taskq is missing in the database, or is not the one of this package.

    `taskq verify` says which of the two is newer. `taskq install` upgrades the schema; upgrade the package otherwise.
    """


class NewerSchema(SchemaMismatch):
    """The schema taskq in the database is of a later release than this package.

    Running programs can work with it. Upgrade the package soon.
    """


class ConnectionFailed(TaskQueueError):
    """No server could be reached, or it rejected the connection. A later attempt may succeed."""


class Deadlock(TaskQueueError, psycopg.errors.DeadlockDetected):
    """The transaction and another one waited for each other's locks, so the server has ended this transaction.

    Repeat the whole transaction: nothing of it is stored, and the other transaction continues. It is also psycopg's
    DeadlockDetected. SQL raises deadlock_detected (40P01).
    """


class CallTimeout(psycopg.OperationalError):
    """The server sent nothing for as long as a call may wait. The connection is closed, and the outcome unknown.

    Open another connection and look the outcome up before you repeat the call.
    """


INSTALL = "taskq install"

SQLSTATES: dict[str, type[TaskQueueError]] = {
    "TQ000": TaskQueueError,
    "TQ001": UnknownTopic,
    "TQ002": InvalidTask,
    "TQ003": InvalidState,
    "TQ004": NotHeld,
    "TQ005": LeaseLost,
    "TQ006": SchemaMismatch,
    "TQ007": TaskQueueError,
    "TQ008": InvalidArgument,
}

# These codes mean a database without the schema, or with the schema of another version.
_SCHEMA_CODES = {"3F000": "is missing", "42883": "is another version", "42P01": "is another version"}

# Violations of a table's own constraint, such as the length of a topic's name.
_RULE_CODES = {"23514", "23502", "22P02", "22P05", "22007", "22008", "22015", "22021"}
_DATA_EXCEPTIONS = "22"  # the class of codes for values that a statement cannot compute with
_DIVISION_BY_ZERO = "22012"  # no verb divides by an argument, so this comes from a user's trigger

# Parts of the report of a deadlock.
_CALL = re.compile(r"\btaskq\.(\w+)\(")
_RELATION = re.compile(r'^[^"]*\(\d+,\d+\)[^"]*"(\w+)"', re.MULTILINE)
_PROCESS = re.compile(r"^\D*(\d+)", re.MULTILINE)


@contextmanager
def translate_errors() -> Iterator[None]:
    """Raise errors of PostgreSQL inside the block as the queue's own errors, with the original as cause.

    Reduce the original to its first message, also if the queue has no error for it.
    """
    try:
        yield
    except UnicodeEncodeError as error:
        raise InvalidTask(_unstorable(error)) from error
    except TaskQueueError:  # a Deadlock is an error of psycopg, too
        raise
    except psycopg.Error as error:
        own = to_queue_error(error)
        _hide_values(error)
        if own is None:
            raise
        raise own from error


def _unstorable(error: UnicodeEncodeError) -> str:
    character = error.object[error.start]
    if "\ud800" <= character <= "\udfff":
        return "a text holds a lone surrogate, which PostgreSQL cannot store"
    return f"a text holds {character!r}, which the encoding of the connection ({error.encoding}) lacks"


def _hide_values(error: psycopg.Error) -> None:
    # DETAIL has whole rows and CONTEXT has parameters, both with payloads. Tracebacks also print the causes of errors.
    if message := error.diag.message_primary:
        error.args = (message,)  # `diag` keeps the rest


def to_queue_error(error: psycopg.Error) -> TaskQueueError | None:
    """Return the queue's error for an error of PostgreSQL; None if the queue has nothing to add."""
    code = error.sqlstate or ""
    message = error.diag.message_primary or str(error)
    if code in SQLSTATES:
        return SQLSTATES[code](message)
    if code == Deadlock.sqlstate:
        return Deadlock(_deadlock_message(error))
    if code in _SCHEMA_CODES and "taskq" in message:
        return SchemaMismatch(f"the schema taskq in this database {_SCHEMA_CODES[code]}: run {INSTALL}")
    if code == "23503" and (error.diag.constraint_name or "").endswith("_topic_id_fkey"):
        return UnknownTopic("the topic was dropped at this moment: repeat this if it has been created again")
    if code == "23514" and error.diag.constraint_name:
        # PostgreSQL names a constraint by its table and column: topic_max_attempts_check.
        field = error.diag.constraint_name.partition("_")[2].removesuffix("_check")
        return TaskQueueError(f"a rule of {error.diag.table_name} is broken: {field} is out of its range")
    if code in _RULE_CODES or (isinstance(error, psycopg.DataError) and not code):
        return InvalidTask(message)  # without a code: found by psycopg before anything was sent
    if code.startswith(_DATA_EXCEPTIONS) and code != _DIVISION_BY_ZERO:
        return InvalidArgument(f"an argument is out of its range: {message}")
    return None


def _deadlock_message(error: psycopg.Error) -> str:
    # The server may translate the words of both texts, but neither names in quotation marks nor names of functions.
    context, detail = error.diag.context or "", error.diag.message_detail or ""
    calls = _CALL.findall(context)  # the last one is the outermost call
    relation = _RELATION.search(context)
    # Each line of the detail begins with a session that waits, and the first line is about this session.
    others = _PROCESS.findall(detail)[1:]
    call = f"{calls[-1]}()" if calls else "this statement"
    other = f"the transaction of session {', '.join(others)}" if others else "another transaction"
    place = f" in {relation[1]}" if relation else ""
    return (
        f"{call} and {other} waited for each other's locks{place} (a deadlock): the server has ended this transaction,"
        " and nothing of it is stored. Repeat the whole transaction"
    )


def first_line(error: BaseException) -> str:
    """Return the first line of an error, without hints. libpq names host, port and user in it, never the password."""
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__


MAX_TRACE = 10_000
MAX_SUMMARY = 200
_MAX_LEAVES = 3


class ErrorTrace(str):
    """A traceback as text that keeps the summary of its exception, also after pickling."""

    __slots__ = ("summary",)
    summary: str

    @classmethod
    def of(cls, error: BaseException) -> Self:
        """Return the bounded traceback of an exception."""
        trace = cls(trace_text(error))
        trace.summary = _summary(error)
        return trace


def picklable_error(error: BaseException | str | None) -> str | None:
    """Convert an error to a form that always pickles, and that keeps the traceback and the summary of the error."""
    return ErrorTrace.of(error) if isinstance(error, BaseException) else error


def trace_text(error: BaseException | str | None) -> str | None:
    """Return an error as text of at most 10,000 characters: the first line, and the end, which has the cause."""
    if error is None:
        return None
    text = _storable(error if isinstance(error, str) else "".join(traceback.format_exception(error)))
    if len(text) <= MAX_TRACE:
        return text
    first = _summary(error) if isinstance(error, BaseException) else _cut_summary(text.split("\n", 1)[0])
    return f"{first}\n... {text[len(first) + 5 - MAX_TRACE :]}"


def error_summary(error: BaseException | str | None) -> str | None:
    """Return an error in one line of at most 200 characters, such as `ValueError: no mailbox for bad-1`.

    Return None for a plain text, because the database finds the line in a text (taskq_internal.error_summary).
    """
    if isinstance(error, ErrorTrace):
        return error.summary
    return _summary(error) if isinstance(error, BaseException) else None


def _summary(error: BaseException) -> str:
    message = _group_message(error) if isinstance(error, BaseExceptionGroup) else _message(error)
    name = _type_name(type(error))
    return _cut_summary(f"{name}: {message}" if message else name)


def _type_name(kind: type[BaseException]) -> str:
    # As a traceback prints it.
    module = kind.__module__
    return kind.__qualname__ if module in ("builtins", "__main__") else f"{module}.{kind.__qualname__}"


def _message(error: BaseException) -> str:
    try:
        text = error.msg if isinstance(error, SyntaxError) else str(error)
    except Exception:  # noqa: BLE001 - a user's __str__ may raise anything
        return "<exception str() failed>"
    return next((line.strip() for line in text.splitlines() if line.strip()), "")


def _group_message(group: BaseExceptionGroup[BaseException]) -> str:
    """Return the message of a group with the summaries of the first three different exceptions in it."""
    leaves = list(dict.fromkeys(_leaves(group)))
    shown = "; ".join(leaves[:_MAX_LEAVES])
    more = f"; {len(leaves) - _MAX_LEAVES} more" if len(leaves) > _MAX_LEAVES else ""
    return f"{group.message.splitlines()[0] if group.message else ''} ({shown}{more})".lstrip()


def _leaves(group: BaseExceptionGroup[BaseException]) -> list[str]:
    return [
        leaf
        for each in group.exceptions
        for leaf in (_leaves(each) if isinstance(each, BaseExceptionGroup) else [_summary(each)])
    ]


def _cut_summary(text: str) -> str:
    text = _storable(text)
    return text if len(text) <= MAX_SUMMARY else text[: MAX_SUMMARY - 3] + "..."


def _storable(text: str) -> str:
    # PostgreSQL stores neither NUL nor lone surrogates.
    return text.replace("\x00", "\\0").encode("utf-8", "backslashreplace").decode()
