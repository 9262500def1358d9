"""One batch of tasks at work: what its handler shares, pushes and commits along with its decisions."""

import sys
import threading
import traceback
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from airflow_provider_taskq.queue import Decision, Insertion, InvalidTask, Junction, NewTask, Task, TaskQueue
from airflow_provider_taskq.queue.task_input import TaskInput, to_new_tasks
from airflow_provider_taskq.worker.supplement import Supplement

T = TypeVar("T")

# Takes part in the committing transaction, through the queue's connection; its decisions are merged with those given.
CommitFunction = Callable[[TaskQueue, Mapping[Task, Decision]], Mapping[Task, Decision] | None]
# What becomes of a follow-up before it is pushed: gets the task that it follows.
Rewrite = Callable[[Task, NewTask], NewTask]


@dataclass(frozen=True, slots=True)
class FollowUp:
    """New tasks that follow a task, pushed where it is continued."""

    task: Task
    topic: str
    tasks: tuple[NewTask, ...]
    insertion: Insertion


@dataclass(frozen=True, slots=True)
class Release:
    """Groups of identifiers that are released where a task is continued, after all pushes."""

    task: Task
    topic: str
    groups: tuple[tuple[str, ...], ...]
    junction: Junction


@dataclass(frozen=True, slots=True)
class CommitHook:
    """Somebody who takes part in the committing transaction, for one task or for all of the batch (None)."""

    call: CommitFunction
    task: Task | None = None
    success_on: type[BaseException] | tuple[type[BaseException], ...] = ()


@dataclass(frozen=True, slots=True)
class Running:
    """Something that runs for a batch now: where it stands, and how to end it, where that can be done."""

    what: str
    stack: Callable[[], str]
    cancel: Callable[[], None] | None


