"""Tasks on their way in: columns for the wire, in chunks of bounded memory."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from airflow_provider_taskq.queue.errors import InvalidTask
from airflow_provider_taskq.queue.model import NewTask
from airflow_provider_taskq.queue.wire import interval_text, json_text

# A call carries at most so many tasks and about so many characters: enough to make its round trip cheap, little
# enough for 1,000,000 tasks to stream through 200 MB, and for the server to hold one call's arrays easily.
CHUNK_TASKS = 10_000
CHUNK_CHARACTERS = 8_000_000


@dataclass(slots=True)
class Chunk:
    """The columns of some tasks, in the order of taskq.push; all-empty ones travel as None."""

    topic: str
    offset: int
    identifiers: list[str]
    payloads: list[str | None]
    references: list[str | None]
    suspended: list[bool]
    available_at: list[datetime | None]
    delays: list[str | None]
    ttls: list[str | None]
    priorities: list[int]
    characters: int = 0

    def add(self, task: NewTask) -> None:
        """Appends one task; InvalidTask with its position where it cannot even be sent."""
        payload = self._payload(task)
        self.identifiers.append(self._text(task.identifier, "identifier"))
        self.payloads.append(payload)
        self.references.append(None if task.reference is None else self._text(task.reference, "reference"))
        self.suspended.append(task.suspended)
        self.available_at.append(self._moment(task))
        self.delays.append(interval_text(task.delay))
        self.ttls.append(interval_text(task.ttl))
        self.priorities.append(self._priority(task))
        self.characters += len(task.identifier) + (len(payload) if payload else 0)

    def columns(self) -> tuple[Any, ...]:
        """The arguments of taskq.push from p_identifiers to p_priorities."""
        return (
            self.identifiers,
            _unless_all(self.payloads, None),
            _unless_all(self.references, None),
            _unless_all(self.suspended, False),
            _unless_all(self.available_at, None),
            _unless_all(self.delays, None),
            _unless_all(self.ttls, None),
            _unless_all(self.priorities, 0),
        )

    def _refuse(self, reason: str) -> InvalidTask:
        return InvalidTask(f"topic {self.topic!r}, task at position {self.offset + len(self.identifiers)}: {reason}")

    def _text(self, value: object, name: str) -> str:
        """A text that PostgreSQL can hold."""
        if not isinstance(value, str):
            raise self._refuse(f"its {name} is {type(value).__name__}, not text")
        if "\x00" in value:
            raise self._refuse(f"its {name} holds a NUL")
        try:
            value.encode()
        except UnicodeEncodeError:
            raise self._refuse(f"its {name} holds a lone surrogate") from None
        return value

    def _payload(self, task: NewTask) -> str | None:
        try:
            return json_text(task.payload)
        except ValueError as error:
            raise self._refuse(f"its payload {error}") from None

    def _moment(self, task: NewTask) -> datetime | None:
        """The due time, which must say its zone: a naive one means another moment on every machine."""
        moment = task.available_at
        if moment is not None and moment.tzinfo is None:
            raise self._refuse("its available_at has no time zone")
        return moment

    def _priority(self, task: NewTask) -> int:
        if abs(task.priority) > 100:  # before it meets the limits of an int
            raise self._refuse(f"its priority {task.priority!r} is outside -100..100")
        return task.priority


def _unless_all(column: list[Any], default: object) -> list[Any] | None:
    """The column, or None where every value is the default."""
    return None if column.count(default) == len(column) else column


def _empty_chunk(topic: str, offset: int) -> Chunk:
    """A chunk that begins after so many tasks."""
    return Chunk(topic, offset, [], [], [], [], [], [], [], [])


def chunks(topic: str, tasks: Iterable[NewTask | str], limit: int = CHUNK_TASKS) -> Iterator[Chunk]:
    """Cuts an iterable of any length into chunks; strings are identifiers."""
    chunk = _empty_chunk(topic, 0)
    for task in tasks:
        if len(chunk.identifiers) >= limit or chunk.characters >= CHUNK_CHARACTERS:
            yield chunk
            chunk = _empty_chunk(topic, chunk.offset + len(chunk.identifiers))
        chunk.add(_new_task(task))
    if chunk.identifiers:
        yield chunk


def _new_task(task: NewTask | str) -> NewTask:
    return NewTask(task) if isinstance(task, str) else task
