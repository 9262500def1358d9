"""Handlers that get some tasks of a batch: matching tasks, or one task of each identifier."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import psycopg
import pytest

from airflow_provider_taskq.queue import Decision, Owner, Result, Task, TaskQueue
from airflow_provider_taskq.worker.batches import Batch, tagged
from airflow_provider_taskq.worker.commit import commit_batch
from airflow_provider_taskq.worker.composite import Composite
from airflow_provider_taskq.worker.filters import Judge, matching, outdated, partial, repeated, step_of, without
from airflow_provider_taskq.worker.handlers import ForeignDecision, batch

pytestmark = pytest.mark.promise("A handler of some tasks of a batch gets exactly those")

FAILURE, SUSPENSION, FILTER, SUCCESS = Result


def odd(task: Task) -> bool:
    return task.sequence % 2 == 1


def small_batch() -> Batch:
    return Batch((Task(number, "work", f"item-{number}", None, None, 1, False) for number in range(4)), tagged)


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


@pytest.mark.parametrize(
    ("predicate", "fallback", "expected"),
    [
        (odd, None, [SUCCESS, FILTER, SUCCESS, FILTER]),
        (odd, Decision(SUSPENSION, "not now"), [SUSPENSION, FILTER, SUSPENSION, FILTER]),
        (odd, lambda task: SUSPENSION if task.sequence else FAILURE, [FAILURE, FILTER, SUSPENSION, FILTER]),
        (lambda _: False, None, [SUCCESS] * 4),
    ],
    ids=["none", "a decision", "a function", "no task matches"],
)
def test_a_partial_handler_gets_matching_tasks_and_the_others_get_the_fallback(
    predicate: Callable[[Task], bool], fallback: Any, expected: list[Result]
) -> None:
    seen: list[int] = []

    def look(part: Batch) -> Result:
        seen.extend(task.sequence for task in part.tasks)
        return FILTER

    handler = partial(batch(look), predicate, *([] if fallback is None else [fallback]))
    decided = handler.handle(small_batch())
    assert [decided[task].result for task in small_batch().tasks] == expected
    assert seen == ([1, 3] if predicate is odd else [])
    assert not isinstance(fallback, Decision) or decided[small_batch().tasks[0]].message == "not now"


OUTDATED = (outdated, [SUSPENSION, FILTER, SUSPENSION, FILTER, FILTER, SUSPENSION])
REPEATED = (repeated, [FAILURE, FAILURE, SUSPENSION, FAILURE, FAILURE, FAILURE])


@pytest.mark.parametrize("is_step", [False, True], ids=["handler", "composite"])
@pytest.mark.parametrize(("judge", "expected"), [OUTDATED, REPEATED], ids=["outdated", "repeated"])
def test_outdated_keeps_the_last_task_of_an_identifier_and_repeated_fails_all(
    judge: Judge, expected: list[Result], is_step: bool
) -> None:
    given, seen = batch_of_duplicates(), list[Batch]()

    def rest(part: Batch) -> Result:
        seen.append(part)
        return SUSPENSION

    composite = Composite("filtering").with_batch(step_of(judge))
    steps = composite.with_batch(lambda _: SUSPENSION, name="rest", after=judge.__name__)
    handler = steps if is_step else without(judge, batch(rest))
    decided = handler.handle(given)
    assert [decided[task].result for task in given.tasks] == expected
    reasons = {
        "outdated": "outdated by task 2 of the same batch",
        "repeated": "one of 2 tasks of its identifier in one batch",
    }
    made = decided[given.tasks[1]]
    assert reasons[judge.__name__] in (made.message, made.error)
    seen.clear()
    handler.handle(Batch(given.tasks[1:2]) if judge is outdated else Batch(given.tasks[:2]))
    assert len(seen) == (judge is outdated and not is_step), "a handler is not called without tasks"
    handler.close()
