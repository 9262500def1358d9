"""A batch of tasks while a handler works on it: shared values, follow-ups, releases and commit hooks."""

import sys
import threading
import traceback
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias, TypeVar

from airflow_provider_taskq.queue import Decision, Insertion, InvalidTask, Junction, NewTask, Task, TaskQueue
from airflow_provider_taskq.queue.encoding import JsonEncoder, json_text
from airflow_provider_taskq.queue.task_input import TaskInput, split_into_chunks, to_new_tasks

T = TypeVar("T")

_Key = tuple[type[Any], Task | None, Hashable]
Exceptions: TypeAlias = type[BaseException] | tuple[type[BaseException], ...]
# Called in the committing transaction. The decisions that it returns are merged with those that it gets.
CommitFunction = Callable[[TaskQueue, Mapping[Task, Decision]], Mapping[Task, Decision] | None]


@dataclass(frozen=True, slots=True)
class FollowUp:
    """New tasks that the commit pushes if the task that they follow is continued."""

    task: Task
    topic: str
    tasks: tuple[NewTask, ...]
    insertion: Insertion


@dataclass(frozen=True, slots=True)
class Release:
    """Groups of identifiers that the commit releases, after all pushes, if the task is continued."""

    task: Task
    topic: str
    groups: tuple[tuple[str, ...], ...]
    junction: Junction


@dataclass(slots=True, eq=False)
class CommitHook:
    """A function that runs in the committing transaction. `tasks` are its tasks, or None for the whole batch.

    `interruptions` counts the transient errors since the first one, at `interrupted_at`. After too many, the tasks of
    the hook fail with `failed_with`, and it is not called any more.
    """

    call: CommitFunction
    tasks: frozenset[Task] | None = None
    success_on: Exceptions = ()
    interruptions: int = 0
    interrupted_at: float = 0.0
    failed_with: BaseException | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Activity:
    """Code that runs for a batch now, with functions that format its stack and that may cancel it."""

    name: str
    stack: Callable[[], str]
    cancel: Callable[[], None] | None


@dataclass(frozen=True, slots=True)
class BatchOwner:
    """The holder of a batch, for systems outside of the database: the name of the owner, and a fence.

    The fence is a number. It is greater than that of each earlier batch with one of these tasks, whatever owner held
    it. An outside system that stores the greatest fence for a key and refuses smaller ones refuses a late handler whose
    tasks have another owner by now.
    """

    name: str
    fence: int


class BatchContext:
    """What each runner tells a handler that has a parameter `batch`."""

    def __init__(self, owner: BatchOwner | None = None) -> None:
        self.known_owner = owner

    @property
    def owner(self) -> BatchOwner:
        """The holder of the batch when the handler got it. It stays readable when the batch has another holder.

        Raises LookupError for a batch that no runner has made, such as `Batch(tasks)` in a test.
        """
        if self.known_owner is None:
            raise LookupError("this batch has no owner: no worker, consumer or drain has claimed it")
        return self.known_owner


class SupplementError(LookupError):
    """A value was registered twice, or it is missing."""


class _Value(Future[Any]):
    """A value that is there, or that a thread makes now."""

    def __init__(self) -> None:
        super().__init__()
        self._maker = threading.get_ident()

    def get(self, key: _Key) -> Any:
        """Wait for the value. A thread that waits for the value that it makes itself would wait forever."""
        if not self.done() and self._maker == threading.get_ident():
            raise SupplementError(f"{_named(key)} is requested by the function that makes it")
        return self.result()


