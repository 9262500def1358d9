"""States, results and other choices go by member or by name in any case; decisions of two results merge."""

from datetime import timedelta
from itertools import product

import pytest

from airflow_provider_taskq.queue import (
    Condition,
    Decision,
    InvalidArgument,
    NewTask,
    Order,
    Owner,
    Result,
    Revival,
    State,
    TaskQueue,
)
from tests.queue.conftest import identifiers, states

pytestmark = pytest.mark.promise("Any input is stored as it is, or refused with an error of the queue")


def test_a_member_is_found_by_its_name_in_any_case() -> None:
    members = [State.of("failed"), Result.of("SUCCESS"), Revival.of("reset"), Order.of("last_in_first_out")]
    assert members == [State.FAILED, Result.SUCCESS, Revival.RESET, Order.LAST_IN_FIRST_OUT]
    assert Decision("filter").result is Result.FILTER  # type: ignore[arg-type]  # what is tested
    with pytest.raises(InvalidArgument, match=r"unknown state 'DONE': expected one of ACTIVE, READY, .*REDUNDANT"):
        State.of("DONE")
    with pytest.raises(ValueError, match="unknown result 'SUCCEEDED': expected one of FAILURE, SUSPENSION"):
        Decision("SUCCEEDED")  # type: ignore[arg-type]  # what is tested


def test_verbs_take_the_name_of_a_state(queue: TaskQueue, owner: Owner) -> None:
    [task, _] = queue.push("work", ["a", "b"])
    queue.poll("work", owner)
    queue.complete(owner, {task: "failure"})
    assert [info.sequence for info in queue.page("work", state="failed")] == [task.sequence]
    assert queue.count("work", state="failed")["work"][State.FAILED].count == 1
    assert queue.count_tasks("work", state="failed") == 1
    assert queue.reassign("work", "filter", state="failed") == 1
    assert queue.revive("work", "FILTERED", "append") == {task.sequence: task.sequence + 2}
    assert queue.purge("work", state="recreated") == 1
    assert states(queue) == [("b", State.READY), ("a", State.READY)]


def test_verbs_take_the_names_of_orders_conditions_insertions_and_junctions(queue: TaskQueue, owner: Owner) -> None:
    queue.push("work", ["a", "a", NewTask("b", suspended=True)])
    queue.push("work", ["a"], "supersede")
    assert queue.count_tasks("work", state="REDUNDANT") == 2
    assert queue.junction("work", [["b"]], "eternal") == {"b"}
    assert queue.ready("work", 9, "singular_by_identifier") == 2
    assert identifiers(queue.poll("work", owner, 1, "last_in_first_out", "none")) == ["a"]
    assert queue.ready("work", 9, Condition.NONE) == 1


# Decisions


@pytest.mark.promise("Two results of a task merge to the first of FAILURE, SUSPENSION, FILTER, SUCCESS")
@pytest.mark.parametrize(("first", "second"), list(product(Result, Result)))
def test_two_results_merge_to_the_one_of_higher_precedence(first: Result, second: Result) -> None:
    merged = Decision(first, "one").merge(Decision(second, "two"))
    assert merged.result is min(first, second)
    assert merged.continued is (first is second is Result.SUCCESS)


@pytest.mark.promise("Two results of a task merge to the first of FAILURE, SUSPENSION, FILTER, SUCCESS")
def test_merging_keeps_both_errors() -> None:
    merged = Decision(Result.FAILURE, error=ValueError("one")).merge(Decision(Result.FAILURE, error=OSError("two")))
    assert isinstance(merged.error, BaseExceptionGroup)
    assert [str(error) for error in merged.error.exceptions] == ["one", "two"]
    mixed = Decision(Result.FAILURE, error=ValueError("one")).merge(Decision(Result.FAILURE, error="two"))
    assert mixed.error == "ValueError: one\n\ntwo"


@pytest.mark.promise("Two results of a task merge to the first of FAILURE, SUSPENSION, FILTER, SUCCESS")
def test_a_decision_is_continued_for_success_only_unless_set_and_only_a_suspension_snoozes() -> None:
    assert [Decision(result).continued for result in Result] == [False, False, False, True]
    assert Decision(Result.SUCCESS, continued=False).continued is False
    assert Decision(Result.FILTER, continued=True).continued is True
    for result in (Result.FAILURE, Result.FILTER, Result.SUCCESS):
        with pytest.raises(ValueError, match="SUSPENSION"):
            Decision(result, delay=timedelta(hours=1))
