"""Tasks given to push and offer: converted to NewTask, checked, and cut into chunks for the SQL functions."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta
from typing import Any, TypeAlias

from airflow_provider_taskq.queue.arguments import to_integer, to_timedelta
from airflow_provider_taskq.queue.encoding import MAX_STORED_DURATION, JsonEncoder, interval_text, json_text
from airflow_provider_taskq.queue.errors import InvalidArgument, InvalidTask
from airflow_provider_taskq.queue.models import NewTask

TaskInput: TypeAlias = NewTask | str | Mapping[str, Any]

TASK_FIELDS = tuple(field.name for field in fields(NewTask))

# A call carries at most this many tasks, or slightly more than this many characters. That makes its round trip cheap,
# streams 1,000,000 tasks through 200 MB, and lets the server hold the arrays of one call.
CHUNK_TASKS = 10_000
CHUNK_CHARACTERS = 8_000_000

_ZERO = timedelta(0)
_TYPES: dict[str, tuple[type[Any], ...]] = {
    "identifier": (str,),
    "reference": (str,),
    "suspended": (bool,),
    "available_at": (datetime,),
    "depends_on": (list, tuple),
}
_EXPECTED = {
    "suspended": "true or false",
    "available_at": "a datetime or a text in ISO 8601",
    "depends_on": "a list of pairs of a topic and an identifier",
}


def refuse_unknown_options(verb: str, unknown: Mapping[str, object], *options: str) -> None:
    """Raise InvalidArgument if a call of a verb has options that it does not have."""
    if not unknown:
        return
    fields_given = [name for name in unknown if name in TASK_FIELDS]
    hint = (
        f"; a task is a dict or a NewTask with {', '.join(TASK_FIELDS)}" if fields_given and len(options) == 1 else ""
    )
    raise InvalidArgument(f"{verb}() has no option {', '.join(map(repr, unknown))}: it has {', '.join(options)}{hint}")


def to_new_tasks(topic: str, tasks: Iterable[TaskInput]) -> Iterator[NewTask]:
    """Convert the tasks of a push.

    :raises InvalidTask: for an input that is not a task. The message has the position of the input, counted from 0, and
        never the payload.
    """
    if isinstance(tasks, str | bytes | Mapping | NewTask):
        raise InvalidTask(f"topic {topic!r}: tasks is one {type(tasks).__name__}: give a list of tasks")
    for position, given in enumerate(tasks):
        if isinstance(given, NewTask):
            yield given
            continue
        try:
            yield to_new_task(given)
        except (TypeError, ValueError) as error:
            raise InvalidTask(f"topic {topic!r}, task at position {position}: {error}") from None


def to_new_task(given: object) -> NewTask:
    """Convert an identifier, a dict or a NewTask to a NewTask.

    A dict has the fields of NewTask; a field that is None or missing has its default. `available_at` may be a text in
    ISO 8601.

    :raises TypeError: for another type.
    :raises ValueError: for a dict with a wrong field. The message never holds the payload.
    """
    if isinstance(given, NewTask):
        return given
    if isinstance(given, str):
        return NewTask(given)
    if not isinstance(given, Mapping):
        raise TypeError(f"a task is an identifier, a dict or a NewTask, not a {type(given).__name__}")
    if unknown := [str(name) for name in given if name not in TASK_FIELDS]:
        raise ValueError(f"unknown field {', '.join(map(repr, unknown))}: a task has {', '.join(TASK_FIELDS)}")
    if given.get("identifier") is None:
        raise ValueError("its identifier is missing")
    return NewTask(**{name: _convert_field(name, value) for name, value in given.items() if value is not None})


def _convert_field(name: str, value: Any) -> Any:
    converted = value
    if name == "available_at" and isinstance(value, str):
        try:
            converted = datetime.fromisoformat(value)
        except ValueError:
            raise ValueError(f"its available_at {value[:50]!r} is not a moment in ISO 8601") from None
    elif name in ("delay", "ttl"):
        converted = to_timedelta(value, name)
    elif name == "priority":
        converted = to_integer(value, name)
    expected = _TYPES.get(name)
    if expected and not isinstance(converted, expected):
        raise ValueError(f"its {name} is a {type(value).__name__}, not {_EXPECTED.get(name, 'a text')}")
    return converted


@dataclass(frozen=True, slots=True)
class TaskChunk:
    """Consecutive tasks of a push, with their payloads as JSON texts. `offset` is the number of tasks before them."""

    topic: str
    offset: int
    tasks: list[NewTask]
    payloads: list[str | None] = field(repr=False)  # private: not for logs

    def columns(self) -> tuple[list[Any] | None, ...]:
        """Return the array arguments of taskq.push, from p_identifiers to p_priorities; None for an empty column.

        :raises InvalidTask: for a value that cannot be sent.
        """
        identifiers = self.identifiers()
        self._check_texts("reference", [task.reference for task in self.tasks if task.reference is not None])
        self._check_values()
        return (
            identifiers,
            _none_if_empty(self.payloads),
            _none_if_empty([task.reference for task in self.tasks]),
            _none_if_empty([task.suspended or None for task in self.tasks]),
            _none_if_empty([task.available_at for task in self.tasks]),
            _none_if_empty([interval_text(to_timedelta(task.delay)) for task in self.tasks]),
            _none_if_empty([interval_text(to_timedelta(task.ttl)) for task in self.tasks]),
            _none_if_empty([int(task.priority) if task.priority else None for task in self.tasks]),
        )

    def identifiers(self) -> list[str]:
        """Return the identifiers of the tasks in order.

        :raises InvalidTask: for an identifier that cannot be sent.
        """
        identifiers = [task.identifier for task in self.tasks]
        self._check_texts("identifier", identifiers)
        return identifiers

    def single(self) -> tuple[Any, ...] | None:
        """Return the arguments of taskq.push for one task, after the topic.

        Return None if the chunk needs the push with arrays.
        """
        if len(self.tasks) > 1 or self.offset or self.tasks[0].suspended or self.tasks[0].depends_on:
            return None
        identifiers, payloads, references, _, *rest = self.columns()
        return tuple(column and column[0] for column in (identifiers, payloads, references, *rest))

    def dependencies(self) -> tuple[list[int] | None, list[str] | None, list[str] | None]:
        """Return three arrays of the dependencies of all tasks: places of the tasks in the chunk, topics, identifiers.

        Each array is None if no task has dependencies.
        """
        found = [(place, *pair) for place, task in enumerate(self.tasks) for pair in task.depends_on]
        if not found:
            return None, None, None
        return [place for place, _, _ in found], [topic for _, topic, _ in found], [name for _, _, name in found]

    def require_offerable(self) -> None:
        """Refuse tasks that can only be pushed.

        :raises InvalidTask: for a suspended task, and for a task with dependencies.
        """
        for place, task in enumerate(self.tasks):
            if task.suspended or task.depends_on:
                self._refuse(place, "an offered task is neither suspended nor depends on others: push it")

    def _check_texts(self, name: str, texts: list[str]) -> None:
        # All at once, which is fast; one by one only to name the first bad one.
        if _can_be_sent(texts):
            return
        for place, task in enumerate(self.tasks):
            text = getattr(task, name)
            if text is not None and not _can_be_sent([text]):
                self._refuse(place, f"its {name} is no text, or holds a NUL or a lone surrogate")

    def _check_values(self) -> None:
        # The database checks the rest. It cannot check a moment without a zone, or a value that overflows on the way.
        for place, task in enumerate(self.tasks):
            try:
                self._check_task(place, task)
            except InvalidArgument as error:
                self._refuse(place, str(error))
            except (AttributeError, TypeError):
                self._refuse(place, _wrong_type(task))

    def _check_task(self, place: int, task: NewTask) -> None:
        if task.available_at is not None and task.available_at.tzinfo is None:
            self._refuse(place, "its available_at has no time zone")
        if task.priority != 0 and abs(to_integer(task.priority, "priority")) > 100:
            self._refuse(place, f"its priority {task.priority} is outside -100..100")
        if task.delay is not None or task.ttl is not None:
            longest = max(to_timedelta(task.delay, "delay") or _ZERO, to_timedelta(task.ttl, "ttl") or _ZERO)
            if longest > MAX_STORED_DURATION:
                self._refuse(place, "its delay or ttl is longer than 3650 days")
        if task.depends_on:
            self._check_dependencies(place, task.depends_on)

    def _check_dependencies(self, place: int, dependencies: Sequence[object]) -> None:
        if isinstance(dependencies, str) or not all(_is_pair(pair) for pair in dependencies):
            self._refuse(place, "its depends_on is no list of pairs of a topic and an identifier")
        if (self.topic, self.tasks[place].identifier) in [tuple(pair) for pair in self.tasks[place].depends_on]:
            self._refuse(place, "it depends on its own identifier")

    def _refuse(self, place: int, reason: str) -> None:
        raise InvalidTask(f"topic {self.topic!r}, task at position {self.offset + place}: {reason}")


def split_into_chunks(topic: str, tasks: Iterable[NewTask], encode: JsonEncoder = json_text) -> Iterator[TaskChunk]:
    """Cut tasks of any number into chunks of bounded size, with their payloads encoded by `encode`.

    :raises InvalidTask: for a payload that is not JSON.
    """
    chunk, characters = TaskChunk(topic, 0, [], []), 0
    for task in tasks:
        try:
            payload = encode(task.payload)
        except ValueError as error:
            position = chunk.offset + len(chunk.tasks)
            raise InvalidTask(f"topic {topic!r}, task at position {position}: its payload {error}") from None
        chunk.tasks.append(task)
        chunk.payloads.append(payload)
        characters += len(payload) if payload else 0
        if len(chunk.tasks) >= CHUNK_TASKS or characters >= CHUNK_CHARACTERS:
            yield chunk
            chunk, characters = TaskChunk(topic, chunk.offset + len(chunk.tasks), [], []), 0
    if chunk.tasks:
        yield chunk


def _wrong_type(task: NewTask) -> str:
    """Return which field of a NewTask has a value of another type."""
    for name, kinds in _TYPES.items():
        value = getattr(task, name)
        if value is not None and not isinstance(value, kinds):
            return f"its {name} is a {type(value).__name__}, not {_EXPECTED.get(name, 'a text')}"
    return "one of its fields has a value of another type"


def _none_if_empty(column: list[Any]) -> list[Any] | None:
    return column if any(value is not None for value in column) else None


def _is_pair(pair: object) -> bool:
    return isinstance(pair, Sequence) and not isinstance(pair, str) and len(pair) == 2 and _can_be_sent(list(pair))


def _can_be_sent(texts: list[str]) -> bool:
    try:
        joined = "".join(texts)
        joined.encode()
    except (TypeError, UnicodeEncodeError):
        return False
    return "\x00" not in joined
