"""A handler that calls a function for each task in child processes, one task at a time in each.

If a process dies, its task fails with the exit code or signal, and another process takes its place. Such a task is not
redelivered: the failure uses an attempt, so the retry policy of the topic stops a task that kills every process.
"""

import atexit
import multiprocessing
import queue
import signal
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from typing import Any

from airflow_provider_taskq.queue import Decision, Result, Task
from airflow_provider_taskq.queue.errors import picklable_error
from airflow_provider_taskq.worker.batches import Batch, Exceptions, name_of, stack_of
from airflow_provider_taskq.worker.handlers import FunctionHandler, decision_of, decision_on
from airflow_provider_taskq.worker.parameters import HandlerFunction
from airflow_provider_taskq.worker.threads import ThreadPool

_ANSWER_SECONDS = 1.0  # that a process has to send its stack, or to end
_SPAWN = multiprocessing.get_context("spawn")


class ProcessHandler(FunctionHandler):
    """Calls a function for each task in one of several child processes."""

    def __init__(self, function: Callable[..., Any], success_on: Exceptions, processes: int) -> None:
        super().__init__(function, success_on)
        self._processes = processes
        self._idle: queue.LifoQueue[_ChildProcess | None] | None = None
        self._threads: ThreadPool | None = None
        self._lock = threading.Lock()

    def handle(self, batch: Batch) -> Mapping[Task, Decision]:
        """Return the decision on each task."""
        with self._lock:
            if self._threads is None or self._idle is None:
                self._threads = ThreadPool(self._processes, "taskq processes")
                self._idle = queue.LifoQueue()
                for _ in range(self._processes):
                    self._idle.put(None)  # a slot, which gets its process when a task needs it
            threads, idle = self._threads, self._idle
        futures = {task: threads.submit(self._decide, idle, task, batch) for task in batch.tasks}
        return {task: future.result() for task, future in futures.items()}

    def close(self) -> None:
        """End the processes after their current tasks."""
        with self._lock:
            threads, idle, self._threads, self._idle = self._threads, self._idle, None, None
        if threads is None or idle is None:
            return
        for _ in range(self._processes):
            process = idle.get()
            if process is not None:
                process.end()
        threads.close()

    def _decide(self, idle: "queue.LifoQueue[_ChildProcess | None]", task: Task, batch: Batch) -> Decision:
        process = idle.get()
        try:
            if process is None:
                process = _ChildProcess(self._function, self._success_on)
            return self._handle_in(process, task, batch)
        except BaseException as error:  # noqa: BLE001 -- such as an error of pickle
            return decision_on(error)
        finally:
            idle.put(process if process is not None and process.is_alive() else None)

    def _handle_in(self, process: "_ChildProcess", task: Task, batch: Batch) -> Decision:
        """Handle one task in a process. Kill the process if the worker abandons the batch."""
        name = f"{name_of(self._function)} for task {task.sequence} in process {process.pid}"
        call = _ProcessCall(process)
        try:
            with batch.running(name, process.stack, call.kill):
                if batch.cancelled.is_set():
                    return Decision(Result.FAILURE, error="the batch was abandoned")
                return process.call(task, batch)
        finally:
            call.end()


class _ProcessCall:
    """One task in a process.

    `kill` does nothing after the end of the task, because it would hit the next task.
    """

    def __init__(self, process: "_ChildProcess") -> None:
        self._process = process
        self._is_over = self._is_killed = False
        self._lock = threading.Lock()

    def kill(self) -> None:
        with self._lock:
            if not self._is_over:
                self._is_killed = True
                self._process.kill()

    def end(self) -> None:
        with self._lock:
            self._is_over = True
        if self._is_killed:
            self._process.end()  # waits until is_alive() is False


class _ChildProcess:
    """A child process with two pipes: one for tasks, one for requests of its stack."""

    def __init__(self, function: HandlerFunction, success_on: Exceptions) -> None:
        self._tasks, tasks = _SPAWN.Pipe()
        self._requests, requests = _SPAWN.Pipe()
        arguments = (tasks, requests, function, success_on)
        self._process = _SPAWN.Process(target=_serve, args=arguments, daemon=True)
        self._process.start()
        atexit.register(self._process.kill)  # or else multiprocessing would wait for it at exit
        tasks.close()
        requests.close()
        self._requesting = threading.Lock()

    @property
    def pid(self) -> int | None:
        return self._process.pid

    def is_alive(self) -> bool:
        return not self._tasks.closed and self._process.is_alive()

    def call(self, task: Task, batch: Batch) -> Decision:
        """Return the decision on a task, and adopt its follow-ups and hooks into `batch`."""
        try:
            self._tasks.send(batch.for_task(task))
            wait([self._tasks, self._process.sentinel])
            if self._tasks.poll():
                decision, handled = self._tasks.recv()
                batch.adopt(handled, task)
                return decision  # type: ignore[no-any-return]  # sent by _answer
        except (EOFError, ConnectionError):
            pass  # the process died during the exchange
        self.end()
        code = self._process.exitcode
        died = f"was killed by signal {-code}" if code is not None and code < 0 else f"ended with exit code {code}"
        return Decision(Result.FAILURE, error=f"the process that handled this task {died}")

    def stack(self) -> str:
        """Return the stack of the main thread, which another thread of the process sends."""
        with self._requesting:
            try:
                self._requests.send(None)
                return str(self._requests.recv()) if self._requests.poll(_ANSWER_SECONDS) else "(no answer)\n"
            except (OSError, EOFError):
                return "(ended)\n"

    def kill(self) -> None:
        self._process.kill()

    def end(self) -> None:
        """End the process and wait for its end. Kill the process if it does not end in time."""
        atexit.unregister(self._process.kill)
        self._tasks.close()
        self._process.join(timeout=_ANSWER_SECONDS)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._requests.close()


def _serve(tasks: Connection, requests: Connection, function: HandlerFunction, success_on: Exceptions) -> None:
    """Handle tasks in a child process until the parent closes the pipe."""
    for each in (signal.SIGINT, signal.SIGTERM):
        # A terminal or a service manager signals all processes of a group. The parent decides when this one ends.
        signal.signal(each, signal.SIG_IGN)
    threading.Thread(target=_send_stacks, args=(requests, threading.get_ident()), daemon=True).start()
    while True:
        try:
            batch: Batch = tasks.recv()
        except (EOFError, ConnectionError):
            return
        [task] = batch.tasks
        try:
            decision = decision_of(batch.result_of(function(task, batch=batch), name_of(function)))
        except BaseException as error:  # noqa: BLE001 -- it fails this task only
            decision = decision_on(error, success_on)
        _answer(tasks, decision, batch)


def _answer(tasks: Connection, decision: Decision, batch: Batch) -> None:
    """Send a decision and its batch, or a FAILURE if one of them does not pickle."""
    try:
        tasks.send((_with_text(decision), batch))
    except Exception as error:  # noqa: BLE001 -- whatever pickle raises
        tasks.send((_with_text(Decision(Result.FAILURE, error=error)), Batch(batch.tasks)))


def _with_text(decision: Decision) -> Decision:
    """Return the decision with an error that pickles."""
    return replace(decision, error=picklable_error(decision.error))


def _send_stacks(requests: Connection, thread: int) -> None:
    stack = stack_of(thread)
    while True:
        try:
            requests.recv()
            requests.send(stack())
        except (EOFError, OSError):
            return
