"""The model of the protocol, if this machine has spin: `make chaos` also searches what takes minutes."""

import pytest

from tests.protocol import __main__ as protocol
from tests.protocol.__main__ import BUGS, PROTOCOL, RULES, Found, IncompleteSearch, main, missing, search

SMALL = [names for names in PROTOCOL if names[0] not in ("CRASHES", "LOST_ANSWERS")]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.faults,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(bool(missing()), reason="the model checker spin and a C compiler are not on the PATH"),
]


@pytest.mark.parametrize("names", RULES, ids=" ".join)
def test_the_model_checker_finds_the_error_that_each_rule_of_the_protocol_prevents(names: tuple[str, ...]) -> None:
    assert search(*names).error == RULES[names]


@pytest.mark.parametrize("names", BUGS, ids=" ".join)
def test_the_model_checker_finds_each_bug_of_the_past(names: tuple[str, ...]) -> None:
    assert search(*names).error == BUGS[names]


@pytest.mark.parametrize("names", SMALL, ids=" ".join)
def test_the_model_checker_finds_no_error_in_the_protocol(names: tuple[str, ...]) -> None:
    found = search(*names)
    assert found.error is None
    assert found.states > 100


@pytest.mark.parametrize(
    ("names", "memory", "depth"),
    [
        (("CRASHES",), 260, 2_000_000),
        (("DRAIN",), 6_000, 100),
        (("DRAIN", "LIVENESS"), 6_000, 100),
    ],
)
def test_a_search_that_reaches_its_limit_of_memory_or_depth_is_an_error(
    names: tuple[str, ...], memory: int, depth: int
) -> None:
    with pytest.raises(IncompleteSearch):
        search(*names, memory=memory, depth=depth)


def test_an_incomplete_search_fails_the_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def search_a_little(*names: str) -> Found:
        return search(*names, depth=100)

    monkeypatch.setattr(protocol, "PROTOCOL", (("DRAIN",),))
    monkeypatch.setattr(protocol, "PLANTED", {})
    monkeypatch.setattr(protocol, "search", search_a_little)
    assert main() == 1
    assert "the search has not finished" in capsys.readouterr().err
