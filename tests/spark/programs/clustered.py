"""Functions for drains on a cluster, sent to executors with --py-files."""

from collections.abc import Iterator, Mapping

import pyarrow as pa
from pyspark.sql import DataFrame

from airflow_provider_taskq.queue import Decision, Result, Task


def tell_where(task: Task, options: Mapping[str, str]) -> Decision:  # noqa: ARG001  drain's signature
    """Decides a task, and says which Python did it, and which file this package was in."""
    import sys
    from pathlib import Path

    import airflow_provider_taskq

    where = {"python": sys.prefix, "package": str(Path(airflow_provider_taskq.__file__).resolve())}
    return Decision(Result.SUCCESS, {**where, "number": task.payload["number"]})  # type: ignore[index, call-overload]


def wait_and_note(tasks: DataFrame, options: Mapping[str, str]) -> DataFrame:
    """Decides every task, and pushes a follow-up with the same payload to the topic `next`.

    Each attempt of a Spark task writes its number and its process to the folder --option notes=... . All partitions but
    the first then wait for a file `gate` in that folder.
    """
    notes = options["notes"]

    def noting(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import os
        import time
        from pathlib import Path

        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        yield from batches
        part = context.partitionId()
        note = Path(notes) / f"{part}-{context.attemptNumber()}"
        note.with_suffix(".new").write_text(str(os.getpid()))
        note.with_suffix(".new").rename(note)  # atomic: a reader never sees half of it
        while part > 0 and not (Path(notes) / "gate").exists():
            time.sleep(0.05)  # between two checks at the gate

    following = (
        """to_json(array(named_struct('topic', 'next', 'identifier', identifier, 'payload', payload))) AS push"""
    )
    decided = tasks.selectExpr("sequence", "'SUCCESS' AS result", "payload AS message", following)
    return decided.mapInArrow(noting, decided.schema)
