"""The run of a batch through the steps of a composite: each step after its dependencies."""

import asyncio
import inspect
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial, reduce
from queue import SimpleQueue
from typing import Any, TypeAlias

from airflow_provider_taskq.queue import Decision, Result, Task
from airflow_provider_taskq.worker.batches import Batch, name_of
from airflow_provider_taskq.worker.executors import EventLoop, Threads, attempt, final, in_batch, then
from airflow_provider_taskq.worker.functions import decide_all
from airflow_provider_taskq.worker.handlers import (
    Decisions,
    HandlerFunction,
    complete_decisions,
    decide,
    decision_of,
    decision_on,
    decisions_of,
)

# Called after the last step. Its decisions are merged with those of the steps.
Context: TypeAlias = Callable[[Batch, Decisions], Mapping[Task, Decision | Result] | None]

_STEP_THREADS = 64  # for all batches; a step waits for a free thread, but never for another step
_SUCCESS = Decision(Result.SUCCESS)


class StepMode(StrEnum):
    """How a step gets its tasks: one by one, several of them at once; one after another in their order; or together."""

    PARALLEL = "PARALLEL"
    SEQUENTIAL = "SEQUENTIAL"
    BATCH = "BATCH"


@dataclass(frozen=True, slots=True)
class Step:
    """A named function of one task, or of all tasks in the mode BATCH. It runs after the steps of these names."""

    name: str
    function: HandlerFunction
    after: tuple[str, ...] = ()
    mode: StepMode = StepMode.PARALLEL

    @property
    def is_coroutine(self) -> bool:
        """Whether the function is a coroutine function."""
        return inspect.iscoroutinefunction(self.function.function)


class CompositeThreads:
    """The executors of a composite. Batches wait for steps, and steps for calls, so each has executors of its own.

    :param size: tasks of a step that run at once.
    """

    def __init__(self, name: str, concurrency: int, size: int) -> None:
        self.size = size
        self.batches = Threads(max(1, concurrency), f"taskq {name} batch")
        self.steps = Threads(_STEP_THREADS, f"taskq {name} step")
        self.calls = Threads(size, f"taskq {name} task")
        self.loop = EventLoop(f"taskq {name} loop")


@dataclass(slots=True)
class CompositeRun:
    """The run of one batch through the steps of a composite. `done` has the decisions of the steps that have ended."""

    name: str
    steps: Sequence[Step]
    contexts: Sequence[Context]
    batch: Batch
    threads: CompositeThreads
    done: dict[str, dict[Task, Decision]] = field(default_factory=dict)

    def decisions(self) -> Mapping[Task, Decision]:
        """Run all steps and contexts, and return their merged decision on each task of the batch.

        Raises InterruptedError or CancelledError if the batch is abandoned.
        """
        self._run_steps()
        if self.batch.cancelled.is_set():
            raise InterruptedError(f"a batch of composite {self.name!r} was abandoned")
        merged = {task: self._merged(task) for task in self.batch.tasks}
        added = [apply_context(context, self.batch, merged) for context in self.contexts]
        sort_follow_ups(self.batch)
        for decisions in added:
            merged |= {task: merged[task].merge(decision) for task, decision in decisions.items()}
        return merged

    def _run_steps(self) -> None:
        """Start each step when its dependencies have ended. A lone step runs in this thread."""
        left = list(self.steps)
        running: dict[Future[dict[Task, Decision]], str] = {}
        ended: SimpleQueue[Future[dict[Task, Decision]]] = SimpleQueue()

        def abandon() -> None:
            for future in list(running):
                future.cancel()

        with self.batch.running(f"composite {self.name}", cancel=abandon):
            while left or running:
                ready = [step for step in left if self.done.keys() >= set(step.after)]
                left = [step for step in left if step not in ready]
                is_alone = len(ready) == 1 and not running
                for step in ready:
                    call = StepRun(step, self._entering(step), self.batch, self.threads).decisions
                    if is_alone:
                        self.done[step.name] = in_batch(self.batch, f"step {step.name}", call)
                        continue
                    future = self.threads.steps.submit(self.batch, f"step {step.name}", call)
                    running[future] = step.name
                    future.add_done_callback(ended.put)
                if self.batch.cancelled.is_set():  # before `running` had the last Futures
                    abandon()
                if running:
                    future = ended.get()
                    self.done[running.pop(future)] = future.result()

    def _entering(self, step: Step) -> list[Task]:
        """Return the tasks that every step before this one has continued."""
        before = [self.done[name] for name in step.after]
        return [task for task in self.batch.tasks if all(task in done and done[task].continued for done in before)]

    def _merged(self, task: Task) -> Decision:
        """Merge the decisions of the steps. If two results are equal, keep the message of the later step."""
        own = [decisions[task] for step in self.steps if task in (decisions := self.done[step.name])]
        return reduce(_merge, reversed(own)) if own else _SUCCESS


