"""The open waits of a watcher, indexed by query and by topic, so that a check reads only what it needs."""

from asyncio import Future
from collections import Counter
from collections.abc import Collection, Iterable
from typing import Any

from airflow_provider_taskq.queue import TopicStatus
from airflow_provider_taskq.triggers.waits import (
    NO_RESULT,
    UNKNOWN_TOPIC,
    Query,
    QueryResult,
    ReadyWait,
    Wait,
    WaitLog,
)


class RegisteredQuery:
    """A query, its last result, and the subscriptions that share it."""

    __slots__ = ("_topic_existed", "query", "result", "subscriptions")

    def __init__(self, query: Query) -> None:
        self.query = query
        self.result: QueryResult = NO_RESULT
        self.subscriptions: set[Subscription] = set()
        self._topic_existed = False

    def update(self, result: QueryResult) -> None:
        """Store a result. The result of an unknown topic also gets whether the topic existed before."""
        if result.number == UNKNOWN_TOPIC:
            self.result = result._replace(topic_existed=self._topic_existed)
        else:
            self.result, self._topic_existed = result, True

    @property
    def count_limit(self) -> int:
        """How far ready tasks have to be counted: the largest `min_tasks` of the subscriptions."""
        return max((one.wait.min_tasks for one in self.subscriptions if isinstance(one.wait, ReadyWait)), default=1)

    @property
    def needs_age(self) -> bool:
        """Whether a subscription needs the waiting time of the oldest due task."""
        return any(isinstance(one.wait, ReadyWait) and one.wait.max_wait is not None for one in self.subscriptions)


class Subscription:
    """A wait, its queries, and the futures of the callers that await it."""

    __slots__ = ("futures", "queries", "wait")

    def __init__(self, wait: Wait[Any], queries: tuple[RegisteredQuery, ...]) -> None:
        self.wait = wait
        self.queries = queries
        self.futures: dict[Future[Any], WaitLog | None] = {}

    def outcome(self) -> Any:
        """Return the outcome by the last results, or None to wait on."""
        return self.wait.outcome([query.result for query in self.queries])

    def describe(self, status: TopicStatus) -> str:
        """Describe the wait by the last results and the status of its topic."""
        return self.wait.describe([query.result for query in self.queries], status)

    @property
    def logs(self) -> list[WaitLog]:
        """The logs of the tasks that wait."""
        return [log for log in self.futures.values() if log is not None]


class WaitRegistry:
    """The open waits of one watcher. Adding or removing a wait costs the same, however many waits are open."""

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
        """The shortest poll interval of the open waits."""
        return min(self._intervals, default=1.0)

    def add(self, wait: Wait[Any], future: Future[Any], log: WaitLog | None = None) -> None:
        """Add a caller's future to the subscription of a wait."""
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
        """Remove a caller's future, and with the last one the subscription and its unshared queries."""
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
        """Return all queries, or those on some topics."""
        if topics is None:
            return list(self._queries.values())
        return [query for topic in topics for query in self._queries_by_topic.get(topic, ())]

    def subscriptions(self, waits: Iterable[Wait[Any]] | None = None) -> list[Subscription]:
        """Return all subscriptions, or those of some waits that are still open."""
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


def subscriptions_of(queries: Collection[RegisteredQuery]) -> list[Subscription]:
    """Return the subscriptions of some queries, each once."""
    found: dict[Subscription, None] = {}
    for query in queries:
        found.update(dict.fromkeys(query.subscriptions))
    return list(found)
