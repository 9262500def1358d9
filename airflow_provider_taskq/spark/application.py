"""The drain as a program: what SparkSubmitOperator submits, and `python -m airflow_provider_taskq.spark.drain` runs."""

import argparse
import inspect
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from importlib import import_module
from types import FrameType
from typing import Any

from pyspark.sql import SparkSession

from airflow_provider_taskq.queue import (
    Condition,
    FailureLimit,
    InvalidArgument,
    Order,
    TaskQueue,
    TaskQueueError,
    TooManyFailures,
    connect,
    verify,
)
from airflow_provider_taskq.queue.durations import parse_duration
from airflow_provider_taskq.spark.composite import by_composite
from airflow_provider_taskq.spark.drain import drain
from airflow_provider_taskq.spark.errors import sentence
from airflow_provider_taskq.spark.session import Transform
from airflow_provider_taskq.spark.transforms import ByBatch, ByTask, by_task, in_arrow, in_pandas
from airflow_provider_taskq.worker.composite import Composite

logger = logging.getLogger("airflow_provider_taskq.spark")

NamedFunction = Callable[..., Any]
KINDS: Mapping[str, Callable[[Any], Transform]] = {
    "transform": lambda function: function,
    "each": by_task,
    "in_arrow": in_arrow,
    "in_pandas": in_pandas,
    "composite": by_composite,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Drains a topic and returns the exit code: 0, or 1 after the reason on the standard error."""
    asked = _parser().parse_args(arguments)
    _log_to_stdout()
    try:
        transform = _found_transform(asked)
        _check_queue(asked.topic)
        _run(asked, transform)
    except Exception as error:
        print(f"drain of topic {asked.topic} failed: {sentence(error)}", file=sys.stderr, flush=True)  # noqa: T201
        logger.debug("the error in full", exc_info=True)
        return 1
    return 0


def _run(asked: argparse.Namespace, transform: Transform) -> None:
    """Drains as far as was asked for."""
    spark = _session(f"taskq drain of {asked.topic}")
    stopping = _stop_when_asked(spark)
    spark.sparkContext.setLogLevel(asked.log_level)
    try:
        drain(
            spark,
            asked.topic,
            asked.owner,
            transform,
            claim=asked.claim,
            lease=asked.lease,
            size=asked.size,
            order=asked.order,
            condition=asked.condition,
            partitions=asked.partitions,
            rounds=asked.rounds or None,
            budget=asked.budget,
            deadline=asked.deadline,
            max_failed=asked.max_failed,
        )
    except TooManyFailures:
        raise
    except Exception as error:
        if stopping.is_set():
            raise TaskQueueError("it was asked to stop, and gave back what it held") from error
        raise
    finally:
        spark.stop()


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


def _found_transform(asked: argparse.Namespace) -> Transform:
    """The transform that was named: a function as it is, or as one of tasks or batches."""
    options = _options(asked.option)
    for kind, made in KINDS.items():
        if name := getattr(asked, kind):
            found = _found_function("--" + kind.replace("_", "-"), name)
            return made(found if isinstance(found, Composite) else _with_options(found, options))
    raise AssertionError("the parser requires one of them")


def _found_function(argument: str, name: str) -> NamedFunction | Composite:
    """The function, or the composite, named `package.module:function`."""
    module_name, _, function_name = name.partition(":")
    if not module_name or not function_name:
        raise TaskQueueError(f"{argument} must be package.module:function, not {name!r}")
    try:
        function: Any = getattr(import_module(module_name), function_name, None)
    except ModuleNotFoundError as error:
        raise TaskQueueError(
            f"{argument} {name}: there is no module {error.name!r} on the driver's Python path"
        ) from None
    wanted = "composite" if argument == "--composite" else "function"
    if not (isinstance(function, Composite) if wanted == "composite" else callable(function)):
        raise TaskQueueError(f"{argument} {name}: module {module_name} has no {wanted} {function_name!r}")
    found: NamedFunction | Composite = function
    return found


def _with_options(function: NamedFunction, options: Mapping[str, str]) -> NamedFunction:
    """The function with the options as its second argument, where it takes two; what `by_task` made stays as it is."""
    if isinstance(function, ByTask | ByBatch):
        return function
    try:
        inspect.signature(function).bind(None, options)
    except (TypeError, ValueError):
        return function
    return lambda given: function(given, options)


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
        description="Drains a topic through a function of its tasks: as one DataFrame, in batches, or one by one.",
        epilog="The database: TASKQ_DSN, TASKQ_DSN_FILE, or libpq's environment.",
    )
    parser.add_argument("--topic", required=True)
    parser.add_argument("--owner", required=True, help="the name of this work; the same for its retries")
    work = parser.add_mutually_exclusive_group(required=True)
    for name, given in (
        ("--transform", "the tasks as a DataFrame, to decisions as one"),
        ("--in-arrow", "an iterator of Arrow batches, a partition, to one of decisions"),
        ("--in-pandas", "the same with DataFrames of pandas"),
        ("--each", "one task, to a Result, Decision, Decided or None"),
    ):
        text = f"a function of {given}; with the options as its second argument, if it takes two"
        work.add_argument(name, metavar="PACKAGE.MODULE:FUNCTION", help=text)
    work.add_argument("--composite", metavar="PACKAGE.MODULE:NAME", help="a composite, its steps on executors")
    parser.add_argument("--size", type=_positive, help="at most so many tasks a round (all that are ready)")
    parser.add_argument("--rounds", type=_rounds, default=1, help="at most so many, while there is work; or: all (1)")
    parser.add_argument("--budget", type=_positive, help="at most so many tasks in all rounds")
    parser.add_argument("--deadline", type=_deadline, metavar="DURATION|MOMENT",
                        help="no round begins after so long, or after a moment with a time zone")  # fmt: skip
    parser.add_argument("--max-failed", type=_max_failed, metavar="COUNT|SHARE",
                        help="exit with 1 if more tasks fail for good: a count such as 0 or 10, or a share of the "
                        "tasks that ended, such as 0.05 or 5%%; all results are committed first")  # fmt: skip
    parser.add_argument("--claim", type=_positive, metavar="FENCE",
                        help="the fence of a claim of this owner: drain its tasks, and claim no others")  # fmt: skip
    parser.add_argument("--lease", type=_duration, metavar="DURATION", help="the owner's lease (5m, or the claim's)")
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


def _rounds(text: str) -> int:
    """A number of rounds; 0 for as many as it takes."""
    return 0 if text == "all" else _positive(text)


def _deadline(text: str) -> timedelta | datetime:
    """How long from the start, or a moment."""
    if text.replace(".", "").isdigit():  # seconds, also where they could be read as a date
        return _duration(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return _duration(text)
    if moment.tzinfo is None:
        raise argparse.ArgumentTypeError(f"{text} has no time zone")
    return moment


def _duration(text: str) -> timedelta:
    """90s, 5m, PT5M, or seconds."""
    try:
        return parse_duration(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _max_failed(text: str) -> str:
    """The text of a limit that FailureLimit accepts."""
    try:
        FailureLimit.of(text)
    except InvalidArgument as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


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
                time.sleep(0.5)  # nothing tells when the drain begins another job after the cancelling

    def stop(_: int, __: FrameType | None) -> None:
        if not asked.is_set():
            asked.set()
            threading.Thread(target=cancel, name="taskq stop", daemon=True).start()

    signal.signal(signal.SIGTERM, stop)
    return asked
