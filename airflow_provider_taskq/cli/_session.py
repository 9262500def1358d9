"""One run of the command line: which database, who acts, and how answers are given."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # at run time only once something is to be done: `--help` needs none of it
    import psycopg
    from rich.console import RenderableType

    from airflow_provider_taskq.queue import TaskQueue


class Session:
    """Reaches the queue by a DSN or the environment, and gives answers to a person or a program."""

    def __init__(self) -> None:
        self.name: str | None = None
        self.json = False
        self.role: str | None = None

    def name_database(self, name: str) -> None:
        """Takes what `--dsn` or `--conn-id` says."""
        self.name = name

    def connection(self) -> psycopg.Connection:
        """Opens a connection; a DSN of the command line that holds a password is refused."""
        from airflow_provider_taskq.cli.dsn import without_password
        from airflow_provider_taskq.queue import connect

        dsn = None if self.name is None else without_password(self.name)
        return connect(dsn, fallback_application_name="taskq")

    @contextmanager
    def looking(self) -> Iterator[TaskQueue]:
        """The queue in a transaction that can change nothing."""
        from airflow_provider_taskq.queue import TaskQueue

        with self.connection() as conn:
            self.role = conn.info.user
            conn.read_only = True
            yield TaskQueue(conn)

    @contextmanager
    def acting(self, *, dry_run: bool = False) -> Iterator[TaskQueue]:
        """The queue in a transaction of the person who runs this, committed at the end; a dry run takes all back."""
        from airflow_provider_taskq.queue import TaskQueue

        with self.connection() as conn:
            self.role = conn.info.user
            queue = TaskQueue(conn)
            queue.acting(actor())
            yield queue
            if dry_run:
                conn.rollback()

    @contextmanager
    def alone(self, *, read_only: bool = False) -> Iterator[TaskQueue]:
        """The queue with every call a transaction of its own, which ends with it."""
        from airflow_provider_taskq.queue import TaskQueue

        with self.connection() as conn:
            self.role = conn.info.user
            conn.autocommit, conn.read_only = True, read_only
            yield TaskQueue(conn)

    def answer(self, document: Mapping[str, Any], *parts: RenderableType) -> None:
        """Gives the answer: the document with `--json`, else tables and sentences."""
        from airflow_provider_taskq.cli._output import console, json_text, show

        if self.json:
            import click

            click.echo(json_text(document))
        else:
            show(console(), *parts)


def actor() -> str:
    """The name of the person who runs this, also behind sudo."""
    import getpass

    try:
        return os.environ.get("SUDO_USER") or getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        return f"uid {os.getuid()}"
