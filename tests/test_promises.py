"""The comparison of promises with tests in `make check`: tools/promises.py."""

from pathlib import Path

import pytest

from tests.programs import load

PAGE = """## Push
- A push stores all tasks, or none. It
  waits for no consumer.
1. **Nothing is lost.** [It](x.md) stays.

| event | effect |
|---|---|
| a worker dies | its tasks are READY |
## What is not promised
- **Fairness.** None.
"""
PROOFS = {
    "test_push.py": "pytestmark = [pytest.mark.slow, pytest.mark.promise('A push stores all tasks, or none')]\n"
    "def test_a_push() -> None: ...\n",
    "test_loss.py": "class TestLoss:\n @pytest.mark.promise('Nothing is lost')\n def test_a_loss(self) -> None: ...\n",
    "steps.spec": "# promise: a worker dies\n\npermutation a worker is killed\n",
}


@pytest.mark.parametrize(
    ("file", "old", "new", "error"),
    [
        ("test_push.py", "", "", ""),
        ("test_push.py", "slow", "faults", "no test of `make test` proves 'A push stores all tasks, or none'"),
        ("steps.spec", "# promise", "# promised", "no test of `make test` proves 'a worker dies': mark one"),
        ("test_loss.py", "is lost", "gets lost", "2: docs/why/guarantees.md has no promise 'Nothing gets lost': write"),
    ],
)
def test_a_promise_without_a_test_and_a_mark_without_a_promise_are_errors(
    file: str, old: str, new: str, error: str, repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = load(repository / "tools" / "promises.py")
    for name, text in {f"docs/why/{Path(program.PROMISES).name}": PAGE, program.EVIDENCE: ""}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    (tmp_path / "tests").mkdir()
    for name, text in PROOFS.items():
        (tmp_path / "tests" / name).write_text(text.replace(old, new) if name == file else text, encoding="utf-8")
    assert program.main(["--check"], tmp_path) == 1
    assert "run `make format`" in capsys.readouterr().out
    assert program.main([], tmp_path) == bool(error)
    assert error in capsys.readouterr().out
    assert program.main(["--check"], tmp_path) == bool(error)
    page = (tmp_path / program.EVIDENCE).read_text(encoding="utf-8")
    assert "- [tests/test_push.py](../../../tests/test_push.py)" in page
    assert ("tests/test_loss.py)\n    - a loss\n" in page) == (new != "gets lost")
    assert "    - a push" not in page
