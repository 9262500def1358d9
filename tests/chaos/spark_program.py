"""The Spark driver of a chaos run: drains the topic again and again, in a session of its own. See programs.py.

A task is decided in a Python worker of Spark, which pushes the task's effect as its follow-up: a task of the topic
`effects`, which the drain commits together with the decision.
"""

import json
import signal
import sys
import threading
from datetime import timedelta

from pyspark.sql import SparkSession

from airflow_provider_taskq.queue import Condition, NewTask, Result, Task
from airflow_provider_taskq.spark import TaskOutcome, by_task, drain
from tests.chaos.programs import EFFECTS, FAULTS, PAUSE, TOPIC, Options, end_with_parent, key_of


def decide(task: Task) -> TaskOutcome:
    """Succeeds, with an effect."""
    effect = NewTask(key_of(task), {"attempt": task.attempt})
    return TaskOutcome(Result.SUCCESS, push={EFFECTS: [effect]})


def session() -> SparkSession:
    """A session with two cores, which binds to the loopback address."""
    builder = SparkSession.builder.master("local[2]").appName("taskq chaos")
    for name, value in {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2"}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def main(name: str, dsn: str, options: Options, stopping: threading.Event) -> None:
    """Drains until SIGTERM. After an error, drains again under the same owner."""
    spark = session()
    while not stopping.is_set():
        try:
            drain(
                spark,
                TOPIC,
                name,
                by_task(decide),
                dsn=dsn,
                size=1_000,
                lease=timedelta(seconds=2 * options.lease),
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
    main(sys.argv[1], sys.argv[2], Options(**json.loads(sys.argv[3])), ended)
