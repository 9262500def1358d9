"""Executors: the places where calls of handlers run. `processes` has one more.

To cancel a call, cancel its Future. If the call runs, its executor gives it up: it cancels a coroutine and kills a
process. Python cannot end a thread, so another thread takes its place.
"""

import asyncio
import inspect
import threading
import traceback
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from contextlib import nullcontext, suppress
from contextvars import copy_context
from functools import partial
from typing import Any, TypeVar

from airflow_provider_taskq.queue import Decision, InvalidArgument, Task
from airflow_provider_taskq.worker.batches import Batch, Exceptions, name_of, stack_of
from airflow_provider_taskq.worker.futures import complete, on_cancel
from airflow_provider_taskq.worker.handlers import decision_of, decision_on

T = TypeVar("T")

_LOOP_STOP_SECONDS = 1.0
_IDLE_SECONDS = 10.0


class CallExecutor(ABC):
    """Runs calls for batches, several at once. A call sees the context variables of its submitter."""

    def open(self, function: object) -> None:  # noqa: B027 -- most executors can run any function
        """Raise InvalidArgument if the executor cannot run this function."""

    @abstractmethod
    def submit(self, batch: Batch, name: str, call: Callable[[], Any]) -> Future[Any]:
        """Run a call when there is room, and return a Future of its result.

        While the call runs, it is reported as an activity of this name of the batch.
        """

    def close(self) -> None:  # noqa: B027 -- most executors keep nothing
        """End the executor. Do not wait for a stuck call. A later call starts the executor again."""


class Threads(CallExecutor):
    """Up to `size` daemon threads. A thread ends when it had no call for some seconds.

    A ThreadPoolExecutor would keep the program from ending while a call is stuck, since Python joins its threads at
    exit, and a stuck call would occupy one of its threads for ever.
    """

    def __init__(self, size: int, name: str) -> None:
        self._free = size  # threads that may be started
        self._idle = 0  # threads that wait for a call
        self._name = name
        self._waiting: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._changed = threading.Condition()

    def submit(self, batch: Batch, name: str, call: Callable[[], T]) -> Future[T]:
        """Run a call in a thread; see `CallExecutor`."""
        return self.run(partial(in_batch, batch, name, call))

    def run(self, call: Callable[[], T]) -> Future[T]:
        """Run a call that reports its activity itself, or has none."""
        future: Future[T] = Future()
        with self._changed:
            self._waiting.append((future, partial(copy_context().run, call)))
            self._start()
        return future

    def _start(self) -> None:
        """Let a thread take a call. The caller has the lock."""
        if len(self._waiting) <= self._idle:
            self._changed.notify()
        elif self._free and self._waiting:
            self._free -= 1
            threading.Thread(target=self._run, name=self._name, daemon=True).start()

    def _replace(self) -> None:
        with self._changed:
            self._free += 1
            self._start()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._idle += 1
                self._changed.wait_for(lambda: self._waiting, _IDLE_SECONDS)
                self._idle -= 1
                if not self._waiting:
                    self._free += 1
                    return
                future, call = self._waiting.popleft()
            if future.cancelled():
                continue
            on_cancel(future, self._replace)
            complete(future, call)
            if future.cancelled():
                return  # another thread has taken the place of this one


class OtherExecutor(CallExecutor):
    """An executor of threads, which the user shuts down. A call that runs cannot be given up."""

    def __init__(self, executor: Executor, user: str) -> None:
        if isinstance(executor, ProcessPoolExecutor):
            raise TypeError(f"{user}: a ProcessPoolExecutor cannot share the batch: use each(function, processes=...)")
        self._executor = executor

    def open(self, function: object) -> None:
        """Raise InvalidArgument if the executor accepts no call, as after its shutdown."""
        try:
            self._executor.submit(int)
        except RuntimeError as error:
            raise InvalidArgument(f"cannot call {name_of(function)} in the executor: {error}") from None

    def submit(self, batch: Batch, name: str, call: Callable[[], T]) -> Future[T]:
        """Run a call in the executor; see `CallExecutor`."""
        return self._executor.submit(copy_context().run, in_batch, batch, name, call)


