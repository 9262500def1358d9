"""Run the tests in parts, three at once: the longest parts begin first, and each lane takes the next one that waits.

Airflow's tests mostly wait for processes, the queue's mostly compute. Each part is one pytest with its own servers. The
output of the first part appears at once, the output of each other part after the parts before it have ended. All
failures are repeated at the end. `--fast` leaves out the tests marked slow, which start Airflow, Spark or a browser. A
signal to this program interrupts each pytest, so that it stops its servers. A second signal kills them.
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
from collections import deque
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).resolve().parent.parent
LANES = 3
OF_QUEUE, OF_AIRFLOW = "tests/queue", "tests/airflow"
# The longest first. Some tests of workers use Spark, too: in one part, they share its session.
LONG = [["tests/spark", "tests/worker"], [OF_QUEUE], [OF_AIRFLOW], ["tests/demo", "tests/docs", "tests/packaging"]]
SHORT = [["tests/plugin"], ["tests/fuzz"]]
# These kill the processes of an Airflow of their own, which would idle during the other tests.
KILLS = ["%s/test_%s.py" % (OF_AIRFLOW, name) for name in ("claim_recovery", "claims_of_durable_tasks", "many_waits")]
NOTHING_SELECTED = 5  # pytest's exit code
PATIENCE = 120  # seconds for interrupted tests to stop their servers
SUMMARY = re.compile(r"^=+ .* in [0-9.]+s.*$|^(?:FAILED|ERROR) .*$", re.MULTILINE)


class Part:
    """One pytest."""

    def __init__(self, options: list[str], *, may_be_empty: bool) -> None:
        """Prepare to run pytest with these arguments, which may select no test."""
        self.passed = False
        self.ended = threading.Event()
        self.shown = 0  # bytes of the output
        self._options = options
        self._may_be_empty = may_be_empty
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 -- goes with the process
        self._child: subprocess.Popen[bytes] | None = None
        self._interrupted = False
        self._lock = threading.Lock()

    def run(self) -> None:
        """Run pytest, unless it was interrupted before."""
        try:
            child = self._begin()
            code = None if child is None else child.wait()
            self.passed = code == 0 or (self._may_be_empty and code == NOTHING_SELECTED)
        finally:
            self.ended.set()

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

    def _begin(self) -> subprocess.Popen[bytes] | None:
        with self._lock:
            if self._interrupted:
                return None
            command = [sys.executable, "-m", "pytest", *self._options]
            # In its own session: otherwise a terminal's Ctrl-C would interrupt it a second time, while it cleans up.
            self._child = subprocess.Popen(
                command, cwd=ROOT, stdout=self._output, stderr=self._output, start_new_session=True
            )
            return self._child


def say(text: str) -> None:
    """Print a line at once, even into a pipe."""
    print("test: " + text, flush=True)


def make_parts(*, fast: bool) -> list[Part]:
    """Make the parts, in the order in which they begin."""
    choice = ["-m", "not slow"] if fast else []
    others = ["--ignore=" + folder for part in LONG + SHORT for folder in part]
    parts = [*LONG, others, *SHORT]
    made = [Part([*choice, *("--ignore=" + file for file in KILLS), *part], may_be_empty=fast) for part in parts]
    return made if fast else [*made, Part(KILLS, may_be_empty=False)]


def run_parts(waiting: deque[Part]) -> None:
    """Run the parts that wait, one after the other; called by the thread of each lane."""
    while True:
        try:
            part = waiting.popleft()
        except IndexError:  # another lane has taken the last one
            return
        part.run()


def follow(part: Part) -> None:
    """Print the output of a part until it has ended."""
    while not part.ended.wait(0.5):
        part.show()
    part.show()


def finish(parts: list[Part]) -> None:
    """Run all parts; after a signal or an error, interrupt them, and wait until they have cleaned up."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    # A shell makes background processes ignore SIGINT, and children inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, interrupt)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup ignores it
        signal.signal(signal.SIGHUP, interrupt)
    # On one server, tests of one lane would meet transactions of another.
    count = 1 if os.environ.get("TASKQ_TEST_DSN") else LANES
    waiting = deque(parts)
    lanes = [threading.Thread(target=run_parts, args=(waiting,), daemon=True) for _ in range(count)]
    try:
        for lane in lanes:
            lane.start()
        for part in parts:
            follow(part)
    finally:
        try:
            for part in parts:
                part.end()
            for lane in lanes:
                if lane.ident is not None:
                    lane.join(PATIENCE)
        finally:  # also after a second signal; the guardians (demo/guardian.py) then end the servers
            for part in parts:
                part.kill()


def main() -> int:
    """Run all parts; return 0 if all passed."""
    began = time.monotonic()
    parts = make_parts(fast="--fast" in sys.argv[1:])
    try:
        finish(parts)
    except KeyboardInterrupt:
        say("interrupted; the rest of the output:")
        for part in parts:
            part.show()
        return 130
    for part in parts:
        for line in SUMMARY.findall(part.printed().decode(errors="replace")):
            say(line.strip("= "))
    passed = all(part.passed for part in parts)
    say("%s after %d s" % ("passed" if passed else "FAILED", time.monotonic() - began))
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
