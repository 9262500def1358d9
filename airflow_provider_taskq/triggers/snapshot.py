"""One look: any number of questions in one query, for triggers, and for a sensor that looks itself."""

import time
from collections.abc import Iterable, Sequence
from typing import Any, LiteralString, TypeVar

import psycopg
from psycopg.rows import TupleRow, tuple_row

from airflow_provider_taskq.queue import Condition, TaskQueue, TopicStatus
from airflow_provider_taskq.queue.errors import translate_errors
from airflow_provider_taskq.queue.topic_status import MAX_COUNT, TOPIC_STATUS_QUERY
from airflow_provider_taskq.triggers.wait_registry import Asked, Standing
from airflow_provider_taskq.triggers.waits import JunctureQuestion, ReadyQuestion, Seen, StateQuestion, Wait

Outcome = TypeVar("Outcome")

# Without junctures a look changes nothing, and may be taken by a role that only reads, or on a standby.
_TASKS = (
    "SELECT kind, position, number, waited"
    " FROM taskq.watch_tasks(%b::text[], %b::int[], %b::text[], %b::boolean[], %b::text[], %b::text[])"
)
_EVERYTHING = (
    "SELECT kind, position, number, waited FROM taskq.watch(%b::text[], %b::int[], %b::text[], %b::boolean[],"
    " %b::text[], %b::text[], %b::text[], %b::text[], %b::text[], %b::int[], %b::int[], %b::text[])"
)
# Only rows that tell something travel: of ten thousand topics without a task, none.
_TELLING = " WHERE number IS NOT NULL AND (kind <> 'ready' OR number <> 0)"


class Look:
    """A query with the answers it brings, to be used any number of times."""

    def __init__(self, asked: Iterable[Asked]) -> None:
        self.asked = list(asked)
        self._kinds: dict[str, list[Asked]] = {"ready": [], "state": [], "juncture": []}
        ready: tuple[list[Any], ...] = ([], [], [], [])
        states: tuple[list[Any], ...] = ([], [])
        junctures: tuple[list[Any], ...] = ([], [], [])
        groups: tuple[list[Any], ...] = ([], [], [])
        for one in self.asked:
            match one.question:
                case ReadyQuestion(topic, condition):
                    self._kinds["ready"].append(one)
                    _append(ready, (topic, one.limit, condition, one.aged))
                case StateQuestion(topic, identifier):
                    self._kinds["state"].append(one)
                    _append(states, (topic, identifier))
                case JunctureQuestion(name, topic, members, junction):
                    self._kinds["juncture"].append(one)
                    _append(junctures, (name, topic, junction))
                    for number, group in enumerate(members):
                        for identifier in group:
                            _append(groups, (len(junctures[0]), number, identifier))
        changes = bool(self._kinds["juncture"])
        self._query: LiteralString = (_EVERYTHING if changes else _TASKS) + _TELLING
        self._arguments = [*ready, *states, *(junctures if changes else ()), *(groups if changes else ())]

    def __len__(self) -> int:
        """How many questions it asks."""
        return len(self.asked)

    def halves(self) -> "tuple[Look, Look]":
        """Two looks with half of the questions each."""
        middle = len(self.asked) // 2
        return Look(self.asked[:middle]), Look(self.asked[middle:])

    async def taken_on(self, connection: psycopg.AsyncConnection[TupleRow]) -> dict[Asked, Seen]:
        """Looks, and returns what was said to those questions to which there is something to say."""
        began = time.monotonic()
        async with connection.cursor(row_factory=tuple_row) as cursor:
            await cursor.execute(self._query, self._arguments)
            return self._told(await cursor.fetchall(), began)

    def taken_now(self, connection: psycopg.Connection[Any]) -> dict[Asked, Seen]:
        """The same without an event loop, in the connection's transaction."""
        began = time.monotonic()
        with translate_errors(), connection.cursor(row_factory=tuple_row) as cursor:
            return self._told(cursor.execute(self._query, self._arguments).fetchall(), began)

    def _told(self, rows: Sequence[tuple[Any, ...]], began: float) -> dict[Asked, Seen]:
        return {self._kinds[kind][position - 1]: Seen(number, waited, began) for kind, position, number, waited in rows}


async def statuses(
    connection: psycopg.AsyncConnection[TupleRow], topics: Sequence[tuple[str, str]]
) -> dict[tuple[str, str], TopicStatus]:
    """The status of topics under a condition each; unknown topics are left out."""
    async with connection.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(TOPIC_STATUS_QUERY, (*map(list, zip(*topics, strict=True)), MAX_COUNT))
        rows = await cursor.fetchall()
    return {topics[position - 1]: TopicStatus(topics[position - 1][0], *counts) for position, *counts in rows}


def sentence_now(queue: TaskQueue, wait: Wait[Any]) -> tuple[str, TopicStatus]:
    """Looks once for a wait: what it waits for, and the status of its topic. UnknownTopic where there is none."""
    status = queue.topic_status(wait.topic, Condition(wait.condition))
    return _looked(queue.conn, wait).sentence(status), status


def outcome_now(connection: psycopg.Connection[Any], wait: Wait[Outcome]) -> Outcome | None:
    """Looks once for a wait: its outcome, or None as long as it has to go on. UnknownTopic for a topic that is none."""
    return wait.outcome([asked.seen for asked in _looked(connection, wait).asked])


def _looked(connection: psycopg.Connection[Any], wait: Wait[Any]) -> Standing:
    """A wait with the answers of one look."""
    standing = Standing(wait, tuple(map(Asked, wait.questions)))
    for asked in standing.asked:
        asked.standing.add(standing)
    for asked, seen in Look(standing.asked).taken_now(connection).items():
        asked.answer(seen)
    return standing


def _append(columns: tuple[list[Any], ...], row: tuple[Any, ...]) -> None:
    """Appends a row to columns."""
    for column, value in zip(columns, row, strict=True):
        column.append(value)
