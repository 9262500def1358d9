"""One step, called with the tasks that enter it, and what its answers and its errors mean for each of them."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Any

from airflow_provider_taskq.queue import Decision, Result, Task
from airflow_provider_taskq.queue.encoding import json_text
from airflow_provider_taskq.queue.task_input import split_into_chunks
from airflow_provider_taskq.worker.batches import Batch, Rewrite
from airflow_provider_taskq.worker.composite.steps import Around, Context, Decisions, Step, StepMode
from airflow_provider_taskq.worker.composite.threads import Threads
from airflow_provider_taskq.worker.futures import result_of
from airflow_provider_taskq.worker.handlers import ForeignDecision, decision_of, decision_on, name_of


def invoked(
    step: Step, tasks: Sequence[Task], batch: Batch, threads: Threads, around: Sequence[Around]
) -> dict[Task, Decision]:
    """What a step decides on each of these tasks; ForeignDecision where it decides on others.

    An exception of a step of one task is the FAILURE of that task, one of a whole step or of what is around it that
    of all of them; TaskResultException is its own result. A task without a decision is FAILED.
    """
    call: Callable[[], Decisions] = partial(_whole if step.whole else _each, step, tasks, batch, threads)
    for wrapper in reversed(around):
        call = partial(wrapper, step.name, tasks, call)
    try:
        with batch.running(f"step {step.name}"):
            decided: Decisions = call()
    except Exception as error:  # noqa: BLE001 -- whatever it is, it is these tasks' failure
        decided = dict.fromkeys(tasks, decision_on(error))
    name = f"step {step.name!r}"
    if not isinstance(decided, Mapping):
        raise TypeError(f"what is around {name} returned a {type(decided).__name__}, not its decisions")
    return _completed(name, tasks, decided)


def of_context(context: Context, batch: Batch, decisions: Decisions) -> Decisions:
    """What a context adds to the decisions of the steps: nothing, or a decision for each task."""
    try:
        with batch.running(name := f"context {name_of(context)}"):
            said = context(batch, decisions)
        if said is None:
            return {}
        decided = {task: _storable(outcome) for task, outcome in said.items()}
    except Exception as error:  # noqa: BLE001 -- whatever it is, it is these tasks' failure
        return dict.fromkeys(batch.tasks, decision_on(error))
    return _completed(name, batch.tasks, decided)


def rewritten(batch: Batch, rewrites: Sequence[Rewrite]) -> Decisions:
    """Puts what follows in the order of the tasks, and rewrites what is to be pushed.

    Where that fails, or nobody could push it, the FAILURE of the task that it follows.
    """
    places = {task: place for place, task in enumerate(batch.tasks)}
    batch.follow_ups.sort(key=lambda follow_up: places[follow_up.task])  # not by which thread was faster
    batch.releases.sort(key=lambda release: places[release.task])
    failed: dict[Task, Decision] = {}
    for place, follow_up in enumerate(batch.follow_ups):
        tasks = follow_up.tasks
        try:
            for rewrite in rewrites:
                tasks = tuple(rewrite(follow_up.task, new) for new in tasks)
            for chunk in split_into_chunks(follow_up.topic, tasks):
                chunk.columns()
        except Exception as error:  # noqa: BLE001 -- whatever it is, it is this task's failure
            failed[follow_up.task] = decision_on(error)
        batch.follow_ups[place] = replace(follow_up, tasks=tasks)
    return failed


def _completed(name: str, tasks: Sequence[Task], decided: Decisions) -> dict[Task, Decision]:
    """The decisions on these tasks, FAILURE where one is missing."""
    if len(decided) == len(tasks) and all(task in decided for task in tasks):
        return dict(decided)
    known = set(tasks)
    if foreign := [str(getattr(task, "sequence", task)) for task in decided if task not in known]:
        raise ForeignDecision(f"{name} decided on what it was not given: sequence {', '.join(foreign[:10])}")
    missing = Decision(Result.FAILURE, error=f"{name} made no decision on this task")
    return {task: decided.get(task, missing) for task in tasks}


def _whole(step: Step, tasks: Sequence[Task], batch: Batch, threads: Threads) -> dict[Task, Decision]:
    """One call for all tasks; what is no mapping is the decision on each of them."""
    decided = _waited_for(step.call(tasks, batch), batch, threads)
    if not isinstance(decided, Mapping):
        return dict.fromkeys(tasks, _storable(decided))
    return {task: _storable(outcome) for task, outcome in decided.items()}


def _each(step: Step, tasks: Sequence[Task], batch: Batch, threads: Threads) -> dict[Task, Decision]:
    """A call for each task: one after another, several at once in threads, or all at once where they are awaited."""
    if inspect.iscoroutinefunction(step.function):
        return threads.awaited(_each_awaited(step, tasks, batch), batch)
    made: dict[Task, Decision] = {}

    def decide(task: Task) -> None:
        if not batch.cancelled.is_set():
            made[task] = _decision(step, task, batch, threads)

    if step.mode is StepMode.SEQUENTIAL or len(tasks) == 1:
        for task in tasks:
            decide(task)
    else:
        threads.each(decide, tasks, lambda: batch.running(f"step {step.name}"))
    return made


def _decision(step: Step, task: Task, batch: Batch, threads: Threads) -> Decision:
    """What one call decides on its task."""
    try:
        return _storable(_waited_for(step.call(task, batch), batch, threads))
    except BaseException as error:  # noqa: BLE001 -- also an exit: it is this task's failure and no other's
        return decision_on(error)


async def _each_awaited(step: Step, tasks: Sequence[Task], batch: Batch) -> dict[Task, Decision]:
    """The same for coroutines, in an event loop."""
    import asyncio

    async def decided(task: Task) -> Decision:
        try:
            return _storable(await step.call(task, batch))
        except BaseException as error:  # also an exit: it would end the event loop
            running = asyncio.current_task()
            if running is not None and running.cancelling():
                raise  # the batch was given up
            return decision_on(error)

    if step.mode is StepMode.SEQUENTIAL:
        return {task: await decided(task) for task in tasks}
    return dict(zip(tasks, await asyncio.gather(*map(decided, tasks)), strict=True))


def _storable(outcome: object) -> Decision:
    """What a function returned, as a decision; TypeError or ValueError for what is none that can be stored."""
    decision = decision_of(outcome)
    if decision.message is not None:
        json_text(decision.message)
    return decision


def _waited_for(value: Any, batch: Batch, threads: Threads) -> Any:
    """What a function will have returned: the result of a future, or of something that is awaited."""
    if isinstance(value, Future):
        return result_of(value, batch, "a step")
    return threads.awaited(value, batch) if inspect.isawaitable(value) else value
