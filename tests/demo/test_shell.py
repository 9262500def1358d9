"""The shell with a queue, as the README opens it."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from demo.guardian import alive
from tests.demo.test_postgres import processes_of

pytestmark = [pytest.mark.slow, pytest.mark.documents]

SHELL = [sys.executable, "-m", "demo.shell"]


def environment(folder: Path) -> dict[str, str]:
    folder.chmod(0o711)  # PostgreSQL runs as `nobody` if the tests run as root
    return {**os.environ, "TMPDIR": str(folder)}


def test_a_command_gets_an_empty_queue_and_its_exit_code_is_returned(tmp_path: Path) -> None:
    program = "taskq topics create mail && taskq push mail customer-18 --delay 1h && taskq why mail customer-18; exit 7"
    done = subprocess.run(
        [*SHELL, "sh", "-c", program], env=environment(tmp_path), capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (7, "")
    assert "Task 1 (customer-18): it is due in" in done.stdout
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_command_and_the_server(tmp_path: Path, number: signal.Signals) -> None:
    """The command sends it itself, as early as possible."""
    program = f"kill -{number} $PPID; exec sleep 3600"
    with subprocess.Popen(
        [*SHELL, "sh", "-c", program], env=environment(tmp_path), stdout=subprocess.PIPE, text=True
    ) as running:
        assert running.wait(600) == 128 + number
        assert running.stdout is not None
        assert running.stdout.read() == "", "the command has ended, because the pipe has"
    assert not [process for process in processes_of(tmp_path) if alive(process)]
    assert not list(tmp_path.iterdir())
