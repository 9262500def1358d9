"""The chaos suite: runs and judges all scenarios, kills processes of Airflow and Spark, and searches the model.

    python -m tests.chaos --only crash silent --seconds 10 --keep /tmp/histories

It exits with 1 if a history has a violation, the workers do not keep pace with the pushes after a fault, a scenario
cannot run here, or a test of Airflow or Spark fails.
"""

import signal
import subprocess
import sys
import tempfile
import time
import traceback
from argparse import ArgumentParser, Namespace
from contextlib import ExitStack
from math import floor
from pathlib import Path

from tests.chaos.run import Outcome, run
from tests.chaos.scenarios import SCENARIOS, Scenario
from tests.chaos.site import ROOT, WORKERS
from tests.protocol import __main__ as protocol

COLUMNS = (
    "scenario",
    "pushed",
    "lost",
    "done twice",
    "taken over",
    "behind another",
    "longest pause, s",
    "recovered after, s",
    "longest wait of a task, of its event, s",
    "decisions/s before, in, after",
    "recovery",
)
PARTS = [*SCENARIOS, "airflow", "model"]
SHOWN = 20
RATE = 0.95  # at least, of the pushes: one more or less falls into the time that is measured
RATE_OF_ROUNDS = 0.6  # for Spark, which commits many decisions at once
# These judge by ledgers of their own, which the completing transactions write, or by more than the table shows.
TESTS = (
    ("tests/airflow/test_chaos.py",),
    (
        "tests/chaos/test_scenarios.py::test_a_worker_that_is_stopped_for_longer_than_its_lease_loses_its_tasks_to_another",
        "tests/spark/test_stream_killed.py",
        "tests/spark/test_drain_once.py::test_a_driver_killed_around_its_commit_commits_all_decisions_or_none[before]",
        "tests/spark/test_drain_once.py::test_a_driver_killed_around_its_commit_commits_all_decisions_or_none[after]",
        "tests/spark/test_cluster.py::test_killing_an_executor_during_a_task_changes_no_decision",
    ),
)


def main() -> int:
    """Runs the scenarios that are named, or all."""
    parser = ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--seconds", type=float, default=20.0, help="of each fault; half of it after, a quarter before")
    parser.add_argument("--allow-missing", action="store_true", help="whether scenarios may lack a program or a right")
    parser.add_argument("--keep", type=Path, help="a folder that keeps the histories")
    options = parser.parse_args()
    failed = False
    print("| " + " | ".join(COLUMNS) + " |\n|---|" + "--:|" * (len(COLUMNS) - 1), flush=True)
    for name in (each for each in options.only if each in SCENARIOS):
        scenario = SCENARIOS[name]
        if (missing := scenario.missing()) is not None:
            print(f"| {scenario.title} | not run: there is {missing} |", flush=True)
            failed = failed or not options.allow_missing
            continue
        failed = shown(name, scenario, options) or failed
    if "airflow" in options.only:
        failed = not tests_pass() or failed
    if "model" in options.only and not (options.allow_missing and protocol.missing()):
        failed = bool(protocol.main()) or failed
    return int(failed)


def tests_pass() -> bool:
    """Runs the tests of Airflow and those of Spark, both at once: they measure no rate, and mostly wait."""
    command = [sys.executable, "-m", "pytest", "-q", "-m", "slow"]
    with ExitStack() as stack:  # waits for both
        running = [stack.enter_context(subprocess.Popen([*command, *each], cwd=ROOT)) for each in TESTS]
        for each in running:
            stack.callback(each.terminate)  # on a signal
        return [each.wait() for each in running] == [0, 0]


def shown(name: str, scenario: Scenario, options: Namespace) -> bool:
    """Runs a scenario, and prints its line; returns whether it has failed."""
    try:
        with tempfile.TemporaryDirectory(prefix="taskq-chaos-") as folder:
            kept = options.keep and options.keep / time.strftime("%Y-%m-%d-%H-%M-%S")
            found = run(scenario, (kept or Path(folder)) / name, scenario.seconds or options.seconds)
    except Exception:  # noqa: BLE001 -- the other scenarios are run all the same
        print(f"| {scenario.title} | not judged |\n{traceback.format_exc()}", flush=True)
        return True
    print(row(scenario.title, found), flush=True)
    for note in (*found.notes, *found.unfinished):
        print(f"    {name}: {note}", flush=True)
    for violation in found.violations[:SHOWN]:
        print(f"    {violation.rule}: {violation.detail}", flush=True)
    behind = falls_behind(scenario, found)
    if behind:
        ended = f"{found.recovery:.1%} of the last tasks ended in time, at {found.rate:.0%} of the pace of the pushes"
        print(f"    {name}: the work has not recovered: {ended}", flush=True)
    return bool(found.violations or found.unfinished or behind)


def falls_behind(scenario: Scenario, found: Outcome) -> bool:
    """Whether the tasks that are pushed after the fault do not all end in time, or too slowly."""
    return found.recovery < 1.0 or found.rate < (RATE if scenario.roles is WORKERS else RATE_OF_ROUNDS)


def row(title: str, found: Outcome) -> str:
    """The line of a scenario."""
    rates = f"{found.before:,.0f}, {found.during:,.0f}, {found.after:,.0f}"
    waits = f"{found.waited:.1f}, {found.read:.1f}"
    again = "not recorded" if found.again is None else f"{found.again:,}"
    cells = [title, f"{found.pushed:,}", found.lost, found.twice, again, f"{found.behind:,}", f"{found.pause:.1f}"]
    cells += [f"{found.recovered:.1f}", waits, rates, f"{floor(100 * found.recovery)}%"]
    return "| " + " | ".join(map(str, cells)) + " |"


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # ends what it has started
    sys.exit(main())