@dataclass(frozen=True, slots=True)
class StepRun:
    """The run of one step with the tasks that enter it."""

    step: Step
    tasks: Sequence[Task]
    batch: Batch
    threads: CompositeThreads

    def decisions(self) -> dict[Task, Decision]:
        """Call the step, unless no task enters it, and return a decision on each task.

        An exception fails the task of the call. An exception of a batch step fails all tasks. A TaskResultException
        sets their result instead. A task without a decision fails. Raises ForeignDecision if the step decides on other
        tasks.
        """
        if not self.tasks:
            return {}
        try:
            if self.step.mode is StepMode.BATCH:
                decided = decisions_of(self._call(self.tasks), self.tasks)
            else:
                decided = self._call_each()
        except Exception as error:  # noqa: BLE001 -- any error fails these tasks
            decided = dict.fromkeys(self.tasks, decision_on(error))
        return complete_decisions(f"step {self.step.name!r}", self.tasks, decided)

    def _call_each(self) -> dict[Task, Decision]:
        """Call the step for each task: on the event loop, in this thread, or in several threads."""
        is_parallel = self.step.mode is StepMode.PARALLEL
        if self.step.is_coroutine:
            call, room = partial(self.step.function, batch=self.batch), None if is_parallel else asyncio.Semaphore(1)
            whole = partial(decide_all, self.batch, self._name, call, self.tasks, room=room)
            return dict(self._wait(self._on_loop(whole)))
        decided: dict[Task, Decision] = {}
        left = deque(self.tasks)

        def work() -> None:
            while left and not self.batch.cancelled.is_set():
                try:
                    task = left.popleft()
                except IndexError:
                    return  # another thread has taken the last task
                decided[task] = decide(attempt(partial(self._call, task)))

        count = min(self.threads.size, len(left)) if is_parallel else 1
        if count == 1:
            work()
        else:
            shares = [self.threads.calls.submit(self.batch, self._name, work) for _ in range(count)]
            self._wait(then(shares, lambda: None))
        return decided

    @property
    def _name(self) -> str:
        return f"step {self.step.name}"

    def _on_loop(self, call: Callable[[], Any]) -> Future[Any]:
        return self.threads.loop.submit(self.batch, self._name, call)

    def _call(self, argument: object) -> Any:
        """Call the function with a task or all tasks, wait for its Future or awaitable, and return the result.

        The loop calls a coroutine function itself: it does not if the batch was abandoned before, and so there is no
        coroutine that is never awaited.
        """
        call = partial(self.step.function, argument, batch=self.batch)
        value = self._on_loop(call) if self.step.is_coroutine else call()
        return self._wait(self._on_loop(lambda: value) if inspect.isawaitable(value) else value)

    def _wait(self, value: Any) -> Any:
        """Wait for a Future, and cancel it if the batch is abandoned. Return any other value as it is."""
        return final(self.batch.result_of(value, "a step"))


def apply_context(context: Context, batch: Batch, decisions: Decisions) -> Decisions:
    """Call a context with the decisions so far. Return the decisions of the context: none, or one on each task."""
    name = f"context {name_of(context)}"
    try:
        with batch.running(name):
            returned = context(batch, decisions)
        if returned is None:
            return {}
        decided = {task: decision_of(outcome) for task, outcome in returned.items()}
    except Exception as error:  # noqa: BLE001 -- any error fails these tasks
        return dict.fromkeys(batch.tasks, decision_on(error))
    return complete_decisions(name, batch.tasks, decided)


def sort_follow_ups(batch: Batch) -> None:
    """Sort follow-ups and releases in the order of the batch, since threads add them in any order."""
    places = {task: place for place, task in enumerate(batch.tasks)}
    batch.follow_ups.sort(key=lambda follow_up: places[follow_up.task])
    batch.releases.sort(key=lambda release: places[release.task])


def _merge(later: Decision, earlier: Decision) -> Decision:
    return later if later is earlier else later.merge(earlier)  # most are the same object, SUCCESS