class EventLoop(CallExecutor):
    """An event loop in a daemon thread, which the first call starts. It awaits what a call returns."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def submit(self, batch: Batch, name: str, call: Callable[[], Any]) -> Future[Any]:
        """Run a call on the loop; see `CallExecutor`."""
        future: Future[Any] = Future()
        run = partial(self._run, batch, name, call, future)
        with self._lock:
            loop = self._started()
            loop.call_soon_threadsafe(partial(_begin, loop, future, run), context=copy_context())
        return future

    def close(self) -> None:
        """Stop the loop and cancel its tasks. Wait at most a second if a task blocks the loop."""
        with self._lock:
            loop, thread, self._loop = self._loop, self._thread, None
        if loop is not None and thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            thread.join(timeout=_LOOP_STOP_SECONDS)

    def _started(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=_run_loop, args=(self._loop,), name=self._name, daemon=True)
            self._thread.start()
        return self._loop

    async def _run(self, batch: Batch, name: str, call: Callable[[], Any], future: Future[Any]) -> None:
        """Complete a Future with the result of a call, or with its error: also SystemExit, which would end the loop."""
        try:
            with batch.running(f"{name} on the event loop", stack_of_tasks([asyncio.current_task()])):
                result = call()
                result = await result if inspect.isawaitable(result) else result
        except BaseException as error:  # noqa: BLE001
            complete(future, partial(_raise, error))
        else:
            complete(future, lambda: result)


def in_batch(batch: Batch, name: str, call: Callable[[], T]) -> T:
    """Call a function as an activity of the batch. Raise InterruptedError if the batch was abandoned."""
    if batch.cancelled.is_set():
        raise InterruptedError("the batch was abandoned")
    with batch.running(name):
        return call()


def stack_of_tasks(tasks: Collection[asyncio.Task[Any] | None]) -> Callable[[], str]:
    """Return a function that formats the stacks of tasks of this loop, or of its thread if one of them blocks it."""
    loop, thread = asyncio.get_running_loop(), stack_of(threading.get_ident())

    def stack() -> str:
        if asyncio.current_task(loop) in tasks:
            return thread()
        frames = [frame for task in tasks if task for frame in task.get_stack()]
        return "".join("".join(traceback.format_stack(frame, 1)) for frame in frames)

    return stack


async def decide_all(
    batch: Batch,
    name: str,
    function: Callable[[Task], Awaitable[Any]],
    tasks: Sequence[Task],
    success_on: Exceptions = (),
    room: asyncio.Semaphore | None = None,
) -> dict[Task, Decision]:
    """Await a function for all tasks at once, in one call of the loop, as a call for each costs several times as much.

    :param room: bounds how many are awaited at once.
    """

    async def decide_later(task: Task) -> Decision:
        try:
            async with room or nullcontext():
                return decision_of(await function(task))
        except BaseException as error:  # noqa: BLE001 -- also SystemExit, which would end the loop
            return decision_on(error, success_on)

    started = [asyncio.create_task(decide_later(task)) for task in tasks]
    with batch.running(f"the tasks of {name}", stack_of_tasks(started)):
        return dict(zip(tasks, await asyncio.gather(*started), strict=True))


def _begin(loop: asyncio.AbstractEventLoop, future: Future[Any], run: Callable[[], Coroutine[Any, Any, None]]) -> None:
    if not future.cancelled():
        on_cancel(future, partial(_cancel_on, loop, loop.create_task(run())))


def _cancel_on(loop: asyncio.AbstractEventLoop, task: asyncio.Task[Any]) -> None:
    with suppress(RuntimeError):  # the loop is closed, and has cancelled its tasks
        loop.call_soon_threadsafe(task.cancel)


def _raise(error: BaseException) -> None:
    raise error


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    loop.run_forever()
    loop.run_until_complete(_cancel_all())
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()


async def _cancel_all() -> None:
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
