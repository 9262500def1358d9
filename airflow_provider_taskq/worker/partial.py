"""Part of a batch: a handler that sees only some of the tasks, as if they were all."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from airflow_provider_taskq.queue import Decision, InvalidTask, Result, Task, TaskQueue, UnreadablePayload
from airflow_provider_taskq.worker.batches import Batch, CommitFunction
from airflow_provider_taskq.worker.handlers import (
    BatchHandler,
    Outcome,
    WorkHandler,
    decision_of,
    handle_batch,
    name_of,
)


class Part(Batch):
    """Some tasks of a batch; what is pushed, registered and committed along with them is so with the batch."""

    def __init__(self, whole: Batch, tasks: Iterable[Task]) -> None:
        super().__init__(tasks, whole._rewrite)  # noqa: SLF001 -- of the same class
        self._whole = whole
        self.cancelled = whole.cancelled
        self.follow_ups = whole.follow_ups
        self.releases = whole.releases
        self.afterwards = whole.afterwards
        self._supplement = whole._supplement  # noqa: SLF001 -- of the same class

    def in_commit(
        self,
        participant: CommitFunction,
        task: Task | None = None,
        success_on: type[BaseException] | tuple[type[BaseException], ...] = (),
    ) -> None:
        """Lets a function take part that sees, and decides on, the tasks of this part only, or one of them."""
        if task is not None:
            self._check(task)
            self._whole.in_commit(participant, task, success_on)
            return

        def of_part(queue: TaskQueue, decisions: Mapping[Task, Decision]) -> Mapping[Task, Decision] | None:
            said = participant(queue, {task: decisions[task] for task in self.tasks})
            return (
                None if said is None else {**{task: decisions[task] for task in decisions if task not in self}, **said}
            )

        of_part.__qualname__ = name_of(participant)
        self._whole.in_commit(of_part, None, success_on)

    @contextmanager
    def running(
        self, what: str, stack: Callable[[], str] | None = None, cancel: Callable[[], None] | None = None
    ) -> Iterator[None]:
        """Tells it of the batch."""
        with self._whole.running(what, stack, cancel):
            yield


def partial(
    handler: WorkHandler,
    predicate: Callable[[Task], bool],
    fallback: Outcome | Callable[[Task], Outcome] = Result.SUCCESS,
) -> BatchHandler:
    """A handler for the tasks that a predicate is true of; the others get the fallback, a decision or a function.

    The handler is not called where no task is left. `close` closes it.
    """

    def judge(tasks: Iterable[Task]) -> dict[Task, Decision]:
        others = [task for task in tasks if not predicate(task)]
        return {task: decision_of(fallback(task) if callable(fallback) else fallback) for task in others}

    return Sieve(handler, judge)


def matching(
    predicate: Callable[[Task], bool],
    function: Callable[[Sequence[Task], Batch], Mapping[Task, Outcome] | Outcome],
    fallback: Outcome | Callable[[Task], Outcome] = Result.SUCCESS,
) -> Callable[[Sequence[Task], Batch], dict[Task, Outcome]]:
    """A step of the whole batch for a composite that calls a function with the tasks that a predicate is true of."""

    def step(tasks: Sequence[Task], batch: Batch) -> dict[Task, Outcome]:
        chosen = [task for task in tasks if predicate(task)]
        said = function(chosen, batch) if chosen else {}
        decided = {task: fallback(task) if callable(fallback) else fallback for task in set(tasks).difference(chosen)}
        return {**decided, **(said if isinstance(said, Mapping) else dict.fromkeys(chosen, said))}

    step.__name__ = getattr(function, "__name__", step.__name__)
    return step


def readable(handler: WorkHandler, batch: Batch) -> WorkHandler:
    """The handler, or a handler that fails the tasks of this batch whose payload cannot be decoded.

    Such a task fails with the reason before the handler sees it; the handler gets the other tasks of the batch.
    """
    if not any(isinstance(task.payload, UnreadablePayload) for task in batch.tasks):
        return handler
    return Sieve(handler, failures_of_unreadable)


def failures_of_unreadable(tasks: Iterable[Task]) -> dict[Task, Decision]:
    """A FAILURE, with the reason, for each task whose payload cannot be decoded; no decision for the others."""
    return {
        task: Decision(Result.FAILURE, error=InvalidTask(task.payload.reason))
        for task in tasks
        if isinstance(task.payload, UnreadablePayload)
    }


class Sieve:
    """A handler for the tasks that are not judged beforehand."""

    def __init__(self, handler: WorkHandler, judge: Callable[[Iterable[Task]], Mapping[Task, Decision]]) -> None:
        self._handler = handler
        self._judge = judge

    def handle(self, batch: Batch) -> Mapping[Task, Decision]:
        """Judges the batch, and hands on what is left of it."""
        judged = self._judge(batch.tasks)
        if len(judged) == len(batch.tasks):
            return judged
        part = Part(batch, (task for task in batch.tasks if task not in judged))
        return {**judged, **handle_batch(self._handler, part)}

    def close(self) -> None:
        """Closes the handler."""
        self._handler.close()

    def __repr__(self) -> str:
        return name_of(self._handler)
