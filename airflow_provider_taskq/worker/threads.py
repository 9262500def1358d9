"""Threads that are made when they are needed, and never keep a program from ending: one may be stuck in a handler."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextvars import copy_context
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")


class Pool:
    """So many threads at most. What they call sees the context variables of whoever submitted it."""

    def __init__(self, size: int, name: str) -> None:
        self._size = size
        self._name = name
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._threads = 0
        self._unfinished = 0
        self._lock = threading.Lock()

    def submit(self, call: Callable[..., T], *arguments: Any) -> "Future[T]":
        """Calls it in one of the threads, when one is free."""
        future: Future[T] = Future()
        context = copy_context()

        def carry_out() -> None:
            try:
                future.set_result(context.run(call, *arguments))
            except BaseException as error:  # noqa: BLE001 -- whoever waits for it gets it
                future.set_exception(error)

        with self._lock:
            self._unfinished += 1
            self._calls.put(carry_out)
            self._employ()
        return future

    def place(self) -> "Place":
        """What a call that may get stuck tells its thread by."""
        return Place(self)

    def close(self) -> None:
        """Lets the threads end after what was submitted; one that is stuck is left behind."""
        with self._lock:
            for _ in range(self._threads):
                self._calls.put(None)

    def change(self, by: int) -> None:
        """One thread more, or one less."""
        with self._lock:
            self._size += by
            if by < 0:
                self._calls.put(None)
            self._employ()

    def _employ(self) -> None:
        """One more thread, where it has something to do and there may be one."""
        if self._threads < min(self._unfinished, self._size):
            self._threads += 1
            threading.Thread(target=self._work, name=f"{self._name} {self._threads}", daemon=True).start()

    def _work(self) -> None:
        """What a thread does."""
        while (call := self._calls.get()) is not None:
            call()
            with self._lock:
                self._unfinished -= 1
        with self._lock:
            self._threads -= 1
            self._employ()


class Place:
    """A thread's place in its pool: given to another while the thread is stuck in a call that nobody waits for."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._state = "busy"
        self._lock = threading.Lock()

    def give_up(self) -> None:
        """The call is stuck: others must not be short of a thread."""
        with self._lock:
            if self._state != "busy":
                return
            self._state = "given up"
        self._pool.change(+1)

    def end(self) -> None:
        """The call has ended."""
        with self._lock:
            given_up, self._state = self._state == "given up", "ended"
        if given_up:
            self._pool.change(-1)
