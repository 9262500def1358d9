"""The report of the demo: tasks by state, speed, and the history of three tasks."""

import json
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from shlex import quote

from airflow_provider_taskq.queue import Count, State, TaskInfo

REASONS = {
    State.SUCCEEDED: "flown, aircraft and weather known",
    State.FILTERED: "cancelled: no departure time",
    State.FAILED: "no tail number, or no known aircraft",
    State.SUSPENDED: "the weather of its hour has not been loaded",
    State.READY: "waiting",
    State.ACTIVE: "held",
}
STATES = (State.SUCCEEDED, State.FAILED, State.SUSPENDED)


def states(counts: Mapping[State, Count]) -> str:
    """Format a table of the tasks by state."""
    rows = [f"  {state.name:<10} {counts[state].count:>9,}  {REASONS.get(state, '')}" for state in sorted(counts)]
    return "\n".join([*rows, f"  {'total':<10} {sum(count.count for count in counts.values()):>9,}"])


def speeds(tasks: int, push: float, gate: float, opened: float, drain: float) -> str:
    """Format the seconds of push, gate and drain, and the rates."""
    return "\n".join(
        (
            f"  push   {push:7.1f} s  {tasks / push:>9,.0f} rows/s  read the file, write the tasks, in one transaction",
            f"  gate   {gate:7.1f} s  {'':>16}  waited in the triggerer; open {opened:.1f} s after the push had ended",
            f"  drain  {drain:7.1f} s  {tasks / drain:>9,.0f} rows/s  start Spark, claim, read, join, decide, commit",
        )
    )


def history(task: TaskInfo) -> str:
    """Format the history of one flight."""
    flight = task.payload if isinstance(task.payload, dict) else {}
    said = task.error or json.dumps(task.output, ensure_ascii=False)
    number, route = f"{flight.get('carrier')}{flight.get('flight')}", f"{flight.get('origin')} to {flight.get('dest')}"
    return "\n".join(
        (
            f"  Task {task.sequence}, {task.identifier}: {number} from {route}, {flight.get('time_hour')}",
            f"    {_clock(task.created)}  pushed",
            f"    {_clock(task.completed)}  {task.state.name} at attempt {task.attempt}, held by {task.owner}",
            f"    {said}",
        )
    )


def next_commands(program: Path, dsn: str, topic: str) -> str:
    """Format three commands to try while the servers run, with the setting that they need."""
    return "\n".join(
        (
            f"  export TASKQ_DSN={quote(dsn)}",
            f"  {program} errors {topic}                           # why tasks failed, by error",
            f"  {program} ls {topic} --state failed --size 5       # some of them; `show` prints one",
            f"  {program} retry {topic} --state failed --dry-run   # what a retry would change",
        )
    )


def _clock(moment: datetime | None) -> str:
    return "--:--:--.---" if moment is None else moment.strftime("%H:%M:%S.%f")[:-3]
