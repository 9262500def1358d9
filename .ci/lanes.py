"""Run the tests in three parallel lanes: the queue and what users see; Airflow and hostile input; all others.

Airflow's tests mostly wait for processes, the queue's mostly compute. Each lane has its own servers. The output of the
first lane appears at once, the output of each other lane after the lane before it has ended. All failures are repeated
at the end. `--fast` leaves out the tests marked slow, which start Airflow, Spark or a browser. A signal to this program
interrupts each pytest, so that it stops its servers. A second signal kills them.
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

ROOT = Path(__file__).resolve().parent.parent
OF_QUEUE = "tests/queue"
OF_FUZZ, OF_AIRFLOW = "tests/fuzz", "tests/airflow"
# These kill the processes of an Airflow of their own, which would idle during the other tests.
OF_KILLS = ("claim_recovery", "claims_of_durable_tasks", "many_waits")
OF_USERS = ("tests/demo", "tests/plugin", "tests/docs", "tests/packaging")  # what users see and install
PATIENCE = 120  # seconds for interrupted tests to stop their servers
SUMMARY = re.compile(r"^=+ .* in [0-9.]+s.*$|^(?:FAILED|ERROR) .*$", re.MULTILINE)


class Lane(threading.Thread):
    """Runs one pytest after the other, also after a failure; `passed` is true if all have run and passed."""

    def __init__(self, runs: list[list[str]]) -> None:
        """Prepare to run pytest with each of these arguments, in this order."""
        super().__init__(daemon=True)
        self.passed = False
        self.shown = 0  # bytes of the output
        self._runs = runs
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 -- goes with the process
        self._child: subprocess.Popen[bytes] | None = None
        self._interrupted = False
        self._lock = threading.Lock()

    def run(self) -> None:
        """Run the pytests; called by the thread."""
        codes = []
        for options in self._runs:
            child = self._begin(options)
            codes.append(-1 if child is None else child.wait())
        self.passed = not any(codes)

    def end(self) -> None:
        """Interrupt the running pytest as Ctrl-C does, and start no other."""
        with self._lock:
            self._interrupted = True
            if self._child is not None and self._child.poll() is None:
                self._child.send_signal(signal.SIGINT)

    def kill(self) -> None:
        """Kill the pytest that did not end after the interrupt, with all processes of its session."""
        with self._lock, contextlib.suppress(ProcessLookupError):
            if self._child is not None and self._child.poll() is None:
                os.killpg(self._child.pid, signal.SIGKILL)

    def printed(self, start: int = 0) -> bytes:
        """The output of the tests from byte `start` on."""
        size = os.fstat(self._output.fileno()).st_size
        return os.pread(self._output.fileno(), size - start, start)  # keeps the tests' file position

    def show(self) -> None:
        """Print the new output."""
        new = self.printed(self.shown)
        self.shown += len(new)
        sys.stdout.buffer.write(new)
        sys.stdout.flush()

    def _begin(self, options: list[str]) -> subprocess.Popen[bytes] | None:
        with self._lock:
            if self._interrupted:
                return None
            command = [sys.executable, "-m", "pytest", *options]
            # In its own session: otherwise a terminal's Ctrl-C would interrupt it a second time, while it cleans up.
            self._child = subprocess.Popen(
                command, cwd=ROOT, stdout=self._output, stderr=self._output, start_new_session=True
            )
            return self._child


def say(text: str) -> None:
    """Print a line at once, even into a pipe."""
    print("test: " + text, flush=True)


def make_lanes(*, fast: bool) -> list[Lane]:
    """Make the lanes; the first one is expected to take the longest."""
    choice = ["-m", "not slow"] if fast else []
    queue, users, fuzz = [*choice, OF_QUEUE], [*choice, *OF_USERS], [*choice, OF_FUZZ]
    kills = ["%s/test_%s.py" % (OF_AIRFLOW, name) for name in OF_KILLS]
    airflow = [*choice, *("--ignore=" + file for file in kills), OF_AIRFLOW]
    others = [*choice, *("--ignore=" + folder for folder in (OF_QUEUE, OF_FUZZ, OF_AIRFLOW, *OF_USERS))]
    last = [] if fast else [kills]
    if os.environ.get("TASKQ_TEST_DSN"):  # one server: tests of one lane would meet transactions of another
        return [Lane([queue, users, others, fuzz, airflow, *last])]
    return [Lane([others]), Lane([queue, users]), Lane([airflow, fuzz, *last])]


def follow(lane: Lane) -> None:
    """Print the output of a lane until it has ended."""
    while lane.is_alive():
        lane.join(0.5)
        lane.show()
    lane.show()


def finish(lanes: list[Lane]) -> None:
    """Wait for all lanes; after a signal or an error, interrupt them, and wait until they have cleaned up."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    # A shell makes background processes ignore SIGINT, and children inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, interrupt)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup ignores it
        signal.signal(signal.SIGHUP, interrupt)
    try:
        for lane in lanes:
            lane.start()
        for lane in lanes:
            follow(lane)
    finally:
        try:
            for lane in lanes:
                lane.end()
            for lane in lanes:
                if lane.ident is not None:
                    lane.join(PATIENCE)
        finally:  # also after a second signal; the guardians (demo/guardian.py) then end the servers
            for lane in lanes:
                lane.kill()


def main() -> int:
    """Run all lanes; return 0 if all passed."""
    began = time.monotonic()
    lanes = make_lanes(fast="--fast" in sys.argv[1:])
    try:
        finish(lanes)
    except KeyboardInterrupt:
        say("interrupted; the rest of the output of the lanes:")
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
