"""How a verb reaches the database: one call of a SQL function, in the caller's transaction."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, LiteralString

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from airflow_provider_taskq.queue.bounds import load_bounded
from airflow_provider_taskq.queue.connection_types import require_connection
from airflow_provider_taskq.queue.decoding import decode_tolerantly
from airflow_provider_taskq.queue.errors import translated


class Caller:
    """Calls the functions of the schema `taskq` through a connection that belongs to the caller."""

    def __init__(self, conn: psycopg.Connection[Any]) -> None:
        self.conn = require_connection(conn)

    @property
    def _alone(self) -> bool:
        """Whether the next call is a transaction of its own, which ends with it."""
        return self.conn.autocommit and self.conn.info.transaction_status == TransactionStatus.IDLE

    def _rows(self, call: LiteralString, arguments: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """All rows of one call, as tuples whatever the connection's own row factory; JSON is read by decode_json."""
        with translated(), self.conn.cursor(row_factory=tuple_row) as cursor:
            load_bounded(cursor)
            decode_tolerantly(cursor)
            return cursor.execute(call, arguments).fetchall()

    def _value(self, call: LiteralString, arguments: Sequence[object] = ()) -> Any:
        """The one value of one call."""
        return self._rows(call, arguments)[0][0]


@contextmanager
def all_or_nothing(conn: psycopg.Connection[Any]) -> Iterator[None]:
    """Makes several calls one: a savepoint in the caller's transaction, which stays the caller's to commit."""
    if not conn.autocommit and conn.info.transaction_status == TransactionStatus.IDLE:
        conn.execute("SELECT")  # opens the caller's transaction: else the block below would commit its own
    with conn.transaction():
        yield
