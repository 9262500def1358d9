"""Searches all interleavings of the protocol in queue.pml, and finds the error of each rule that is taken out.

    python -m tests.protocol

It prints a line for each configuration. It exits with 1 if the protocol has an error, if the error of a planted one is
not found or is another one, or if a search could not finish.
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

STUCK = "invalid end state"  # no process can go on, and not all tasks have ended
TWO_ACTIVE = "assertion violated (state[(1-task)]!=2)"

# Rules without which the protocol has an error, and the error.
RULES: dict[tuple[str, ...], str] = {
    # A poll and a completion lock the owner until they commit.
    ("CRASHES", "NO_OWNER_LOCK"): STUCK,
    # A completion checks whether the owner still holds the task.
    ("PURGE", "NO_HOLDER"): "assertion violated (holder[task]==name)",
    # A poll locks the identifier.
    ("CRASHES", "NO_IDENTIFIER_LOCK"): TWO_ACTIVE,
    # A poll that has locked the identifier checks the turn again.
    ("CRASHES", "NO_SECOND_LOOK"): TWO_ACTIVE,
    # The turn belongs to an attempted task before it belongs to the first one.
    ("LOST_ANSWERS", "NO_RETRY_TURN"): "assertion violated ((task==found)|| !(was_pushed))",
    # An expiry that has locked the owner checks again whether the lease has lapsed.
    ("CRASHES", "NO_LAPSE_CHECK"): "assertion violated lapsed[name]",
    # Upkeep ends lapsed leases.
    ("CRASHES", "NO_EXPIRY"): STUCK,
    # A completion checks whether the task is still in the attempt of the decision.
    ("LOST_ANSWERS", "NO_ATTEMPT"): "assertion violated (attempts[sent_task]==sent_attempt)",
}

# Bugs that the queue has had, with the commits that have fixed them, and the error of each.
BUGS: dict[tuple[str, ...], str] = {
    # A worker looked once for tasks that a lost poll had claimed, before the server carried the poll out.
    # 806fed6 Look again for tasks that a lost poll claims later
    ("LOST_ANSWERS", "LATE_CLAIM"): STUCK,
    # A worker that completed and polled in one call looked again only after a poll that found nothing.
    # 4a48526 Look for late claims also while the worker is busy
    ("STREAM", "LIVENESS", "BUSY_WORKER"): "acceptance cycle",
    # A worker repeated a decision, whose answer was lost, on the next attempt: the first try had made the task READY.
    # Then a completion did not check the attempt.
    # ba587de Workers: (...) a lost answer repeats nothing
    ("LOST_ANSWERS", "REPEATED_DECISION"): "assertion violated (attempts[task]==attempt)",
    # A completion found the owner by its name, and did not compare the fence of the claim.
    # 32b3523 Fence claims from gate to completion, and keep Airflow's owner
    ("CRASHES", "CLAIM_BY_NAME"): "assertion violated (fence[name]==mine)",
    # In a REPEATABLE READ transaction, an expiry released the tasks that its old snapshot showed, and ended the lease.
    # 2e58167 Review: isolation, dropped topics, (...)
    ("CRASHES", "OLD_SNAPSHOT"): STUCK,
    # An expiry locked the owner and waited for a task. Another transaction held the task and waited for the owner.
    # 12e8492 Let expire() leave an owner whose tasks are being removed
    ("PURGE", "LOCK_ORDER"): STUCK,
    # A drain ended after an empty poll. Another poll had locked the identifier, and claimed none of its tasks.
    # 139cdab Workers: a drain does not end at what another poll looks at (...)
    ("DRAIN", "EMPTY_POLL_ENDS"): "assertion violated ((state[0]==1)&&(state[1]==1))",
}

PLANTED = RULES | BUGS


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
        _run(["gcc", "-O1", "-w", kind, "-DCOLLAPSE", f"-DMEMLIM={memory}", "-o", "pan", "pan.c"], folder)
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
        failed = failed or error != PLANTED.get(names)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
