"""Functions of one task, called in processes of their own: each with a pipe, one task at a time.

A process that dies at a task is that task's FAILURE, which says how it died; a new one takes its place. Not a
redelivery: by an attempt used, a task that kills whoever takes it comes to an end by the retry policy of its topic.
"""

import atexit
import multiprocessing
import queue
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from typing import Any

from airflow_provider_taskq.queue import Decision, Result, Task
from airflow_provider_taskq.queue.errors import picklable_error
from airflow_provider_taskq.worker.batches import Batch
from airflow_provider_taskq.worker.futures import result_of
from airflow_provider_taskq.worker.handlers import Exceptions, decision_of, decision_on, name_of
from airflow_provider_taskq.worker.threads import Pool

_ANSWER = 1.0  # seconds for a process to tell where it stands
_SPAWN = multiprocessing.get_context("spawn")


class EachInProcess:
    """A handler that calls a function for each task in one of so many processes."""

    def __init__(
        self, function: Callable[..., Any], takes_batch: bool, processes: int, success_on: Exceptions = ()
    ) -> None:
        self._function = function
        self._takes_batch = takes_batch
        self._processes = processes
        self._success_on = success_on
        self._idle: queue.LifoQueue[_Process | None] | None = None
        self._threads: Pool | None = None
        self._lock = threading.Lock()

    def handle(self, batch: Batch) -> Mapping[Task, Decision]:
        """The function's word on each task."""
        threads, idle = self._opened()
        made = {task: threads.submit(self._decide, idle, task, batch) for task in batch.tasks}
        return {task: future.result() for task, future in made.items()}

    def close(self) -> None:
        """Ends the processes."""
        with self._lock:
            threads, idle, self._threads, self._idle = self._threads, self._idle, None, None
        if threads is None or idle is None:
            return
        for _ in range(self._processes):  # those that are at work come back when their tasks are done
            process = idle.get()
            if process is not None:
                process.end()
        threads.close()

    def __repr__(self) -> str:
        return name_of(self._function)

    def _opened(self) -> "tuple[Pool, queue.LifoQueue[_Process | None]]":
        """A thread and a place for each process; a place without a process gets one when it is needed."""
        with self._lock:
            if self._threads is None or self._idle is None:
                self._threads = Pool(self._processes, "taskq processes")
                self._idle = queue.LifoQueue()
                for _ in range(self._processes):
                    self._idle.put(None)
            return self._threads, self._idle

    def _decide(self, idle: "queue.LifoQueue[_Process | None]", task: Task, batch: Batch) -> Decision:
        """Has one task done by an idle process."""
        process = idle.get()
        try:
            if process is None:
                process = _Process(self._function, self._takes_batch, self._success_on)
            return self._called(process, task, batch)
        except BaseException as error:  # noqa: BLE001 -- also what does not pickle
            return decision_on(error)
        finally:
            idle.put(process if process is not None and process.is_alive() else None)

    def _called(self, process: "_Process", task: Task, batch: Batch) -> Decision:
        """Has one task done by a process, which is killed where its batch is given up meanwhile."""
        what = f"{name_of(self._function)} for task {task.sequence} in process {process.pid}"
        turn = _Turn(process)
        try:
            with batch.running(what, process.stack, turn.kill):
                if batch.cancelled.is_set():
                    return Decision(Result.FAILURE, error="the batch was given up")
                return process.call(task, batch)
        finally:
            turn.end()


class _Turn:
    """A task's turn in a process. A kill that comes when it is over would hit the next task, and does nothing."""

    def __init__(self, process: "_Process") -> None:
        self._process = process
        self._is_over = self._is_killed = False
        self._lock = threading.Lock()

    def kill(self) -> None:
        """Ends the process at once, whatever it does for this task."""
        with self._lock:
            if not self._is_over:
                self._is_killed = True
                self._process.kill()

    def end(self) -> None:
        """The task is done. A process that was killed is waited for, so that nobody takes it to be alive."""
        with self._lock:
            self._is_over = True
        if self._is_killed:
            self._process.end()


