"""What the queue refuses, and how PostgreSQL's codes become these errors."""

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg


class TaskQueueError(Exception):
    """Anything that the queue refuses or cannot do."""


class UnknownTopic(TaskQueueError):
    """No topic of that name was created."""


class InvalidTask(TaskQueueError):
    """A task, or something said of one, breaks a rule; the message names its position, counted from 0."""


class InvalidState(TaskQueueError):
    """The task is not in a state in which this can be done to it."""


class NotHeld(TaskQueueError):
    """The owner does not hold these tasks now."""


class LeaseLost(NotHeld):
    """The owner's lease is gone, or too old for what was asked."""


class InvalidArgument(TaskQueueError, ValueError):
    """An argument that nothing can be made of; a ValueError too, as Python's own functions raise."""


class SchemaMismatch(TaskQueueError):
    """The schema in the database is missing, or not the one that this package was made for."""


INSTALL = "python -m airflow_provider_taskq.queue install"

_OWN_CODES: dict[str, type[TaskQueueError]] = {
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

# A verb that meets these speaks to a database without our schema, or with that of another version.
_SCHEMA_CODES = {"3F000": "is missing", "42883": "is another version", "42P01": "is another version"}

# A rule that a table's own constraint holds, such as the length of a topic's name.
_RULE_CODES = {"23514", "23502", "22P02", "22P05", "22007", "22008", "22015", "22021"}
_DATA_EXCEPTIONS = "22"  # the class of all codes for values that a statement cannot compute with
_DIVISION_BY_ZERO = "22012"  # no verb divides by an argument: this comes from a trigger, say


@contextmanager
def translated() -> Iterator[None]:
    """Turns what PostgreSQL reports inside the block into the queue's own errors, the original as cause."""
    try:
        yield
    except UnicodeEncodeError as error:
        raise InvalidTask("a name holds a lone surrogate, which no text in PostgreSQL can") from error
    except psycopg.Error as error:
        own = own_error(error)
        if own is None:
            raise
        raise own from error


def own_error(error: psycopg.Error) -> TaskQueueError | None:
    """The queue's error for one of PostgreSQL's, or None where it has nothing to add."""
    code = error.sqlstate or ""
    message = error.diag.message_primary or str(error)
    if code in _OWN_CODES:
        return _OWN_CODES[code](message)
    if code in _SCHEMA_CODES and "taskq" in message:
        return SchemaMismatch(f"the schema taskq in this database {_SCHEMA_CODES[code]}: run {INSTALL}")
    if code == "23514" and (error.diag.constraint_name or "").startswith("topic_moves_"):
        return TaskQueueError(
            "this topic is being moved to its own tables: repeat this when the move has ended. If its session was"
            " killed, own_partition finishes the move, and shared_partition undoes it"
        )
    if code == "23503" and (error.diag.constraint_name or "").endswith("_topic_id_fkey"):
        return UnknownTopic("the topic was dropped at this moment: repeat this if it has been created again")
    if code == "23514" and error.diag.constraint_name:
        return TaskQueueError(f"a rule of {error.diag.table_name} is broken: {_rule(error.diag.constraint_name)}")
    if code in _RULE_CODES or (isinstance(error, psycopg.DataError) and not code):
        return InvalidTask(message)  # without a code: found by psycopg before anything was sent
    if code.startswith(_DATA_EXCEPTIONS) and code != _DIVISION_BY_ZERO:
        return InvalidArgument(f"an argument is out of its range: {message}")
    return None


def one_line(error: BaseException) -> str:
    """The first line of an error: the reason without hints. libpq names host, port and user, never the password."""
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__


def _rule(constraint: str) -> str:
    """The field that a constraint named by PostgreSQL is about: topic_max_attempts_check is about max_attempts."""
    return constraint.partition("_")[2].removesuffix("_check") + " is out of its range"
