"""Batch steps of composites that get, or continue, only some tasks of a batch."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from airflow_provider_taskq.queue import Decision, Result, Task
from airflow_provider_taskq.worker.batches import Batch
from airflow_provider_taskq.worker.handlers import HandlerFunction, HandlerOutcome


def matching(
    predicate: Callable[[Task], bool],
    function: Callable[..., Mapping[Task, HandlerOutcome] | HandlerOutcome],
    fallback: HandlerOutcome | Callable[[Task], HandlerOutcome] = Result.SUCCESS,
) -> Callable[[Sequence[Task], Batch], dict[Task, HandlerOutcome]]:
    """Return a batch step of a composite that passes the tasks for which `predicate` is true to `function`.

    :param function: a batch step: a function of the tasks, which may have a parameter `batch`.
    :param fallback: the outcome of the other tasks, or a function that returns the outcome of a task.
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
    """Return FILTER for all tasks of an identifier except the one that was pushed last, which continues."""
    given = list(tasks)
    last: dict[str, int] = {}
    for task in given:
        last[task.identifier] = max(task.sequence, last.get(task.identifier, task.sequence))
    return {
        task: Decision(Result.SUCCESS)
        if task.sequence == last[task.identifier]
        else Decision(Result.FILTER, f"outdated by task {last[task.identifier]} of the same batch")
        for task in given
    }


def repeated(tasks: Iterable[Task]) -> dict[Task, Decision]:
    """Return FAILURE for all tasks of an identifier that has several tasks in the batch. The other tasks continue."""
    given = list(tasks)
    counts = Counter(task.identifier for task in given)
    return {
        task: Decision(Result.SUCCESS)
        if counts[task.identifier] == 1
        else Decision(Result.FAILURE, error=f"one of {counts[task.identifier]} tasks of its identifier in one batch")
        for task in given
    }
