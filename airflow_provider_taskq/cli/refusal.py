"""What cannot be done becomes a sentence on stderr, and an exit code."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import click

from airflow_provider_taskq.cli.session import Session
from airflow_provider_taskq.cli.text import plain


@contextmanager
def refusals_as_sentences(session: Session) -> Iterator[None]:
    """Turns the queue's errors, and PostgreSQL's, into click's; with `--json` stdout gets them as a document too."""
    try:
        yield
    except click.ClickException as error:
        _tell(session, error.format_message())
        raise
    except Exception as error:
        sentence = _sentence(error)
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


def _sentence(error: Exception) -> str | None:
    """The error in a sentence, where it is one that a person can do something about."""
    if "psycopg" not in sys.modules:  # then it comes from neither, and importing it would only cost time
        return None
    import psycopg

    from airflow_provider_taskq.queue import TaskQueueError

    if isinstance(error, TaskQueueError | TimeoutError):  # the latter of a worker that gets no lease in time
        return str(error)
    if isinstance(error, psycopg.Error):
        return error.diag.message_primary or (str(error).strip().splitlines() or [type(error).__name__])[0]
    return None
