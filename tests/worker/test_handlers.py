"""Handlers made of functions: signatures, results, threads, processes."""

import asyncio
import os
import signal
import sys
import threading
import time
from concurrent.futures import CancelledError
from contextvars import ContextVar
from pathlib import Path

import pytest

from airflow_provider_taskq.queue import Decision, Result, Task
from airflow_provider_taskq.worker import Batch, BatchHandler, TaskResultException, batch, each
from tests.queue.conftest import until

pytestmark = pytest.mark.promise("A handler is a function, a coroutine or an object, in threads or in processes")

BAGGAGE: ContextVar[str] = ContextVar("baggage")


def task(sequence: int, identifier: str = "t") -> Task:
    return Task(sequence, "work", identifier, {"n": sequence}, None, 1, False)


def results(handler: BatchHandler, *tasks: Task) -> list[Result]:
    made = handler.handle(Batch(tasks))
    return [made[each].result for each in tasks]


def test_a_function_takes_a_task_or_a_task_and_its_batch() -> None:
    class Sized:
        def __call__(self, task: Task, batch: Batch) -> Result:
            assert task in batch
            return Result.FILTER

    def of_one(_: Task, retries: int = 3) -> None:
        assert retries == 3

    assert results(each(of_one), task(1)) == [Result.SUCCESS]
    assert results(each(Sized()), task(1)) == [Result.FILTER]


def test_a_returned_value_that_is_no_decision_fails_the_task_with_that_reason() -> None:
    [made] = each(lambda _: 5).handle(Batch([task(1)])).values()  # type: ignore[arg-type]
    assert made.result is Result.FAILURE
    assert "not int" in str(made.error)


def test_a_task_result_exception_keeps_its_message_and_continued() -> None:
    def stop(_: Task) -> None:
        raise TaskResultException(Result.FILTER, continued=True, message={"n": 1})

    [made] = each(stop).handle(Batch([task(1)])).values()
    assert (made.result, made.continued, made.message) == (Result.FILTER, True, {"n": 1})


def test_system_exit_in_a_handler_fails_its_task_only() -> None:
    def leave(task: Task) -> None:
        if task.sequence == 1:
            sys.exit("enough")

    assert results(each(leave), task(1), task(2)) == [Result.FAILURE, Result.SUCCESS]


def test_a_batch_function_returns_one_outcome_for_all_or_one_for_each() -> None:
    assert results(batch(lambda _: None), task(1), task(2)) == [Result.SUCCESS] * 2
    assert results(batch(lambda _: Result.FILTER), task(1)) == [Result.FILTER]
    assert results(batch(lambda batch: {batch.tasks[0]: None}), task(1)) == [Result.SUCCESS]


def test_threads_see_the_context_variables_of_the_worker() -> None:
    BAGGAGE.set("a span")
    seen: list[str] = []
    handler = each(lambda _: seen.append(BAGGAGE.get()), threads=2)
    assert results(handler, task(1), task(2)) == [Result.SUCCESS] * 2
    assert seen == ["a span"] * 2
    handler.close()


def by_name(task: Task, batch: Batch) -> Decision | None:
    """The function of a child process, which imports it by name. The identifier selects its behavior."""
    if task.identifier == "pid":
        return Decision(Result.SUCCESS, os.getpid())
    if task.identifier == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if task.identifier == "failed":
        raise ZeroDivisionError("in a process")
    if task.identifier == "unspeakable":
        batch.in_commit(lambda *_: None)
    if task.identifier == "slow":
        time.sleep(60)
    if task.identifier.startswith("meet"):
        _meet(Path(task.identifier.removeprefix("meet ")), task.sequence)
    batch.push(task, "mail", ["a"])
    return None


def _meet(place: Path, number: int) -> None:
    """Returns when two processes have come here."""
    (place / str(number)).touch()
    while len(list(place.iterdir())) < 2:
        time.sleep(0.01)


def test_a_process_that_dies_fails_its_task_only(tmp_path: Path) -> None:
    handler = each(by_name, processes=2)
    meeting = [task(8, f"meet {tmp_path}"), task(9, f"meet {tmp_path}")]
    given = [task(1, "pid"), task(2, "killed"), task(3, "failed"), task(4, "unspeakable"), task(5, "plain"), *meeting]
    batch = Batch(given)
    made = handler.handle(batch)
    assert [made[each].result.name for each in given] == ["SUCCESS", *["FAILURE"] * 3, "SUCCESS", "SUCCESS", "SUCCESS"]
    assert made[given[0]].message != os.getpid()
    assert made[given[1]].error == "the process that handled this task was killed by signal 9"
    assert "ZeroDivisionError: in a process" in str(made[given[2]].error)
    assert "pickle" in str(made[given[3]].error)
    assert {follow_up.task for follow_up in batch.follow_ups} == {given[4], *meeting}
    _tells_where_a_process_stands(handler)
    handler.close()


def _tells_where_a_process_stands(handler: BatchHandler) -> None:
    """Reports the stack of a slow task while its process runs, and kills it."""
    batch = Batch([task(6, "slow")])
    made: list[Decision] = []
    thread = threading.Thread(target=lambda: made.extend(handler.handle(batch).values()))
    thread.start()
    deadline = time.monotonic() + 200
    while not (places := batch.activities()) or "time.sleep(60)" not in places[0].stack():
        assert time.monotonic() < deadline
    batch.cancel()
    thread.join(10)
    assert made[0].error == "the process that handled this task was killed by signal 9"


def test_a_late_kill_of_a_task_does_not_hit_the_next_task(tmp_path: Path) -> None:
    handler = each(by_name, processes=1)
    batch = Batch([task(1, f"meet {tmp_path}")])
    thread = threading.Thread(target=handler.handle, args=(batch,))
    thread.start()
    until(batch.activities)
    [place] = batch.activities()
    (tmp_path / "other").touch()
    thread.join(60)
    assert place.cancel is not None
    place.cancel()  # as a worker does that abandons the batch just before the task ends
    assert results(handler, task(2, "plain")) == [Result.SUCCESS]
    handler.close()


def test_a_closed_handler_starts_again() -> None:
    handler = each(lambda _: None, threads=2)
    assert results(handler, task(1), task(2)) == [Result.SUCCESS] * 2
    handler.close()
    assert results(handler, task(1), task(2)) == [Result.SUCCESS] * 2
    handler.close()


def test_a_handler_without_threads_raises() -> None:
    with pytest.raises(ValueError, match="threads must be at least 1"):
        each(lambda _: None, threads=0)


def test_a_coroutine_that_cancels_itself_is_a_failure_of_its_task_only() -> None:
    async def cancels(task: Task) -> None:
        if task.sequence == 1:
            raise asyncio.CancelledError

    handler = each(cancels)
    assert results(handler, task(1), task(2)) == [Result.FAILURE, Result.SUCCESS]
    handler.close()


def test_coroutines_of_a_batch_that_was_abandoned_before_they_started_are_cancelled() -> None:
    async def waits_for_ever(_: Task) -> None:
        await asyncio.Event().wait()

    handler, batch = each(waits_for_ever), Batch([task(1)])
    ended: list[BaseException] = []
    batch.cancel()

    def handle() -> None:
        try:
            handler.handle(batch)
        except CancelledError as error:
            ended.append(error)

    thread = threading.Thread(target=handle, daemon=True)
    thread.start()
    thread.join(20)
    assert len(ended) == 1
    handler.close()
