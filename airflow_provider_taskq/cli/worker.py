"""taskq worker: handles tasks with a Python function."""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from airflow_provider_taskq.cli._distributions import CORE, FULL, without_airflow
from airflow_provider_taskq.cli._options import COUNT, DURATION, MAX_FAILED, TOPIC, Choice
from airflow_provider_taskq.cli._output import facts, sanitize
from airflow_provider_taskq.cli._session import Session
from airflow_provider_taskq.queue import Condition, FailureLimit, Order, TaskQueueError, TooManyUndecided
from airflow_provider_taskq.worker import MetricsEndpoint, Worker


@click.command(
    help="Handle the tasks of a topic with MODULE:FUNCTION: a function that takes a task and returns a Result, its "
    "name, a Decision, UNDECIDED, or nothing, which is SUCCESS; or a handler of worker.each, batch or a Composite. "
    "The current folder is searched first. SIGTERM and Ctrl-C stop the worker: it finishes its running tasks and "
    "releases the rest. A second one stops it at once."
)
@click.argument("handler", metavar="MODULE:FUNCTION")
@click.option("--topic", "-t", type=TOPIC, required=True, help="The topic.")
@click.option("--size", type=COUNT, default=1, show_default=True, help="Tasks per transaction.")
@click.option("--threads", type=click.IntRange(1, 1000), default=1, show_default=True, help="Batches at the same time.")
@click.option(
    "--order", type=Choice(tuple(Order)), default=Order.FIRST_IN_FIRST_OUT, help="The order of tasks of one priority."
)
@click.option(
    "--condition",
    type=Choice(tuple(Condition)),
    default=Condition.NONE,
    help="The condition under which an identifier is handed out.",
)
@click.option(
    "--pause", type=DURATION, default="1s", show_default=True, help="The time between two polls of an empty topic."
)
@click.option(
    "--lease",
    type=DURATION,
    default="1m",
    show_default=True,
    help="The time after which the tasks of a dead worker are taken back.",
)
@click.option(
    "--grace", type=DURATION, default="30s", show_default=True, help="The time for running tasks when the worker stops."
)
@click.option("--drain", is_flag=True, help="End once no task can be polled and none is running.")
@click.option(
    "--max-failed",
    type=MAX_FAILED,
    help="With --drain: exit code 1 if more tasks are FAILED. A count such as 0 or 10, or a share of the ended tasks "
    "such as 0.05 or 5%.",
)
@click.option(
    "--max-undecided",
    type=click.IntRange(0, 2**31 - 1),
    default=0,
    show_default=True,
    help="With --drain: exit code 1 if the function returned UNDECIDED for more tasks.",
)
@click.option("--name", help="The name of the worker in owners' names, by default the topic.")
@click.option(
    "--metrics-port",
    type=click.IntRange(0, 65_535),
    help="Serve metrics for Prometheus on this port, at /metrics. 0: any free port, which the log names.",
)
@click.option(
    "--metrics-host",
    default="127.0.0.1",
    show_default=True,
    help="The address to serve metrics on. There is no authentication.",
)
@click.pass_obj
def worker(
    session: Session,
    /,
    handler: str,
    grace: timedelta,
    drain: bool,
    max_failed: FailureLimit | None,
    max_undecided: int,
    metrics_port: int | None,
    metrics_host: str,
    **settings: Any,
) -> None:
    if max_failed is not None and not drain:
        raise click.UsageError("--max-failed needs --drain: a worker without it runs until it is stopped")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    topic, threads, named = settings.pop("topic"), settings.pop("threads"), _load_handler(handler)
    try:
        made = Worker(session.connection, topic, named, workers=threads, **settings)
    except (TypeError, ValueError) as error:
        raise click.UsageError(f"invalid worker settings: {error}") from None
    with nullcontext() if metrics_port is None else _metrics_endpoint(made, metrics_host, metrics_port):
        made.run(grace, drain=drain)
    failure: TaskQueueError | None = max_failed.exceeded(topic, made.counts()) if max_failed else None
    statistics = made.statistics()
    failure = failure or TooManyUndecided.check(topic, statistics.undecided, max_undecided)
    done: dict[str, Any] = asdict(statistics)
    lines = [(name.replace("_", " "), done[name]) for name in _SHOWN_COUNTS if done[name]]
    session.answer({**done, "error": str(failure)} if failure else done, facts(lines) if lines else "Handled no task.")
    if failure:
        click.echo(f"Error: {sanitize(str(failure), lines=True)}", err=True)
        raise click.exceptions.Exit(1)


@contextmanager
def _metrics_endpoint(worker: Worker, host: str, port: int) -> Iterator[None]:
    """Serves the metrics of the worker in the block."""
    endpoint = MetricsEndpoint(worker, port=port, host=host)
    try:
        endpoint.start()
    except OSError as error:
        raise click.ClickException(f"cannot serve metrics on {host}:{port}: {error.strerror or error}") from None
    try:
        yield
    finally:
        endpoint.stop()


_SHOWN_COUNTS = ("handled", "succeeded", "filtered", "suspended", "failed", "undecided", "abandoned", "batches")


def _load_handler(name: str) -> Any:
    module, _, attribute = name.partition(":")
    if not attribute:
        raise click.UsageError(f"invalid handler {name!r}: expected module:function")
    sys.path.insert(0, str(Path.cwd()))
    try:
        return getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise click.UsageError(f"cannot import the handler {name!r}: {error}{_missing_airflow(error)}") from None


def _missing_airflow(error: Exception) -> str:
    """Return what to install if the import of a handler failed because this distribution has no Airflow.

    Return an empty text for any other error.
    """
    missing = error.name if isinstance(error, ModuleNotFoundError) and error.name else ""
    if missing.partition(".")[0] not in ("airflow", "airflow_provider_taskq") or not without_airflow():
        return ""
    return f" in {CORE}: install {FULL} instead"
