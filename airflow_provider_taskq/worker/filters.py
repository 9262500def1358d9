"""Handlers of some tasks of a batch. A filter or a fallback decides on the others."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from airflow_provider_taskq.queue import Decision, InvalidTask, Result, Task, UnreadablePayload
from airflow_provider_taskq.worker.batches import Batch, name_of
from airflow_provider_taskq.worker.handlers import BatchHandler, HandlerOutcome, WorkHandler, decision_of, handle_batch
from airflow_provider_taskq.worker.parameters import HandlerFunction

# Decides on some tasks of a batch. The handler gets the others.
Judge = Callable[[Iterable[Task]], Mapping[Task, Decision]]


class FilteringHandler:
    """Lets `judge` decide first, and passes the other tasks to a handler."""

    def __init__(self, handler: WorkHandler, judge: Judge) -> None:
        self._handler = handler
        self._judge = judge

    def handle(self, batch: Batch) -> Mapping[Task, Decision]:
        """Return the decisions of `judge` and of the handler."""
        judged = self._judge(batch.tasks)
        if len(judged) == len(batch.tasks):
            return judged
        part = batch.part(task for task in batch.tasks if task not in judged)
        return {**judged, **handle_batch(self._handler, part)}

    def close(self) -> None:
        """Close the handler."""
        self._handler.close()

    @property
    def name(self) -> str:
        """The name of the handler, for logs and errors."""
        return name_of(self._handler)


def partial(
    handler: WorkHandler,
    predicate: Callable[[Task], bool],
    fallback: HandlerOutcome | Callable[[Task], HandlerOutcome] = Result.SUCCESS,
) -> BatchHandler:
    """Return a handler that passes the tasks for which `predicate` is true to `handler`.

    :param fallback: the outcome of the other tasks, or a function that returns the outcome of a task.
    """

    def judge(tasks: Iterable[Task]) -> dict[Task, Decision]:
        others = [task for task in tasks if not predicate(task)]
        return {task: decision_of(fallback(task) if callable(fallback) else fallback) for task in others}

    return FilteringHandler(handler, judge)


def matching(
    predicate: Callable[[Task], bool],
    function: Callable[..., Mapping[Task, HandlerOutcome] | HandlerOutcome],
    fallback: HandlerOutcome | Callable[[Task], HandlerOutcome] = Result.SUCCESS,
) -> Callable[[Sequence[Task], Batch], dict[Task, HandlerOutcome]]:
    """Return a batch step of a composite that passes the tasks for which `predicate` is true to `function`.

    :param function: a batch step: a function of the tasks, which may have a parameter `batch`.
    :param fallback: see `partial`.
    """
    called = HandlerFunction.of(function, "a composite", ("batch",), "the tasks")

    def step(tasks: Sequence[Task], batch: Batch) -> dict[Task, HandlerOutcome]:
        chosen = [task for task in tasks if predicate(task)]
        returned = called(chosen, batch=batch) if chosen else {}
        decided = {task: fallback(task) if callable(fallback) else fallback for task in set(tasks).difference(chosen)}
        return {**decided, **(returned if isinstance(returned, Mapping) else dict.fromkeys(chosen, returned))}

    step.__name__ = getattr(function, "__name__", step.__name__)
    return step


def outdated(tasks: Iterable[Task]) -> dict[Task, Decision]:
    """Return FILTER for all tasks of an identifier except the one that was pushed last."""
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
    """Return FAILURE for all tasks of an identifier that has several tasks in the batch."""
    given = list(tasks)
    counts = Counter(task.identifier for task in given)
    return {
        task: Decision(Result.FAILURE, error=f"one of {counts[task.identifier]} tasks of its identifier in one batch")
        for task in given
        if counts[task.identifier] > 1
    }


def without(judge: Judge, handler: WorkHandler) -> BatchHandler:
    """Return a handler that lets `judge`, such as `outdated`, decide first. `handler` gets the other tasks."""
    return FilteringHandler(handler, judge)


def step_of(judge: Judge) -> Callable[[Iterable[Task]], dict[Task, Decision]]:
    """Return a batch step of a composite that applies `judge` and continues the other tasks."""

    def step(tasks: Iterable[Task]) -> dict[Task, Decision]:
        given = list(tasks)
        return {**dict.fromkeys(given, Decision(Result.SUCCESS)), **judge(given)}

    step.__name__ = getattr(judge, "__name__", step.__name__)
    return step


def readable(handler: WorkHandler, batch: Batch) -> WorkHandler:
    """Return the handler itself if all payloads of the batch can be decoded.

    Otherwise return a handler that fails the tasks whose payload cannot be decoded, and passes on the others.
    """
    if not any(isinstance(task.payload, UnreadablePayload) for task in batch.tasks):
        return handler
    return FilteringHandler(handler, failures_of_unreadable)


def failures_of_unreadable(tasks: Iterable[Task]) -> dict[Task, Decision]:
    """Return FAILURE, with the reason, for each task whose payload cannot be decoded."""
    return {
        task: Decision(Result.FAILURE, error=InvalidTask(task.payload.reason))
        for task in tasks
        if isinstance(task.payload, UnreadablePayload)
    }
