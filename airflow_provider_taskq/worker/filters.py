"""Handlers that get some tasks of a batch. The other tasks are decided by a filter or a fallback."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from airflow_provider_taskq.queue import Decision, InvalidTask, Result, Task, UnreadablePayload
from airflow_provider_taskq.worker.batches import Batch, PartialBatch, name_of
from airflow_provider_taskq.worker.handlers import BatchHandler, HandlerOutcome, WorkHandler, decision_of, handle_batch

# Decides on some tasks of a batch; the handler gets the others.
Judge = Callable[[Iterable[Task]], Mapping[Task, Decision]]


class FilteringHandler:
    """Passes the tasks on that `judge` makes no decision on."""

    def __init__(self, handler: WorkHandler, judge: Judge) -> None:
        self._handler = handler
        self._judge = judge

    def handle(self, batch: Batch) -> Mapping[Task, Decision]:
        """Returns the decisions of `judge` and of the handler."""
        judged = self._judge(batch.tasks)
        if len(judged) == len(batch.tasks):
            return judged
        part = PartialBatch(batch, (task for task in batch.tasks if task not in judged))
        return {**judged, **handle_batch(self._handler, part)}

    def close(self) -> None:
        """Closes the handler."""
        self._handler.close()

    def __repr__(self) -> str:
        return name_of(self._handler)


def partial(
    handler: WorkHandler,
    predicate: Callable[[Task], bool],
    fallback: HandlerOutcome | Callable[[Task], HandlerOutcome] = Result.SUCCESS,
) -> BatchHandler:
    """A handler that gets the tasks for which `predicate` is true.

    The other tasks get the fallback: an outcome, or a function that returns one. The handler is not called for an empty
    batch. `close` closes it.
    """

    def judge(tasks: Iterable[Task]) -> dict[Task, Decision]:
        others = [task for task in tasks if not predicate(task)]
        return {task: decision_of(fallback(task) if callable(fallback) else fallback) for task in others}

    return FilteringHandler(handler, judge)


def matching(
    predicate: Callable[[Task], bool],
    function: Callable[[Sequence[Task], Batch], Mapping[Task, HandlerOutcome] | HandlerOutcome],
    fallback: HandlerOutcome | Callable[[Task], HandlerOutcome] = Result.SUCCESS,
) -> Callable[[Sequence[Task], Batch], dict[Task, HandlerOutcome]]:
    """A batch step of a composite whose function gets the tasks for which `predicate` is true; see `partial`."""

    def step(tasks: Sequence[Task], batch: Batch) -> dict[Task, HandlerOutcome]:
        chosen = [task for task in tasks if predicate(task)]
        returned = function(chosen, batch) if chosen else {}
        decided = {task: fallback(task) if callable(fallback) else fallback for task in set(tasks).difference(chosen)}
        return {**decided, **(returned if isinstance(returned, Mapping) else dict.fromkeys(chosen, returned))}

    step.__name__ = getattr(function, "__name__", step.__name__)
    return step


def outdated(tasks: Iterable[Task]) -> dict[Task, Decision]:
    """FILTER for all tasks of an identifier but the one that was pushed last."""
    given = list(tasks)
    last: dict[str, int] = {}
    for task in given:
        last[task.identifier] = max(task.sequence, last.get(task.identifier, task.sequence))
    return {
        task: Decision(Result.FILTER, f"outdated by task {last[task.identifier]} of the same batch")
        for task in given
        if task.sequence != last[task.identifier]
    }


def repeated(tasks: Iterable[Task]) -> dict[Task, Decision]:
    """FAILURE for all tasks of an identifier that the batch has several tasks of."""
    given = list(tasks)
    counts = Counter(task.identifier for task in given)
    return {
        task: Decision(Result.FAILURE, error=f"one of {counts[task.identifier]} tasks of its identifier in one batch")
        for task in given
        if counts[task.identifier] > 1
    }


def without(judge: Judge, handler: WorkHandler) -> BatchHandler:
    """A handler that gets the tasks on which `judge`, such as `outdated` or `repeated`, makes no decision."""
    return FilteringHandler(handler, judge)


def step_of(judge: Judge) -> Callable[[Iterable[Task]], dict[Task, Decision]]:
    """A batch step of a composite that applies `judge` and continues the other tasks."""

    def step(tasks: Iterable[Task]) -> dict[Task, Decision]:
        given = list(tasks)
        return {**dict.fromkeys(given, Decision(Result.SUCCESS)), **judge(given)}

    step.__name__ = getattr(judge, "__name__", step.__name__)
    return step


def readable(handler: WorkHandler, batch: Batch) -> WorkHandler:
    """The handler, or one that fails the tasks of this batch whose payload cannot be decoded."""
    if not any(isinstance(task.payload, UnreadablePayload) for task in batch.tasks):
        return handler
    return FilteringHandler(handler, failures_of_unreadable)


def failures_of_unreadable(tasks: Iterable[Task]) -> dict[Task, Decision]:
    """FAILURE, with the reason, for each task whose payload cannot be decoded."""
    return {
        task: Decision(Result.FAILURE, error=InvalidTask(task.payload.reason))
        for task in tasks
        if isinstance(task.payload, UnreadablePayload)
    }