class Supplement:
    """Values by class, task (None for the whole batch) and qualifier. Threads may share it; processes cannot."""

    def __init__(self) -> None:
        self._values: dict[_Key, _Value] = {}  # each operation on it is atomic

    def register(self, kind: type[T], value: T, task: Task | None = None, qualifier: Hashable = None) -> None:
        """Store a value of `task` or of the batch. Raises SupplementError if there is one already."""
        key, made = (kind, task, qualifier), _Value()
        made.set_result(value)
        if self._values.setdefault(key, made) is not made:
            raise SupplementError(f"{_named(key)} is already registered")

    def require(self, kind: type[T], task: Task | None = None, qualifier: Hashable = None) -> T:
        """Return a stored value. Raises SupplementError if there is none."""
        key = (kind, task, qualifier)
        if (found := self._values.get(key)) is None:
            raise SupplementError(f"{_named(key)} was not registered")
        return found.get(key)  # type: ignore[no-any-return]  # an instance of the class in the key

    def probe(self, kind: type[T], task: Task | None = None, qualifier: Hashable = None) -> T | None:
        """Return a stored value, or None if there is none yet. Never wait."""
        found = self._values.get((kind, task, qualifier))
        return found.result() if found is not None and found.done() else None

    def suggest(self, kind: type[T], make: Callable[[], T], task: Task | None = None, qualifier: Hashable = None) -> T:
        """Return a stored value. Call `make` if there is none; concurrent calls share its value, or its error."""
        key, made = (kind, task, qualifier), _Value()
        if (found := self._values.setdefault(key, made)) is not made:
            return found.get(key)  # type: ignore[no-any-return]
        try:
            value = make()
        except BaseException as error:
            del self._values[key]
            made.set_exception(error)
            raise
        made.set_result(value)
        return value


def _named(key: _Key) -> str:
    kind, task, qualifier = key
    of = f" of task {task.sequence}" if task else ""
    return f"{kind.__name__}{of}" + ("" if qualifier is None else f" ({qualifier!r})")


