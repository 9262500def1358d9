"""The drain as a program: for spark-submit, and for `python -m airflow_provider_taskq.spark.drain`."""

import sys
from pathlib import Path

if __name__ == "__main__":
    # Python puts the folder of a script first on the path. Without this, modules here would be imported twice, once as
    # `drain` and once as `airflow_provider_taskq.spark.drain`.
    folder = str(Path(__file__).resolve().parent)
    sys.path[:] = [entry for entry in sys.path if entry != folder]
    try:
        from airflow_provider_taskq.spark import DrainResult  # noqa: F401 -- fails in one line if PySpark is missing
    except ImportError as error:
        sys.exit(str(error))

import argparse
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from importlib import import_module
from types import FrameType
from typing import Any, TypeVar

from pyspark.sql import SparkSession

from airflow_provider_taskq.queue import (
    Condition,
    FailureLimit,
    InvalidArgument,
    Order,
    TaskQueue,
    TaskQueueError,
    TooManyFailures,
    TooManyUndecided,
    connect,
    verify_for_work,
)
from airflow_provider_taskq.queue.arguments import to_integer
from airflow_provider_taskq.queue.drains import parse_max_undecided
from airflow_provider_taskq.queue.durations import parse_duration
from airflow_provider_taskq.spark.composite import by_composite, transform_of
from airflow_provider_taskq.spark.drain import drain
from airflow_provider_taskq.spark.jobs import SparkJobs
from airflow_provider_taskq.spark.session import describe_error
from airflow_provider_taskq.spark.transforms import Transform, by_task, in_arrow, in_pandas
from airflow_provider_taskq.worker.composite import Composite

logger = logging.getLogger("airflow_provider_taskq.spark")

T = TypeVar("T")
NamedFunction = Callable[..., Any]
MAKERS: Mapping[str, Callable[[Any], Transform]] = {
    "transform": transform_of,
    "each": by_task,
    "in_arrow": in_arrow,
    "in_pandas": in_pandas,
    "composite": by_composite,
}

