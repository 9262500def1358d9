"""Drains a topic on Spark, from a DAG."""

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException

from airflow_provider_taskq import metrics
from airflow_provider_taskq.operators.base import TaskQOperator
from airflow_provider_taskq.operators.claims import Claim, logical_task
from airflow_provider_taskq.operators.rendered import Span, choice, count, name, now, optional_span
from airflow_provider_taskq.operators.shipping import PACKAGE, ship
from airflow_provider_taskq.queue import Condition, FailureLimit, MaxFailed, Order, TaskQueue, verify

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.sdk.definitions.xcom_arg import XComArg

DSN, DSN_FILE = "TASKQ_DSN", "TASKQ_DSN_FILE"
WORK = ("transform", "each", "in_arrow", "in_pandas", "composite")


class TaskQSparkSubmitOperator(TaskQOperator, SparkSubmitOperator):
    """Submits the drain of a topic to Spark, and waits for its end.

    The work is a function that the driver imports, given as `package.module:function` in one of these parameters:
    `transform` (a DataFrame of tasks, to one of decisions), `in_arrow` and `in_pandas` (an iterator of batches, to
    one), `each` (a task, to its decision); or it is a `composite`. See `airflow_provider_taskq.spark.drain`, whose
    parameters the others are.

        TaskQSparkSubmitOperator(task_id="drain", topic="flights", each="flight_rules:decide", rounds="all")

    The tasks are claimed under the name of this logical task, so that a retry continues with the tasks that a killed
    try held. After a gate that claims, drain its claim:

        gate = TaskQSensor(task_id="gate", topic="flights", claim=100)
        TaskQSparkSubmitOperator(task_id="drain", claim=gate.output, each="flight_rules:decide")

    The driver takes the tasks over by the fence of the claim, and claims no others unless `budget` allows more.
    LeaseLost if the claim is gone. Undecided tasks, and all after an error, stay held under the claim: for the retry,
    for a TaskQCompleteOperator, and for a TaskQReleaseOperator as teardown. When a try finds that an earlier one has
    decided the whole claim, it starts no driver.

    A driver that this worker starts (`deploy_mode` client, which is Spark's default) reaches the database of the
    Airflow connection: by its environment, so that no argument, template or log tells of it. Where `env_vars` has a
    TASKQ_DSN_FILE the driver uses that; in the cluster modes of YARN and Kubernetes, to which no environment travels
    but by arguments, it has to. What executors need of it the driver hands them.

    Returns what the drain reports to the queue at its end, in every deploy mode: `{"topic", "owner", "claimed",
    "resumed", "decided", "completed", "failed", "pushed", "undecided", "rounds", "stop_reason", "seconds"}`: numbers of
    tasks, `completed` by result, `failed` those that are FAILED for good, `ended` why no further round began.

    With `max_failed` the Airflow task fails if more tasks fail for good, after the commit of all results. It fails
    without a retry, which would find these tasks ended and succeed. Once it is cleared, old failures do not count.

    :param topic: the topic's name (templated); without a `claim`.
    :param claim: the claim of a gate, `gate.output` or a template such as `"{{ ti.xcom_pull('gate') }}"` (templated);
        without a `topic`.
    :param transform: a function of all tasks as a DataFrame (templated).
    :param each: a function of one task (templated).
    :param in_arrow: a function of Arrow batches (templated).
    :param in_pandas: a function of pandas DataFrames (templated).
    :param composite: a composite, whose steps run on executors (templated).
    :param options: key and value for a function that takes options as its second argument; in sight of whoever sees
        process arguments (templated).
    :param size: at most so many tasks a round (templated).
    :param rounds: at most so many rounds, or "all" (templated).
    :param budget: the most tasks in all rounds; with a claim the number of its tasks, unless given (templated).
    :param deadline: no round begins after it: a timedelta or seconds from the driver's start, or a moment with a time
        zone (templated).
    :param max_failed: how many tasks may fail for good: a count such as 0 or 10 (int), or a share of the tasks that
        ended such as 0.05 (float) or "5%"; None, the default, is no limit (templated).
    :param lease: how long the driver may be silent: a timedelta, seconds, or text such as `5m`. Five minutes, or the
        lease of the claim, unless given (templated).
    :param order: which tasks are taken first.
    :param condition: which tasks can be taken.
    :param partitions: in how many slices they are read (templated).
    :param ship_package: whether to send this package to executors that lack it, beside `py_files`.
    :param taskq_conn_id: the Airflow connection of the queue (templated); `conn_id` is that of Spark.
    """

    template_fields: Sequence[str] = (
        *(*SparkSubmitOperator.template_fields, "topic", "claim", *WORK, "options", "size", "rounds", "budget"),
        *("deadline", "max_failed", "lease", "partitions", "taskq_conn_id"),
    )

    def __init__(
        self,
        *,
        topic: "str | XComArg | None" = None,
        claim: "Mapping[str, Any] | Claim | XComArg | str | None" = None,
        transform: str | None = None,
        each: str | None = None,
        in_arrow: str | None = None,
        in_pandas: str | None = None,
        composite: str | None = None,
        options: Mapping[str, Any] | None = None,
        size: "int | str | XComArg | None" = None,
        rounds: "int | str | XComArg" = 1,
        budget: "int | str | XComArg | None" = None,
        deadline: "timedelta | datetime | float | str | XComArg | None" = None,
        max_failed: "MaxFailed | XComArg" = None,
        lease: "Span | XComArg | None" = None,
        order: Order | str = Order.FIRST_IN_FIRST_OUT,
        condition: Condition | str = Condition.NONE,
        partitions: "int | str | XComArg | None" = None,
        ship_package: bool = False,
        application: str = str(PACKAGE / "spark" / "application.py"),
        env_vars: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        if [transform, each, in_arrow, in_pandas, composite].count(None) != len(WORK) - 1:
            raise ValueError(f"give the work as one of {', '.join(WORK)}")
        if (topic is None) == (claim is None):
            raise ValueError("give either a topic or a claim, such as claim=gate.output")
        if "application_args" in kwargs:
            raise ValueError("application_args are made of the other parameters; `options` are for the function")
        if isinstance(env_vars, Mapping) and DSN in env_vars:
            raise ValueError(f"env_vars are shown; name a {DSN_FILE}, or an Airflow connection by taskq_conn_id")
        kwargs.setdefault("name", f"taskq drain of {topic}" if isinstance(topic, str) else "taskq drain")
        super().__init__(application=application, env_vars=env_vars, **kwargs)
        self.topic = topic
        self.claim = claim
        self.transform = transform
        self.each = each
        self.in_arrow = in_arrow
        self.in_pandas = in_pandas
        self.composite = composite
        self.options = options
        self.size = size
        self.rounds = rounds
        self.budget = budget
        self.deadline = deadline
        self.max_failed = max_failed
        self.lease = lease
        self.order = choice(Order, name(order))
        self.condition = choice(Condition, name(condition))
        self.partitions = partitions
        self.ship_package = ship_package

    def execute(self, context: "Context") -> dict[str, Any]:  # type: ignore[override]  # the parent returns nothing
        """Submits the drain, and returns its report."""
        claim = None if self.claim is None else Claim.parse(self.claim)
        if claim is not None:
            self.topic = claim.topic
        owner = claim.owner if claim else logical_task(context)
        if claim and (report := self._finished(claim)):
            self.log.info("An earlier try has drained the claim of %s in topic %s.", owner, self.topic)
            return report
        self.application_args = self._arguments(owner, claim)
        submitted, variables = self._prepare(claim)
        with ExitStack() as until_the_end:
            until_the_end.enter_context(environment(variables))
            if self.ship_package:
                folder = until_the_end.enter_context(TemporaryDirectory(prefix="taskq-"))
                self.py_files = ",".join(filter(None, (self.py_files, str(ship(Path(folder))))))
            try:
                super().execute(context)
            except Exception as error:
                if report := self._report(owner, submitted):
                    self._account(report, error)
                raise
        report = self._report(owner)
        if not report:
            raise AirflowException(f"spark-submit succeeded, but no drain of {owner!r} has reported to the queue")
        if claim and report.get("claim") != claim.fence:
            raise AirflowException(
                f"no driver has worked on the claim of {owner!r} in topic {self.topic!r}: Airflow found the driver of"
                " an earlier run finished and started none. Set durable=False on a drain whose gate is cleared"
            )
        return self._account(report)

    def _arguments(self, owner: str, claim: "Claim | None" = None) -> list[str]:
        """The words of the drain's command line."""
        limit, lease = cast("MaxFailed", self.max_failed), optional_span(self.lease)
        given = {
            "topic": self.topic,
            "owner": owner,
            "claim": claim.fence if claim else None,
            **{kind.replace("_", "-"): getattr(self, kind) for kind in WORK},
            "size": count("size", self.size),
            "rounds": self.rounds,
            "budget": count("budget", self.budget),
            "deadline": _deadline(self.deadline),
            "max-failed": None if FailureLimit.of(limit) is None else limit,
            "lease": None if lease is None else math.ceil(lease.total_seconds()),
            "order": self.order,
            "condition": self.condition,
            "partitions": count("partitions", self.partitions),
        }
        words = [f"--{name}={value}" for name, value in given.items() if value is not None]
        return words + [f"--option={key}={value}" for key, value in (self.options or {}).items()]

    def _prepare(self, claim: Claim | None) -> tuple[datetime, dict[str, str | None]]:
        """Checks queue, topic and claim; returns the database's time, and the variables by which a driver connects."""
        from psycopg.conninfo import make_conninfo

        with self.hook.get_conn() as connection:
            verify(connection)
            TaskQueue(connection).policy(str(self.topic))
            if claim is not None:
                claim.holder(TaskQueue(connection))
            moment = now(connection)
            info = connection.info
            dsn = make_conninfo("", **info.get_parameters(), password=info.password or None)
        return moment, {DSN: None} if DSN_FILE in (self.env_vars or {}) else {DSN: dsn, DSN_FILE: None}

    def _report(self, owner: str, since: datetime | None = None) -> dict[str, Any]:
        """What the latest drain of this owner has reported; empty if it has not, or only before `since`.

        The driver stores its report in the queue, in the transaction that ends its lease. So it arrives from any place
        where a driver may run, and a driver that succeeded has stored it.
        """
        with self.hook.transaction() as queue:
            found = queue.drain_report(owner)
        if found is None or found.finished is None or (since is not None and found.finished < since):
            return {}
        return dict(found.report or {})

    def _finished(self, claim: Claim) -> dict[str, Any]:
        """The report of a drain that has left no task of the claim undecided; empty if there is none."""
        report = self._report(claim.owner)
        if report.get("claim") != claim.fence or report["undecided"]:
            return {}
        return _result(report)

    def _account(self, report: dict[str, Any], cause: Exception | None = None) -> dict[str, Any]:
        """Counts what the drain has committed; fails the Airflow task if more tasks failed than max_failed allows."""
        metrics.drained(_Drained(report["topic"], report["claimed"], report["completed"], report["pushed"]))
        if report["decided"]:
            self.hook.report_lineage(inputs=[report["topic"]])
        if failure := report["failure"]:
            raise AirflowFailException(failure) from cause
        return _result(report)


def _result(report: Mapping[str, Any]) -> dict[str, Any]:
    """What the operator returns of a report."""
    return {name: value for name, value in report.items() if name not in ("claim", "failure")}


class _Drained(NamedTuple):
    """The numbers of a report that metrics count."""

    topic: str
    claimed: int
    completed: Mapping[str, int]
    pushed: int


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


def _deadline(value: Any) -> str | None:
    """A deadline as the drain reads it: seconds, or a moment."""
    if value in (None, "", "None"):
        return None
    if isinstance(value, timedelta):
        return str(value.total_seconds())
    return value.isoformat() if isinstance(value, datetime) else str(value)
