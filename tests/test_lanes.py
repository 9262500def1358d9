"""`tools/lanes.py`: the result of a part of the tests."""

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.programs import load

SLOW = """
import pytest


@pytest.mark.slow
def test_that_is_slow():
    pass
"""


@pytest.fixture
def lanes(repository: Path) -> Any:
    """The program as a module."""
    return load(repository / "tools" / "lanes.py")


@pytest.mark.parametrize("may_be_empty", [True, False])
def test_a_part_without_a_test_passes_only_among_the_fast_tests(lanes: Any, tmp_path: Path, may_be_empty: bool) -> None:
    (tmp_path / "test_slow.py").write_text(SLOW)
    part = lanes.Part(["-p", "no:cacheprovider", "-m", "not slow", str(tmp_path)], may_be_empty=may_be_empty)
    with closing(part._output):
        part.run()
        assert b"1 deselected" in part.printed()
    assert part.passed is may_be_empty
