"""Searches all interleavings of the protocol in queue.pml, and finds the error of each rule that is taken out.

    python -m tests.protocol

It prints a line for each configuration. It exits with 1 if the protocol has an error, or a planted one is not found.
"""

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

MODEL = Path(__file__).with_name("queue.pml")
PROGRAMS = ("spin", "gcc")
MEMORY = 6_000  # megabytes that the search may use
DEPTH = 2_000_000
PLANTED = (
    "NO_FENCE",
    "NO_OWNER_LOCK",
    "NO_HOLDER",
    "NO_IDENTIFIER_LOCK",
    "NO_SECOND_LOOK",
    "NO_LAPSE_CHECK",
    "NO_EXPIRY",
)


class Found(NamedTuple):
    """What a search has found: the first error, or None, and the number of states that it has stored."""

    error: str | None
    states: int


def search(*planted: str) -> Found:
    """Searches the model without the named rules, until the first error. Raises RuntimeError if it could not finish."""
    with tempfile.TemporaryDirectory(prefix="taskq-model-") as folder:
        rules = [f"-D{name}" for name in planted]
        _run(["spin", "-a", *rules, str(MODEL)], folder)
        _run(["gcc", "-O2", "-w", "-DSAFETY", "-DCOLLAPSE", f"-DMEMLIM={MEMORY}", "-o", "pan", "pan.c"], folder)
        said = _run(["./pan", f"-m{DEPTH}"], folder)
    if "max search depth too small" in said or "search not completed" in said or "out of memory" in said:
        raise RuntimeError(f"the search has not finished:\n{said}")
    error = re.search(r"pan:\d+: (.+?) \(at depth", said)
    states = re.search(r"(\d+(?:\.\d+)?(?:e\+\d+)?) states, stored", said)
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
    print("| taken out | error | states |\n|---|---|--:|", flush=True)
    failed = False
    for planted in ((), *((name,) for name in PLANTED)):
        found = search(*planted)
        print(f"| {' '.join(planted) or 'nothing'} | {found.error or 'none'} | {found.states:,} |", flush=True)
        failed = failed or (found.error is None) == bool(planted)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
