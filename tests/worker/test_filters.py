"""Handlers that get some tasks of a batch: matching tasks, or one task of each identifier."""

from collections.abc import Mapping, Sequence

import psycopg
import pytest

from airflow_provider_taskq.queue import Decision, Owner, Result, Task, TaskQueue
from airflow_provider_taskq.worker.batches import Batch, tagged
from airflow_provider_taskq.worker.commit import commit_batch
from airflow_provider_taskq.worker.composite import Composite
from airflow_provider_taskq.worker.executors import each
from airflow_provider_taskq.worker.filters import Judge, matching, outdated, partial, repeated, step_of, without
from airflow_provider_taskq.worker.handlers import BatchHandler, ForeignDecision, batch

pytestmark = pytest.mark.promise("A handler of some tasks of a batch gets exactly those")

FAILURE, SUSPENSION, FILTER, SUCCESS = Result


def odd(task: Task) -> bool:
    return task.sequence % 2 == 1


def small_batch() -> Batch:
    return Batch((Task(number, "work", f"item-{number}", None, None, 1, False) for number in range(4)), tagged)


def test_a_partial_handler_gets_matching_tasks_and_the_others_get_the_fallback() -> None:
    seen: list[int] = []

    def look(task: Task) -> Result:
        seen.append(task.sequence)
        return FILTER

    decided = partial(each(look), odd).handle(small_batch())
    assert [decided[task].result for task in small_batch().tasks] == [SUCCESS, FILTER, SUCCESS, FILTER]
    assert seen == [1, 3]


def test_the_fallback_may_be_a_decision_or_a_function_of_the_task() -> None:
    handler = partial(batch(lambda _: None), odd, Decision(SUSPENSION, "not now"))
    assert [made.message for made in handler.handle(small_batch()).values()][:2] == ["not now", "not now"]
    handler = partial(batch(lambda _: None), odd, lambda task: FILTER if task.sequence else FAILURE)
    decided = handler.handle(small_batch())
    assert [decided[task].result for task in small_batch().tasks] == [FAILURE, SUCCESS, FILTER, SUCCESS]


def test_a_partial_handler_is_not_called_if_no_task_matches() -> None:
    seen: list[Batch] = []
    decided = partial(batch(seen.append), lambda _: False).handle(small_batch())
    assert [made.result for made in decided.values()] == [SUCCESS] * 4
    assert seen == []


def test_a_task_that_does_not_match_is_foreign_to_a_partial_handler() -> None:
    given = small_batch()
    with pytest.raises(ForeignDecision):
        partial(batch(lambda _: dict.fromkeys(given.tasks)), odd).handle(given)


def test_a_partial_handler_fails_a_task_without_a_decision_and_shares_the_supplement() -> None:
    given = small_batch()

    def some(part: Batch) -> Mapping[Task, Result]:
        part.register(str, "kept")
        part.push(part.tasks[0], "next", ["a"])
        return {part.tasks[0]: FILTER}

    decided = partial(batch(some), odd).handle(given)
    assert [decided[task].result for task in given.tasks] == [SUCCESS, FILTER, SUCCESS, FAILURE]
    assert given.require(str) == "kept"
    assert [new.reference for follow_up in given.follow_ups for new in follow_up.tasks] == ["1"]


def test_a_commit_hook_of_a_partial_handler_gets_matching_tasks_only(
    conn: psycopg.Connection, queue: TaskQueue, owner: Owner
) -> None:
    queue.push("work", [f"item-{number}" for number in range(4)])
    given = Batch(queue.poll("work", owner, 4))
    asked: list[Task] = []

    def suspend(_: TaskQueue, decisions: Mapping[Task, Decision]) -> Mapping[Task, Decision]:
        asked.extend(decisions)
        return dict.fromkeys(decisions, Decision(SUSPENSION))

    partly = partial(batch(lambda part: part.in_commit(suspend)), lambda task: task.identifier == "item-2", FILTER)
    stands = commit_batch(TaskQueue(conn), owner, given, partly.handle(given))
    assert [stands[task].result for task in given.tasks] == [FILTER, FILTER, SUSPENSION, FILTER]
    assert [task.identifier for task in asked] == ["item-2"]


def test_a_step_of_a_composite_may_get_matching_tasks_only() -> None:
    seen: list[Task] = []

    def look(tasks: Sequence[Task]) -> Result:
        seen.extend(tasks)
        return FILTER

    composite = Composite("partly").with_batch(matching(odd, look, lambda task: SUSPENSION if task.sequence else None))
    given = small_batch()
    decided = composite.handle(given)
    Composite("none").with_batch(matching(lambda _: False, look)).handle(given)
    assert [decided[task].result for task in given.tasks] == [SUCCESS, FILTER, SUSPENSION, FILTER]
    assert [task.sequence for task in seen] == [1, 3]
    assert [step.name for step in composite.steps] == ["look"]


def batch_of_duplicates() -> Batch:
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
    handler, given = handlers(outdated)[place], batch_of_duplicates()
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
    handler, given = handlers(repeated)[place], batch_of_duplicates()
    decided = handler.handle(given)
    assert [decided[task].result for task in given.tasks] == [FAILURE, FAILURE, SUSPENSION, FAILURE, FAILURE, FAILURE]
    assert decided[given.tasks[0]].error == "one of 2 tasks of its identifier in one batch"
    handler.close()


def test_the_handler_is_not_called_for_a_batch_of_duplicates_only() -> None:
    given, seen = Batch(batch_of_duplicates().tasks[:2]), list[Batch]()
    decided = without(repeated, batch(seen.append)).handle(given)
    assert [made.result for made in decided.values()] == [FAILURE] * 2
    assert seen == []
