"""Answers any number of queries with one SQL query: for the watcher, and for a sensor that checks by itself."""

import time
from collections.abc import Iterable, Sequence
from typing import Any, LiteralString, TypeVar

import psycopg
from psycopg.rows import TupleRow, tuple_row

from airflow_provider_taskq.queue import Condition, TaskQueue, TopicStatus
from airflow_provider_taskq.queue.errors import translate_errors
from airflow_provider_taskq.queue.topic_status import MAX_COUNT, TOPIC_STATUS_QUERY
from airflow_provider_taskq.triggers.wait_registry import RegisteredQuery, Subscription
from airflow_provider_taskq.triggers.waits import JunctureQuery, QueryResult, ReadyQuery, StateQuery, Wait

Outcome = TypeVar("Outcome")

# Without junctures the query changes nothing, so it runs with a role that may only read, and on a standby.
_READ_ONLY = (
    "SELECT kind, position, number, waited"
    " FROM taskq.watch_tasks(%b::text[], %b::int[], %b::text[], %b::boolean[], %b::text[], %b::text[])"
)
_WITH_JUNCTURES = (
    "SELECT kind, position, number, waited FROM taskq.watch(%b::text[], %b::int[], %b::text[], %b::boolean[],"
    " %b::text[], %b::text[], %b::text[], %b::text[], %b::text[], %b::int[], %b::int[], %b::text[])"
)
# Leaves out rows that equal NO_RESULT: ten thousand topics without a ready task return no row.
_WITH_RESULT = " WHERE number IS NOT NULL AND (kind <> 'ready' OR number <> 0)"


class Snapshot:
    """One SQL query for any number of registered queries. It may run any number of times."""

    def __init__(self, queries: Iterable[RegisteredQuery]) -> None:
        self.queries = list(queries)
        self._by_kind: dict[str, list[RegisteredQuery]] = {"ready": [], "state": [], "juncture": []}
        ready: tuple[list[Any], ...] = ([], [], [], [])
        states: tuple[list[Any], ...] = ([], [])
        junctures: tuple[list[Any], ...] = ([], [], [])
        groups: tuple[list[Any], ...] = ([], [], [])
        for one in self.queries:
            match one.query:
                case ReadyQuery(topic, condition):
                    self._by_kind["ready"].append(one)
                    _append_row(ready, (topic, one.count_limit, condition, one.needs_age))
                case StateQuery(topic, identifier):
                    self._by_kind["state"].append(one)
                    _append_row(states, (topic, identifier))
                case JunctureQuery(name, topic, members, junction):
                    self._by_kind["juncture"].append(one)
                    _append_row(junctures, (name, topic, junction))
                    for number, group in enumerate(members):
                        for identifier in group:
                            _append_row(groups, (len(junctures[0]), number, identifier))
        writes = bool(self._by_kind["juncture"])
        self._sql: LiteralString = (_WITH_JUNCTURES if writes else _READ_ONLY) + _WITH_RESULT
        self._arguments = [*ready, *states, *(junctures if writes else ()), *(groups if writes else ())]

    def __len__(self) -> int:
        return len(self.queries)

    def halves(self) -> "tuple[Snapshot, Snapshot]":
        """Split the queries into two snapshots."""
        middle = len(self.queries) // 2
        return Snapshot(self.queries[:middle]), Snapshot(self.queries[middle:])

    async def read(self, connection: psycopg.AsyncConnection[TupleRow]) -> dict[RegisteredQuery, QueryResult]:
        """Run the query. A query without an entry has no result."""
        started_at = time.monotonic()
        async with connection.cursor(row_factory=tuple_row) as cursor:
            await cursor.execute(self._sql, self._arguments)
            return self._results(await cursor.fetchall(), started_at)

    def read_sync(self, connection: psycopg.Connection[Any]) -> dict[RegisteredQuery, QueryResult]:
        """Run the query in the connection's transaction."""
        started_at = time.monotonic()
        with translate_errors(), connection.cursor(row_factory=tuple_row) as cursor:
            return self._results(cursor.execute(self._sql, self._arguments).fetchall(), started_at)

    def _results(self, rows: Sequence[tuple[Any, ...]], started_at: float) -> dict[RegisteredQuery, QueryResult]:
        return {
            self._by_kind[kind][position - 1]: QueryResult(number, waited, started_at)
            for kind, position, number, waited in rows
        }


async def read_statuses(
    connection: psycopg.AsyncConnection[TupleRow], topics: Sequence[tuple[str, str]]
) -> dict[tuple[str, str], TopicStatus]:
    """Return the status of each pair of topic and condition, without unknown topics."""
    async with connection.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(TOPIC_STATUS_QUERY, (*map(list, zip(*topics, strict=True)), MAX_COUNT))
        rows = await cursor.fetchall()
    return {topics[position - 1]: TopicStatus(topics[position - 1][0], *counts) for position, *counts in rows}


def describe_wait(queue: TaskQueue, wait: Wait[Any]) -> tuple[str, TopicStatus]:
    """Check once, and return the description of a wait with the status of its topic; UnknownTopic."""
    status = queue.topic_status(wait.topic, Condition(wait.condition))
    return _checked(queue.conn, wait).describe(status), status


def check_wait(connection: psycopg.Connection[Any], wait: Wait[Outcome]) -> Outcome | None:
    """Check once, and return the outcome of a wait, or None to wait on; UnknownTopic."""
    return wait.outcome([query.result for query in _checked(connection, wait).queries])


def _checked(connection: psycopg.Connection[Any], wait: Wait[Any]) -> Subscription:
    subscription = Subscription(wait, tuple(map(RegisteredQuery, wait.queries)))
    for query in subscription.queries:
        query.subscriptions.add(subscription)
    for query, result in Snapshot(subscription.queries).read_sync(connection).items():
        query.update(result)
    return subscription


def _append_row(columns: tuple[list[Any], ...], row: tuple[Any, ...]) -> None:
    for column, value in zip(columns, row, strict=True):
        column.append(value)
