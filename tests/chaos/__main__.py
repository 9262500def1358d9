"""The chaos suite: runs all scenarios, and prints their table; then kills the processes of Airflow and of a stream.

    python -m tests.chaos --only crash silent --seconds 10 --keep /tmp/histories

It exits with 1 if a history has a violation, or a test of Airflow or of the stream fails.
"""

import signal
import subprocess
import sys
import tempfile
import traceback
from argparse import ArgumentParser, Namespace
from pathlib import Path

from tests.chaos.run import Outcome, run
from tests.chaos.scenarios import SCENARIOS, Scenario

COLUMNS = (
    "scenario",
    "pushed",
    "lost",
    "done twice",
    "taken over",
    "longest pause, s",
    "recovered after, s",
    "longest wait of a task, of its event, s",
    "decisions/s before, in, after",
)
SHOWN = 20
# These judge by ledgers of their own: the completing transactions write them.
AIRFLOW = ("tests/airflow/test_chaos.py", "tests/airflow/test_claim_recovery.py", "tests/spark/test_stream_killed.py")


def main() -> int:
    """Runs the scenarios that are named, or all."""
    parser = ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=[*SCENARIOS, "airflow"], default=[*SCENARIOS, "airflow"])
    parser.add_argument("--seconds", type=float, default=20.0, help="of each fault; half of it before and after")
    parser.add_argument("--keep", type=Path, help="a folder that keeps the histories")
    options = parser.parse_args()
    failed = False
    print("| " + " | ".join(COLUMNS) + " |\n|---|" + "--:|" * (len(COLUMNS) - 1), flush=True)
    for name in (each for each in options.only if each in SCENARIOS):
        scenario = SCENARIOS[name]
        if (missing := scenario.missing()) is not None:
            print(f"| {scenario.title} | not run: there is {missing} |", flush=True)
            continue
        failed = shown(name, scenario, options) or failed
    if "airflow" in options.only:
        failed = subprocess.run([sys.executable, "-m", "pytest", "-q", *AIRFLOW], check=False).returncode != 0 or failed
    return int(failed)


def shown(name: str, scenario: Scenario, options: Namespace) -> bool:
    """Runs a scenario, and prints its line; returns whether it has failed."""
    try:
        with tempfile.TemporaryDirectory(prefix="taskq-chaos-") as folder:
            found = run(name, scenario, (options.keep or Path(folder)) / name, scenario.seconds or options.seconds)
    except Exception:  # noqa: BLE001 -- the other scenarios are run all the same
        print(f"| {scenario.title} | not judged |\n{traceback.format_exc()}", flush=True)
        return True
    print(row(scenario.title, found), flush=True)
    for note in (*found.notes, *found.unfinished):
        print(f"    {name}: {note}", flush=True)
    for violation in found.violations[:SHOWN]:
        print(f"    {violation.rule}: {violation.detail}", flush=True)
    return bool(found.violations or found.unfinished)


def row(title: str, found: Outcome) -> str:
    """The line of a scenario."""
    rates = f"{found.before:,.0f}, {found.during:,.0f}, {found.after:,.0f}"
    waits = f"{found.waited:.1f}, {found.read:.1f}"
    cells = [title, f"{found.pushed:,}", found.lost, found.twice, f"{found.again:,}", f"{found.pause:.1f}"]
    cells += [f"{found.recovered:.1f}", waits, rates]
    return "| " + " | ".join(map(str, cells)) + " |"


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # ends what it has started
    sys.exit(main())
