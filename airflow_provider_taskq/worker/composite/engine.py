"""Runs the batches of a composite in this process: each step after its dependencies."""

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import reduce
from typing import TypeAlias

from airflow_provider_taskq.queue import Decision, Result, Task, TaskQueueError
from airflow_provider_taskq.worker.batches import Batch
from airflow_provider_taskq.worker.composite.steps import (
    CompositeDefinition,
    Step,
    apply_context,
    apply_rewrites,
    run_step,
)
from airflow_provider_taskq.worker.composite.threads import CompositeThreads

BatchFuture: TypeAlias = Future[Mapping[Task, Decision]]

_SUCCESS = Decision(Result.SUCCESS)


class CompositeClosed(TaskQueueError):
    """The composite was closed before it could finish a batch."""


class CompositeEngine:
    """Runs the batches of a composite until it is closed."""

    def __init__(
        self,
        definition: CompositeDefinition,
        threads: int | None,
        concurrency: int,
        fail_pending: bool,
        executor: Executor | None,
    ) -> None:
        self._definition = definition
        self._threads = CompositeThreads(definition.name, threads, executor)
        self._concurrency = concurrency
        self._fail_pending = fail_pending
        self._in_flight: set[BatchFuture] = set()
        self._completing: list[int] = []  # idents of the threads that complete a future now
        self._changed = threading.Condition()
        self._closed = False

    def submit(self, batch: Batch) -> BatchFuture:
        """Start a batch and return a Future of its decisions. Wait while `concurrency` batches are in flight."""
        future: BatchFuture = Future()
        with self._changed:
            while self._concurrency and len(self._in_flight) >= self._concurrency and not self._closed:
                self._changed.wait()
            if self._closed:
                raise self._closed_error()
            self._in_flight.add(future)
        if not self._concurrency and not self._fail_pending:
            self._run(batch, future)
            return future
        name = f"taskq {self._definition.name} batch"
        thread = threading.Thread(target=copy_context().run, args=(self._run, batch, future), name=name, daemon=True)
        thread.start()
        if not self._concurrency:
            future.exception()  # waits for the batch
        return future

    def close(self) -> None:
        """Wait for the batches in flight, or fail them with CompositeClosed. Then end the threads."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            if self._fail_pending:
                pending, self._in_flight = self._in_flight, set()
            else:
                pending = set()
                self._changed.wait_for(lambda: not self._in_flight)
        for future in pending:
            future.set_exception(self._closed_error())
        with self._changed:
            # A callback of a future may close the composite in this thread, which must not wait for itself.
            self._changed.wait_for(lambda: set(self._completing) <= {threading.get_ident()})
        self._threads.close()

    def _run(self, batch: Batch, future: BatchFuture) -> None:
        def stopped() -> bool:
            return future.done() or batch.cancelled.is_set()

        def abandon() -> None:
            self._end(future, InterruptedError(f"a batch of composite {self._definition.name!r} was abandoned"))

        outcome: Mapping[Task, Decision] | BaseException
        try:
            with batch.running(f"composite {self._definition.name}", cancel=abandon):
                outcome = CompositeRun(self._definition, batch, self._threads, stopped).decisions()
        except BaseException as error:  # noqa: BLE001 -- Future.result() raises it
            outcome = error
        self._end(future, outcome)

    def _end(self, future: BatchFuture, outcome: Mapping[Task, Decision] | BaseException) -> None:
        """Make room for another batch and complete the future. Do nothing if the batch has ended before."""
        with self._changed:
            if future not in self._in_flight:
                return
            self._in_flight.remove(future)
            self._completing.append(threading.get_ident())
            self._changed.notify_all()
        try:
            if isinstance(outcome, BaseException):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)
        finally:
            with self._changed:
                self._completing.remove(threading.get_ident())
                self._changed.notify_all()

    def _closed_error(self) -> CompositeClosed:
        return CompositeClosed(f"composite {self._definition.name!r} was closed")


@dataclass(slots=True)
class CompositeRun:
    """The run of one batch through the steps. `done` has the decisions of the steps that have ended."""

    definition: CompositeDefinition
    batch: Batch
    threads: CompositeThreads
    stopped: Callable[[], bool]
    done: dict[str, dict[Task, Decision]] = field(default_factory=dict)

    def decisions(self) -> Mapping[Task, Decision]:
        """Run all steps and contexts, and return their merged decision on each task of the batch."""
        self._run_steps()
        merged = {task: self._merged(task) for task in self.batch.tasks}
        added = [apply_context(context, self.batch, merged) for context in self.definition.contexts]
        added.append(apply_rewrites(self.batch, self.definition.rewrites))
        for decisions in added:
            merged |= {task: merged[task].merge(decision) for task, decision in decisions.items()}
        return merged

    def _run_steps(self) -> None:
        """Start each step when its dependencies have ended.

        A lone step runs in this thread, unless the user has an executor.
        """
        left = {step.name: step for step in self.definition.steps}
        running: dict[Future[dict[Task, Decision]], str] = {}
        while left or running:
            ready = self._take_ready(left)
            if len(ready) == 1 and not running and self.threads.is_own:
                ((step, tasks),) = ready
                self.done[step.name] = self._run_step(step, tasks)
                continue
            running |= {self.threads.start(self._run_step, step, tasks): step.name for step, tasks in ready}
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                self.done[running.pop(future)] = future.result()

    def _take_ready(self, left: dict[str, Step]) -> list[tuple[Step, list[Task]]]:
        """Remove the steps that can start from `left`. Return them with their tasks; end steps without tasks."""
        ready: list[tuple[Step, list[Task]]] = []
        for step in list(left.values()):  # in order of definition, since a step without tasks makes later ones ready
            if all(name in self.done for name in step.after):
                del left[step.name]
                if tasks := self._entering(step):
                    ready.append((step, tasks))
                else:
                    self.done[step.name] = {}
        return ready

    def _entering(self, step: Step) -> list[Task]:
        """Return the tasks that every step before this one has continued."""
        before = [self.done[name] for name in step.after]

        def continued(task: Task) -> bool:
            return all((decision := decisions.get(task)) is not None and decision.continued for decisions in before)

        return [task for task in self.batch.tasks if continued(task)]

    def _run_step(self, step: Step, tasks: list[Task]) -> dict[Task, Decision]:
        if self.stopped():
            raise InterruptedError(f"composite {self.definition.name!r} was closed before its step {step.name!r}")
        return run_step(step, tasks, self.batch, self.threads, self.definition.around)

    def _merged(self, task: Task) -> Decision:
        """Merge the decisions of the steps. If two results are equal, keep the message of the later step."""
        own = [decisions[task] for step in self.definition.steps if task in (decisions := self.done[step.name])]
        return reduce(_merge, reversed(own)) if own else _SUCCESS


def _merge(later: Decision, earlier: Decision) -> Decision:
    return later if later is earlier else later.merge(earlier)  # most are the same object, SUCCESS
