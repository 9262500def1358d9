"""The composite as its user sees it: steps are added by decorators, or by methods that return another composite."""

import os
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, ProcessPoolExecutor
from typing import Any, Self, TypeVar, overload

from airflow_provider_taskq.queue import Decision, InvalidArgument, Task
from airflow_provider_taskq.worker.batches import Batch, Rewrite
from airflow_provider_taskq.worker.composite.engine import Engine, Landing
from airflow_provider_taskq.worker.composite.steps import After, Around, Context, Definition, Step, StepMode

F = TypeVar("F", bound=Callable[..., Any])


class Composite:
    """A handler made of named steps, each of which begins when those that it comes `after` are done.

        orders = Composite("orders")

        @orders.step
        def load(task: Task, work: Work) -> None: ...

        @orders.step(after=load)
        def check(task: Task) -> Result: ...

    Steps that do not come after one another run at once. A step gets the tasks that all steps before it have
    continued; the decisions of all steps that saw a task are merged by priority. `threads` is how many tasks of
    parallel steps run at once (None: four more than there are processors, 32 at most). `concurrency` is how many
    batches may be in flight that were handed in by `submit`; 0: that one only, and `submit` waits for it. `close` waits
    for these, or fails them with `fail_pending`. A composite that has begun to run takes no more steps. It pickles, as
    its definition: what runs stays where it is.

    `executor`: an executor of threads, such as a ThreadPoolExecutor, that calls the functions of all steps, except
    coroutines, which are awaited on an event loop. The caller shuts it down after `close`. `threads` None then means as
    many tasks at once as it has threads. A pickled composite leaves the executor out, and uses threads of its own.
    """

    def __init__(
        self,
        name: str,
        *,
        threads: int | None = None,
        concurrency: int = 0,
        fail_pending: bool = False,
        executor: Executor | None = None,
    ) -> None:
        if concurrency < 0 or (threads is not None and threads < 1):
            raise InvalidArgument(
                f"composite {name!r} needs one thread at least, and a concurrency that is not negative"
            )
        self._definition = Definition(name)
        if isinstance(executor, ProcessPoolExecutor):
            raise TypeError(
                f"composite {name!r}: a ProcessPoolExecutor cannot share the batch; use a ThreadPoolExecutor"
            )
        self._options = (threads, concurrency, fail_pending)
        self._executor = executor
        self._engine: Engine | None = None
        self._lock = threading.Lock()

    @property
    def name(self) -> str:
        """What it is called."""
        return self._definition.name

    @property
    def steps(self) -> tuple[Step, ...]:
        """Its steps, in the order in which they were added."""
        return self._definition.steps

    @property
    def contexts(self) -> tuple[Context, ...]:
        """What comes after the last step."""
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
        """Adds a function of one task, as a decorator: `task -> outcome`, or `(task, work) -> outcome`.

        A Decision or a Result is returned, or raised (TaskResultException); None is SUCCESS, any other exception
        FAILURE, of that task alone. Coroutine functions are awaited, those of all tasks at once if PARALLEL.
        """
        return self._adding(function, name, after, mode, whole=False)

    @overload
    def batch(self, function: F, /) -> F: ...

    @overload
    def batch(self, /, *, name: str | None = None, after: After = ()) -> Callable[[F], F]: ...

    def batch(
        self, function: F | None = None, /, *, name: str | None = None, after: After = ()
    ) -> F | Callable[[F], F]:
        """Adds a function of all tasks that enter, as a decorator: `tasks -> outcome`, or `(tasks, work) -> outcome`.

        It returns a mapping with a decision for each of them, or one outcome for all; a coroutine or a
        `concurrent.futures.Future` is waited for. What it raises is the end of all of them.
        """
        return self._adding(function, name, after, StepMode.SEQUENTIAL, whole=True)

    def context(self, function: Context) -> Context:
        """Adds a function `(work, decisions) -> decisions or None` that is called after the last step, as a decorator.

        It may add decisions, one for each task, which are merged with those of the steps, and take part in the
        committing transaction through `work.in_commit` and `work.after_commit`. Where it fails all tasks are FAILED.
        """
        self._replace(self._definition.with_context(function))
        return function

    def around(self, function: Around) -> Around:
        """Adds a function `(step, tasks, proceed) -> decisions` that is called around each step, as a decorator.

        `proceed()` runs the step and returns its decisions. The first that was added is the outermost.
        """
        self._replace(self._definition.with_around(function))
        return function

    def rewrite(self, function: Rewrite) -> Rewrite:
        """Adds a function `(task, new task) -> new task` that sees what steps push, as a decorator."""
        self._replace(self._definition.with_rewrite(function))
        return function

    def with_step(
        self,
        function: Callable[..., Any],
        *,
        name: str | None = None,
        after: After = (),
        mode: StepMode = StepMode.PARALLEL,
    ) -> Self:
        """This composite with a step more; itself it stays as it is."""
        return self._with(self._definition.with_step(function, name, after, mode, whole=False))

    def with_batch(self, function: Callable[..., Any], *, name: str | None = None, after: After = ()) -> Self:
        """This composite with a step of the whole batch more."""
        return self._with(self._definition.with_step(function, name, after, StepMode.SEQUENTIAL, whole=True))

    def with_context(self, function: Context) -> Self:
        """This composite with a context more."""
        return self._with(self._definition.with_context(function))

    def with_around(self, function: Around) -> Self:
        """This composite with something more around each of its steps."""
        return self._with(self._definition.with_around(function))

    def with_rewrite(self, function: Rewrite) -> Self:
        """This composite with a function more that sees what is pushed."""
        return self._with(self._definition.with_rewrite(function))

    def handle(self, batch: Batch) -> Mapping[Task, Decision]:
        """Runs a batch through the steps, and returns the decision on each of its tasks."""
        return self.submit(batch).result()

    def submit(self, batch: Batch) -> Landing:
        """Sends a batch on its way, and returns its decisions to come; waits while `concurrency` are in flight."""
        return self._started().submit(batch)

    def close(self) -> None:
        """Waits for the batches in flight, or fails them with CompositeClosed; the next batch begins anew."""
        with self._lock:
            engine, self._engine = self._engine, None
        if engine is not None:
            engine.close()

    def _adding(
        self, function: F | None, name: str | None, after: After, mode: StepMode, *, whole: bool
    ) -> F | Callable[[F], F]:
        """The decorator, or what it makes of a function: the function itself."""

        def added(function: F) -> F:
            self._replace(self._definition.with_step(function, name, after, mode, whole=whole))
            return function

        return added if function is None else added(function)

    def _replace(self, definition: Definition) -> None:
        with self._lock:
            if self._engine is not None:
                raise InvalidArgument(f"composite {self.name!r} runs already, and cannot be changed")
            self._definition = definition

    def _with(self, definition: Definition) -> Self:
        other = type(self).__new__(type(self))
        other.__setstate__((definition, self._options))
        other._executor = self._executor  # noqa: SLF001 -- of the same class
        return other

    def _started(self) -> Engine:
        """What runs it in this process, made for the first batch."""
        with self._lock:
            if self._engine is None:
                if not self.steps:
                    raise InvalidArgument(f"composite {self.name!r} has no steps")
                threads, concurrency, fail_pending = self._options
                if self._executor is None:
                    threads = threads or min(32, (os.cpu_count() or 1) + 4)
                self._engine = Engine(self._definition, threads, concurrency, fail_pending, self._executor)
            return self._engine

    def __getstate__(self) -> tuple[Definition, tuple[int | None, int, bool]]:
        return self._definition, self._options

    def __setstate__(self, state: tuple[Definition, tuple[int | None, int, bool]]) -> None:
        self._definition, self._options = state
        self._engine, self._executor, self._lock = None, None, threading.Lock()

    def __repr__(self) -> str:
        return f"Composite({self.name!r}, steps={[step.name for step in self.steps]})"
