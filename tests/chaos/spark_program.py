"""The Spark driver of a chaos run: drains the topic again and again, in a session of its own. See programs.py.

A task is decided in a Python worker of Spark, which pushes the task's effect as its follow-up: a task of the topic
`effects`, which the drain commits together with the decision. The worker records that the drain has claimed the task,
and asks for a decision: only the effect shows whether that was committed.
"""

import json
import os
import signal
import sys
import threading
import time
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from pyspark.sql import SparkSession

from airflow_provider_taskq.queue import Condition, NewTask, Result, Task
from airflow_provider_taskq.spark import TaskOutcome, by_task, drain
from airflow_provider_taskq.worker import BatchContext
from tests.chaos.history import Recorder
from tests.chaos.programs import (
    ATTEMPT,
    EFFECTS,
    FAULTS,
    PAUSE,
    TOPIC,
    Options,
    claim_of,
    decision_of,
    end_with_parent,
)


@dataclass(frozen=True)
class Deciding:
    """What one drain does with a task: it succeeds, with an effect."""

    owner: str
    lease: float
    folder: str
    began: float = field(default_factory=time.monotonic)

    def __call__(self, task: Task, batch: BatchContext) -> TaskOutcome:
        """Record the claim, and ask for the decision."""
        claim = claim_of(task, self.owner, batch.owner.fence, self.began + self.lease)
        with Recorder(Path(self.folder), f"{self.owner}-{os.getpid()}") as recorder:
            recorder.write("claim", self.began, time.monotonic(), [claim])
            recorder.write("decision", time.monotonic(), None, [decision_of(claim)])
        effect = {name: claim[name] for name in ATTEMPT if name != "task"}
        return TaskOutcome(Result.SUCCESS, push={EFFECTS: [NewTask(claim["task"], effect)]})


def session() -> SparkSession:
    """A session with two cores, which binds to the loopback address."""
    builder = SparkSession.builder.master("local[2]").appName("taskq chaos")
    for name, value in {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2"}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def main(name: str, dsn: str, folder: str, options: Options, stopping: threading.Event) -> None:
    """Drains until SIGTERM. After an error, drains again under the same owner."""
    spark = session()
    lease = 2 * options.lease
    while not stopping.is_set():
        try:
            drain(
                spark,
                TOPIC,
                name,
                by_task(Deciding(name, lease, folder)),
                dsn=dsn,
                size=1_000,
                lease=timedelta(seconds=lease),
                condition=Condition(options.condition),
            )
        except FAULTS as error:
            print(f"the drain failed: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        except Exception as error:  # Spark wraps what fails in its executors
            if not type(error).__module__.startswith(("pyspark", "py4j")):
                raise
            print(f"the drain failed: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        stopping.wait(PAUSE)
    spark.stop()


if __name__ == "__main__":
    end_with_parent()
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    main(sys.argv[1], sys.argv[2], sys.argv[3], Options(**json.loads(sys.argv[4])), ended)