class Batch(BatchContext, Supplement):
    """A batch of tasks, in the order of the poll. All threads may use it until the handler returns its decisions."""

    def __init__(self, tasks: Iterable[Task], owner: BatchOwner | None = None, encode: JsonEncoder = json_text) -> None:
        BatchContext.__init__(self, owner)
        Supplement.__init__(self)
        self.tasks: Sequence[Task] = tuple(tasks)
        self._encode = encode
        self.cancelled = threading.Event()  # set when the worker ignores the decisions of this batch
        self.follow_ups: list[FollowUp] = []
        self.releases: list[Release] = []
        self.commit_hooks: list[CommitHook] = []
        self.after_commit_calls: list[Callable[[], None]] = []
        self._known = frozenset(self.tasks)
        self._is_part = False
        self._activities: list[Activity] = []  # each operation on it is atomic

    @property
    def has_side_effects(self) -> bool:
        """Whether the batch commits more than its decisions."""
        return bool(self.commit_hooks or self.follow_ups or self.releases or self.after_commit_calls)

    def push(
        self, task: Task, topic: str, tasks: Iterable[TaskInput], insertion: Insertion | str = Insertion.APPEND
    ) -> None:
        """Push new tasks in the transaction that completes `task`, if `task` is continued.

        :param tasks: identifiers, dicts or NewTasks, as for `TaskQueue.push`.
        :raises InvalidTask: if `task` is not in this batch, or a new task is malformed.
        """
        self._require_member(task)
        new = tuple(to_new_tasks(topic, tasks))
        for chunk in split_into_chunks(topic, new, self._encode):
            chunk.columns()  # raises InvalidTask here, where it fails this task only
        self.follow_ups.append(FollowUp(task, topic, new, Insertion(insertion)))

    def junction(
        self, task: Task, topic: str, groups: Iterable[Iterable[str]], junction: Junction | str = Junction.SINGULAR
    ) -> None:
        """Release groups as `TaskQueue.junction`, in the transaction that completes `task`, if `task` is continued."""
        self._require_member(task)
        given = list(groups)
        if any(isinstance(group, str) for group in given):
            raise InvalidTask("a group is a list of identifiers, not a text")
        self.releases.append(Release(task, topic, tuple(tuple(group) for group in given), Junction(junction)))

    def in_commit(self, function: CommitFunction, task: Task | None = None, success_on: Exceptions = ()) -> None:
        """Register `function(queue, decisions)`, which is called in the transaction that completes the batch.

        The function gets the decisions so far, on `task` or on all tasks of the batch. It returns None, or a mapping
        with a decision on each of these tasks, which is merged by priority. Its writes through `queue.conn` are
        committed with the decisions, or not at all. Put effects that belong together into one function: each has a
        savepoint of its own, which costs two round trips.

        An exception undoes the writes of this function and fails its tasks. An exception of `success_on`, such as
        `psycopg.errors.UniqueViolation`, undoes the writes and leaves the decisions as they are.
        """
        if task is not None:
            self._require_member(task)
            tasks: frozenset[Task] | None = frozenset({task})
        else:
            tasks = self._known if self._is_part else None
        self.commit_hooks.append(CommitHook(function, tasks, success_on))

    def after_commit(self, call: Callable[[], None]) -> None:
        """Register a function that the worker calls once the batch is committed. Its exceptions are only logged."""
        self.after_commit_calls.append(call)

    @contextmanager
    def running(
        self, name: str, stack: Callable[[], str] | None = None, cancel: Callable[[], None] | None = None
    ) -> Iterator[None]:
        """Report that code of this batch runs in the block. A handler reports its own threads in this way.

        :param name: name of the code in logs.
        :param stack: returns the stack that the worker logs if the batch takes too long; by default that of this
            thread.
        :param cancel: a function that the worker calls if it abandons the batch.
        """
        activity = Activity(name, stack or stack_of(threading.get_ident()), cancel)
        self._activities.append(activity)
        try:
            yield
        finally:
            self._activities.remove(activity)

    def activities(self) -> list[Activity]:
        """Return the code that runs for this batch now."""
        return list(self._activities)

    def cancel(self) -> None:
        """Set `cancelled`, and call the `cancel` of all activities."""
        self.cancelled.set()
        for activity in self.activities():
            if activity.cancel is not None:
                activity.cancel()

    def result_of(self, outcome: Any, name: str) -> Any:
        """Wait for a Future and return its result. Return any other outcome as it is.

        If the worker abandons the batch, cancel the Future and raise RuntimeError. Raises the exception of the Future,
        and CancelledError if the Future was cancelled.

        :param name: name of the function that returned the outcome, for logs and errors.
        """
        if not isinstance(outcome, Future):
            return outcome
        ended = threading.Event()

        def abandon() -> None:
            outcome.cancel()
            ended.set()

        outcome.add_done_callback(lambda _: ended.set())
        with self.running(f"a Future of {name}", cancel=abandon):
            if self.cancelled.is_set():  # cancelled before `running` registered abandon
                abandon()
            ended.wait()
        if not outcome.done():
            raise RuntimeError(f"the batch was abandoned before the Future of {name} was completed")
        return outcome.result()

    def part(self, tasks: Iterable[Task]) -> "Batch":
        """Return a batch of some of the tasks. What a handler adds to it goes to this batch."""
        part = object.__new__(Batch)
        part.__dict__.update(self.__dict__)
        part.tasks, part._is_part = tuple(tasks), True
        part._known = frozenset(part.tasks)
        return part

    def for_task(self, task: Task) -> "Batch":
        """Return a batch of one task with the same owner, which another process can fill for `adopt`."""
        return Batch([task], self.known_owner)

    def adopt(self, other: "Batch", task: Task) -> None:
        """Add the follow-ups, releases and hooks that another process has recorded for one task of this batch."""
        self.follow_ups += other.follow_ups
        self.releases += other.releases
        self.commit_hooks += [replace(hook, tasks=frozenset({task})) for hook in other.commit_hooks]
        self.after_commit_calls += other.after_commit_calls

    def _require_member(self, task: Task) -> None:
        if task not in self._known:
            raise InvalidTask(f"task {task.sequence} of topic {task.topic!r} is not in this batch")

    def __getstate__(self) -> dict[str, Any]:
        """Pickle the tasks, the owner, follow-ups, releases and hooks, without the supplement."""
        kept = ("tasks", "known_owner", "follow_ups", "releases", "commit_hooks", "after_commit_calls")
        return {name: getattr(self, name) for name in kept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["tasks"])  # type: ignore[misc]  # the other fields start empty
        self.__dict__.update(state)


def stack_of(thread: int) -> Callable[[], str]:
    """Return a function that formats the current stack of a thread."""

    def stack() -> str:
        frame = sys._current_frames().get(thread)  # noqa: SLF001 -- the one way to see the stack of another thread
        return "".join(traceback.format_stack(frame)) if frame else "(ended)\n"

    return stack


def name_of(function: object) -> str:
    """Return the name of a handler or a function, for logs and errors. It has no arguments of a partial."""
    while isinstance(function, partial):
        function = function.func
    # Not the repr: that of a callable object may have anything.
    return str(
        getattr(function, "__qualname__", None) or getattr(function, "name", None) or type(function).__qualname__
    )
