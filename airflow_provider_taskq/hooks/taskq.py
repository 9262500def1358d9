"""The hook of the queue."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import psycopg
from airflow.providers.common.compat.sdk import AirflowException, NoOpCollector, get_hook_lineage_collector
from airflow.providers.postgres.hooks.postgres import PostgresHook
from psycopg.rows import TupleRow, tuple_row
from psycopg.types.json import set_json_dumps

from airflow_provider_taskq.assets.taskq import DEFAULT_PORT, create_asset, topic_asset
from airflow_provider_taskq.hooks.instrumented_queue import InstrumentedQueue
from airflow_provider_taskq.queue import TaskQueue, TaskQueueError, verify
from airflow_provider_taskq.queue.addresses import INVALID_TEXT, connection_defaults, given_hosts
from airflow_provider_taskq.queue.connection import QueueConnection
from airflow_provider_taskq.queue.encoding import JsonDefault, json_dumps
from airflow_provider_taskq.queue.errors import ConnectionFailed, first_line
from airflow_provider_taskq.queue.session_settings import set_needed

# DbApiHook reads these from a connection's extra. libpq rejects them as unknown options.
_DB_API_OPTIONS = {
    "dialect",
    "escape_column_names",
    "escape_word_format",
    "insert_statement_format",
    "placeholder",
    "replace_statement_format",
}

_DEFAULTS: dict[str, Any] = {
    "application_name": "airflow-taskq",
    "prepare_threshold": None,  # prepared statements fail behind a transaction pooler
}


class TaskQConnectionError(AirflowException, ConnectionFailed):
    """The database of an Airflow connection cannot be reached; `reason` is the message of libpq or psycopg."""

    def __init__(self, conn_id: str, reason: str) -> None:
        super().__init__(f"Airflow connection {conn_id!r} cannot connect to its database: {reason}")
        self.reason = reason


class TaskQHook(PostgresHook):
    """Opens the queue in the PostgreSQL database of an Airflow connection.

    The connection type is `taskq` or `postgres`. Host, port, login, password, database, the options of libpq in the
    extra (`sslmode`, `options`, ...) and cloud tokens (`iam`, `azure_conn_id`) work as in PostgresHook.
    The hook always connects with psycopg 3. It does not log SQL, because the parameters hold payloads.

    :param taskq_conn_id: the Airflow connection.
    :param database: overrides the database of the connection.
    :param json_default: converts an object in a payload or a message that JSON does not have, as that of `json.dumps`;
        for example `str`.
    """

    conn_name_attr = "taskq_conn_id"
    default_conn_name = "taskq_default"
    conn_type = "taskq"
    hook_name = "TaskQ"
    ignored_extra_options = PostgresHook.ignored_extra_options | _DB_API_OPTIONS | {"listen"}

    def __init__(
        self, *args: Any, log_sql: bool = False, json_default: JsonDefault | None = None, **kwargs: Any
    ) -> None:
        super().__init__(*args, log_sql=log_sql, **kwargs)
        self.json_default = json_default
        self.hosts: dict[str, str] = {}  # host, hostaddr and port of the Airflow connection, once it is open

    def __repr__(self) -> str:
        return f"{type(self).__name__}(taskq_conn_id={self.get_conn_id()!r})"

    def get_conn(self) -> psycopg.Connection[TupleRow]:
        """Open a new connection. Raises TaskQConnectionError, whose message does not contain the password."""
        with self._connection_errors():
            connection = set_needed(cast(psycopg.Connection[TupleRow], super().get_conn()))
        if self.json_default is not None:
            set_json_dumps(json_dumps(self.json_default), connection)
        return connection

    @contextmanager
    def transaction(self) -> Iterator[TaskQueue]:
        """Open a connection and yield its queue. Commit at the end, or roll back after an exception, and close.

        After the commit, report metrics and lineage to Airflow.
        """
        with self.get_conn() as connection:
            queue = InstrumentedQueue(connection)
            yield queue
        self.report(queue)

    def report(self, queue: InstrumentedQueue) -> None:
        """Report the metrics and the lineage of a committed transaction."""
        queue.report_metrics()
        self.report_lineage(inputs=queue.input_topics, outputs=queue.output_topics)

    def report_lineage(self, *, inputs: Iterable[str] = (), outputs: Iterable[str] = ()) -> None:
        """Report topics as input and output assets (see `topic_asset`) to Airflow's lineage.

        `transaction` calls this. After a commit on a connection of `get_conn`, call it yourself. An error is logged and
        not raised, because the transaction is committed already.
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
            self.log.warning("Cannot report lineage, the transaction is committed", exc_info=True)

    def _asset_uri(self, topic: str) -> str:
        if not self.database:
            return topic_asset(topic, self.get_conn_id()).uri
        connection = self.get_connection(self.get_conn_id())
        host, port = connection.host or "localhost", connection.port or DEFAULT_PORT
        return create_asset(host=host, port=port, database=self.database, topic=topic).uri

    def wants_notifications(self) -> bool:
        """Return whether the extra has `listen: true`, so that the triggerer may LISTEN."""
        return str(self.connection.extra_dejson.get("listen", False)).lower() in {"true", "1", "yes", "on"}

    def test_connection(self) -> tuple[bool, str]:  # type: ignore[override]  # the stub says None, the hook does this
        """Return whether the server answers and has the schema of this release, together with a message."""
        # Airflow tests a form under a temporary connection id, so the messages do not contain it.
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
        # A form leaves fields empty. They must not override the defaults.
        given = {name: value for name, value in conn_args.items() if value is not None and value != ""}
        self.hosts = given_hosts("", given)
        return QueueConnection.connect(**{**_DEFAULTS, **connection_defaults("", given), **given})

    def _get_cursor_config(self, raw_cursor: str) -> tuple[str, Any]:  # noqa: ARG002  PostgresHook's signature
        # The queue needs tuples, even if the connection sets another row factory for other hooks.
        return "row_factory", tuple_row

    @contextmanager
    def _connection_errors(self) -> Iterator[None]:
        try:
            yield
        except psycopg.Error as error:
            # The messages of libpq name host and user, never the password.
            raise TaskQConnectionError(self.get_conn_id(), first_line(error)) from None
        except UnicodeError:
            raise TaskQConnectionError(self.get_conn_id(), INVALID_TEXT) from None
