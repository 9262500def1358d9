"""The word check of `make check`: tools/words.py."""

import subprocess
import sys
from pathlib import Path

import pytest

WORD = "an" + "ew"  # in two parts, as the check reads this file, too
ACCOUNT = "no" + "body"
PRIVATE = "taskq_" + "internal"


@pytest.mark.parametrize(
    ("name", "line", "found"),
    [
        ("page.md", f"The worker polls {WORD}.", [WORD]),
        ("page.md", f"> The worker polls {WORD}.\nThe account `{ACCOUNT}` has a renewed lease.", []),
        ("module.py", f"def test_a_worker_polls_{WORD}_so_{'ma' + 'ny'}() -> None:", [WORD]),
        ("module.py", f"SELECT FROM {PRIVATE}.live", []),
        ("tests/module.py", f"SELECT FROM {PRIVATE}.live", [PRIVATE]),
        ("tests/internals.py", f"SELECT FROM {PRIVATE}.live", []),
    ],
)
def test_the_check_reports_words_but_no_quotations_and_no_account(
    repository: Path, tmp_path: Path, name: str, line: str, found: list[str]
) -> None:
    file = tmp_path / name
    file.parent.mkdir(exist_ok=True)
    file.write_text(f"The first line.\n{line}\n", encoding="utf-8")
    expected = [[f"{file}:2", repr(word)] for word in found]
    command = [sys.executable, str(repository / "tools" / "words.py"), str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert [report.split(": ")[:2] for report in done.stdout.splitlines()] == expected, done.stderr
    assert done.returncode == bool(found)
