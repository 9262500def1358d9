"""The threads of a composite: for its steps, for the tasks of a step, and one for coroutines."""

import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import Executor, Future
from contextlib import AbstractContextManager
from contextvars import copy_context
from typing import Any, Generic, TypeVar

from airflow_provider_taskq.worker.batches import Batch
from airflow_provider_taskq.worker.threads import EventLoopThread, ThreadPool

T = TypeVar("T")

_STEP_THREADS = 64  # for all batches; a step waits for a free thread, but never for another step


class CompositeThreads:
    """The threads of a composite, which start when calls need them. Calls see the context variables of their caller.

    :param size: tasks of steps that run at once; None for as many as the executor has free threads.
    :param executor: an executor of the user, which replaces the threads of steps and tasks. One thread of it is enough,
        because no call of a composite waits for another one in it.
    """

    def __init__(self, name: str, size: int | None, executor: Executor | None = None) -> None:
        self._size = size
        self.is_own = executor is None
        self._steps: ThreadPool | _ExecutorPool
        self._tasks: ThreadPool | _ExecutorPool
        if executor is not None:
            self._steps = self._tasks = _ExecutorPool(executor)
        else:
            self._steps = ThreadPool(_STEP_THREADS, f"taskq {name} step")
            self._tasks = ThreadPool(max(1, (size or 1) - 1), f"taskq {name} task")
        self._loop = EventLoopThread(f"taskq {name} loop")

    def start(self, function: Callable[..., T], *arguments: Any) -> Future[T]:
        """Start a step in another thread. Return a Future of its result."""
        return self._steps.submit(function, *arguments)

    def each(
        self, function: Callable[[T], None], items: Iterable[T], within: Callable[[], AbstractContextManager[None]]
    ) -> None:
        """Call a function for each item, in this thread and in others, and return when all calls have ended.

        The calls in other threads run within `within()`. Raises the first error of a call.
        """
        # This thread handles items too, so the calls make progress even if all other threads are busy.
        shared = _SharedItems(function, items)

        def work_along() -> None:
            with within():
                shared.work()

        count = len(shared.left)
        for _ in range(min(self._size or count, count) - 1):
            self._tasks.submit(work_along)
        shared.finish()

    def run_awaitable(self, awaitable: Awaitable[T], batch: Batch) -> T:
        """Await an awaitable on the event loop of the composite, and return the result.

        See `EventLoopThread.run`.
        """
        return self._loop.run(awaitable, batch, "a coroutine on the event loop")

    def close(self) -> None:
        """End the threads. Do not wait for a stuck thread."""
        self._steps.close()
        self._tasks.close()
        self._loop.close()


class _ExecutorPool:
    """The interface of ThreadPool over an executor of the user."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    def submit(self, call: Callable[..., T], *arguments: Any) -> Future[T]:
        future: Future[T] = Future()

        def copy_outcome(ended: Future[T]) -> None:
            # concurrent.futures.wait() never returns for a Future that shutdown(cancel_futures=True) has cancelled.
            try:
                result = ended.result()
            except BaseException as error:  # noqa: BLE001 -- Future.result() raises it
                future.set_exception(error)
            else:
                future.set_result(result)

        self._executor.submit(copy_context().run, call, *arguments).add_done_callback(copy_outcome)
        return future

    def close(self) -> None:
        """Do nothing: the user shuts the executor down."""


class _SharedItems(Generic[T]):
    """Items that several threads handle. `finish` does not wait for a thread that has taken no item."""

    def __init__(self, function: Callable[[T], None], items: Iterable[T]) -> None:
        self.left = deque(items)
        self._function = function
        self._busy = 0
        self._changed = threading.Condition()
        self._errors: list[BaseException] = []

    def work(self) -> None:
        """Handle items until none is left. An error drops the items that no thread has taken."""
        while True:
            with self._changed:
                if not self.left:
                    return
                item = self.left.popleft()
                self._busy += 1
            try:
                self._function(item)
            except BaseException as error:  # noqa: BLE001 -- `finish` raises it
                self._errors.append(error)
                self.left.clear()
            finally:
                with self._changed:
                    self._busy -= 1
                    self._changed.notify_all()

    def finish(self) -> None:
        """Handle items in this thread too, wait for the other threads, and raise the first error."""
        self.work()
        with self._changed:
            self._changed.wait_for(lambda: not self._busy)
        if self._errors:
            raise self._errors[0]
