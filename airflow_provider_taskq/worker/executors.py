"""Executors: the places where calls of handlers run, and the Futures of these calls. `processes` has one more executor.

To cancel a call, cancel its Future. If the call runs, its executor gives it up: it cancels a coroutine and kills a
process. Python cannot end a thread, so another thread takes its place.
"""

import asyncio
import inspect
import threading
import traceback
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import Executor, Future, InvalidStateError
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from typing import Any, TypeVar

from airflow_provider_taskq.queue import InvalidArgument
from airflow_provider_taskq.worker.batches import Batch, name_of, stack_of

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

    def __init__(self, executor: Executor) -> None:
        from concurrent.futures import ProcessPoolExecutor  # loads multiprocessing

        if isinstance(executor, ProcessPoolExecutor):
            raise TypeError("each: a ProcessPoolExecutor cannot share the batch: use each(function, processes=...)")
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
        with self._lock:
            if self._loop is None:
                runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
                self._loop = runner.get_loop()
                self._thread = threading.Thread(target=_run_loop, args=(runner,), name=self._name, daemon=True)
                self._thread.start()
            return asyncio.run_coroutine_threadsafe(_call_and_await(batch, name, call), self._loop)

    def close(self) -> None:
        """Stop the loop and cancel its tasks. Wait at most a second if a task blocks the loop."""
        with self._lock:
            loop, thread, self._loop = self._loop, self._thread, None
        if loop is not None and thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            thread.join(timeout=_LOOP_STOP_SECONDS)


def _run_loop(runner: asyncio.Runner) -> None:
    with runner:
        runner.get_loop().run_forever()


async def _call_and_await(batch: Batch, name: str, call: Callable[[], Any]) -> Any:
    try:
        with batch.running(f"{name} on the event loop", stack_of_tasks([asyncio.current_task()])):
            result = call()
            return await result if inspect.isawaitable(result) else result
    except (SystemExit, KeyboardInterrupt) as error:
        return failed_with(error)  # asyncio would end the loop


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


# Futures


def complete(future: Future[T], call: Callable[[], T]) -> None:
    """Complete a Future with what a call returns or raises. Do nothing more if the Future was cancelled meanwhile."""
    with suppress(InvalidStateError):
        try:
            result = call()
        except BaseException as error:  # noqa: BLE001 -- Future.result() raises it
            future.set_exception(error)
        else:
            future.set_result(result)


def failed_with(error: BaseException) -> Future[Any]:
    """Return a Future that has failed."""
    failed: Future[Any] = Future()
    failed.set_exception(error)
    return failed


def attempt(call: Callable[[], T]) -> T | Future[Any]:
    """Return what a call returns, or a Future of the error that it raises: also of SystemExit."""
    try:
        return call()
    except BaseException as error:  # noqa: BLE001 -- Future.result() raises it
        return failed_with(error)


def on_cancel(future: Future[Any], call: Callable[[], object]) -> None:
    """Call a function when the Future is cancelled, at once if it is cancelled already."""
    future.add_done_callback(lambda ended: call() if ended.cancelled() else None)


def final(outcome: Any) -> Any:
    """Return the result of a Future that is done, which may be such a Future itself, or any other outcome as it is."""
    while isinstance(outcome, Future):
        outcome = outcome.result(0)
    return outcome


def then(outcomes: Iterable[Any], finish: Callable[[], T]) -> T | Future[T]:
    """Return `finish()`, or a Future of it if some outcomes are Futures that are not done.

    The result of a Future may be another Future, which must be done, too. If the returned Future is cancelled, all of
    them are.
    """
    waiting = [pending for outcome in outcomes if (pending := _pending(outcome)) is not None]
    if not waiting:
        return finish()
    whole: Future[T] = Future()
    left, lock = [len(waiting)], threading.Lock()

    def follow(future: Future[Any]) -> None:
        on_cancel(whole, future.cancel)
        future.add_done_callback(ended)

    def ended(future: Future[Any]) -> None:
        if (pending := _pending(future)) is not None:
            follow(pending)
            return
        with lock:
            left[0] -= 1
            is_last = not left[0]
        if is_last and not whole.done():
            complete(whole, finish)

    for future in waiting:
        follow(future)
    return whole


def _pending(outcome: Any) -> Future[Any] | None:
    """Return the first Future that is not done, of an outcome and the results of its Future."""
    while isinstance(outcome, Future):
        if not outcome.done():
            return outcome
        if outcome.cancelled() or outcome.exception() is not None:
            return None
        outcome = outcome.result()
    return None
