"""The open waits of a watcher, and the one SQL query that checks any number of waits."""

import time
from asyncio import Future
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, LiteralString, TypeVar

import psycopg
from psycopg.rows import TupleRow, tuple_row

from airflow_provider_taskq.queue import Condition, TaskQueue, TopicStatus
from airflow_provider_taskq.queue.errors import translate_errors
from airflow_provider_taskq.queue.topic_status import MAX_COUNT, TOPIC_STATUS_QUERY
from airflow_provider_taskq.triggers.waits import (
    NO_RESULT,
    UNKNOWN_TOPIC,
    JunctureQuery,
    Query,
    QueryResult,
    ReadyQuery,
    ReadyWait,
    StateQuery,
    Wait,
    WaitLog,
)

Outcome = TypeVar("Outcome")

# Without junctures the query changes nothing. So it also runs on a standby, and with a role that may only read.
# A row that equals NO_RESULT is left out, so that ten thousand topics without a ready task return no row.
_READ_ONLY = (
    "SELECT kind, position, number, waited"
    " FROM taskq.watch_tasks(%b::text[], %b::int[], %b::text[], %b::boolean[], %b::text[], %b::text[])"
    " WHERE number IS NOT NULL AND (kind <> 'ready' OR number <> 0)"
)
_JUNCTURES = (
    " UNION ALL SELECT 'juncture', position, number, NULL"
    " FROM taskq.watch_groups(%b::text[], %b::text[], %b::text[], %b::int[], %b::int[], %b::text[])"
    " WHERE number IS NOT NULL"
)


@dataclass(eq=False, slots=True)
class RegisteredQuery:
    """A query, its last result, and the subscriptions that share it."""

    query: Query
    result: QueryResult = NO_RESULT
    subscriptions: "set[Subscription]" = field(default_factory=set)
    _topic_existed: bool = False

    def update(self, result: QueryResult) -> None:
        """Store a result. If the topic is unknown, the result also says whether it existed before."""
        if result.number == UNKNOWN_TOPIC:
            self.result = result._replace(topic_existed=self._topic_existed)
        else:
            self.result, self._topic_existed = result, True

    @property
    def count_limit(self) -> int:
        """The number of ready tasks at which counting may stop: the largest `min_tasks` of the subscriptions."""
        return max((one.wait.min_tasks for one in self.subscriptions if isinstance(one.wait, ReadyWait)), default=1)

    @property
    def needs_age(self) -> bool:
        """Whether a subscription needs to know how long the oldest due task has waited."""
        return any(isinstance(one.wait, ReadyWait) and one.wait.max_wait is not None for one in self.subscriptions)


@dataclass(eq=False, slots=True)
class Subscription:
    """A wait, its queries, and the futures of the callers that await it, each with its log."""

    wait: Wait[Any]
    queries: tuple[RegisteredQuery, ...]
    futures: dict[Future[Any], WaitLog | None] = field(default_factory=dict)

    def outcome(self) -> Any:
        """Return the outcome by the last results, or None to continue to wait."""
        return self.wait.outcome([query.result for query in self.queries])

    def describe(self, status: TopicStatus) -> str:
        """Return a sentence that describes the wait by the last results and the status of its topic."""
        return self.wait.describe([query.result for query in self.queries], status)

    @property
    def logs(self) -> list[WaitLog]:
        """The logs of the waiting tasks."""
        return [log for log in self.futures.values() if log is not None]


class WaitRegistry:
    """The open waits of one watcher. The cost to add or remove a wait does not depend on the number of open waits."""

    def __init__(self) -> None:
        self._subscriptions: dict[Wait[Any], Subscription] = {}
        self._queries: dict[Query, RegisteredQuery] = {}
        self._queries_by_topic: dict[str, dict[RegisteredQuery, None]] = {}
        self._intervals: Counter[float] = Counter()
        self.version = 0  # grows with each change of the set of queries

    def __len__(self) -> int:
        return self._intervals.total()

    def __contains__(self, topic: str) -> bool:
        return topic in self._queries_by_topic

    @property
    def shortest_interval(self) -> float:
        """The shortest poll interval of the open waits, in seconds; 1 if there are none."""
        return min(self._intervals, default=1.0)

    def add(self, wait: Wait[Any], future: Future[Any], log: WaitLog | None = None) -> None:
        """Subscribe a caller's future to the outcome of a wait."""
        subscription = self._subscriptions.get(wait)
        if subscription is None:
            subscription = Subscription(wait, tuple(map(self._register, wait.queries)))
            self._subscriptions[wait] = subscription
            for query in subscription.queries:
                query.subscriptions.add(subscription)
            self.version += 1
        subscription.futures[future] = log
        self._intervals[wait.poll_interval] += 1

    def remove(self, wait: Wait[Any], future: Future[Any]) -> None:
        """Remove a caller's future. With the last future of a wait, remove the queries that no other wait shares."""
        subscription = self._subscriptions[wait]
        del subscription.futures[future]
        self._intervals[wait.poll_interval] -= 1
        if not self._intervals[wait.poll_interval]:
            del self._intervals[wait.poll_interval]
        if subscription.futures:
            return
        del self._subscriptions[wait]
        self.version += 1
        for query in subscription.queries:
            query.subscriptions.discard(subscription)
            if not query.subscriptions:
                self._unregister(query)

    def queries(self, topics: Iterable[str] | None = None) -> list[RegisteredQuery]:
        """Return the queries of the open waits: all of them, or only those on `topics`."""
        if topics is None:
            return list(self._queries.values())
        return [query for topic in topics for query in self._queries_by_topic.get(topic, ())]

    def subscriptions(self, waits: Iterable[Wait[Any]] | None = None) -> list[Subscription]:
        """Return the subscriptions: all of them, or only those of `waits` that are still open."""
        if waits is None:
            return list(self._subscriptions.values())
        return [self._subscriptions[wait] for wait in waits if wait in self._subscriptions]

    def _register(self, query: Query) -> RegisteredQuery:
        registered = self._queries.get(query)
        if registered is None:
            registered = self._queries[query] = RegisteredQuery(query)
            self._queries_by_topic.setdefault(query.topic, {})[registered] = None
        return registered

    def _unregister(self, registered: RegisteredQuery) -> None:
        topic = registered.query.topic
        if self._queries.pop(registered.query, None) is not None:
            of_topic = self._queries_by_topic[topic]
            del of_topic[registered]
            if not of_topic:
                del self._queries_by_topic[topic]


