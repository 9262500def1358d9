"""Errors of the queue and of PostgreSQL as messages in the words of the command line, with an exit code."""

import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from difflib import get_close_matches

import click
import psycopg

from airflow_provider_taskq.cli._options import Refused
from airflow_provider_taskq.cli._output import sanitize
from airflow_provider_taskq.cli._session import Session
from airflow_provider_taskq.queue import InvalidArgument, SchemaMismatch, TaskQueueError, UnknownTopic, verify

# The kind of role that a command needs; the others only read. For a role that may not ask the database.
_ROLE_KINDS = {
    **dict.fromkeys(("push", "offer", "drop"), "producer"),
    **dict.fromkeys(("worker", "expire", "maintain"), "consumer"),
    **dict.fromkeys(("retry", "reassign", "release", "pause", "resume", "purge", "run-now", "priority"), "operator"),
    "cancel": "operator",
}
# The kinds that may call one of these functions, the kind with the fewest rights first.
_KINDS_OF_FUNCTION = """
SELECT r.kind, r.by_topic FROM taskq.privileges r WHERE r.function = ANY (%s)
ORDER BY array_position(ARRAY['reader', 'producer', 'consumer', 'operator'], r.kind) LIMIT 1
"""


@contextmanager
def translated_errors(session: Session) -> Iterator[None]:
    """Translate errors to those of click. With `--json`, also print the message as a document on stdout."""
    try:
        yield
    except click.ClickException as error:
        _answer_error(session, error.format_message())
        raise
    except Exception as error:
        message = _message(session, error)
        if message is None:
            raise
        _answer_error(session, message)
        kind = Refused if isinstance(error, InvalidArgument) else click.ClickException
        raise kind(sanitize(message)) from error


def _answer_error(session: Session, message: str) -> None:
    if session.json:
        session.answer({"error": message})


def _message(session: Session, error: Exception) -> str | None:
    """Return the message for an error that the user can correct; None for a bug."""
    if mismatch := _schema_mismatch(session, error):
        return mismatch
    if isinstance(error, UnknownTopic):
        return _unknown_topic_message(session, str(error))
    if isinstance(error, TaskQueueError | TimeoutError):  # TimeoutError: a worker got no lease in time
        return str(error)
    if isinstance(error, psycopg.errors.InsufficientPrivilege):
        return _grant_message(session, str(error.diag.message_primary))
    if isinstance(error, psycopg.Error):
        return error.diag.message_primary or (str(error).strip().splitlines() or [type(error).__name__])[0]
    return None


def _schema_mismatch(session: Session, error: Exception) -> str | None:
    """Return what the schema differs in, if an error may come from the schema of another release."""
    cause = error.__cause__ if isinstance(error, TaskQueueError) else error
    if not isinstance(cause, psycopg.ProgrammingError) or isinstance(cause, psycopg.errors.InsufficientPrivilege):
        return None
    try:
        with session.connection() as conn:
            verify(conn)
    except SchemaMismatch as mismatch:
        return str(mismatch)
    except (psycopg.Error, TaskQueueError):
        return None
    return None


def _unknown_topic_message(session: Session, message: str) -> str:
    """Return the message for an unknown topic.

    The message has the most similar topic, if the topics can be read, and the command that creates the topic.
    """
    named = re.match(r"topic '((?:[^']|'')+)'", message)
    topic = named[1].replace("''", "'") if named else ""
    topics: list[str] = []
    with suppress(psycopg.Error, TaskQueueError), session.read_only() as queue:
        topics = queue.topics()
    near = get_close_matches(topic, topics, n=1)
    create = f"create it with: taskq topics create {shlex.quote(topic) if topic else 'TOPIC'}"
    return message.replace(
        "create it with create_topic", f"did you mean {near[0]!r}? If not, {create}" if near else create
    )


def _grant_message(session: Session, message: str) -> str:
    """Return the message about a missing right, with the statement that grants it."""
    topics, scope = "", ""
    if limited := re.search(r"may not (push|consume|read).* topic ('(?:[^']|'')+')", message):
        kind = {"push": "producer", "consume": "consumer", "read": "reader"}[limited[1]]
        topics = f", ARRAY[{limited[2]}]"  # the role has access to other topics only
    else:
        kind, by_topic = _needed_kind(session, message)
        scope = "" if by_topic else " on every topic"  # the role may have access of this kind to some topics
    role = (session.role or "ROLE").replace("'", "''")
    grant = f"SELECT taskq.grant_access('{role}', '{kind}'{topics})"
    return f"{message}; the owner of the schema grants the right{scope} with: {grant}"


def _needed_kind(session: Session, message: str) -> tuple[str, bool]:
    """Return the kind of role that may call the function that a message names, and whether also a limited role may."""
    with suppress(psycopg.Error, TaskQueueError), session.connection() as conn:
        found = conn.execute(_KINDS_OF_FUNCTION, (re.findall(r"\w+", message),)).fetchone()
        if found is not None:
            return found
    context = click.get_current_context(silent=True)
    command = (context.invoked_subcommand if context is not None else None) or ""
    return _ROLE_KINDS.get(command, "reader"), True
