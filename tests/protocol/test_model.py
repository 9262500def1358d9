"""The model of the protocol, if this machine has spin: `make chaos` also searches what takes minutes."""

import pytest

from tests.protocol.__main__ import PLANTED, PROTOCOL, missing, search

SMALL = [names for names in PROTOCOL if names[0] not in ("CRASHES", "LOST_ANSWERS")]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.faults,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(bool(missing()), reason="the model checker spin and a C compiler are not on the PATH"),
]


@pytest.mark.parametrize("names", PLANTED, ids=" ".join)
def test_the_model_checker_finds_the_error_that_each_rule_prevents_and_each_bug_of_the_past(
    names: tuple[str, ...],
) -> None:
    assert search(*names).error == PLANTED[names]


@pytest.mark.parametrize("names", SMALL, ids=" ".join)
def test_the_model_checker_finds_no_error_in_the_protocol(names: tuple[str, ...]) -> None:
    found = search(*names)
    assert found.error is None
    assert found.states > 100
