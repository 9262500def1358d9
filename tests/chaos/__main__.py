"""The chaos suite: runs all scenarios, and prints their table; then kills the processes of Airflow and of a stream.

    python -m tests.chaos --only crash silent --seconds 10 --keep /tmp/histories

It exits with 1 if a history has a violation, or a test of Airflow or of the stream fails.
"""

import signal
import subprocess
import sys
import tempfile
from argparse import ArgumentParser
from pathlib import Path

from tests.chaos.run import Outcome, run
from tests.chaos.scenarios import SCENARIOS

COLUMNS = (
    "scenario",
    "pushed",
    "lost",
    "done twice",
    "longest pause, s",
    "work went on after, s",
    "decisions/s before, in, after",
)
SHOWN = 20
# These judge by ledgers of their own: the completing transactions write them.
AIRFLOW = ("tests/airflow/test_chaos.py", "tests/airflow/test_claim_recovery.py", "tests/spark/test_stream_killed.py")


def main() -> int:
    """Runs the scenarios that are named, or all."""
    parser = ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=[*SCENARIOS, "airflow"], default=[*SCENARIOS, "airflow"])
    parser.add_argument("--seconds", type=float, default=30.0, help="of each fault; half of it before and after")
    parser.add_argument("--keep", type=Path, help="a folder that keeps the histories")
    options = parser.parse_args()
    failed = False
    print("| " + " | ".join(COLUMNS) + " |\n|---|" + "--:|" * (len(COLUMNS) - 1), flush=True)
    for name in (each for each in options.only if each in SCENARIOS):
        scenario = SCENARIOS[name]
        if (missing := scenario.missing()) is not None:
            print(f"| {scenario.title} | not run: there is {missing} |", flush=True)
            continue
        with tempfile.TemporaryDirectory(prefix="taskq-chaos-") as folder:
            found = run(name, scenario, (options.keep or Path(folder)) / name, scenario.seconds or options.seconds)
        print(row(scenario.title, found), flush=True)
        for violation in found.violations[:SHOWN]:
            print(f"    {violation.rule}: {violation.detail}", flush=True)
        failed = failed or bool(found.violations)
    if "airflow" in options.only:
        failed = subprocess.run([sys.executable, "-m", "pytest", "-q", *AIRFLOW], check=False).returncode != 0 or failed
    return int(failed)


def row(title: str, found: Outcome) -> str:
    """The line of a scenario."""
    rates = f"{found.before:,.0f}, {found.during:,.0f}, {found.after:,.0f}"
    cells = [title, f"{found.pushed:,}", found.lost, found.twice, f"{found.pause:.1f}", f"{found.resumed:.1f}", rates]
    return "| " + " | ".join(map(str, cells)) + " |"


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # ends what it has started
    sys.exit(main())
