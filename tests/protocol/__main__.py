"""Searches all interleavings of the protocol in queue.pml, and finds the error of each rule that is taken out.

    python -m tests.protocol

It prints a line for each configuration. It exits with 1 if the protocol has an error, if a planted one is not found, or
if a search could not finish.
"""

import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

MODEL = Path(__file__).with_name("queue.pml")
PROGRAMS = ("spin", "gcc")
MEMORY = 6_000  # megabytes that the search may use
DEPTH = 2_000_000
# pan exits with 0 after each of these.
INCOMPLETE = ("search not completed", "max search depth too small", "reached -dmemlim", "out of memory")

PROTOCOL = (
    ("CRASHES",),
    ("CRASHES", "LIVENESS"),
    ("LOST_ANSWERS",),
    ("LOST_ANSWERS", "LIVENESS"),
    ("PURGE",),  # without LIVENESS: weak fairness lets an expiry always lock the owner at the wrong moment
    ("DRAIN",),
    ("DRAIN", "LIVENESS"),
    ("STREAM", "LIVENESS"),
)

# Rules without which the protocol has an error.
RULES = {
    ("CRASHES", "NO_OWNER_LOCK"): "a poll and a completion lock the owner until they commit",
    ("PURGE", "NO_HOLDER"): "a completion checks whether the owner still holds the task",
    ("CRASHES", "NO_IDENTIFIER_LOCK"): "a poll locks the identifier",
    ("CRASHES", "NO_SECOND_LOOK"): "a poll that has locked the identifier checks the turn again",
    ("CRASHES", "NO_LAPSE_CHECK"): "an expiry that has locked the owner checks again whether the lease has lapsed",
    ("CRASHES", "NO_EXPIRY"): "upkeep ends lapsed leases",
    ("LOST_ANSWERS", "NO_ATTEMPT"): "a completion checks whether the task is still in the attempt of the decision",
}

# Bugs that the queue has had, and the commits that have fixed them.
BUGS = {
    # A worker looked once for tasks that a lost poll had claimed, before the server carried the poll out.
    ("LOST_ANSWERS", "LATE_CLAIM"): "806fed6 Look again for tasks that a lost poll claims later",
    # A worker that completed and polled in one call looked again only after a poll that found nothing.
    ("STREAM", "LIVENESS", "BUSY_WORKER"): "4a48526 Look for late claims also while the worker is busy",
    # A worker repeated a decision, whose answer was lost, on the next attempt: the first try had made the task READY.
    # Then a completion did not check the attempt.
    ("LOST_ANSWERS", "REPEATED_DECISION"): "ba587de Workers: (...) a lost answer repeats nothing",
    # A completion found the owner by its name, and did not compare the fence of the claim.
    ("CRASHES", "CLAIM_BY_NAME"): "32b3523 Fence claims from gate to completion, and keep Airflow's owner",
    # In a REPEATABLE READ transaction, an expiry released the tasks that its old snapshot showed, and ended the lease.
    ("CRASHES", "OLD_SNAPSHOT"): "2e58167 Review: isolation, dropped topics, (...)",
    # An expiry locked the owner and waited for a task. Another transaction held the task and waited for the owner.
    ("PURGE", "LOCK_ORDER"): "12e8492 Let expire() leave an owner whose tasks are being removed",
    # A drain ended after an empty poll. Another poll had locked the identifier, and claimed none of its tasks.
    ("DRAIN", "EMPTY_POLL_ENDS"): "139cdab Workers: a drain does not end at what another poll looks at (...)",
}

PLANTED = (*RULES, *BUGS)


class IncompleteSearch(RuntimeError):
    """The search has reached a limit, and has found no error in what it has searched."""


class Found(NamedTuple):
    """What a search has found: the first error, or None, and the number of states that it has stored."""

    error: str | None
    states: int


def search(*names: str, memory: int = MEMORY, depth: int = DEPTH) -> Found:
    """Searches the model under these names, until the first error. Raises IncompleteSearch if it could not finish."""
    live = "LIVENESS" in names
    with tempfile.TemporaryDirectory(prefix="taskq-model-") as folder:
        _run(["spin", "-a", *(f"-D{name}" for name in names), str(MODEL)], folder)
        kind = "-DNFAIR=3" if live else "-DSAFETY"  # enough for 22 processes
        _run(["gcc", "-O2", "-w", kind, "-DCOLLAPSE", f"-DMEMLIM={memory}", "-o", "pan", "pan.c"], folder)
        said = _run(["./pan", f"-m{depth}", *(["-a", "-f"] if live else [])], folder)
    return read_report(said)


def read_report(said: str) -> Found:
    """Reads what pan has printed. Raises IncompleteSearch if it has found no error, and has not searched all states."""
    error = re.search(r"pan:\d+: (.+?) \(at depth", said)
    states = re.search(r"(\d+(?:\.\d+)?(?:e\+\d+)?) states, stored", said)
    errors = re.search(r"errors: (\d+)", said)
    if error is None and (any(sign in said.lower() for sign in INCOMPLETE) or errors is None or errors[1] != "0"):
        raise IncompleteSearch(f"the search has not finished:\n{said}")
    if states is None:
        raise RuntimeError(said)
    return Found(error[1] if error else None, int(float(states[1])))


def _run(command: list[str], folder: str) -> str:
    done = subprocess.run(command, cwd=folder, check=False, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode != 0:
        raise RuntimeError(f"{command[0]} failed:\n{done.stdout}")
    return done.stdout


def missing() -> list[str]:
    """The programs that the search needs and this machine lacks."""
    return [program for program in PROGRAMS if shutil.which(program) is None]


def main() -> int:
    """Searches every configuration."""
    if absent := missing():
        print(
            f"model: there is no {' and no '.join(absent)} on the PATH (Debian's packages spin and gcc)",
            file=sys.stderr,
        )
        return 1
    print("| configuration | error | states | seconds |\n|---|---|--:|--:|", flush=True)
    failed = False
    for names in (*PROTOCOL, *PLANTED):
        began = time.monotonic()
        try:
            error, states = search(*names)
        except IncompleteSearch as incomplete:
            print(f"model: {' '.join(names)}: {incomplete}", file=sys.stderr)
            failed = True
            continue
        seconds = time.monotonic() - began
        print(f"| {' '.join(names)} | {error or 'none'} | {states:,} | {seconds:.0f} |", flush=True)
        failed = failed or (error is None) == (names in PLANTED)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
