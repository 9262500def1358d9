"""An interrupted test run stops what its fixtures started."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.queue.conftest import until

TEST = """
import time
from pathlib import Path

import pytest


@pytest.fixture(scope="session", autouse=True)
def server():
    yield
    Path("stopped").touch()


def test_that_waits():
    Path("waiting").touch()
    time.sleep(600)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_pytest_ends_its_fixtures(tmp_path: Path, repository: Path, number: signal.Signals) -> None:
    (tmp_path / "test_waiting.py").write_text(TEST)
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-p", "no:cacheprovider", "test_waiting.py"]
    env = {**os.environ, "PYTHONPATH": str(repository)}
    with subprocess.Popen(command, cwd=tmp_path, env=env, stdout=subprocess.DEVNULL) as running:
        try:
            until((tmp_path / "waiting").exists, 120)
            running.send_signal(number)
            assert running.wait(120) == pytest.ExitCode.INTERRUPTED
        finally:
            running.kill()
    assert (tmp_path / "stopped").exists()
