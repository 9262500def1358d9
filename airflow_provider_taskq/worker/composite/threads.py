"""The threads of a composite in one process: for its steps, for the tasks of a step, and one for what is awaited."""

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import Executor, Future
from contextlib import AbstractContextManager
from contextvars import Context, copy_context
from typing import Any, Generic, Protocol, TypeVar

from airflow_provider_taskq.worker.batches import Batch
from airflow_provider_taskq.worker.futures import copy_outcome
from airflow_provider_taskq.worker.threads import Pool

T = TypeVar("T")

STEPS = 64  # at once, in all batches together; a step that finds none free waits, and none waits for another
GRACE = 1.0  # seconds that an event loop gets to end in


class _Calls(Protocol):
    """What calls functions in other threads: a pool, or an executor of the caller."""

    def submit(self, call: Callable[..., T], *arguments: Any) -> Future[T]:
        """Calls it when a thread is free."""

    def close(self) -> None:
        """Lets the threads end."""


class Threads:
    """Threads that are made when they are needed. Steps and their tasks see the context variables of their caller.

    An executor of the caller takes the place of those of steps and tasks. No thread of it ever waits for another call
    of this composite there, so one thread is enough. `size` None: as many tasks at once as it has free threads.
    """

    def __init__(self, name: str, size: int | None, executor: Executor | None = None) -> None:
        self._size = size
        self.is_own = executor is None
        self._steps: _Calls
        self._tasks: _Calls
        if executor is not None:
            self._steps = self._tasks = _ByExecutor(executor)
        else:
            self._steps = Pool(STEPS, f"taskq {name} step")
            self._tasks = Pool(max(1, (size or 1) - 1), f"taskq {name} task")
        self._loop = _Loop(f"taskq {name} loop")

    def start(self, function: Callable[..., T], *arguments: Any) -> Future[T]:
        """Begins a step, or a batch, in a thread of its own."""
        return self._steps.submit(function, *arguments)

    def each(
        self, function: Callable[[T], None], items: Iterable[T], within: Callable[[], AbstractContextManager[None]]
    ) -> None:
        """Calls a function for each item, in several threads, of which this is one; returns when all are done.

        Since this thread works too, it goes on even where all others are busy. `within` surrounds what others do.
        """
        crew = _Crew(function, items)

        def help_with() -> None:
            with within():
                crew.batch()

        waiting = len(crew.left)
        for _ in range(min(self._size or waiting, waiting) - 1):
            self._tasks.submit(help_with)
        crew.finish()

    def awaited(self, awaitable: Awaitable[T], batch: Batch) -> T:
        """What something awaitable gives; the event loop is the same for all steps and batches.

        It is cancelled where its batch is given up.
        """
        future = self._loop.begin(awaitable)

        def cancel() -> None:
            future.cancel()

        with batch.running("what is awaited", cancel=cancel):
            if batch.cancelled.is_set():  # before anybody could know how to cancel it
                future.cancel()
            return future.result()

    def close(self) -> None:
        """Lets the threads end; one that is stuck is left behind."""
        self._steps.close()
        self._tasks.close()
        self._loop.close()


class _ByExecutor:
    """Calls functions by an executor, which the caller shuts down."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    def submit(self, call: Callable[..., T], *arguments: Any) -> Future[T]:
        """Calls it in a thread of the executor. A shutdown that cancels the call completes the Future, too."""
        future: Future[T] = Future()
        submitted = self._executor.submit(copy_context().run, call, *arguments)
        # concurrent.futures.wait() never returns for a Future that shutdown(cancel_futures=True) has cancelled
        submitted.add_done_callback(lambda ended: copy_outcome(ended, future))
        return future

    def close(self) -> None:
        """Leaves the executor to the caller."""


class _Crew(Generic[T]):
    """Threads that take items from one heap. Who comes when it is empty has nothing to do, and is not waited for."""

    def __init__(self, function: Callable[[T], None], items: Iterable[T]) -> None:
        self.left = deque(items)
        self._function = function
        self._busy = 0
        self._changed = threading.Condition()
        self._errors: list[BaseException] = []

    def batch(self) -> None:
        """Takes items as long as there are any."""
        while (item := self._taken()) is not None:
            try:
                self._function(item[0])
            except BaseException as error:  # noqa: BLE001 -- whoever waits for the end gets it
                self._errors.append(error)
                self.left.clear()
            finally:
                with self._changed:
                    self._busy -= 1
                    self._changed.notify_all()

    def finish(self) -> None:
        """Works along, waits until all items are done, and raises the first error."""
        self.batch()
        with self._changed:
            self._changed.wait_for(lambda: not self._busy)
        if self._errors:
            raise self._errors[0]

    def _taken(self) -> tuple[T] | None:
        """The next item, or None where there is none."""
        with self._changed:
            if not self.left:
                return None
            self._busy += 1
            return (self.left.popleft(),)


class _Loop:
    """An event loop in a thread of its own, made for the first that awaits something."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def begin(self, awaitable: Awaitable[T]) -> Future[T]:
        """Awaits it there, with the context variables of this thread."""
        return asyncio.run_coroutine_threadsafe(_within(copy_context(), awaitable), self._started())

    def _started(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=_run, args=(self._loop,), name=self._name, daemon=True)
                self._thread.start()
            return self._loop

    def close(self) -> None:
        """Ends the thread, in which what still runs there is cancelled."""
        with self._lock:
            loop, self._loop = self._loop, None
        if loop is not None and self._thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            self._thread.join(timeout=GRACE)


def _run(loop: asyncio.AbstractEventLoop) -> None:
    """Runs an event loop until it is stopped, and cancels what is left in it."""
    loop.run_forever()
    loop.run_until_complete(_cancel_all())
    loop.close()


async def _within(context: Context, awaitable: Awaitable[T]) -> T:
    """Awaits it with these context variables."""

    async def waiting() -> T:
        try:
            return await awaitable
        except (SystemExit, KeyboardInterrupt) as error:  # would end the event loop, which others wait for
            raise RuntimeError(f"what was awaited ended by {error!r}") from error

    try:
        return await asyncio.get_running_loop().create_task(waiting(), context=context)
    finally:
        if asyncio.iscoroutine(awaitable):
            awaitable.close()  # one that was cancelled before it began, of which Python would warn


async def _cancel_all() -> None:
    """Cancels every other task of this loop, and lets them end."""
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
