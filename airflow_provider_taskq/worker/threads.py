"""Threads: services, a pool that survives stuck calls, and an event loop in a thread."""

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextvars import Context, copy_context
from queue import SimpleQueue
from typing import Any, Self, TypeVar

from airflow_provider_taskq.queue import TaskQueueError
from airflow_provider_taskq.worker.batches import Batch, stack_of

T = TypeVar("T")

_LOOP_STOP_SECONDS = 1.0
_SERVICE_STOP_SECONDS = 5.0


class ServiceThread(ABC):
    """Base class of services that run in a thread: use `start` and `stop`, or a `with` block.

    A subclass implements `_run`.
    """

    def __init__(self, name: str) -> None:
        self._service_name = name
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def is_running(self) -> bool:
        """Whether the thread runs."""
        return self._thread is not None and self._thread.is_alive()

    def start(self) -> None:
        """Start the thread. Raises TaskQueueError if it runs already."""
        if self.is_running:
            raise TaskQueueError(f"{self._service_name} runs already")
        self._stopped.clear()
        self._thread = threading.Thread(target=self._run, name=self._service_name, daemon=True)
        self._thread.start()

    def stop(self, timeout: float | None = _SERVICE_STOP_SECONDS) -> bool:
        """Signal the thread to end, and wait for its end. Return False if it takes longer than `timeout` seconds.

        :param timeout: None for no limit.
        """
        self._stopped.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout)
        return not self.is_running

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @abstractmethod
    def _run(self) -> None:
        """Do the work of the thread until `_stopped` is set."""


class ThreadPool:
    """Up to `size` threads, started when calls need them. A call sees the context variables of its submitter.

    They are daemon threads, because a stuck call must not keep the program from ending.
    """

    def __init__(self, size: int, name: str) -> None:
        self._size = size
        self._name = name
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._threads = 0
        self._unfinished = 0
        self._lock = threading.Lock()

    def submit(self, call: Callable[..., T], *arguments: Any) -> "Future[T]":
        """Run a call when a thread is free, and return a Future of its result."""
        future: Future[T] = Future()
        context = copy_context()

        def run() -> None:
            try:
                future.set_result(context.run(call, *arguments))
            except BaseException as error:  # noqa: BLE001 -- Future.result() raises it
                future.set_exception(error)

        with self._lock:
            self._unfinished += 1
            self._calls.put(run)
            self._start_thread()
        return future

    def slot(self) -> "PoolSlot":
        """Return a slot for a call that may get stuck. The call must end the slot when it returns."""
        return PoolSlot(self)

    def close(self) -> None:
        """End the threads after the submitted calls. Do not wait for them."""
        with self._lock:
            for _ in range(self._threads):
                self._calls.put(None)

    def resize(self, by: int) -> None:
        """Raise the number of threads by one (1), or lower it by one (-1)."""
        with self._lock:
            self._size += by
            if by < 0:
                self._calls.put(None)
            self._start_thread()

    def _start_thread(self) -> None:
        if self._threads < min(self._unfinished, self._size):
            self._threads += 1
            threading.Thread(target=self._run, name=f"{self._name} {self._threads}", daemon=True).start()

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            call()
            with self._lock:
                self._unfinished -= 1
        with self._lock:
            self._threads -= 1
            self._start_thread()


class PoolSlot:
    """The slot of one call in its pool. While an abandoned call still runs, the pool has one thread more."""

    def __init__(self, pool: ThreadPool) -> None:
        self._pool = pool
        self._state = "busy"
        self._lock = threading.Lock()

    def abandon(self) -> None:
        """Let the pool start another thread, because the call is stuck."""
        with self._lock:
            if self._state != "busy":
                return
            self._state = "abandoned"
        self._pool.resize(+1)

    def end(self) -> None:
        """Give the slot back. The call must do this at its end."""
        with self._lock:
            abandoned, self._state = self._state == "abandoned", "ended"
        if abandoned:
            self._pool.resize(-1)


class EventLoopThread:
    """An event loop in a daemon thread. The first coroutine starts it."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def run(self, awaitable: Awaitable[T], batch: Batch, name: str) -> T:
        """Await an awaitable on the loop, with the context variables of this thread, and return the result.

        If the batch is abandoned, cancel the awaitable. `name` is the name of the awaitable in reports of slow
        handlers.
        """
        future = asyncio.run_coroutine_threadsafe(_in_context(copy_context(), awaitable), self._started())

        def cancel() -> None:
            future.cancel()

        with batch.running(name, self.stacks, cancel):
            if batch.cancelled.is_set():  # cancelled before `running` registered the function
                future.cancel()
            return future.result()

    def stacks(self) -> str:
        """Format the stack of the loop's thread, which a task may block, and the stacks of all tasks."""
        thread, loop = self._thread, self._loop
        if thread is None or loop is None:
            return "(ended)\n"
        lines = [stack_of(thread.ident or 0)()]
        for task in asyncio.all_tasks(loop):
            lines += [
                f"{task.get_name()} at {frame.f_code.co_filename}:{frame.f_lineno}\n" for frame in task.get_stack()
            ]
        return "".join(lines)

    def close(self) -> None:
        """Stop the loop and cancel its tasks. Wait at most a second if a task blocks the loop."""
        with self._lock:
            loop, thread, self._loop, self._thread = self._loop, self._thread, None, None
        if loop is not None and thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            thread.join(timeout=_LOOP_STOP_SECONDS)

    def _started(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=_run_loop, args=(self._loop,), name=self._name, daemon=True)
                self._thread.start()
            return self._loop


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


async def _in_context(context: Context, awaitable: Awaitable[T]) -> T:
    async def waiting() -> T:
        try:
            return await awaitable
        except (SystemExit, KeyboardInterrupt) as error:  # would end the event loop, which other batches use
            raise RuntimeError(f"the coroutine ended with {error!r}") from error

    try:
        return await asyncio.get_running_loop().create_task(waiting(), context=context)
    finally:
        if asyncio.iscoroutine(awaitable):
            awaitable.close()  # Python would warn of a coroutine that was cancelled before it began
