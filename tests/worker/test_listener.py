"""Listeners: the hooks that a worker calls, and their order."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from airflow_provider_taskq.queue import Decision, State, Task, TaskQueue
from airflow_provider_taskq.worker import Batch, WorkerListener, batch
from tests.internals import interrupted
from tests.queue.conftest import states, until
from tests.worker.conftest import MakeWorker

pytestmark = pytest.mark.promise("A listener is called at each step of a batch, in order")


class Diary(WorkerListener):
    """A listener that records its calls."""

    def __init__(self) -> None:
        self.heard: list[tuple[Any, ...]] = []

    def on_fatal(self, error: BaseException) -> None:
        self.heard.append(("fatal", type(error).__name__))

    def on_empty(self) -> None:
        self.heard.append(("empty",))

    def on_start(self, tasks: Sequence[Task]) -> str:
        self.heard.append(("start", len(tasks)))
        return f"trace of {tasks[0].identifier}"

    def on_dispatched(self, trace: Any) -> None:
        self.heard.append(("dispatched", trace))

    def on_callback(self, trace: Any, decisions: Mapping[Task, Decision]) -> None:
        self.heard.append(("callback", trace, *[decision.result.name for decision in decisions.values()]))

    def on_complete(self, trace: Any, decisions: Mapping[Task, Decision]) -> None:
        self.heard.append(("complete", trace, *[decision.result.name for decision in decisions.values()]))

    def on_error(self, trace: Any, error: BaseException) -> None:
        self.heard.append(("error", trace, type(error).__name__))


def succeed(_: Batch) -> None: ...


def fail(_: Batch) -> None:
    raise ZeroDivisionError


def push_to_nowhere(batch: Batch) -> None:
    batch.push(batch.tasks[0], "a topic that is none", ["x"])


TRACE = "trace of a"
CALLBACK = ("callback", TRACE, "SUCCESS", "SUCCESS")


@pytest.mark.parametrize(
    ("handle", "heard", "ended"),
    [
        (succeed, [CALLBACK, ("complete", TRACE, "SUCCESS", "SUCCESS")], State.SUCCEEDED),
        (fail, [("error", TRACE, "ZeroDivisionError")], State.FAILED),
        (push_to_nowhere, [CALLBACK, ("error", TRACE, "UnknownTopic")], State.FAILED),
    ],
)
def test_a_listener_is_called_for_a_batch_from_start_to_its_end(
    queue: TaskQueue, make_worker: MakeWorker, handle: Callable[[Batch], None], heard: list[Any], ended: State
) -> None:
    diary = Diary()
    queue.push("work", ["a", "b"])
    make_worker(batch(handle), size=2, listener=diary, listen=False).start()
    until(lambda: ("empty",) in diary.heard)
    assert diary.heard == [("start", 2), ("dispatched", TRACE), *heard, ("empty",)]
    assert states(queue) == [("a", ended), ("b", ended)]


def test_a_batch_that_cannot_be_marked_as_failed_is_fatal_and_loses_its_lease(
    queue: TaskQueue, make_worker: MakeWorker
) -> None:
    diary = Diary()
    queue.push("work", ["a"])
    with interrupted(queue.conn, "end", "RAISE 'the disk is full';"):
        make_worker(lambda _: None, listener=diary, listen=False).start()
        until(lambda: ("fatal", "RaiseException") in diary.heard)
    until(lambda: states(queue) == [("a", State.SUCCEEDED)])


def test_a_listener_that_fails_does_not_stop_the_worker(queue: TaskQueue, make_worker: MakeWorker) -> None:
    class Broken(WorkerListener):
        def on_start(self, tasks: Sequence[Task]) -> None:
            raise ZeroDivisionError(len(tasks))

        def on_empty(self) -> None:
            raise ZeroDivisionError

    queue.push("work", ["a"])
    make_worker(lambda _: None, listener=Broken()).start()
    until(lambda: states(queue) == [("a", State.SUCCEEDED)])


def test_a_listener_may_stop_its_worker(queue: TaskQueue, make_worker: MakeWorker) -> None:
    stopped: list[bool] = []

    class Stopping(WorkerListener):
        def on_empty(self) -> None:
            stopped.append(worker.stop())

    queue.push("work", ["a"])
    worker = make_worker(lambda _: None, listener=Stopping())
    worker.start()
    until(lambda: stopped == [True])
    assert states(queue) == [("a", State.SUCCEEDED)]
    assert queue.owners() == []