class Batch:
    """A batch of tasks, in polled order. All of it may be used from any thread, until the handler has decided."""

    def __init__(self, tasks: Iterable[Task], rewrite: Rewrite | None = None) -> None:
        self.tasks: Sequence[Task] = tuple(tasks)
        self.cancelled = threading.Event()  # set when nothing that this batch decides will count any more
        self.follow_ups: list[FollowUp] = []
        self.releases: list[Release] = []
        self.participants: list[CommitHook] = []
        self.afterwards: list[Callable[[], None]] = []
        self._known = frozenset(self.tasks)
        self._rewrite = rewrite
        self._supplement = Supplement()
        self._running: dict[int, Running] = {}
        self._lock = threading.Lock()

    def __contains__(self, task: object) -> bool:
        """Whether a task belongs to this batch."""
        return task in self._known

    def push(
        self, task: Task, topic: str, tasks: Iterable[TaskInput], insertion: Insertion | str = Insertion.APPEND
    ) -> None:
        """Lets new tasks follow a task: pushed in the transaction that completes it, if it is continued then.

        `tasks` are identifiers, dicts or NewTasks, as of `TaskQueue.push`.
        """
        self._check(task)
        new = tuple(to_new_tasks(topic, tasks))
        self._follow(FollowUp(task, topic, new, Insertion(insertion)))

    def junction(
        self, task: Task, topic: str, groups: Iterable[Iterable[str]], junction: Junction | str = Junction.SINGULAR
    ) -> None:
        """Lets groups be released with a task, as `TaskQueue.junction` does, if the task is continued."""
        self._check(task)
        given = list(groups)
        if any(isinstance(group, str) for group in given):
            raise InvalidTask("a group is a list of identifiers, not a text")
        self.releases.append(Release(task, topic, tuple(tuple(group) for group in given), Junction(junction)))

    def in_commit(
        self,
        participant: CommitFunction,
        task: Task | None = None,
        success_on: type[BaseException] | tuple[type[BaseException], ...] = (),
    ) -> None:
        """Lets a function take part in the transaction that completes the batch: `participant(queue, decisions)`.

        What it writes through `queue.conn` is committed with the decisions, or not at all. It sees what was decided
        so far: on all tasks of the batch, or on the one task that it is for. A mapping that it returns has to name
        each of these, and is merged by priority; None leaves all as it is. Where it raises, what it wrote is undone
        and its tasks are FAILED. Effects that belong together belong into one function. An exception of `success_on`,
        such as `psycopg.errors.UniqueViolation`, leaves the decisions as they are: what it wrote is undone, too.
        """
        if task is not None:
            self._check(task)
        self.participants.append(CommitHook(participant, task, success_on))

    def after_commit(self, call: Callable[[], None]) -> None:
        """Calls a function once the batch is committed, and only then."""
        self.afterwards.append(call)

    def register(self, kind: type[T], value: T, task: Task | None = None, qualifier: Hashable = None) -> None:
        """Keeps a value for later steps, of a task or of the batch; SupplementError where there is one already."""
        self._supplement.register(kind, value, task, qualifier)

    def require(self, kind: type[T], task: Task | None = None, qualifier: Hashable = None) -> T:
        """A value that was kept; SupplementError where there is none."""
        return self._supplement.require(kind, task, qualifier)

    def probe(self, kind: type[T], task: Task | None = None, qualifier: Hashable = None) -> T | None:
        """A value that was kept, or None."""
        return self._supplement.probe(kind, task, qualifier)

    def suggest(self, kind: type[T], make: Callable[[], T], task: Task | None = None, qualifier: Hashable = None) -> T:
        """A value that was kept, made now where there is none: once, whoever asks."""
        return self._supplement.suggest(kind, make, task, qualifier)

    @contextmanager
    def running(
        self, what: str, stack: Callable[[], str] | None = None, cancel: Callable[[], None] | None = None
    ) -> Iterator[None]:
        """Tells, for as long as the block runs, where the batch is: in this thread, unless `stack` says where.

        A worker reports it where the batch takes too long, and calls `cancel` where it gives the batch up. A handler
        that brings threads of its own says so by this; the thread that handles the batch is known.
        """
        place = Running(what, stack or stack_of(threading.get_ident()), cancel)
        with self._lock:
            self._running[id(place)] = place
        try:
            yield
        finally:
            with self._lock:
                del self._running[id(place)]

    def whereabouts(self) -> list[Running]:
        """What runs for this batch now."""
        with self._lock:
            return list(self._running.values())

    def cancel(self) -> None:
        """Gives the batch up: what it decides counts no more. Ends what can be ended, and tells the rest."""
        self.cancelled.set()
        for each in self.whereabouts():
            if each.cancel is not None:
                each.cancel()

    def adopt(self, done: "Batch", task: Task) -> None:
        """Takes over what follows a task of this batch that was handled as a batch of its own, elsewhere."""
        for follow_up in done.follow_ups:
            self._follow(follow_up)
        self.releases += done.releases
        self.participants += [replace(each, task=task) for each in done.participants]
        self.afterwards += done.afterwards

    def _follow(self, follow_up: FollowUp) -> None:
        """Keeps new tasks, as they are to be pushed."""
        if self._rewrite is not None:
            new = tuple(self._rewrite(follow_up.task, each) for each in follow_up.tasks)
            follow_up = replace(follow_up, tasks=new)
        self.follow_ups.append(follow_up)

    def __getstate__(self) -> dict[str, Any]:
        """What crosses to another process: the tasks and what follows them, no supplement."""
        kept = ("tasks", "follow_ups", "releases", "participants", "afterwards")
        return {name: getattr(self, name) for name in kept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Makes the batch anew in this process."""
        self.__init__(state["tasks"])  # type: ignore[misc]  # all that does not cross begins empty
        self.__dict__.update(state)

    def _check(self, task: Task) -> None:
        """Refuses what should follow a task of another batch."""
        if task not in self._known:
            raise InvalidTask(f"task {task.sequence} of topic {task.topic!r} is none of this batch")


def stack_of(thread: int) -> Callable[[], str]:
    """Tells where a thread stands, whenever it is asked."""

    def stack() -> str:
        frame = sys._current_frames().get(thread)  # noqa: SLF001 -- the one way to see where another thread stands
        return "".join(traceback.format_stack(frame)) if frame else "(ended)\n"

    return stack


def tagged(task: Task, new: NewTask) -> NewTask:
    """A rewrite of follow-ups: each refers to the task that it follows, by its sequence."""
    return replace(new, reference=str(task.sequence))
