"""Composite: a handler that users define as named steps."""

import os
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from copy import copy
from dataclasses import replace
from typing import Any, Self, TypeVar, overload

from airflow_provider_taskq.queue import InvalidArgument
from airflow_provider_taskq.queue.arguments import to_integer
from airflow_provider_taskq.worker.batches import Batch
from airflow_provider_taskq.worker.composite.engine import CompositeRun, CompositeThreads
from airflow_provider_taskq.worker.composite.steps import After, CompositeDefinition, Context, Step, StepMode
from airflow_provider_taskq.worker.handlers import Decisions

F = TypeVar("F", bound=Callable[..., Any])


class Composite:
    """A handler of named steps. A step starts when the steps that it comes `after` have ended.

        orders = Composite("orders")

        @orders.step
        def load(task: Task, batch: Batch) -> None: ...

        @orders.step(after=load)
        def check(task: Task) -> Result: ...

    Steps that do not depend on each other run at once. A step gets the tasks that all steps before it have continued.
    The decisions of all steps on a task are merged by priority. After its first batch, a composite accepts no more
    steps. It pickles its definition and options, but not its threads.

    :param threads: tasks of parallel steps that run at once; by default four more than there are processors, at most
        32.
    :param concurrency: batches that run at once in threads of the composite, so that `handle` returns a Future, and a
        thread of a worker may have several batches open. With 0, `handle` runs the batch in the calling thread.
    """

    def __init__(self, name: str, *, threads: int | None = None, concurrency: int = 0) -> None:
        to_integer(concurrency, "concurrency", 0)
        if threads is not None:
            to_integer(threads, "threads", 1)
        self._definition = CompositeDefinition(name)
        self._options = (threads, concurrency)
        self._threads: CompositeThreads | None = None
        self._open: set[Future[Decisions]] = set()
        self._lock = threading.Lock()

    @property
    def name(self) -> str:
        """The name of the composite."""
        return self._definition.name

    def open_batches(self, size: int) -> int | None:  # noqa: ARG002 -- the size makes no difference
        """Return how many batches a worker may have open; None for one in each of its threads."""
        return self._options[1] or None

    @property
    def steps(self) -> tuple[Step, ...]:
        """The steps, in the order in which they were added."""
        return self._definition.steps

    @property
    def contexts(self) -> tuple[Context, ...]:
        """The functions that the composite calls after the last step."""
        return self._definition.contexts

    @overload
    def step(self, function: F, /) -> F: ...

    @overload
    def step(
        self, /, *, name: str | None = None, after: After = (), mode: StepMode = StepMode.PARALLEL
    ) -> Callable[[F], F]: ...

    def step(
        self,
        function: F | None = None,
        /,
        *,
        name: str | None = None,
        after: After = (),
        mode: StepMode = StepMode.PARALLEL,
    ) -> F | Callable[[F], F]:
        """Add a function of one task, as a decorator: `task -> outcome`.

        If the function has a parameter `batch`, it gets the batch. It returns a Decision or a Result, or raises
        TaskResultException; None means SUCCESS. Any other exception fails its task only. A coroutine function is
        awaited, for all tasks at once if `mode` is PARALLEL.

        :param name: by default the name of the function.
        :param after: names or functions of steps that end before this one starts.
        :raises InvalidArgument: if the name is taken, a step of `after` is missing, the function has another parameter
            without a default, or the composite has started.
        """
        return self._add_step(function, name, after, mode, whole=False)

    @overload
    def batch(self, function: F, /) -> F: ...

    @overload
    def batch(self, /, *, name: str | None = None, after: After = ()) -> Callable[[F], F]: ...

    def batch(
        self, function: F | None = None, /, *, name: str | None = None, after: After = ()
    ) -> F | Callable[[F], F]:
        """Add a function of all tasks at once, as a decorator: `tasks -> outcome`.

        If the function has a parameter `batch`, it gets the batch. The function returns a mapping with a decision on
        each task, or one outcome for all tasks. It may return a coroutine or a `concurrent.futures.Future` of these. An
        exception fails all tasks. For the options see `step`.
        """
        return self._add_step(function, name, after, StepMode.SEQUENTIAL, whole=True)

    def context(self, function: Context) -> Context:
        """Add a function `(batch, decisions) -> decisions or None` that runs after the last step, as a decorator.

        The decisions that it returns, one on each task, are merged with those of the steps. An exception fails all
        tasks. The function may call `batch.in_commit` and `batch.after_commit`.
        """
        self._replace(contexts=(*self.contexts, function))
        return function

    def with_step(
        self,
        function: Callable[..., Any],
        *,
        name: str | None = None,
        after: After = (),
        mode: StepMode = StepMode.PARALLEL,
    ) -> Self:
        """Return a copy with one more step. For the parameters see `step`."""
        return self._with(lambda copied: copied.step(name=name, after=after, mode=mode)(function))

    def with_batch(self, function: Callable[..., Any], *, name: str | None = None, after: After = ()) -> Self:
        """Return a copy with one more step of all tasks at once. For the parameters see `step`."""
        return self._with(lambda copied: copied.batch(name=name, after=after)(function))

    def open(self) -> None:
        """Raise InvalidArgument if the composite has no steps."""
        if not self.steps:
            raise InvalidArgument(f"composite {self.name!r} has no steps")

    def handle(self, batch: Batch) -> Decisions | Future[Decisions]:
        """Run a batch through the steps. Return the decision on each task, or with `concurrency` a Future of them."""
        threads = self._started()
        run = CompositeRun(self._definition, batch, threads)
        if not self._options[1]:
            return run.decisions()
        future = threads.batches.submit(batch, f"composite {self.name}", run.decisions)
        self._open.add(future)
        future.add_done_callback(self._open.discard)
        return future

    def close(self) -> None:
        """Wait for the open batches. A later batch starts the composite again."""
        with self._lock:
            threads, self._threads = self._threads, None
        for future in list(self._open):
            with suppress(CancelledError):
                future.exception()  # waits
        if threads is not None:
            threads.loop.close()

    def _add_step(
        self, function: F | None, name: str | None, after: After, mode: StepMode, *, whole: bool
    ) -> F | Callable[[F], F]:
        def added(function: F) -> F:
            self._replace(steps=(*self.steps, self._definition.new_step(function, name, after, mode, whole)))
            return function

        return added if function is None else added(function)

    def _replace(self, **changes: Any) -> None:
        with self._lock:
            if self._threads is not None:
                raise InvalidArgument(f"composite {self.name!r} has started and cannot be changed")
            self._definition = replace(self._definition, **changes)

    def _with(self, add: Callable[[Self], object]) -> Self:
        copied = copy(self)  # by __getstate__ and __setstate__
        add(copied)
        return copied

    def _started(self) -> CompositeThreads:
        with self._lock:
            if self._threads is None:
                self.open()
                size, concurrency = self._options
                self._threads = CompositeThreads(self.name, concurrency, size or min(32, (os.cpu_count() or 1) + 4))
            return self._threads

    def __getstate__(self) -> tuple[CompositeDefinition, tuple[int | None, int]]:
        return self._definition, self._options

    def __setstate__(self, state: tuple[CompositeDefinition, tuple[int | None, int]]) -> None:
        self._definition, self._options = state
        self._threads, self._open, self._lock = None, set(), threading.Lock()

    def __repr__(self) -> str:
        return f"Composite({self.name!r}, steps={[step.name for step in self.steps]})"
