"""The drain as a program: what SparkSubmitOperator submits, and `python -m airflow_provider_taskq.spark.drain` runs."""

import argparse
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from importlib import import_module
from types import FrameType

from pyspark.sql import DataFrame, SparkSession

from airflow_provider_taskq.queue import Condition, Order, TaskQueue, TaskQueueError, connect, verify
from airflow_provider_taskq.spark.draining import DrainResult, drain
from airflow_provider_taskq.spark.failure import sentence

logger = logging.getLogger("airflow_provider_taskq.spark")

NamedTransform = Callable[[DataFrame, Mapping[str, str]], DataFrame]


def main(arguments: Sequence[str] | None = None) -> int:
    """Drains a topic and returns the exit code: 0, or 1 after one sentence on the standard error."""
    asked = _parser().parse_args(arguments)
    _log_to_stdout()
    try:
        transform = _found_transform(asked.transform)
        _check_queue(asked.topic)
        _run(asked, transform, _options(asked.option))
    except Exception as error:
        print(f"drain of topic {asked.topic} failed: {sentence(error)}", file=sys.stderr, flush=True)  # noqa: T201
        logger.debug("the error in full", exc_info=True)
        return 1
    return 0


def _run(asked: argparse.Namespace, transform: NamedTransform, options: Mapping[str, str]) -> None:
    """Drains round by round, as many as were asked for, or until one finds nothing that it could decide."""
    spark = _session(f"taskq drain of {asked.topic}")
    stopping = _stop_when_asked(spark)
    spark.sparkContext.setLogLevel(asked.log_level)
    try:
        rounds, total, seconds = 0, 0, 0.0
        while rounds < asked.rounds and not stopping.is_set():
            result = _round(spark, asked, transform, options)
            rounds, total, seconds = rounds + 1, total + result.done, seconds + result.seconds
            logger.info("round %s: %s tasks done in all, %s a second", rounds, f"{total:,}", f"{total / seconds:,.0f}")
            if not result.done:
                break
    except Exception as error:
        if stopping.is_set():
            raise TaskQueueError("it was asked to stop, and gave back what it held") from error
        raise
    finally:
        spark.stop()


def _round(
    spark: SparkSession, asked: argparse.Namespace, transform: NamedTransform, options: Mapping[str, str]
) -> DrainResult:
    """One drain."""
    return drain(
        spark,
        asked.topic,
        asked.owner,
        lambda tasks: transform(tasks, options),
        lease=timedelta(seconds=asked.lease),
        size=asked.size,
        order=asked.order,
        condition=asked.condition,
        partitions=asked.partitions,
    )


def _session(name: str) -> SparkSession:
    """The Spark session: the one that spark-submit describes, or a local one with this Python for its workers."""
    if "PYSPARK_GATEWAY_PORT" not in os.environ:  # no spark-submit has started this
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    return SparkSession.builder.appName(name).getOrCreate()


def _check_queue(topic: str) -> None:
    """Refuses what cannot work before a cluster is started for it."""
    with connect() as conn:
        verify(conn)
        TaskQueue(conn).policy(topic)


def _found_transform(name: str) -> NamedTransform:
    """The function named `package.module:function`."""
    module_name, _, function_name = name.partition(":")
    if not module_name or not function_name:
        raise TaskQueueError(f"--transform must be package.module:function, not {name!r}")
    try:
        function = getattr(import_module(module_name), function_name, None)
    except ModuleNotFoundError as error:
        raise TaskQueueError(
            f"--transform {name}: there is no module {error.name!r} on the driver's Python path"
        ) from None
    if not callable(function):
        raise TaskQueueError(f"--transform {name}: module {module_name} has no function {function_name!r}")
    found: NamedTransform = function
    return found


def _options(pairs: Sequence[str]) -> dict[str, str]:
    """The options for the transform from key=value."""
    for pair in pairs:
        if "=" not in pair:
            raise TaskQueueError(f"--option must be key=value, not {pair!r}")
    return dict(pair.split("=", 1) for pair in pairs)


def _parser() -> argparse.ArgumentParser:
    """The command line. The database is not on it: arguments are for all to see."""
    parser = argparse.ArgumentParser(
        prog="python -m airflow_provider_taskq.spark.drain",
        description="Drains a topic through a function from DataFrame to DataFrame.",
        epilog="The database: TASKQ_DSN, TASKQ_DSN_FILE, or libpq's environment.",
    )
    parser.add_argument("--topic", required=True)
    parser.add_argument("--owner", required=True, help="the name of this work; the same for its retries")
    parser.add_argument("--transform", required=True, metavar="PACKAGE.MODULE:FUNCTION",
                        help="called with the tasks (DataFrame) and the options (mapping)")  # fmt: skip
    parser.add_argument("--size", type=_positive, help="at most so many tasks a round (all that are ready)")
    parser.add_argument("--rounds", type=_positive, default=1, help="at most so many, while there is work (1)")
    parser.add_argument("--lease", type=_positive, default=300, metavar="SECONDS", help="the owner's lease (300)")
    parser.add_argument("--order", type=Order, choices=list(Order), default=Order.FIRST_IN_FIRST_OUT)
    parser.add_argument("--condition", type=Condition, choices=list(Condition), default=Condition.NONE)
    parser.add_argument("--partitions", type=_positive, help="slices to read in (by cores and number of tasks)")
    parser.add_argument("--option", action="append", default=[], metavar="KEY=VALUE", help="for the transform")
    parser.add_argument("--log-level", default="WARN", choices=["ERROR", "WARN", "INFO", "DEBUG"], help="of Spark")
    return parser


def _positive(text: str) -> int:
    """A whole number from 1."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is less than 1")
    return number


def _log_to_stdout() -> None:
    """Shows the progress of the drain as lines on the standard output."""
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)


def _stop_when_asked(spark: SparkSession) -> threading.Event:
    """Ends in good order on SIGTERM; the event tells whether that has come.

    The Spark jobs are cancelled, the drain fails by that and gives back what it holds. Cancelled from a thread, and as
    often as it takes: the main thread is inside a call to the JVM, whose connection an exception would leave unusable.
    """
    asked = threading.Event()

    def cancel() -> None:
        with suppress(Exception):  # when the session has stopped there is nothing left to cancel
            while True:
                spark.sparkContext.cancelAllJobs()
                time.sleep(0.5)  # a job may begin after the cancelling

    def stop(_: int, __: FrameType | None) -> None:
        if not asked.is_set():
            asked.set()
            threading.Thread(target=cancel, name="taskq stop", daemon=True).start()

    signal.signal(signal.SIGTERM, stop)
    return asked
