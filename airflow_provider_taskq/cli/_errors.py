"""What cannot be done becomes a sentence on stderr, and an exit code."""

import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from difflib import get_close_matches

import click

from airflow_provider_taskq.cli._output import plain
from airflow_provider_taskq.cli._session import Session

# The kind of access that a verb needs; the others only look.
_KINDS = {
    **dict.fromkeys(("push", "offer", "drop"), "producer"),
    **dict.fromkeys(("retry", "reassign", "release", "pause", "resume", "purge", "run-now", "priority"), "operator"),
    **dict.fromkeys(("cancel", "expire"), "operator"),
    "worker": "consumer",
}


@contextmanager
def refusals_as_sentences(session: Session) -> Iterator[None]:
    """Turns the queue's errors, and PostgreSQL's, into click's; with `--json` stdout gets them as a document too."""
    try:
        yield
    except click.ClickException as error:
        _tell(session, error.format_message())
        raise
    except Exception as error:
        sentence = _sentence(session, error)
        if sentence is None:
            raise
        _tell(session, sentence)
        raise _kind(error)(plain(sentence)) from error


def _tell(session: Session, sentence: str) -> None:
    if session.json:
        session.answer({"error": sentence})


class _InvalidArgument(click.ClickException):
    """An argument that the queue refuses: with the exit code of those that click refuses."""

    exit_code = 2


def _kind(error: Exception) -> type[click.ClickException]:
    """The exception of click that says so."""
    from airflow_provider_taskq.queue import InvalidArgument

    return _InvalidArgument if isinstance(error, InvalidArgument) else click.ClickException


def _sentence(session: Session, error: Exception) -> str | None:
    """The error in a sentence, where it is one that a person can do something about."""
    if "psycopg" not in sys.modules:  # then it comes from neither, and importing it would only cost time
        return None
    import psycopg

    from airflow_provider_taskq.queue import TaskQueueError, UnknownTopic

    if isinstance(error, UnknownTopic):
        return _with_command(session, str(error))
    if isinstance(error, TaskQueueError | TimeoutError):  # the latter of a worker that gets no lease in time
        return str(error)
    if isinstance(error, psycopg.errors.InsufficientPrivilege):
        return _with_grant(session, str(error.diag.message_primary))
    if isinstance(error, psycopg.Error):
        return error.diag.message_primary or (str(error).strip().splitlines() or [type(error).__name__])[0]
    return None


def _with_command(session: Session, sentence: str) -> str:
    """The sentence about an unknown topic, with the topic that may be meant and the command that creates this one."""
    named = re.match(r"topic '((?:[^']|'')+)'", sentence)
    topic = named[1].replace("''", "'") if named else ""
    near = get_close_matches(topic, _topics(session), n=1)
    create = f"create it with: taskq topics create {shlex.quote(topic) if topic else 'TOPIC'}"
    return sentence.replace(
        "create it with create_topic", f"did you mean {near[0]!r}? If not, {create}" if near else create
    )


def _topics(session: Session) -> list[str]:
    """The names of all topics; none if they cannot be read."""
    import psycopg

    from airflow_provider_taskq.queue import TaskQueueError

    with suppress(psycopg.Error, TaskQueueError), session.looking() as queue:
        return queue.topics()
    return []


def _with_grant(session: Session, sentence: str) -> str:
    """The sentence about a missing right, with the statement by which the owner of the schema grants it."""
    context = click.get_current_context(silent=True)
    verb = (context.invoked_subcommand if context is not None else None) or ""
    # Of these the subcommands change something, and who is denied a function may look at least.
    changes = verb in ("topics", "ticks", "owners") and "function" in sentence
    kind = _KINDS.get(verb, "operator" if changes else "reader")
    role, topics = (session.role or "ROLE").replace("'", "''"), ""
    if limited := re.search(
        r"may not (push|consume|read).* topic '([^']+)'", sentence
    ):  # the role is limited to other topics
        kind, topics = (
            {"push": "producer", "consume": "consumer", "read": "reader"}[limited[1]],
            f", ARRAY['{limited[2]}']",
        )
    grant = f"SELECT taskq.grant_access('{role}', '{kind}'{topics})"
    return f"{sentence}; the owner of the schema grants the right by: {grant}"
