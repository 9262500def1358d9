"""worker: tasks handled by a function of yours."""

import logging
import sys
import threading
from dataclasses import asdict
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from airflow_provider_taskq.cli._options import COUNT, DURATION, MAX_FAILED, TOPIC, Choice
from airflow_provider_taskq.cli._output import facts, sanitize
from airflow_provider_taskq.cli._session import Session
from airflow_provider_taskq.queue import Condition, FailureLimit, Order
from airflow_provider_taskq.worker import Worker, WorkerListener

ORDERS, CONDITIONS = tuple(Order), tuple(Condition)


@click.command(
    help="Handle the tasks of a topic with HANDLER, module:function: a function of a task that gives a Result or a "
    "Decision, or what worker.each, batch or a Composite makes. The module is looked for in this folder first. "
    "SIGTERM and Ctrl-C end it: what is in hand is finished, the rest is given back; a second one ends it at once."
)
@click.argument("handler", metavar="MODULE:FUNCTION")
@click.option("--topic", "-t", type=TOPIC, required=True, help="The topic.")
@click.option("--size", type=COUNT, default=1, show_default=True, help="Tasks in a transaction.")
@click.option("--threads", type=click.IntRange(1, 1000), default=1, show_default=True, help="Batches at a time.")
@click.option("--order", type=Choice(ORDERS), default=Order.FIRST_IN_FIRST_OUT, help="Of tasks of one priority.")
@click.option("--condition", type=Choice(CONDITIONS), default=Condition.NONE, help="What keeps an identifier back.")
@click.option("--pause", type=DURATION, default="1s", show_default=True, help="Between two looks at an empty topic.")
@click.option("--lease", type=DURATION, default="1m", show_default=True, help="How long a death goes unnoticed.")
@click.option("--grace", type=DURATION, default="30s", show_default=True, help="For what is in hand, when told to end.")
@click.option("--drain", is_flag=True, help="End once nothing can be polled and nothing is in hand.")
@click.option(
    "--max-failed",
    type=MAX_FAILED,
    help="With --drain: exit with 1 if more tasks fail for good. A count such as 0 or 10, or a share of the tasks that "
    "ended, such as 0.05 or 5%.",
)
@click.option("--name", help="Who this is, in owners' names; the topic unless given.")
@click.pass_obj
def worker(
    session: Session, /, handler: str, grace: timedelta, drain: bool, max_failed: FailureLimit | None, **settings: Any
) -> None:
    """Works, and says what it did."""
    if max_failed is not None and not drain:
        raise click.UsageError("--max-failed needs --drain: a worker without it runs until it is stopped")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    ending = _WhenEmpty(grace)
    topic, threads, named = settings.pop("topic"), settings.pop("threads"), _named(handler)
    try:
        made = Worker(session.connection, topic, named, workers=threads, listener=ending if drain else None, **settings)
    except (TypeError, ValueError) as error:
        raise click.UsageError(f"no worker can be made of that: {error}") from None
    ending.worker = made
    made.run(grace)
    failure = max_failed.exceeded(topic, made.counts()) if max_failed else None
    done: dict[str, Any] = asdict(made.statistics())
    lines = [(name.replace("_", " "), done[name]) for name in _TOLD if done[name]]
    session.answer({**done, "error": str(failure)} if failure else done, facts(lines) if lines else "Handled nothing.")
    if failure:
        click.echo(f"Error: {sanitize(str(failure), lines=True)}", err=True)
        raise click.exceptions.Exit(1)


_TOLD = ("handled", "succeeded", "filtered", "suspended", "failed", "given_up", "batches")


class _WhenEmpty(WorkerListener):
    """Ends a worker when a poll has found nothing while nothing was in hand."""

    def __init__(self, grace: timedelta) -> None:
        self.worker: Worker | None = None
        self._grace = grace
        self._over = threading.Event()

    def on_empty(self) -> None:
        """Ends it, unless a batch is still in hand, whose thread polls again after it."""
        if self.worker is None or not self.worker.is_idle or self._over.is_set():
            return
        self._over.set()
        threading.Thread(target=self.worker.stop, args=(self._grace,)).start()  # a stop waits for who calls this


def _named(name: str) -> Any:
    """What MODULE:FUNCTION names."""
    module, _, attribute = name.partition(":")
    if not attribute:
        raise click.UsageError(f"{name!r} is no handler: write module:function")
    sys.path.insert(0, str(Path.cwd()))
    try:
        return getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise click.UsageError(f"the handler {name!r} cannot be had: {error}") from None
