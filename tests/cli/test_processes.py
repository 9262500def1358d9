"""`taskq` as a process: terminals, signals, pipes, arguments."""

import os
import pty
import select
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from airflow_provider_taskq.queue import NewTask, State, TaskQueue
from tests.queue.conftest import states, until

pytestmark = pytest.mark.promise("A command prints what it did or one line of error, as text or JSON")

PROGRAM = [sys.executable, "-m", "airflow_provider_taskq.cli"]


@pytest.fixture
def environment(dsn: str, repository: Path) -> dict[str, str]:
    """The environment of a process that a user starts."""
    hidden = ("TASKQ_", "PG")
    env = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
    return {**env, "TASKQ_DSN": dsn, "PYTHONPATH": str(repository), "TERM": "xterm", "COLUMNS": "120", "LINES": "30"}


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_command_runs_without_the_standard_streams_that_its_caller_has_closed(
    queue: TaskQueue, environment: dict[str, str], closed: str
) -> None:
    queue.push("work", ["a"])
    shell = f"{sys.executable} -m airflow_provider_taskq.cli stats {closed}"
    done = subprocess.run(shell, shell=True, env=environment, capture_output=True, text=True, check=False)  # noqa: S602
    assert (done.returncode, done.stderr) == (0, "")


class Terminal:
    """A process on a terminal of its own."""

    def __init__(self, words: list[str], env: dict[str, str]) -> None:
        self.shown = ""
        self._ours, theirs = pty.openpty()
        self.process = subprocess.Popen(
            [*PROGRAM, *words],
            env=env,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)

    def read_until(self, text: str) -> None:
        """Reads until the text was shown."""
        deadline = time.monotonic() + 200
        while text not in self.shown:
            assert time.monotonic() < deadline, f"not shown: {text}\n{self.shown}"
            self._read()

    def type(self, text: str) -> None:
        """Types a text."""
        os.write(self._ours, text.encode())

    def end(self) -> int:
        """Reads the rest of the output, and returns the exit code."""
        deadline = time.monotonic() + 200
        while self.process.poll() is None:
            assert time.monotonic() < deadline, self.shown
            self._read()
        while self._read():  # one read returns at most a page
            pass
        return self.process.wait()

    def close(self) -> None:
        """Kills the process if it still runs."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._ours)

    def _read(self) -> bool:
        """Reads available output, and waits a moment for it; False if there was none."""
        try:
            if not select.select([self._ours], [], [], 0.1)[0]:
                return False
            read = os.read(self._ours, 65_536)
        except OSError:  # the process has closed its end of the terminal
            return False
        self.shown += read.decode(errors="replace")
        return bool(read)


@pytest.mark.parametrize(("answer", "code", "left"), [("y\n", 0, []), ("n\n", 1, [State.READY])])
def test_a_terminal_prompts_for_a_confirmation(
    queue: TaskQueue, environment: dict[str, str], answer: str, code: int, left: list[State]
) -> None:
    queue.push("work", ["a"])
    with closing(Terminal(["purge", "work", "--all"], environment)) as terminal:
        terminal.read_until("This purges 1 task of work for good. Go on? [y/N]:")
        terminal.type(answer)
        assert terminal.end() == code
    assert [state for _, state in states(queue)] == left


def test_a_closed_pipe_is_no_error(queue: TaskQueue, environment: dict[str, str]) -> None:
    queue.push("work", [f"task-{number}" for number in range(5000)])
    with subprocess.Popen(
        [*PROGRAM, "ls", "work", "-n", "5000", "--json"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "{\n"
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait() in {0, 1}


@pytest.mark.parametrize(("max_failed", "code"), [("2", 0), ("50%", 0), ("1", 1), ("0.4", 1)])
def test_a_drain_fails_if_more_tasks_fail_than_max_failed_allows(
    queue: TaskQueue, environment: dict[str, str], max_failed: str, code: int
) -> None:
    tasks = queue.push("work", ["a", "bad-1", "b", "bad-2"])
    words = ["worker", "tests.cli.handlers:deliver", "--topic", "work", "--drain", "--max-failed", max_failed]
    result = subprocess.run([*PROGRAM, *words], env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == code, result.stderr
    assert [state for _, state in states(queue)].count(State.FAILED) == 2
    first = f"bad-1 (sequence {tasks[1].sequence}): ValueError: no mailbox for bad-1"
    assert ("Error: 2 of 4 tasks that ended in topic 'work' failed" in result.stderr) == bool(code)
    assert (first in result.stderr) == bool(code)


@pytest.mark.promise("Payloads and passwords are in no log, error, metric, argument, XCom or plan")
def test_a_worker_finishes_its_running_tasks_on_sigterm_and_shows_neither_password_nor_payload(
    queue: TaskQueue, environment: dict[str, str], tmp_path: Path
) -> None:
    started, go_on = tmp_path / "started", tmp_path / "go on"
    queue.push("work", [NewTask("a", {"secret": "markedpayload0815"})])
    process = subprocess.Popen(
        [*PROGRAM, "worker", "tests.cli.handlers:wait", "-t", "work", "--metrics-port", "0"],
        env={**environment, "TASKQ_TEST_FILES": f"{started}:{go_on}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        until(started.exists, 200)
        running = psutil.Process(process.pid)
        arguments = [" ".join(each.cmdline()) for each in (running, *running.children(recursive=True))]
        process.send_signal(signal.SIGTERM)
        go_on.touch()
        output, errors = process.communicate(timeout=300)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0
    assert "tests.cli.handlers:wait" in arguments[0]
    assert "succeeded  1" in output
    assert states(queue) == [("a", State.SUCCEEDED)]
    assert queue.owners() == []
    secrets = (str(queue.conn.info.password), "markedpayload0815")
    assert [text for text in (*arguments, output, errors) if any(secret in text for secret in secrets)] == []
