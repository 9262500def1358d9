"""An executor of child processes, with one call at a time in each.

If a process dies, its call fails with the exit code or signal, and another process takes its place.
"""

import atexit
import multiprocessing
import pickle
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import ForkingPickler
from typing import Any

from airflow_provider_taskq.queue import InvalidArgument
from airflow_provider_taskq.queue.errors import picklable_error
from airflow_provider_taskq.worker.batches import Batch, name_of
from airflow_provider_taskq.worker.executors import CallExecutor, Threads, on_cancel

_END_SECONDS = 1.0  # that a process has to end
_SPAWN = multiprocessing.get_context("spawn")


class CallFailed(Exception):
    """A call could not run in a process, or the process died. The argument is the error that a task gets."""


class Processes(CallExecutor):
    """Up to `size` child processes, which start when calls need them. A call and its result have to pickle."""

    def __init__(self, size: int) -> None:
        self._threads = Threads(size, "taskq processes")  # each waits for the process that runs its call
        self._idle: list[_ChildProcess] = []
        self._busy: dict[object, _ChildProcess] = {}  # by call
        self._lock = threading.Lock()

    def open(self, function: object) -> None:
        """Start a process. Raise InvalidArgument if the function does not pickle, or the process cannot import it."""
        refused = f"cannot send {name_of(function)} to a process: it must be a function of a module"
        try:
            call = ForkingPickler.dumps(partial(callable, function))
        except Exception as error:  # noqa: BLE001 -- whatever pickle raises
            raise InvalidArgument(f"{refused}: {error}") from None
        process = _ChildProcess()
        try:
            process.call(call)
        except CallFailed as error:
            process.end()
            hint = 'that a process can import, and a program needs `if __name__ == "__main__":`'
            raise InvalidArgument(f"{refused} {hint}: {error}") from None
        with self._lock:
            self._idle.append(process)

    def submit(self, batch: Batch, name: str, call: Callable[[], Any]) -> Future[Any]:
        """Run a call in a process; see `CallExecutor`."""
        key = object()
        future = self._threads.run(partial(self._call, batch, name, call, key))
        on_cancel(future, partial(self._kill, key))
        return future

    def close(self) -> None:
        """End the idle processes. The others end after their current calls."""
        with self._lock:
            idle, self._idle = self._idle, []
        for process in idle:
            process.end()

    def _call(self, batch: Batch, name: str, call: Callable[[], Any], key: object) -> Any:
        try:
            sent = ForkingPickler.dumps(call)
        except Exception as error:  # noqa: BLE001 -- whatever pickle raises
            raise CallFailed(picklable_error(error)) from None
        with self._lock:
            idle = self._idle
            process = idle.pop() if idle else None
        process = process or _ChildProcess()
        with self._lock:
            self._busy[key] = process
        try:
            if batch.cancelled.is_set():  # before `_busy` had the process
                raise InterruptedError("the batch was abandoned")
            with batch.running(f"{name} in process {process.pid}"):
                return process.call(sent)
        finally:
            with self._lock:
                is_killed = self._busy.pop(key, None) is None
                is_idle = not is_killed and idle is self._idle and process.is_alive()
                if is_idle:
                    idle.append(process)
            if not is_idle:
                process.end()

    def _kill(self, key: object) -> None:
        """Kill the process of a call, but not after the end of the call, because it has the next call then."""
        with self._lock:
            if (process := self._busy.pop(key, None)) is not None:
                process.kill()


class _ChildProcess:
    """A child process, and the pipe by which it gets calls."""

    def __init__(self) -> None:
        self._calls, calls = _SPAWN.Pipe()
        self._process = _SPAWN.Process(target=_serve, args=(calls,), daemon=True)
        self._process.start()
        atexit.register(self._process.kill)  # or else multiprocessing would wait for it at exit
        calls.close()

    @property
    def pid(self) -> int | None:
        return self._process.pid

    def is_alive(self) -> bool:
        return not self._calls.closed and self._process.is_alive()

    def call(self, sent: Any) -> Any:
        """Run a pickled call and return its result. Raise CallFailed if it raises an error, or the process dies."""
        try:
            self._calls.send_bytes(sent)
            wait([self._calls, self._process.sentinel])
            if self._calls.poll():
                result, error = self._calls.recv()
                if error is not None:
                    raise CallFailed(error)
                return result
        except (EOFError, ConnectionError):
            pass  # the process died during the exchange
        self.end()
        code = self._process.exitcode
        died = f"was killed by signal {-code}" if code is not None and code < 0 else f"ended with exit code {code}"
        raise CallFailed(f"the process that handled this task {died}")

    def kill(self) -> None:
        self._process.kill()

    def end(self) -> None:
        """End the process and wait for its end. Kill the process if it does not end in time."""
        atexit.unregister(self._process.kill)
        self._calls.close()
        self._process.join(timeout=_END_SECONDS)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


def _serve(calls: Connection) -> None:
    """Run calls in a child process until the parent closes the pipe."""
    for each in (signal.SIGINT, signal.SIGTERM):
        # A terminal or a service manager signals all processes of a group. The parent decides when this one ends.
        signal.signal(each, signal.SIG_IGN)
    while True:
        try:
            sent = calls.recv_bytes()
        except (EOFError, ConnectionError):
            return
        try:
            answer = ForkingPickler.dumps((pickle.loads(sent)(), None))  # noqa: S301 -- from the parent
        except BaseException as error:  # noqa: BLE001 -- of the call, or of pickle
            answer = ForkingPickler.dumps((None, picklable_error(error)))
        calls.send_bytes(answer)
