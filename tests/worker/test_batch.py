"""Batches: values that handlers share, and follow-ups."""

import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from airflow_provider_taskq.queue import InvalidTask, NewTask, Task
from airflow_provider_taskq.worker import Batch, SupplementError, batch, each, filters, tagged
from airflow_provider_taskq.worker.batches import name_of

pytestmark = pytest.mark.promise(
    "A decision, its follow-ups and its commit hooks are committed together, or not at all"
)


def task(sequence: int) -> Task:
    return Task(sequence, "work", f"t{sequence}", None, None, 1, False)


def test_a_value_is_registered_once_for_a_class_a_task_and_a_qualifier() -> None:
    batch = Batch([task(1), task(2)])
    batch.register(str, "of the batch")
    batch.register(str, "of one", task(1))
    batch.register(str, "of one, other", task(1), "other")
    with pytest.raises(SupplementError, match="str of task 1 is already registered"):
        batch.register(str, "again", task(1))
    assert batch.require(str) == "of the batch"
    assert batch.require(str, task(1)) == "of one"
    assert batch.require(str, task(1), "other") == "of one, other"


def test_a_missing_value_is_an_error_for_require_and_none_for_probe() -> None:
    batch = Batch([task(1)])
    with pytest.raises(SupplementError, match="int was not registered"):
        batch.require(int)
    assert batch.probe(int) is None
    batch.register(int, 0)
    assert batch.probe(int) == 0


def test_a_suggested_value_is_computed_once_for_all_threads() -> None:
    batch, calls, together = Batch([]), [], threading.Barrier(8)

    def make() -> list[int]:
        calls.append(1)
        return [1]

    def ask() -> list[int]:
        together.wait(10)
        return batch.suggest(list, make)

    with ThreadPoolExecutor(8) as pool:
        values = [future.result() for future in [pool.submit(ask) for _ in range(8)]]
    assert len(calls) == 1
    assert all(value is values[0] for value in values)
    assert batch.require(list) is values[0]


def test_a_suggestion_that_fails_is_repeated_and_one_that_needs_itself_raises() -> None:
    batch = Batch([])
    with pytest.raises(ZeroDivisionError):
        batch.suggest(int, lambda: 1 // 0)
    assert batch.suggest(int, lambda: 5) == 5
    with pytest.raises(SupplementError, match="by the function that makes it"):
        batch.suggest(str, lambda: batch.require(str))


def test_a_follow_up_of_a_task_of_another_batch_raises() -> None:
    batch = Batch([task(1)])
    with pytest.raises(InvalidTask, match="task 2 of topic 'work' is not in this batch"):
        batch.push(task(2), "mail", ["a"])
    with pytest.raises(InvalidTask):
        batch.junction(task(2), "mail", [["a"]])
    with pytest.raises(InvalidTask):
        batch.in_commit(lambda *_: None, task(2))
    with pytest.raises(InvalidTask, match="tasks is one str"):
        batch.push(task(1), "mail", "abc")
    with pytest.raises(InvalidTask, match="not a text"):
        batch.junction(task(1), "mail", ["abc"])


def test_follow_ups_are_rewritten_when_they_are_recorded() -> None:
    batch = Batch([task(7)], tagged)
    batch.push(task(7), "mail", ["a", NewTask("b", 1)])
    assert [new.reference for new in batch.follow_ups[0].tasks] == ["7", "7"]


def test_the_name_of_a_function_in_logs_has_no_value_of_the_program() -> None:
    """The repr of a partial has its arguments, and a callable object may have anything in its repr."""

    class Deliver:
        def __repr__(self) -> str:
            return "Deliver(key=opensesame4711)"

        def __call__(self, _: object) -> None: ...

    def send(_key: str, _: object, server: str) -> None:
        assert server

    function = partial(partial(send, "opensesame4711"), server="opensesame4711")
    name = name_of(function)
    assert name.endswith("send")
    for made in (each(function), batch(function), each(function, threads=2), each(function, processes=1)):
        assert name_of(made) == name_of(filters.partial(made, lambda _: True)) == name
    assert name_of(Deliver()).endswith("Deliver")
    assert name_of(each(Deliver())).endswith("Deliver")
