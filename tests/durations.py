"""Tests that take long without the mark `slow`: pytest notes them in its cache, and `make check` refuses them.

A duration is that of the test's body, divided by the processes that share a core, and the shortest of all runs: what
a busy machine did to a test is gone after the next run. `make check` refuses what takes twice as long as the limit, and
only in a run of single files by one process, as after a change of them: beside others a test waits for a core, and
`make test` has to pass twice in a row on any machine.
"""

import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LIMIT = 2.0  # seconds
REFUSED = 2 * LIMIT
KEY = "taskq/long"
OTHER_TIERS = {"slow", "faults", "documents", "chaos"}


class LongTests:
    """Notes the tests above the limit, and prints them at the end of a session."""

    def __init__(self, config: pytest.Config) -> None:
        assert config.cache is not None
        self._cache = config.cache
        self._alone = not getattr(config.option, "numprocesses", None)
        self._found = still_there(self._cache.get(KEY, {}))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Compares a test with the limit."""
        if report.when != "call":
            return
        before = self._found.pop(report.nodeid, report.duration)
        seconds = min(before, report.duration / self._crowding())
        if seconds > LIMIT and not OTHER_TIERS & set(report.keywords):
            self._found[report.nodeid] = round(seconds, 1)

    def pytest_sessionfinish(self) -> None:
        """Stores what was found."""
        if self._alone:
            self._cache.set(KEY, self._found)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Prints what was found."""
        if self._found:
            terminalreporter.section(f"not marked slow, and above {LIMIT:g} s")
            terminalreporter.write_line("\n".join(lines(self._found)))

    def _crowding(self) -> float:
        """How many processes want one core."""
        return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def lines(found: dict[str, float]) -> Iterable[str]:
    """Yield a line for each test, the longest first."""
    for nodeid, seconds in sorted(found.items(), key=lambda each: -each[1]):
        yield f"  {seconds:5.1f} s  {nodeid}"


def still_there(found: dict[str, float]) -> dict[str, float]:
    """Leave out the tests that were removed or renamed."""

    def exists(nodeid: str) -> bool:
        path, *_, name = nodeid.partition("[")[0].split("::")
        file = ROOT / path
        return file.exists() and f"def {name}(" in file.read_text(encoding="utf-8")

    return {nodeid: seconds for nodeid, seconds in found.items() if exists(nodeid)}


def main() -> None:
    """Fail if the last runs found tests above the limit that are not marked slow."""
    noted = ROOT / ".pytest_cache" / "v" / KEY
    found = still_there(json.loads(noted.read_text(encoding="utf-8")) if noted.exists() else {})
    refused = {nodeid: seconds for nodeid, seconds in found.items() if seconds > REFUSED}
    if refused:
        listed = "\n".join(lines(refused))
        sys.exit(
            f"{listed}\ncheck: these tests take more than {REFUSED:g} s. Shorten them or mark them slow, and run them"
        )


if __name__ == "__main__":
    main()
