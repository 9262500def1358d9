"""Connections to the queue's database: opening them, deadlines for their calls, and calls of SQL functions."""

import threading
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, LiteralString, TypeVar
from weakref import WeakKeyDictionary

import psycopg
from psycopg.abc import PQGen
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import TransactionStatus
from psycopg.rows import BaseRowFactory, Row, TupleRow, tuple_row

from airflow_provider_taskq.queue.addresses import INVALID_TEXT, connection_defaults, other_form, resolve_dsn
from airflow_provider_taskq.queue.encoding import (
    JsonDefault,
    JsonEncoder,
    connection_dumps,
    json_dumps,
    json_text,
    register_loaders,
    sql_arguments,
)
from airflow_provider_taskq.queue.errors import (
    CallTimeout,
    ConnectionFailed,
    TaskQueueError,
    first_line,
    translate_errors,
)
from airflow_provider_taskq.queue.session_settings import require_settings, set_needed

T = TypeVar("T")

# Opening


def connect(dsn: str | None = None, **options: Any) -> psycopg.Connection:
    """Open a connection to the queue's database.

    Statements are not prepared, so that the connection works through a transaction pooler. Settings with which the
    queue does not work, such as an `IntervalStyle` of the role, are set for the session. Unless the DSN or the
    environment sets them, timeouts of TCP are set, and `target_session_attrs=read-write` if several hosts are named.

    :param dsn: a connection string. With None, TASKQ_DSN or the file that TASKQ_DSN_FILE names has the string, or else
        the variables of libpq (PGHOST, PGSERVICE, ...) name the database.
    :param options: options of `psycopg.connect`.
    :raises ConnectionFailed: if no server can be reached.
    :raises TaskQueueError: if the DSN is malformed. Neither error shows the password.
    """
    opened = _connection_or_error(resolve_dsn(dsn), options)
    if isinstance(opened, TaskQueueError):
        dsn = None  # programs may log the variables of the frames of an error
        options.clear()
        raise opened
    return opened


def _connection_or_error(dsn: str, options: Mapping[str, Any]) -> psycopg.Connection | TaskQueueError:
    malformed = "the DSN of the queue's database is malformed: "
    if "\x00" in dsn:  # at which libpq would end it
        return TaskQueueError(malformed + "it has a NUL character")
    if remedy := other_form(dsn):
        return TaskQueueError(malformed + remedy)
    try:
        if "@" in str(conninfo_to_dict(dsn).get("host")):
            return TaskQueueError(malformed + "write @ in its password as %40")
        defaults = connection_defaults(dsn, options)
        return set_needed(QueueConnection.connect(dsn, **{"prepare_threshold": None, **defaults, **options}))
    except psycopg.OperationalError as error:
        return ConnectionFailed(f"cannot connect to the queue's database: {first_line(error)}")
    except psycopg.ProgrammingError as error:
        reason = first_line(error).split('"')[0].strip(" :")  # libpq then quotes the DSN, which may hold the password
        return TaskQueueError(malformed + reason)
    except UnicodeError:  # psycopg looks up the hosts by Python's socket module
        return TaskQueueError(malformed + INVALID_TEXT)


# Deadlines

_CANCEL_SECONDS = 1.0  # how long to wait until the server has received the request to cancel a call
_GROWTH = 2.0
_MAX_FACTOR = 8.0
_MEMORY = 10.0  # the limit returns to its base after this many times its length


class CallLimit:
    """How long a call may wait for the server's next answer.

    Each call that exceeds the limit doubles it, up to eight times the base. So a call that takes longer than the base
    on a healthy server succeeds at a later attempt. The limit returns to the base after ten times its length.

    :param seconds: the base for calls of the queue.
    :param handler_statements: the base in seconds for statements of user code in the queue's transaction, if longer.
    :param grows: False keeps the limit at its base.
    """

    def __init__(self, seconds: float, handler_statements: float | None = None, *, grows: bool = True) -> None:
        self._queue_calls = seconds
        self._handler_statements = max(seconds, handler_statements or 0.0)
        self._base = seconds
        self._grows = grows
        self._factor = 1.0
        self._exceeded = 0.0

    @property
    def seconds(self) -> float:
        """The seconds that the next call may wait: the base, or more after a call that exceeded it."""
        if self._factor > 1 and time.monotonic() - self._exceeded > _MEMORY * self._factor * self._base:
            self._factor = 1.0
        return self._base * self._factor

    def exceed(self) -> None:
        """Double the limit after a call that exceeded it."""
        if self._grows:
            self._factor = min(self._factor * _GROWTH, _MAX_FACTOR)
            self._exceeded = time.monotonic()

    @contextmanager
    def for_handler_statements(self) -> Iterator[None]:
        """Apply the limit for statements of user code inside the block."""
        self._base = self._handler_statements
        try:
            yield
        finally:
            self._base = self._queue_calls


