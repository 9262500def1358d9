"""Drains a topic on Spark, from a DAG."""

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator

from airflow_provider_taskq import metrics
from airflow_provider_taskq.operators.base import TaskQOperator
from airflow_provider_taskq.operators.drain_report import DrainReport
from airflow_provider_taskq.operators.holding import AIRFLOWS_OWNER, given_owner, logical_task
from airflow_provider_taskq.operators.rendered import Span, choice, name, number, span
from airflow_provider_taskq.operators.shipping import PACKAGE, ship
from airflow_provider_taskq.queue import Condition, Order, TaskQueue, verify

if TYPE_CHECKING:
    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
    from airflow.sdk import Context
    from airflow.sdk.definitions.mappedoperator import OperatorPartial

DSN, DSN_FILE = "TASKQ_DSN", "TASKQ_DSN_FILE"
WORK = ("transform", "each", "in_arrow", "in_pandas", "composite")


class TaskQSparkSubmitOperator(TaskQOperator, SparkSubmitOperator):
    """Submits the drain of a topic to Spark, and waits for its end.

    The work is a function that the driver imports, given as `package.module:function` in one of these parameters:
    `transform` (a DataFrame of tasks, to one of decisions), `in_arrow` and `in_pandas` (an iterator of batches, to
    one), `each` (a task, to its decision); or it is a `composite`. See `airflow_provider_taskq.spark.drain`, whose
    parameters the others are.

        TaskQSparkSubmitOperator(task_id="drain", topic="flights", each="flight_rules:decide", rounds="all")

    The tasks are claimed under the name of this logical task, so that a retry goes on with what a try that was killed
    held. After a gate that claims, go on with its tasks under its name; the budget keeps it from taking more:

        TaskQSparkSubmitOperator(
            ..., owner="{{ ti.xcom_pull('gate')['owner'] }}", budget="{{ ti.xcom_pull('gate')['claimed'] }}"
        )

    A driver that this worker starts (`deploy_mode` client, which is Spark's default) reaches the database of the
    Airflow connection: by its environment, so that no argument, template or log tells of it. Where `env_vars` has a
    TASKQ_DSN_FILE the driver uses that; in the cluster modes of YARN and Kubernetes, to which no environment travels
    but by arguments, it has to. What executors need of it the driver hands them.

    Returns `{"topic", "owner"}`, and where the driver's output comes back to the worker what it did: `decided`,
    `completed` by result, `pushed`, `undecided`, `rounds`, `ended`.

    :param topic: the topic's name (templated).
    :param transform: a function of all tasks as a DataFrame (templated).
    :param each: a function of one task (templated).
    :param in_arrow: a function of Arrow batches (templated).
    :param in_pandas: a function of pandas DataFrames (templated).
    :param composite: a composite, whose steps run on executors (templated).
    :param options: key and value for a function that takes options as its second argument; in sight of whoever sees
        process arguments (templated).
    :param owner: the owner's name in the queue (templated, in the field `task_owner`).
    :param size: at most so many tasks a round (templated).
    :param rounds: at most so many rounds, or "all" (templated).
    :param budget: at most so many tasks in all rounds (templated).
    :param deadline: no round begins after it: a timedelta or seconds from the driver's start, or a moment with a time
        zone (templated).
    :param lease: how long the driver may be silent, a timedelta or seconds (templated).
    :param order: which tasks are taken first.
    :param condition: which tasks can be taken.
    :param partitions: in how many slices they are read (templated).
    :param ship_package: whether to send this package to executors that lack it, beside `py_files`.
    :param taskq_conn_id: the Airflow connection of the queue (templated); `conn_id` is that of Spark.
    """

    template_fields: Sequence[str] = (
        *(*SparkSubmitOperator.template_fields, "topic", "task_owner", *WORK, "options", "size", "rounds", "budget"),
        *("deadline", "lease", "partitions", "taskq_conn_id"),
    )

    def __init__(
        self,
        *,
        topic: str,
        transform: str | None = None,
        each: str | None = None,
        in_arrow: str | None = None,
        in_pandas: str | None = None,
        composite: str | None = None,
        options: Mapping[str, Any] | None = None,
        owner: str | None = None,
        size: int | str | None = None,
        rounds: int | str = 1,
        budget: int | str | None = None,
        deadline: timedelta | datetime | float | str | None = None,
        lease: Span = timedelta(minutes=5),
        order: Order | str = Order.FIRST_IN_FIRST_OUT,
        condition: Condition | str = Condition.NONE,
        partitions: int | str | None = None,
        ship_package: bool = False,
        application: str = str(PACKAGE / "spark" / "drain_app.py"),
        env_vars: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        if [transform, each, in_arrow, in_pandas, composite].count(None) != len(WORK) - 1:
            raise ValueError(f"give the work as one of {', '.join(WORK)}")
        if "application_args" in kwargs:
            raise ValueError("application_args are made of the other parameters; `options` are for the function")
        if isinstance(env_vars, Mapping) and DSN in env_vars:
            raise ValueError(f"env_vars are shown; name a {DSN_FILE}, or an Airflow connection by taskq_conn_id")
        kwargs.setdefault("name", f"taskq drain of {topic}")
        super().__init__(application=application, env_vars=env_vars, **kwargs)
        self.topic = topic
        self.transform = transform
        self.each = each
        self.in_arrow = in_arrow
        self.in_pandas = in_pandas
        self.composite = composite
        self.options = options
        self.task_owner = given_owner(owner, kwargs.get("default_args"))
        self.size = size
        self.rounds = rounds
        self.budget = budget
        self.deadline = deadline
        self.lease = lease
        self.order = choice(Order, name(order))
        self.condition = choice(Condition, name(condition))
        self.partitions = partitions
        self.ship_package = ship_package
        self._report = DrainReport(topic)

    @classmethod
    def partial(cls, **kwargs: Any) -> "OperatorPartial":
        """Begins a mapped drain. Airflow takes the default of our `owner` for that of its own, which is never None."""
        mapped: OperatorPartial = super().partial(**kwargs)
        if mapped.kwargs.get("owner") is None:
            mapped.kwargs["owner"] = AIRFLOWS_OWNER
        return mapped

    def execute(self, context: "Context") -> dict[str, Any]:  # type: ignore[override]  # the parent returns nothing
        """Submits, and says what was drained."""
        owner = self.task_owner or logical_task(context)
        self.application_args = self._arguments(owner)
        self._report = DrainReport(self.topic)
        with ExitStack() as until_the_end:
            until_the_end.enter_context(environment(self._driver_variables()))
            if self.ship_package:
                folder = until_the_end.enter_context(TemporaryDirectory(prefix="taskq-"))
                self.py_files = ",".join(filter(None, (self.py_files, str(ship(Path(folder))))))
            super().execute(context)
        return {"topic": self.topic, "owner": owner, **self._told()}

    def _arguments(self, owner: str) -> list[str]:
        """The words of the drain's command line."""
        given = {
            "topic": self.topic,
            "owner": owner,
            **{kind.replace("_", "-"): getattr(self, kind) for kind in WORK},
            "size": number(self.size),
            "rounds": self.rounds,
            "budget": number(self.budget),
            "deadline": _deadline(self.deadline),
            "lease": math.ceil(span(self.lease).total_seconds()),
            "order": self.order,
            "condition": self.condition,
            "partitions": number(self.partitions),
        }
        words = [f"--{name}={value}" for name, value in given.items() if value is not None]
        return words + [f"--option={key}={value}" for key, value in (self.options or {}).items()]

    def _driver_variables(self) -> dict[str, str | None]:
        """How the driver learns of the database; checks beforehand that the queue and the topic are there."""
        from psycopg.conninfo import make_conninfo

        with self.hook.get_conn() as connection:
            verify(connection)
            TaskQueue(connection).policy(self.topic)
            info = connection.info
            dsn = make_conninfo("", **info.get_parameters(), password=info.password or None)
        return {DSN: None} if DSN_FILE in (self.env_vars or {}) else {DSN: dsn, DSN_FILE: None}

    def _get_hook(self) -> "SparkSubmitHook":
        """The hook of the Spark provider, which reads what the driver prints: we read with it."""
        hook = super()._get_hook()
        reads: Callable[[Iterator[Any]], None] = hook._process_spark_submit_log  # noqa: SLF001
        vars(hook)["_process_spark_submit_log"] = lambda lines: reads(self._report.read(lines))
        return hook

    def _told(self) -> dict[str, Any]:
        """What the driver said at its end, told to Airflow's metrics and lineage too; nothing where it is not heard."""
        report = self._report
        metrics.drained(report)
        if report.decided:
            self.hook.report_lineage(inputs=[self.topic])
        return report.summary()


@contextmanager
def environment(variables: Mapping[str, str | None]) -> Iterator[None]:
    """This process's environment, which spark-submit inherits, with other values for a while; None takes one away."""
    before = {variable: os.environ.get(variable) for variable in variables}
    _set(variables)
    try:
        yield
    finally:
        _set(before)


def _set(variables: Mapping[str, str | None]) -> None:
    for variable, value in variables.items():
        if value is None:
            os.environ.pop(variable, None)
        else:
            os.environ[variable] = value


def _deadline(value: timedelta | datetime | float | str | None) -> str | None:
    """A deadline as the drain reads it: seconds, or a moment."""
    if value in (None, "", "None"):
        return None
    if isinstance(value, timedelta):
        return str(value.total_seconds())
    return value.isoformat() if isinstance(value, datetime) else str(value)
