"""Duplicates within a batch: several tasks of one identifier, of which only the last is worth the work, or none is."""

from collections import Counter
from collections.abc import Callable, Iterable

from airflow_provider_taskq.queue import Decision, Result, Task
from airflow_provider_taskq.worker.handlers import BatchHandler, WorkHandler
from airflow_provider_taskq.worker.partial import Sieve

Judge = Callable[[Iterable[Task]], dict[Task, Decision]]


def outdated(tasks: Iterable[Task]) -> dict[Task, Decision]:
    """FILTER for all tasks of an identifier but the one that was pushed last; nothing for the others."""
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
    """FAILURE for all tasks of an identifier that there are several of; nothing for the others."""
    given = list(tasks)
    counts = Counter(task.identifier for task in given)
    return {
        task: Decision(Result.FAILURE, error=f"one of {counts[task.identifier]} tasks of its identifier in one batch")
        for task in given
        if counts[task.identifier] > 1
    }


def without(judge: Judge, handler: WorkHandler) -> BatchHandler:
    """A handler that is given a batch without those on which `outdated`, or `repeated`, has decided."""
    return Sieve(handler, judge)


def step_of(judge: Judge) -> Callable[[Iterable[Task]], dict[Task, Decision]]:
    """A step of the whole batch for a composite: `judge` decides, and the others go on."""

    def step(tasks: Iterable[Task]) -> dict[Task, Decision]:
        given = list(tasks)
        return dict.fromkeys(given, Decision(Result.SUCCESS)) | judge(given)

    step.__name__ = judge.__name__
    return step