class _Silent(Exception):
    """The server has not answered a call before its deadline."""


class QueueConnection(psycopg.Connection[Row]):
    """A connection of psycopg whose calls may have a time limit."""

    limit: CallLimit | None = None

    def wait(self, gen: PQGen[T], *args: Any, **options: Any) -> T:
        """Wait as psycopg does in each call that blocks. With a limit, raise CallTimeout and close the connection.

        The statement is also cancelled on the server if the server can be reached, so that it does not keep its locks.
        """
        if self.limit is None:
            return super().wait(gen, *args, **options)
        seconds = self.limit.seconds
        try:
            return super().wait(_raise_when_silent(gen, seconds), *args, **options)
        except _Silent:
            self.limit.exceed()
            _cancel_and_close(self)
            message = f"the server sent no answer within {seconds:.3g} seconds; the connection was closed"
            raise CallTimeout(message) from None


def limit_calls(conn: psycopg.Connection[Any], limit: CallLimit) -> None:
    """Set how long each call on a connection waits for an answer. Of a class that is not ours, only TCP sets limits."""
    if isinstance(conn, QueueConnection):
        conn.limit = limit


def _raise_when_silent(generator: Generator[Any, Any, T], seconds: float) -> Generator[Any, Any, T]:
    # psycopg resumes the generator of a call ten times a second, also if the server has sent nothing.
    try:
        wanted = next(generator)
        last_answer = time.monotonic()
        while True:
            ready = yield wanted
            now = time.monotonic()
            if ready:
                last_answer = now
            elif now - last_answer > seconds:
                raise _Silent
            wanted = generator.send(ready)
    except StopIteration as end:
        value: T = end.value
        return value


def _cancel_and_close(conn: psycopg.Connection[Any]) -> None:
    def cancel() -> None:
        with suppress(Exception):  # the server may be out of reach
            conn.cancel_safe(timeout=_CANCEL_SECONDS)

    # A thread, because a cancellation through an old libpq blocks without a limit.
    thread = threading.Thread(target=cancel, name="taskq cancel", daemon=True)
    thread.start()
    thread.join(_CANCEL_SECONDS)
    conn.close()


# Calls of SQL functions


# Statements that the next call of a connection sends together with its own, which saves a round trip.
deferred_statements: WeakKeyDictionary[psycopg.Connection[Any], str] = WeakKeyDictionary()


def open_cursor(conn: psycopg.Connection[Any], factory: BaseRowFactory[T]) -> psycopg.Cursor[T]:
    """Open a cursor for a call of the queue, whose placeholders are `%s`.

    :raises TaskQueueError: for a session with settings with which the client does not work.
    """
    require_settings(conn)
    if issubclass(conn.cursor_factory, psycopg.RawCursor):  # its placeholders are $1
        return psycopg.Cursor(conn, row_factory=factory)
    return conn.cursor(row_factory=factory)