# The arguments that the program passes on to `drain`, under the same names.
PASSED = (
    *("topic", "owner", "claim", "lease", "size", "order", "condition", "partitions"),
    *("rounds", "budget", "deadline", "max_failed", "max_undecided"),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Drain a topic, and return the exit code: 0, or 1 after one line on the standard error."""
    options = _parser().parse_args(arguments)
    _log_to_stdout()
    try:
        transform, values = _load_transform(options), _function_options(options)
        with connect() as conn:  # a wrong schema or topic fails here, before Spark starts
            verify_for_work(conn)
            TaskQueue(conn).policy(options.topic)
        _run(options, transform, values)
    except Exception as error:
        print(f"drain of topic {options.topic} failed: {describe_error(error)}", file=sys.stderr, flush=True)  # noqa: T201
        logger.debug("drain failed: topic=%s", options.topic, exc_info=True)
        return 1
    return 0


def _run(options: argparse.Namespace, transform: Transform, values: Mapping[str, str]) -> None:
    if "PYSPARK_GATEWAY_PORT" not in os.environ:  # not started by spark-submit: a local session with this Python
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = SparkSession.builder.appName(f"taskq drain of {options.topic}").getOrCreate()
    jobs = SparkJobs.of(spark)
    stopping = _stop_on_sigterm(jobs)
    jobs.set_log_level(options.log_level)
    try:
        drain(spark, transform=transform, options=values, **{name: getattr(options, name) for name in PASSED})
    except (TooManyFailures, TooManyUndecided):
        raise
    except Exception as error:
        if stopping.is_set():
            raise TaskQueueError("stopped by SIGTERM: the drain released the tasks that it held") from error
        raise
    finally:
        spark.stop()


def _function_options(options: argparse.Namespace) -> Mapping[str, str]:
    for text in options.option:
        if "=" not in text:
            raise TaskQueueError(f"--option must be key=value, not {text!r}")
    return dict(text.split("=", 1) for text in options.option)


def _load_transform(options: argparse.Namespace) -> Transform:
    for kind, make in MAKERS.items():
        if name := getattr(options, kind):
            return make(_import_function("--" + kind.replace("_", "-"), name))
    raise AssertionError("the parser requires a function or a composite")


def _import_function(argument: str, name: str) -> NamedFunction | Composite:
    """Import the function or composite `package.module:name`. Raises TaskQueueError, which names the argument."""
    module_name, _, function_name = name.partition(":")
    if not module_name or not function_name:
        raise TaskQueueError(f"{argument} must be package.module:function, not {name!r}")
    try:
        found: Any = getattr(import_module(module_name), function_name, None)
    except ModuleNotFoundError as error:
        raise TaskQueueError(
            f"{argument} {name}: there is no module {error.name!r} on the driver's Python path"
        ) from None
    wanted = "composite" if argument == "--composite" else "function"
    if not (isinstance(found, Composite) if wanted == "composite" else callable(found)):
        raise TaskQueueError(f"{argument} {name}: module {module_name} has no {wanted} {function_name!r}")
    function: NamedFunction | Composite = found
    return function


def _parser() -> argparse.ArgumentParser:
    # No argument names the database, because every user of the machine sees the arguments of a process.
    parser = argparse.ArgumentParser(
        prog="python -m airflow_provider_taskq.spark.drain",
        description="Drain a topic through a function of its tasks: as one DataFrame, in batches, or one by one.",
        epilog="The database: TASKQ_DSN, TASKQ_DSN_FILE, or libpq's environment.",
    )
    add = parser.add_argument
    add("--topic", required=True)
    add("--owner", required=True, help="the name of this work, also of its retries")
    work = parser.add_mutually_exclusive_group(required=True)
    for name, given in (
        ("--transform", "a DataFrame of tasks, which returns a DataFrame of decisions"),
        ("--in-arrow", "an iterator of the Arrow batches of a partition, which returns one of decisions"),
        ("--in-pandas", "an iterator of DataFrames of pandas, which returns one of decisions"),
        ("--each", "one task, which returns what a handler returns, or a TaskOutcome"),
    ):
        text = f"a function of {given}; it gets the values of --option, if it has a parameter `options`"
        work.add_argument(name, metavar="PACKAGE.MODULE:FUNCTION", help=text)
    work.add_argument("--composite", metavar="PACKAGE.MODULE:NAME", help="a composite, whose steps run on executors")
    add("--size", type=_positive, help="maximum number of tasks in a round (default: all that are ready)")
    add("--rounds", type=_rounds, default=1, help="maximum number of rounds, or `all` (default: 1)")
    add("--budget", type=_positive, help="maximum number of tasks in all rounds")
    text = "begin no round after this duration or timestamp with a time zone"
    add("--deadline", type=_deadline, metavar="DURATION|MOMENT", help=text)
    text = (
        "exit with 1 if more tasks fail for good: a count such as 0 or 10, or a share of the tasks that ended, such as"
        " 0.05 or 5%%; all results are committed before"
    )
    add("--max-failed", type=_max_failed, metavar="COUNT|SHARE", help=text)
    text = "exit with 1 if more tasks are left without a decision (default: 0)"
    add("--max-undecided", type=_argument(parse_max_undecided), default=0, metavar="COUNT|None", help=text)
    text = "the fence of a claim of this owner: drain only the tasks of the claim"
    add("--claim", type=_positive, metavar="FENCE", help=text)
    text = "the length of the owner's lease (default: 5m, or that of the claim)"
    add("--lease", type=_argument(parse_duration), metavar="DURATION", help=text)
    add("--order", type=Order, choices=list(Order), default=Order.FIRST_IN_FIRST_OUT)
    add("--condition", type=Condition, choices=list(Condition), default=Condition.NONE)
    add("--partitions", type=_positive, help="number of partitions (default: by cores and tasks)")
    add("--option", action="append", default=[], metavar="KEY=VALUE", help="a value for the function")
    add("--log-level", default="WARN", choices=["ERROR", "WARN", "INFO", "DEBUG"], help="log level of Spark")
    return parser


def _argument(parse: Callable[[str], T]) -> Callable[[str], T]:
    """Return a parser of an argument that shows the sentence of an error."""

    def parsed(text: str) -> T:
        try:
            return parse(text)
        except ValueError as error:  # also InvalidArgument
            raise argparse.ArgumentTypeError(str(error)) from None

    return parsed


@_argument
def _positive(text: str) -> int:
    return to_integer(int(text), "the number", 1)


def _rounds(text: str) -> int | None:
    return None if text == "all" else _positive(text)


@_argument
def _deadline(text: str) -> timedelta | datetime:
    if text.replace(".", "").isdigit():  # seconds, even if the digits could be a date
        return parse_duration(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return parse_duration(text)
    if moment.tzinfo is None:
        raise InvalidArgument(f"{text} has no time zone")
    return moment


@_argument
def _max_failed(text: str) -> str:
    FailureLimit.of(text)
    return text


def _log_to_stdout() -> None:
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)


def _stop_on_sigterm(jobs: SparkJobs) -> threading.Event:
    """Let SIGTERM cancel the Spark jobs, so that the drain fails and releases its tasks. Return an event for it."""
    stopping = threading.Event()

    def cancel() -> None:
        with suppress(Exception):  # ends when the session has ended
            while True:
                jobs.cancel_all()
                time.sleep(0.5)  # no event reports that the drain starts another job

    def stop(_: int, __: FrameType | None) -> None:
        if not stopping.is_set():
            stopping.set()
            # In a thread: the main thread is inside a call to the JVM, whose connection an exception would break.
            threading.Thread(target=cancel, name="taskq stop", daemon=True).start()

    signal.signal(signal.SIGTERM, stop)
    return stopping


if __name__ == "__main__":
    sys.exit(main())
