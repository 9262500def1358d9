"""The queue behind an Airflow connection, for tasks and for triggers."""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn, cast

import psycopg
from airflow.providers.common.compat.connection import get_async_connection
from airflow.providers.common.compat.sdk import AirflowException, NoOpCollector, get_hook_lineage_collector
from airflow.providers.postgres.hooks.postgres import PostgresHook
from psycopg.rows import TupleRow, tuple_row

from airflow_provider_taskq.assets.taskq import DEFAULT_PORT, create_asset, topic_asset
from airflow_provider_taskq.hooks.instrumented_queue import ObservedQueue
from airflow_provider_taskq.queue import TaskQueue, TaskQueueError, verify
from airflow_provider_taskq.queue.connection import connection_defaults
from airflow_provider_taskq.queue.errors import first_line

# Read by DbApiHook from a connection's extra; to libpq they are unknown words, and it refuses those.
_OPTIONS_OF_SQL_HOOKS = {
    "dialect",
    "escape_column_names",
    "escape_word_format",
    "insert_statement_format",
    "placeholder",
    "replace_statement_format",
}

_DEFAULTS: dict[str, Any] = {
    "application_name": "airflow-taskq",
    "prepare_threshold": None,  # a transaction pooler may stand between
}


class TaskQConnectionError(AirflowException):
    """The database behind an Airflow connection cannot be reached as the connection says; `reason` says why."""

    def __init__(self, conn_id: str, reason: str) -> None:
        super().__init__(f"Airflow connection {conn_id!r} does not reach its database: {reason}")
        self.reason = reason


class TaskQHook(PostgresHook):
    """Gives the queue in the PostgreSQL database that an Airflow connection names.

    The connection's type is `taskq` or `postgres`. Host, port, login, password and database, everything libpq knows
    in its extra (`sslmode`, `options`, ...) and cloud tokens (`iam`, `azure_conn_id`) work as in PostgresHook. The
    connection is always psycopg 3's, whatever PostgresHook uses itself. SQL is not logged: it carries payloads.

    :param taskq_conn_id: the Airflow connection.
    :param database: another database than the connection's.
    """

    conn_name_attr = "taskq_conn_id"
    default_conn_name = "taskq_default"
    conn_type = "taskq"
    hook_name = "TaskQ"
    ignored_extra_options = PostgresHook.ignored_extra_options | _OPTIONS_OF_SQL_HOOKS | {"listen"}

    _connect: Callable[..., Any] = staticmethod(psycopg.connect)

    def __init__(self, *args: Any, log_sql: bool = False, **kwargs: Any) -> None:
        super().__init__(*args, log_sql=log_sql, **kwargs)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(taskq_conn_id={self.get_conn_id()!r})"

    def get_conn(self) -> psycopg.Connection[TupleRow]:
        """A new connection; TaskQConnectionError, in one sentence without the password, where there is none."""
        with self._explained():
            return cast(psycopg.Connection[TupleRow], super().get_conn())

    @contextmanager
    def transaction(self) -> Iterator[TaskQueue]:
        """The queue in a transaction of its own: committed at the end, rolled back by an exception, always closed.

        What it pushed, polled and completed is then told to Airflow's lineage and metrics, if anybody listens.
        """
        with self.get_conn() as connection:
            queue = ObservedQueue(connection)
            yield queue
        queue.report(self)

    def report_lineage(self, *, inputs: Iterable[str] = (), outputs: Iterable[str] = ()) -> None:
        """Reports topics that tasks were taken from, and topics that tasks were pushed to, as assets (`topic_asset`).

        `transaction` does this itself; it is for who works on a connection of `get_conn`. Without a reader of
        lineage, nothing is looked up. Never raises: what it tells of is committed.
        """
        try:
            collector = get_hook_lineage_collector()
            if isinstance(collector, NoOpCollector):
                return
            for topic in sorted(inputs):
                collector.add_input_asset(context=self, uri=self._asset_uri(topic))
            for topic in sorted(outputs):
                collector.add_output_asset(context=self, uri=self._asset_uri(topic))
        except Exception:
            self.log.warning("Lineage could not be reported.", exc_info=True)

    def _asset_uri(self, topic: str) -> str:
        """The URI of a topic's asset, as `topic_asset` makes it for authors; by server where it is another database."""
        if not self.database:
            return topic_asset(topic, self.get_conn_id()).uri
        connection = self.get_connection(self.get_conn_id())
        host, port = connection.host or "localhost", connection.port or DEFAULT_PORT
        return create_asset(host=host, port=port, database=self.database, topic=topic).uri

    def test_connection(self) -> tuple[bool, str]:  # type: ignore[override]  # the stub says None, the hook does this
        """Whether the server answers and has the schema of this release; else what to do, in one sentence.

        Airflow tests a form under a connection id of that moment, so no sentence names it.
        """
        try:
            with self.get_conn() as connection:
                verify(connection)
                database = connection.info.dbname
        except TaskQConnectionError as error:
            return False, f"The database cannot be reached: {error.reason}"
        except (AirflowException, TaskQueueError) as error:
            return False, str(error)
        except psycopg.Error as error:
            return False, first_line(error)
        return True, f"The queue in database {database!r} is ready."

    def _create_connection(self, conn_args: dict[str, Any]) -> Any:
        """Connects with what PostgresHook has put together, leaving out what a form left empty."""
        given = {name: value for name, value in conn_args.items() if value is not None and value != ""}
        return self._connect(**{**_DEFAULTS, **connection_defaults("", given), **given})

    def _get_cursor_config(self, raw_cursor: str) -> tuple[str, Any]:  # noqa: ARG002  PostgresHook's signature
        """Plain tuples, also on a connection that asks for other rows on behalf of other hooks."""
        return "row_factory", tuple_row

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Says which Airflow connection failed and why; libpq's reasons name host and user, never the password."""
        try:
            yield
        except psycopg.Error as error:
            raise TaskQConnectionError(self.get_conn_id(), first_line(error)) from None


class TaskQAsyncHook(TaskQHook):
    """The same for an event loop: finds the Airflow connection and connects without ever blocking it."""

    # PostgresHook only puts arguments together: a coroutine that it made would be lost where a wait is cancelled.
    _connect: Callable[..., Any] = staticmethod(dict)

    def get_conn(self) -> NoReturn:
        """There is none that blocks."""
        raise TypeError("TaskQAsyncHook connects by get_async_conn(); TaskQHook has get_conn()")

    async def get_async_conn(self) -> psycopg.AsyncConnection[TupleRow]:
        """A new connection in autocommit mode; errors as of `get_conn`."""
        self._connection = await get_async_connection(self.get_conn_id(), hook=type(self))
        with self._explained():
            # In a thread, as a cloud's token may have to be asked for.
            given: Any = await asyncio.to_thread(PostgresHook.get_conn, self)
            # Nothing is awaited once it is open, so no cancelled wait leaves it open.
            return await psycopg.AsyncConnection.connect(**{**given, "autocommit": True})

    async def wants_notifications(self) -> bool:
        """Whether the Airflow connection's extra has `listen: true`: then a watcher may listen beside its looks."""
        connection = await get_async_connection(self.get_conn_id(), hook=type(self))
        extra = await asyncio.to_thread(lambda: connection.extra_dejson)
        return str(extra.get("listen", False)).lower() in {"true", "1", "yes", "on"}