class FunctionCaller:
    """Calls SQL functions of the schema `taskq` through a connection that belongs to the caller.

    :param json_default: converts an object in a payload or a message that JSON does not have, as that of `json.dumps`.
        Without it, the function that psycopg's `set_json_dumps` has set for the connection encodes them.
    """

    def __init__(self, conn: psycopg.Connection[Any], *, json_default: JsonDefault | None = None) -> None:
        self.conn = require_connection(conn)
        self._dumps = None if json_default is None else json_dumps(json_default)

    def json_encoder(self) -> JsonEncoder:
        """Return the function that encodes payloads and messages of this queue, and returns None for None.

        It raises ValueError for a value that cannot be stored. The message continues "its payload ...".
        """
        return partial(json_text, dumps=self._dumps or connection_dumps(self.conn))

    def _fetch(self, factory: BaseRowFactory[T], call: LiteralString, arguments: Sequence[object] = ()) -> list[T]:
        # With a row factory of its own: the connection belongs to the caller, and may have any. Not prepared: after an
        # upgrade that adds a column to a result, PostgreSQL refuses the prepared call for the rest of the session.
        if (before := deferred_statements.pop(self.conn, None)) is None:
            with translate_errors(), open_cursor(self.conn, factory) as cursor:
                register_loaders(cursor)
                return cursor.execute(call, sql_arguments(call, arguments), prepare=False).fetchall()
        with translate_errors(), psycopg.ClientCursor(self.conn, row_factory=factory) as cursor:
            register_loaders(cursor)
            cursor.execute(f"{before.replace('%', '%%')}; {call}", sql_arguments(call, arguments))
            while cursor.nextset():
                pass
            return cursor.fetchall()

    def _rows(self, call: LiteralString, arguments: Sequence[object] = ()) -> list[TupleRow]:
        return self._fetch(tuple_row, call, arguments)

    def _value(self, call: LiteralString, arguments: Sequence[object] = ()) -> Any:
        return self._rows(call, arguments)[0][0]

    def _number(self, call: LiteralString, arguments: Sequence[object] = ()) -> int:
        return int(self._value(call, arguments))

    def _flag(self, call: LiteralString, arguments: Sequence[object] = ()) -> bool:
        return bool(self._value(call, arguments))


@contextmanager
def all_or_nothing(conn: psycopg.Connection[Any]) -> Iterator[None]:
    """Set a savepoint for several calls, so that an error undoes all of them. The caller commits the transaction."""
    if not conn.autocommit and conn.info.transaction_status == TransactionStatus.IDLE:
        conn.execute("SELECT")  # opens the caller's transaction: else the block below would commit its own
    with conn.transaction():
        yield


_SQLALCHEMY_URL = "the URL of the engine has to begin with postgresql+psycopg://"
_SYNCHRONOUS = "TaskQueue is synchronous: open a connection with psycopg.connect()"

_DJANGO = "pass connection.connection within transaction.atomic(); Django has to use psycopg 3"

# By module and name of a class, so that no other library is imported. A class is also found by its bases.
_ALTERNATIVES = {
    ("psycopg2", "connection"): "pass a connection of psycopg 3: psycopg.connect(connection.dsn, password=...)",
    ("psycopg", "AsyncConnection"): _SYNCHRONOUS,
    ("psycopg", "Cursor"): "pass cursor.connection",
    ("psycopg_pool", "ConnectionPool"): "pass the connection that `with pool.connection() as connection:` gives",
    ("psycopg_pool", "AsyncConnectionPool"): _SYNCHRONOUS,
    ("sqlalchemy", "Connection"): f"pass connection.connection.driver_connection; {_SQLALCHEMY_URL}",
    ("sqlalchemy", "Session"): f"pass session.connection().connection.driver_connection; {_SQLALCHEMY_URL}",
    ("sqlalchemy", "scoped_session"): f"pass session.connection().connection.driver_connection; {_SQLALCHEMY_URL}",
    ("sqlalchemy", "Engine"): (
        "open a connection with `with engine.begin() as connection:` and pass connection.connection.driver_connection;"
        f" {_SQLALCHEMY_URL}"
    ),
    ("sqlalchemy", "PoolProxiedConnection"): f"pass connection.driver_connection; {_SQLALCHEMY_URL}",
    ("sqlalchemy", "AsyncConnection"): _SYNCHRONOUS,
    ("sqlalchemy", "AsyncSession"): _SYNCHRONOUS,
    ("sqlalchemy", "AsyncEngine"): _SYNCHRONOUS,
    ("django", "ConnectionProxy"): _DJANGO,
    ("django", "DatabaseWrapper"): _DJANGO,
    ("builtins", "str"): "open a connection with airflow_provider_taskq.queue.connect(dsn)",
}


def require_connection(given: Any) -> psycopg.Connection[Any]:
    """Return the argument if it is a connection of psycopg 3.

    :raises TypeError: for any other object. The message has the class of the object and what to pass instead.
    """
    if isinstance(given, psycopg.Connection):
        return given
    kinds = [(kind.__module__.partition(".")[0], kind.__name__) for kind in type(given).__mro__]
    alternative = next((_ALTERNATIVES[kind] for kind in kinds if kind in _ALTERNATIVES), None)
    name = f"{type(given).__module__}.{type(given).__qualname__}"
    raise TypeError(
        f"TaskQueue needs a psycopg.Connection (psycopg 3), not a {name}: "
        f"{alternative or 'open one with psycopg.connect()'}"
    )
