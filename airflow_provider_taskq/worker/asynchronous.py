"""Coroutine functions of one task, on one event loop in a thread of its own."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, cast

from airflow_provider_taskq.queue import Decision, Task
from airflow_provider_taskq.worker.batches import Batch
from airflow_provider_taskq.worker.handlers import Exceptions, Outcome, decision_of, decision_on, name_of


class EachAsync:
    """A handler that awaits a function for each task, so many at a time, for all batches on the same loop.

    `work.in_commit` and the queue's verbs stay what they are: calls that block, carried out elsewhere.
    """

    def __init__(
        self, function: Callable[..., Any], takes_batch: bool, concurrency: int, success_on: Exceptions = ()
    ) -> None:
        if concurrency < 1:
            raise ValueError(f"a handler needs a concurrency of 1 at least, not {concurrency}")
        self._function = cast("Callable[..., Awaitable[Outcome]]", function)
        self._takes_batch = takes_batch
        self._concurrency = concurrency
        self._success_on = success_on
        self._loop: _LoopInThread | None = None
        self._lock = threading.Lock()

    def handle(self, batch: Batch) -> Mapping[Task, Decision]:
        """The function's word on each task."""
        with self._lock:
            if self._loop is None:
                self._loop = _LoopInThread(self._concurrency)
            loop = self._loop
        awaited = asyncio.run_coroutine_threadsafe(self._decide_all(batch, loop.turns), loop.loop)
        with batch.running(f"{name_of(self._function)} on the event loop", loop.stacks, cast("Any", awaited.cancel)):
            if batch.cancelled.is_set():  # before anybody could know how to cancel it
                awaited.cancel()
            return awaited.result()

    def close(self) -> None:
        """Cancels what still runs, and ends the loop."""
        with self._lock:
            loop, self._loop = self._loop, None
        if loop is not None:
            loop.end()

    def __repr__(self) -> str:
        return name_of(self._function)

    async def _decide_all(self, batch: Batch, turns: asyncio.Semaphore) -> dict[Task, Decision]:
        """All tasks of a batch, beside each other."""
        made = await asyncio.gather(*(self._decide(task, batch, turns) for task in batch.tasks))
        return dict(zip(batch.tasks, made, strict=True))

    async def _decide(self, task: Task, batch: Batch, turns: asyncio.Semaphore) -> Decision:
        """Awaits the function for one task."""
        async with turns:
            try:
                called = self._function(task, batch) if self._takes_batch else self._function(task)
                return decision_of(await called)
            except BaseException as error:
                running = asyncio.current_task()
                if running is not None and running.cancelling():
                    raise  # the batch was given up
                return decision_on(error, self._success_on)  # it is this task's failure and no other's


class _LoopInThread:
    """An event loop, and the thread that runs it."""

    def __init__(self, concurrency: int) -> None:
        self.loop = asyncio.new_event_loop()
        self.turns = asyncio.Semaphore(concurrency)
        self._thread = threading.Thread(target=self._run, name="taskq event loop", daemon=True)
        self._thread.start()

    def stacks(self) -> str:
        """Where the loop's tasks stand, and the loop itself, as one of them may hold it up."""
        from airflow_provider_taskq.worker.batches import stack_of

        told = [stack_of(self._thread.ident or 0)()]
        for task in asyncio.all_tasks(self.loop):
            told += [
                f"{task.get_name()} at {frame.f_code.co_filename}:{frame.f_lineno}\n" for frame in task.get_stack()
            ]
        return "".join(told)

    def end(self) -> None:
        """Ends the loop; one that is held up ends when it is let go."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(timeout=1)

    def _run(self) -> None:
        """Runs until it is stopped, and cancels what is left then."""
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
        left = asyncio.all_tasks(self.loop)
        for task in left:
            task.cancel()
        self.loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.close()