class QueryBatch:
    """One SQL query for any number of registered queries, which can run any number of times."""

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
        self._sql: LiteralString = _READ_ONLY + _JUNCTURES if writes else _READ_ONLY
        self._arguments = [*ready, *states, *(junctures if writes else ()), *(groups if writes else ())]

    def __len__(self) -> int:
        return len(self.queries)

    def halves(self) -> "tuple[QueryBatch, QueryBatch]":
        """Split the queries into two batches."""
        middle = len(self.queries) // 2
        return QueryBatch(self.queries[:middle]), QueryBatch(self.queries[middle:])

    async def read(self, connection: psycopg.AsyncConnection[TupleRow]) -> dict[RegisteredQuery, QueryResult]:
        """Run the SQL query. A registered query that is missing from the answer has no result."""
        started_at = time.monotonic()
        async with connection.cursor(row_factory=tuple_row) as cursor:
            await cursor.execute(self._sql, self._arguments, prepare=False)
            return self._results(await cursor.fetchall(), started_at)

    def read_sync(self, connection: psycopg.Connection[Any]) -> dict[RegisteredQuery, QueryResult]:
        """Run the SQL query in the connection's transaction."""
        started_at = time.monotonic()
        with translate_errors(), connection.cursor(row_factory=tuple_row) as cursor:
            return self._results(cursor.execute(self._sql, self._arguments, prepare=False).fetchall(), started_at)

    def _results(self, rows: Sequence[tuple[Any, ...]], started_at: float) -> dict[RegisteredQuery, QueryResult]:
        return {
            self._by_kind[kind][position - 1]: QueryResult(number, waited, started_at)
            for kind, position, number, waited in rows
        }


def subscriptions_of(queries: Collection[RegisteredQuery]) -> list[Subscription]:
    """Return the subscriptions that share these queries, without duplicates."""
    return list(dict.fromkeys(subscription for query in queries for subscription in query.subscriptions))


async def read_statuses(
    connection: psycopg.AsyncConnection[TupleRow], topics: Sequence[tuple[str, str]]
) -> dict[tuple[str, str], TopicStatus]:
    """Return the status of each pair of topic and condition. Unknown topics are missing in the answer."""
    async with connection.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(TOPIC_STATUS_QUERY, (*map(list, zip(*topics, strict=True)), MAX_COUNT), prepare=False)
        rows = await cursor.fetchall()
    return {topics[position - 1]: TopicStatus(topics[position - 1][0], *counts) for position, *counts in rows}


def describe_wait(queue: TaskQueue, wait: Wait[Any]) -> tuple[str, TopicStatus]:
    """Check a wait once. Return its description and the status of its topic. Raises UnknownTopic."""
    status = queue.topic_status(wait.topic, Condition(wait.condition))
    return _checked(queue.conn, wait).describe(status), status


def check_wait(connection: psycopg.Connection[Any], wait: Wait[Outcome]) -> Outcome | None:
    """Check a wait once. Return its outcome, or None if it goes on. Raises UnknownTopic."""
    return wait.outcome([query.result for query in _checked(connection, wait).queries])


def _checked(connection: psycopg.Connection[Any], wait: Wait[Any]) -> Subscription:
    subscription = Subscription(wait, tuple(map(RegisteredQuery, wait.queries)))
    for query in subscription.queries:
        query.subscriptions.add(subscription)
    for query, result in QueryBatch(subscription.queries).read_sync(connection).items():
        query.update(result)
    return subscription


def _append_row(columns: tuple[list[Any], ...], row: tuple[Any, ...]) -> None:
    for column, value in zip(columns, row, strict=True):
        column.append(value)