class _Process:
    """A process, and the ends of its two pipes: one for tasks, one to ask where it stands."""

    def __init__(self, function: Callable[..., Any], takes_batch: bool, success_on: Exceptions) -> None:
        self._tasks, theirs = _SPAWN.Pipe()
        self._questions, asked = _SPAWN.Pipe()
        arguments = (theirs, asked, function, takes_batch, success_on)
        self._process = _SPAWN.Process(target=_serve, args=arguments, daemon=True)
        self._process.start()
        atexit.register(self._process.kill)  # before multiprocessing waits for it
        theirs.close()
        asked.close()
        self._asking = threading.Lock()

    @property
    def pid(self) -> int | None:
        """The number of the process."""
        return self._process.pid

    def is_alive(self) -> bool:
        """Whether it can take another task."""
        return not self._tasks.closed and self._process.is_alive()

    def call(self, task: Task, batch: Batch) -> Decision:
        """The decision on a task, what follows it taken over into `work`; FAILURE where the process dies."""
        try:
            self._tasks.send(task)
            wait([self._tasks, self._process.sentinel])
            if self._tasks.poll():
                decision, done = self._tasks.recv()
                batch.adopt(done, task)
                return decision  # type: ignore[no-any-return]  # by the other end of the pipe
        except (EOFError, ConnectionError):
            pass  # it died while it was spoken to
        self.end()
        return Decision(Result.FAILURE, error=f"the process that handled this task {_died(self._process.exitcode)}")

    def stack(self) -> str:
        """Where the process stands, told by a thread of it."""
        with self._asking:
            try:
                self._questions.send(None)
                return str(self._questions.recv()) if self._questions.poll(_ANSWER) else "(no answer)\n"
            except (OSError, EOFError):
                return "(ended)\n"

    def kill(self) -> None:
        """Ends the process at once, whatever it does."""
        self._process.kill()

    def end(self) -> None:
        """Lets the process end, and waits for that."""
        atexit.unregister(self._process.kill)
        self._tasks.close()
        self._process.join(timeout=_ANSWER)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._questions.close()


def _died(code: int | None) -> str:
    """How a process ended, in words."""
    return f"was killed by signal {-code}" if code is not None and code < 0 else f"ended with exit code {code}"


def _serve(
    tasks: Connection, questions: Connection, function: Callable[..., Any], takes_batch: bool, success_on: Exceptions
) -> None:
    """The main function of a process: handles tasks until its parent hangs up."""
    for each in (signal.SIGINT, signal.SIGTERM):  # of the terminal, or of all in a control group
        signal.signal(each, signal.SIG_IGN)  # the parent decides when this ends
    threading.Thread(target=_tell, args=(questions, threading.get_ident()), daemon=True).start()
    while True:
        try:
            task: Task = tasks.recv()
        except (EOFError, ConnectionError):
            return
        batch = Batch([task])
        try:
            outcome = function(task, batch) if takes_batch else function(task)
            decision = decision_of(result_of(outcome, batch, name_of(function)))
        except BaseException as error:  # noqa: BLE001 -- it is this task's failure
            decision = decision_on(error, success_on)
        _answer(tasks, decision, batch)


def _answer(tasks: Connection, decision: Decision, batch: Batch) -> None:
    """Sends what was decided; an error as its trace, and a FAILURE where something of it does not pickle."""
    try:
        tasks.send((_plain(decision), batch))
    except Exception as error:  # noqa: BLE001 -- whatever pickle raises
        tasks.send((_plain(Decision(Result.FAILURE, error=error)), Batch(batch.tasks)))


def _plain(decision: Decision) -> Decision:
    """The decision with its error as text, which always pickles."""
    return replace(decision, error=picklable_error(decision.error))


def _tell(questions: Connection, thread: int) -> None:
    """Answers where the main thread stands, as often as it is asked."""
    while True:
        try:
            questions.recv()
            frame = sys._current_frames().get(thread)  # noqa: SLF001 -- the one way to see another thread
            questions.send("".join(traceback.format_stack(frame)))
        except (EOFError, OSError):
            return
