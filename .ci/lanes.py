"""Run the tests in three lanes side by side: the queue; Airflow, the demonstration and the page; everything else.

Airflow's tests mostly wait for processes, the queue's mostly compute. Each lane has servers of its own. The output of
the first lane appears as it comes, that of the others when all are done, and every failure once more at the end.
Arguments: `--fast` leaves out the tests marked slow, which start Airflow, Spark or a browser; any other argument is a
folder of PostgreSQL's programs, and the tests of the queue and of faults run on that server, too. An interrupt of this
program interrupts each pytest, so that they stop their servers.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import FrameType
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
OF_QUEUE = "tests/queue"
OF_AIRFLOW = ("tests/airflow", "tests/demo", "tests/plugin")
PATIENCE = 120  # seconds that tests which were told to end may take to end their servers
SUMMARY = re.compile(r"^=+ .* in [0-9.]+s.*$|^(?:FAILED|ERROR) .*$", re.MULTILINE)


class Run(NamedTuple):
    """One pytest: its arguments, and the folder of the server that it starts, unless that is the embedded one."""

    options: tuple[str, ...]
    programs: str = ""


class Lane(threading.Thread):
    """One pytest after the other, also after one that failed; `passed` tells whether all ran and passed."""

    def __init__(self, runs: list[Run]) -> None:
        """Take what is to be run, in this order."""
        super().__init__(daemon=True)
        self.passed = False
        self.shown = 0  # bytes of what was printed
        self._runs = runs
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 -- goes with the process
        self._child: subprocess.Popen[bytes] | None = None
        self._told_to_end = False
        self._lock = threading.Lock()

    def run(self) -> None:
        """What the thread does."""
        codes = []
        for run in self._runs:
            child = self._begin(run)
            codes.append(-1 if child is None else child.wait())
        self.passed = not any(codes)

    def end(self) -> None:
        """Have the pytest that runs end as at Ctrl-C, and begin no other."""
        with self._lock:
            self._told_to_end = True
            if self._child is not None and self._child.poll() is None:
                self._child.send_signal(signal.SIGINT)

    def kill(self) -> None:
        """End what did not end when told, with all that it started in its session."""
        with self._lock, contextlib.suppress(ProcessLookupError):
            if self._child is not None and self._child.poll() is None:
                os.killpg(self._child.pid, signal.SIGKILL)

    def printed(self, start: int = 0) -> bytes:
        """What its tests have printed from a place on."""
        size = os.fstat(self._output.fileno()).st_size
        return os.pread(self._output.fileno(), size - start, start)  # they write at the file's own place: leave it

    def show(self) -> None:
        """Show what is new."""
        new = self.printed(self.shown)
        self.shown += len(new)
        sys.stdout.buffer.write(new)
        sys.stdout.flush()

    def _begin(self, run: Run) -> subprocess.Popen[bytes] | None:
        with self._lock:
            if self._told_to_end:
                return None
            env = {**os.environ, **({"TASKQ_TEST_PROGRAMS": run.programs} if run.programs else {})}
            command = [sys.executable, "-m", "pytest", *run.options]
            # Of a session of its own: a terminal's Ctrl-C would tell it a second time, in the midst of its cleaning up.
            self._child = subprocess.Popen(
                command, cwd=ROOT, env=env, stdout=self._output, stderr=self._output, start_new_session=True
            )
            return self._child


def say(text: str) -> None:
    """Tell the person at the terminal, at once even when piped."""
    print("test: " + text, flush=True)


def make_lanes(*, fast: bool, programs: str) -> list[Lane]:
    """The lanes; the first one is expected to take the longest."""
    choice = ("-m", "not slow") if fast else ()
    queue = Run((*choice, OF_QUEUE))
    airflow = Run((*choice, *OF_AIRFLOW))
    others = Run((*choice, *("--ignore=" + folder for folder in (OF_QUEUE, *OF_AIRFLOW))))
    if os.environ.get("TASKQ_TEST_DSN"):  # one server: tests of one lane would meet transactions of another
        return [Lane([queue, others, airflow])]
    return [Lane([others]), Lane([queue, *([] if fast else second_server(programs))]), Lane([airflow])]


def second_server(programs: str) -> list[Run]:
    """The tests of the queue and of faults on the server whose programs are in that folder, if there is one."""
    if not programs:
        say("there is no PostgreSQL of the system, 14 or newer: the queue is tested on the embedded one only")
        return []
    say("the queue, and its workers under faults, once more on the server in " + programs)
    return [Run(("-q", "-m", "not slow", OF_QUEUE, "tests/faults"), programs)]


def follow(lane: Lane) -> None:
    """Show what a lane prints, until it has ended; of one that has, what it had printed."""
    while lane.is_alive():
        lane.join(0.5)
        lane.show()
    lane.show()


def finish(lanes: list[Lane]) -> None:
    """Wait for all; when told to end, or after any error, end them and wait for what they clean up."""

    def told(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    # A shell has what it starts in the background ignore SIGINT, and children inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, told)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as nohup has it
        signal.signal(signal.SIGHUP, told)
    try:
        for lane in lanes:
            lane.start()
        for lane in lanes:
            follow(lane)
    finally:
        for lane in lanes:
            lane.end()
        try:
            for lane in lanes:
                if lane.ident is not None:
                    lane.join(PATIENCE)
        finally:
            for lane in lanes:
                lane.kill()


def main() -> int:
    """Run all; 0 if all passed."""
    began = time.monotonic()
    fast = "--fast" in sys.argv[1:]
    lanes = make_lanes(fast=fast, programs=next((given for given in sys.argv[1:] if given != "--fast"), ""))
    try:
        finish(lanes)
    except KeyboardInterrupt:
        say("interrupted; the output of the lanes that was not shown yet:")
        for lane in lanes:
            lane.show()
        return 130
    for lane in lanes:
        for line in SUMMARY.findall(lane.printed().decode(errors="replace")):
            say(line.strip("= "))
    passed = all(lane.passed for lane in lanes)
    say("%s after %d s" % ("passed" if passed else "FAILED", time.monotonic() - began))
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
