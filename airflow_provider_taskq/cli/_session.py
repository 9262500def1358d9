"""One run of the command line: the database, the actor, and the form of the answer."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # at run time only when a command needs them: `--help` does not
    import psycopg
    from rich.console import RenderableType

    from airflow_provider_taskq.queue import TaskQueue
    from airflow_provider_taskq.queue.selection import AuditedQueue

SECRETS = ("password", "sslpassword", "oauth_client_secret", "scram_client_key", "scram_server_key")


class Session:
    """Connects by a DSN or libpq's environment, and prints answers for a person or a program."""

    def __init__(self) -> None:
        self.name: str | None = None
        self.json = False
        self.role: str | None = None

    def connection(self) -> psycopg.Connection:
        """Open a connection. A `--dsn` that holds a password is a usage error."""
        from airflow_provider_taskq.queue import connect

        dsn = None if self.name is None else without_password(self.name)
        return connect(dsn, fallback_application_name="taskq")

    @contextmanager
    def read_only(self) -> Iterator[TaskQueue]:
        """Yield a queue in a read-only transaction."""
        from airflow_provider_taskq.queue import TaskQueue

        with self.connection() as conn:
            self.role = conn.info.user
            conn.read_only = True
            yield TaskQueue(conn)

    @contextmanager
    def transaction(self, *, dry_run: bool = False) -> Iterator[TaskQueue]:
        """Yield a queue in a transaction under the person's name. Commit at the end, or roll back a dry run."""
        from airflow_provider_taskq.queue import TaskQueue

        with self.connection() as conn:
            self.role = conn.info.user
            queue = TaskQueue(conn)
            queue.set_actor(actor())
            yield queue
            if dry_run:
                conn.rollback()

    def notify(self, *topics: str) -> None:
        """Wake the workers of topics. Call this method after the commit, so that the workers see the change."""
        with self.transaction() as queue:
            for topic in topics:
                queue.notify(topic)

    def answer(self, document: Mapping[str, Any], *parts: RenderableType) -> None:
        """With `--json` print the document, else the tables and sentences."""
        from airflow_provider_taskq.cli._output import json_text, show

        if self.json:
            import click

            click.echo(json_text(document))
        else:
            show(*parts)


def actor() -> str:
    """Return the name of the operating-system user that runs the command, also if it runs under sudo."""
    import getpass

    try:
        return os.environ.get("SUDO_USER") or getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        return f"uid {os.getuid()}"


def audited(queue: TaskQueue) -> AuditedQueue:
    """Return a queue whose actions write an audit line if the role may write one.

    The role of a producer may not, and its pushes succeed without an audit line.
    """
    from airflow_provider_taskq.queue.selection import AuditedQueue

    return AuditedQueue(queue, audit_required=False)


def without_password(dsn: str) -> str:
    """Return the DSN. A password in it is a usage error, because every process of the machine can read an argument.

    The error message quotes no part of the DSN.
    """
    import click
    import psycopg
    from psycopg.conninfo import conninfo_to_dict

    try:
        found = conninfo_to_dict(dsn)
    except (psycopg.Error, UnicodeError):
        raise click.UsageError("invalid --dsn: expected for example postgresql://user@host/database") from None
    if any(found.get(name) for name in SECRETS) or "@" in str(found.get("host")):
        raise click.UsageError(
            "--dsn holds a password, which every user of this machine can read in the list of processes:"
            " put it into TASKQ_DSN, a file that TASKQ_DSN_FILE names, ~/.pgpass or a service file"
        )
    return dsn
