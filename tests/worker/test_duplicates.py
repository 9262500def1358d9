"""Filters of batches with several tasks of one identifier."""

import pytest

from airflow_provider_taskq.queue import Result, Task
from airflow_provider_taskq.worker.batches import Batch
from airflow_provider_taskq.worker.composite import Composite
from airflow_provider_taskq.worker.filters import Judge, outdated, repeated, step_of, without
from airflow_provider_taskq.worker.handlers import BatchHandler, batch

FAILURE, SUSPENSION, FILTER, SUCCESS = Result


def small_batch() -> Batch:
    """Two tasks of a with the later one first, one of b, three of c."""
    return Batch(
        Task(sequence, "work", identifier, None, None, 1, False)
        for sequence, identifier in ((2, "a"), (1, "a"), (3, "b"), (4, "c"), (5, "c"), (6, "c"))
    )


def handlers(judge: Judge) -> list[BatchHandler]:
    """A filter as a handler, and as the first step of a composite."""
    suspend = batch(lambda _: SUSPENSION)
    composite = Composite("filtering").with_batch(step_of(judge))
    return [without(judge, suspend), composite.with_batch(lambda _: SUSPENSION, name="rest", after=judge.__name__)]


@pytest.mark.parametrize("place", [0, 1], ids=["handler", "composite"])
def test_outdated_filters_all_but_the_highest_sequence_of_an_identifier(place: int) -> None:
    handler, given = handlers(outdated)[place], small_batch()
    decided = handler.handle(given)
    assert [decided[task].result for task in given.tasks] == [
        SUSPENSION,
        FILTER,
        SUSPENSION,
        FILTER,
        FILTER,
        SUSPENSION,
    ]
    assert decided[given.tasks[1]].message == "outdated by task 2 of the same batch"
    handler.close()


@pytest.mark.parametrize("place", [0, 1], ids=["handler", "composite"])
def test_repeated_fails_every_duplicate(place: int) -> None:
    handler, given = handlers(repeated)[place], small_batch()
    decided = handler.handle(given)
    assert [decided[task].result for task in given.tasks] == [FAILURE, FAILURE, SUSPENSION, FAILURE, FAILURE, FAILURE]
    assert decided[given.tasks[0]].error == "one of 2 tasks of its identifier in one batch"
    handler.close()


def test_the_handler_is_not_called_for_a_batch_of_duplicates_only() -> None:
    given, seen = Batch(small_batch().tasks[:2]), list[Batch]()
    decided = without(repeated, batch(seen.append)).handle(given)
    assert [made.result for made in decided.values()] == [FAILURE] * 2
    assert seen == []
