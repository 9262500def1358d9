"""Transforms for programs that the tests start."""

from collections.abc import Iterator, Mapping

import pyarrow as pa
from pyspark.sql import DataFrame

from airflow_provider_taskq.queue import Decision, Result, Task
from airflow_provider_taskq.worker import UNDECIDED


def succeed(tasks: DataFrame, options: Mapping[str, str]) -> DataFrame:
    """Decides every task, with the value of --option note=... as its message."""
    note = options.get("note", "done")
    return tasks.selectExpr("sequence", "'SUCCESS' AS result", f"to_json(named_struct('note', '{note}')) AS message")


def wait_for_gate(tasks: DataFrame, options: Mapping[str, str]) -> DataFrame:
    """Decides every task; all but the first partition wait for the file --option gate=..."""
    gate = options["gate"]

    def waiting(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import time
        from pathlib import Path

        from pyspark import TaskContext

        context = TaskContext.get()
        while context is not None and context.partitionId() > 0 and not Path(gate).exists():
            time.sleep(0.05)  # between two checks at the gate
        yield from batches

    return tasks.selectExpr("sequence", "'SUCCESS' AS result").mapInArrow(waiting, "sequence long, result string")


def wait_and_follow(tasks: DataFrame, options: Mapping[str, str]) -> DataFrame:
    """The same, and a task of the topic `next` follows each."""
    following = 'concat(\'[{"topic": "next", "identifier": "\', sequence, \'"}]\') AS push'
    return wait_for_gate(tasks, options).selectExpr("sequence", "result", following)


def count_letters(task: Task, options: Mapping[str, str]) -> Decision:
    """Decides one task, with the value of --option note=... in its message."""
    return Decision(Result.SUCCESS, {"note": options["note"], "letters": len(task.identifier)})


def stumble(tasks: DataFrame, options: Mapping[str, str]) -> DataFrame:
    """Raises a RuntimeError."""
    raise RuntimeError(f"stumbled over {len(options)} options and {len(tasks.columns)} columns")


NOTHING = None


def decide_good(task: Task) -> Decision | Result:
    """Makes no decision on a task whose identifier begins with `bad`."""
    return UNDECIDED if task.identifier.startswith("bad") else Result.SUCCESS


def reject_bad(task: Task) -> Result:
    """Fails for each task whose identifier begins with `bad`."""
    if task.identifier.startswith("bad"):
        raise ValueError(f"no mailbox for {task.identifier}")
    return Result.SUCCESS
