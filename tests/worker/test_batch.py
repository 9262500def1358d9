"""Work: what a batch shares among those who handle it, and what follows it."""

import pickle
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from airflow_provider_taskq.queue import InvalidTask, NewTask, Task
from airflow_provider_taskq.worker import SupplementError, Work, tagged


def task(sequence: int) -> Task:
    return Task(sequence, "work", f"t{sequence}", None, None, 1, False)


def test_a_value_is_registered_once_for_a_class_a_task_and_a_qualifier() -> None:
    work = Work([task(1), task(2)])
    work.register(str, "of the batch")
    work.register(str, "of one", task(1))
    work.register(str, "of one, other", task(1), "other")
    with pytest.raises(SupplementError, match="str of task 1 is registered already"):
        work.register(str, "again", task(1))
    assert work.require(str) == "of the batch"
    assert work.require(str, task(1)) == "of one"
    assert work.require(str, task(1), "other") == "of one, other"


def test_a_missing_value_is_an_error_where_it_is_required_and_none_where_it_is_probed() -> None:
    work = Work([task(1)])
    with pytest.raises(SupplementError, match="int was not registered"):
        work.require(int)
    assert work.probe(int) is None
    work.register(int, 0)
    assert work.probe(int) == 0


def test_a_suggested_value_is_computed_once_by_however_many_threads() -> None:
    work, calls, together = Work([]), [], threading.Barrier(8)

    def make() -> list[int]:
        calls.append(1)
        return [1]

    def ask() -> list[int]:
        together.wait(10)
        return work.suggest(list, make)

    with ThreadPoolExecutor(8) as pool:
        values = [future.result() for future in [pool.submit(ask) for _ in range(8)]]
    assert len(calls) == 1
    assert all(value is values[0] for value in values)
    assert work.require(list) is values[0]


def test_a_suggestion_that_fails_is_made_anew_and_one_that_needs_itself_is_refused() -> None:
    work = Work([])
    with pytest.raises(ZeroDivisionError):
        work.suggest(int, lambda: 1 // 0)
    assert work.suggest(int, lambda: 5) == 5
    with pytest.raises(SupplementError, match="while it is being made"):
        work.suggest(str, lambda: work.require(str))


def test_what_follows_a_task_of_another_batch_is_refused() -> None:
    work = Work([task(1)])
    with pytest.raises(InvalidTask, match="task 2 of topic 'work' is none of this batch"):
        work.push(task(2), "mail", ["a"])
    with pytest.raises(InvalidTask):
        work.junction(task(2), "mail", [["a"]])
    with pytest.raises(InvalidTask):
        work.in_commit(lambda *_: None, task(2))
    with pytest.raises(InvalidTask, match="tasks is one str"):
        work.push(task(1), "mail", "abc")
    with pytest.raises(InvalidTask, match="not a text"):
        work.junction(task(1), "mail", ["abc"])


def test_new_tasks_are_rewritten_before_they_follow() -> None:
    work = Work([task(7)], tagged)
    work.push(task(7), "mail", ["a", NewTask("b", 1)])
    assert [new.reference for new in work.follow_ups[0].tasks] == ["7", "7"]


def test_what_follows_a_batch_crosses_to_another_process_and_its_supplement_does_not() -> None:
    work = Work([task(1)])
    work.push(task(1), "mail", ["a"])
    work.register(int, 1)
    crossed = pickle.loads(pickle.dumps(work))  # noqa: S301 -- our own
    assert crossed.follow_ups == work.follow_ups
    assert task(1) in crossed
    assert crossed.probe(int) is None


def test_a_batch_tells_where_it_is_and_is_cancelled_there() -> None:
    work, cancelled, inside, go_on = Work([task(1)]), threading.Event(), threading.Event(), threading.Event()

    def deep_inside() -> None:
        with work.running("a thread", cancel=cancelled.set):
            inside.set()
            go_on.wait(10)

    thread = threading.Thread(target=deep_inside)
    thread.start()
    assert inside.wait(10)
    [place] = work.whereabouts()
    assert (place.what, "deep_inside" in place.stack()) == ("a thread", True)
    work.cancel()
    go_on.set()
    thread.join()
    assert cancelled.is_set()
    assert work.whereabouts() == []
