"""The model of the protocol, if this machine has spin: the whole protocol is searched by `make model`."""

import pytest

from tests.protocol.__main__ import PLANTED, missing, search

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(bool(missing()), reason="the model checker spin and a C compiler are not on the PATH"),
]


@pytest.mark.parametrize("rule", PLANTED)
def test_the_model_checker_finds_the_error_that_each_rule_of_the_protocol_prevents(rule: str) -> None:
    assert search(rule).error is not None


def test_the_model_checker_finds_no_error_in_the_protocol() -> None:
    found = search()
    assert found.error is None
    assert found.states > 1_000_000
