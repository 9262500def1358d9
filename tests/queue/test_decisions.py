"""Decisions: results merge by precedence, and only success continues by default."""

from datetime import timedelta
from itertools import product

import pytest

from airflow_provider_taskq.queue import Decision, Result

pytestmark = pytest.mark.promise("Two results of a task merge to the first of FAILURE, SUSPENSION, FILTER, SUCCESS")


@pytest.mark.parametrize("result", [Result.FAILURE, Result.FILTER, Result.SUCCESS])
def test_only_a_suspension_snoozes(result: Result) -> None:
    with pytest.raises(ValueError, match="SUSPENSION"):
        Decision(result, delay=timedelta(hours=1))


@pytest.mark.parametrize(("first", "second"), list(product(Result, Result)))
def test_two_results_merge_to_the_one_of_higher_precedence(first: Result, second: Result) -> None:
    merged = Decision(first, "one").merge(Decision(second, "two"))
    assert merged.result is min(first, second)
    assert merged.continued is (first is second is Result.SUCCESS)


def test_merging_keeps_both_errors() -> None:
    merged = Decision(Result.FAILURE, error=ValueError("one")).merge(Decision(Result.FAILURE, error=OSError("two")))
    assert isinstance(merged.error, BaseExceptionGroup)
    assert [str(error) for error in merged.error.exceptions] == ["one", "two"]


def test_a_decision_is_continued_for_success_only_unless_set() -> None:
    assert [Decision(result).continued for result in Result] == [False, False, False, True]
    assert Decision(Result.SUCCESS, continued=False).continued is False
    assert Decision(Result.FILTER, continued=True).continued is True
