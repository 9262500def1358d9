"""The operator that drains a topic with Spark."""

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, cast
from zipfile import ZIP_DEFLATED, ZipFile

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException

import airflow_provider_taskq
from airflow_provider_taskq import metrics
from airflow_provider_taskq.operators.base import TaskQBaseOperator, database_now
from airflow_provider_taskq.parameters import (
    enum_name,
    logical_task_name,
    parse_enum,
    parse_int,
    parse_optional_duration,
)
from airflow_provider_taskq.queue import (
    Condition,
    FailureLimit,
    MaxFailed,
    Order,
    TaskQueue,
    TooManyUndecided,
    verify_for_work,
)
from airflow_provider_taskq.queue.addresses import parameters_with_hosts
from airflow_provider_taskq.queue.arguments import DurationLike
from airflow_provider_taskq.queue.claims import Claim
from airflow_provider_taskq.queue.drains import parse_max_undecided

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.sdk.definitions.xcom_arg import XComArg

DSN, DSN_FILE = "TASKQ_DSN", "TASKQ_DSN_FILE"
PACKAGE = Path(airflow_provider_taskq.__file__).parent
SHIPPED = ("queue", "worker", "spark")  # the subpackages that drivers and executors import
WORK = ("transform", "each", "in_arrow", "in_pandas", "composite")


class TaskQSparkSubmitOperator(TaskQBaseOperator, SparkSubmitOperator):
    """Submits the drain of a topic to Spark, and waits until it ends.

    The work is a function that the driver imports, given as `package.module:function`. `transform` turns a DataFrame of
    tasks into one of decisions. `in_arrow` and `in_pandas` turn an iterator of batches into another. `each` turns a
    task into its decision. The work may also be a `composite`. The other parameters are those of
    `airflow_provider_taskq.spark.drain`.

        TaskQSparkSubmitOperator(task_id="drain", topic="flights", each="flight_rules:decide", rounds="all")

    The driver claims tasks under the name of this logical task, so that a retry continues with the tasks that a killed
    try held. After a gate that claims, drain its claim:

        gate = TaskQSensor(task_id="gate", topic="flights", claim=100)
        TaskQSparkSubmitOperator(task_id="drain", claim=gate.output, each="flight_rules:decide")

    The driver takes the tasks over by the fence of the claim. It claims no others unless `budget` allows more. It fails
    with LeaseLost if the claim is gone. Undecided tasks, and after an error all tasks, stay held under the claim: for
    the retry, for a TaskQCompleteOperator, and for a TaskQReleaseOperator as teardown. If an earlier try has decided
    the whole claim, the operator starts no driver.

    In `deploy_mode` client, Spark's default, the driver gets the DSN of the Airflow connection in its environment. So
    no argument, template or log contains the DSN. If `env_vars` has a TASKQ_DSN_FILE, the driver reads that file
    instead. A TASKQ_DSN in `env_vars` or `conf` is refused. The cluster modes of YARN and Kubernetes pass environment
    variables as arguments, so they need the file. The driver passes the DSN to the executors.

    Returns the report that the drain stores in the queue at its end, in every deploy mode: `{"topic", "owner",
    "claimed", "resumed", "decided", "completed", "failed", "pushed", "undecided", "returned", "rounds", "stop_reason",
    "seconds"}`. These are numbers of tasks; `completed` is by result, `failed` counts the tasks that are FAILED for
    good, and `stop_reason` says why no further round began. Undecided tasks are READY again for the retry.

    :param topic: the topic's name, if there is no `claim` (templated).
    :param claim: the claim of a gate, `gate.output` or a template such as `"{{ ti.xcom_pull('gate') }}"`, if there is
        no `topic` (templated).
    :param transform: a function of all tasks as a DataFrame (templated).
    :param each: a function of one task (templated).
    :param in_arrow: a function of Arrow batches (templated).
    :param in_pandas: a function of pandas DataFrames (templated).
    :param composite: a composite, whose steps run on executors (templated).
    :param options: a mapping for a function that has a parameter `options`. The options are visible in the process
        arguments (templated).
    :param size: the most tasks in a round (templated).
    :param rounds: the most rounds, or "all" (templated).
    :param budget: the most tasks in all rounds; with a claim the default is the number of its tasks (templated).
    :param deadline: no round begins after it: a timedelta or seconds from the driver's start, or a datetime with a time
        zone (templated).
    :param max_failed: how many tasks may fail for good, as in TaskQProcessOperator (templated).
    :param max_undecided: how many tasks may be left without a decision, as in TaskQProcessOperator (templated).
    :param lease: how long the claim lasts without a heartbeat of the driver: a timedelta, seconds, or text such as
        `5m`. The default is five minutes, or the lease of the claim (templated).
    :param order: the order in which tasks are claimed.
    :param condition: the condition under which tasks are claimed.
    :param partitions: the number of partitions in which Spark reads the tasks (templated).
    :param ship_package: whether to send this package to executors, in addition to `py_files`.
    :param taskq_conn_id: the Airflow connection of the queue (templated); `conn_id` is the one of Spark.
    """

    template_fields: Sequence[str] = (
        *(*SparkSubmitOperator.template_fields, "topic", "claim", *WORK, "options", "size", "rounds", "budget"),
        *("deadline", "max_failed", "max_undecided", "lease", "partitions", "taskq_conn_id"),
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
        max_undecided: "int | str | XComArg | None" = 0,
        lease: "DurationLike | XComArg | None" = None,
        order: Order | str = Order.FIRST_IN_FIRST_OUT,
        condition: Condition | str = Condition.NONE,
        partitions: "int | str | XComArg | None" = None,
        ship_package: bool = False,
        application: str = str(PACKAGE / "spark" / "application.py"),
        env_vars: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        if [transform, each, in_arrow, in_pandas, composite].count(None) != len(WORK) - 1:
            raise ValueError(f"give exactly one of {', '.join(WORK)}")
        if (topic is None) == (claim is None):
            raise ValueError("give either a topic or a claim, such as claim=gate.output")
        if "application_args" in kwargs:
            raise ValueError("application_args is not supported: use the other parameters")
        _refuse_visible_dsn(env_vars=env_vars, conf=kwargs.get("conf"))
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
        self.max_undecided = max_undecided
        self.lease = lease
        self.order = parse_enum(Order, enum_name(order))
        self.condition = parse_enum(Condition, enum_name(condition))
        self.partitions = partitions
        self.ship_package = ship_package

    def execute(self, context: "Context") -> dict[str, Any]:  # type: ignore[override]  # the parent returns nothing
        """Submit the drain, and return its report."""
        _refuse_visible_dsn(env_vars=self.env_vars, conf=self.conf)  # again, because both are templates
        claim = None if self.claim is None else Claim.parse(self.claim)
        if claim is not None:
            self.topic = claim.topic
        owner = claim.owner if claim else logical_task_name(context["ti"])
        if claim and (report := self._finished_report(claim)):
            self.log.info("An earlier try drained the claim: topic=%s owner=%s", self.topic, owner)
            return report
        self.application_args = self._arguments(owner, claim)
        submitted, variables = self._prepare(claim)
        with ExitStack() as stack:
            stack.enter_context(environment(variables))
            if self.ship_package:
                folder = stack.enter_context(TemporaryDirectory(prefix="taskq-"))
                self.py_files = ",".join(filter(None, (self.py_files, str(zip_package(Path(folder))))))
            try:
                super().execute(context)
            except Exception as error:
                if report := self._report(owner, submitted):
                    self._record(report, error)
                raise
        report = self._report(owner)
        if not report:
            raise AirflowException(f"spark-submit succeeded, but the queue has no report of a drain by {owner!r}")
        if claim and report.get("claim") != claim.fence:
            raise AirflowException(
                f"no driver drained the claim of {owner!r} in topic {self.topic!r}: Airflow found the finished driver"
                " of an earlier run and started none. Set durable=False on a drain whose gate is cleared"
            )
        return self._record(report)

    def _arguments(self, owner: str, claim: "Claim | None" = None) -> list[str]:
        """Return the arguments of the drain's command line."""
        limit, lease = cast("MaxFailed", self.max_failed), parse_optional_duration("lease", self.lease)
        values = {
            "topic": self.topic,
            "owner": owner,
            "claim": claim.fence if claim else None,
            **{kind.replace("_", "-"): getattr(self, kind) for kind in WORK},
            "size": parse_int("size", self.size, 1),
            "rounds": self.rounds,
            "budget": parse_int("budget", self.budget, 1),
            "deadline": _deadline(self.deadline),
            "max-failed": None if FailureLimit.of(limit) is None else limit,
            "max-undecided": str(parse_max_undecided(cast("int | str | None", self.max_undecided))),
            "lease": None if lease is None else math.ceil(lease.total_seconds()),
            "order": self.order,
            "condition": self.condition,
            "partitions": parse_int("partitions", self.partitions, 1),
        }
        arguments = [f"--{name}={value}" for name, value in values.items() if value is not None]
        return arguments + [f"--option={key}={value}" for key, value in (self.options or {}).items()]

    def _prepare(self, claim: Claim | None) -> tuple[datetime, dict[str, str | None]]:
        """Check schema, topic and claim. Return the database's time, and the variables with the DSN for a driver."""
        from psycopg.conninfo import make_conninfo

        with self.hook.get_conn() as connection:
            verify_for_work(connection)
            TaskQueue(connection).policy(str(self.topic))
            if claim is not None:
                claim.holder(TaskQueue(connection))
            moment = database_now(connection)
            info = connection.info
            parameters = parameters_with_hosts(info.get_parameters(), self.hook.hosts)
            dsn = make_conninfo("", **parameters, password=info.password or None)
        return moment, {DSN: None} if DSN_FILE in (self.env_vars or {}) else {DSN: dsn, DSN_FILE: None}

    def _report(self, owner: str, since: datetime | None = None) -> dict[str, Any]:
        """Return the report of this owner's latest drain; empty if there is none, or none since `since`."""
        # The driver stores its report in the transaction that ends its lease. So every driver that succeeded has stored
        # one, on whichever host it ran.
        with self.hook.transaction() as queue:
            found = queue.drain_report(owner)
        if found is None or found.finished is None or (since is not None and found.finished < since):
            return {}
        return dict(found.report or {})

    def _finished_report(self, claim: Claim) -> dict[str, Any]:
        """Return the report of a drain that has decided all tasks of the claim; empty if there is none."""
        report = self._report(claim.owner)
        if report.get("claim") != claim.fence or report["undecided"] or report["returned"]:
            return {}
        return _without_internals(report)

    def _record(self, report: dict[str, Any], cause: Exception | None = None) -> dict[str, Any]:
        """Report metrics and lineage, and return the report. Raises AirflowFailException if too many tasks failed."""
        metrics.drained(report)
        if report["decided"]:
            self.hook.report_lineage(inputs=[report["topic"]])
        if failure := report["failure"]:
            raise AirflowFailException(failure) from cause
        limit = parse_max_undecided(cast("int | str | None", self.max_undecided))
        if undecided := TooManyUndecided.check(report["topic"], report["undecided"], limit):
            raise AirflowException(str(undecided)) from cause  # a retry may decide them
        return _without_internals(report)


def _refuse_visible_dsn(**arguments: object) -> None:
    """Refuse a DSN in environment variables, or in a key of Spark's configuration such as spark.executorEnv.TASKQ_DSN.

    Spark shows both on its pages. An argument that is still a template passes.
    """
    for argument, values in arguments.items():
        if isinstance(values, Mapping) and any(str(name).split(".")[-1] == DSN for name in values):
            raise ValueError(f"{DSN} in {argument} would be visible: use {DSN_FILE} or taskq_conn_id")


def _without_internals(report: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in report.items() if name not in ("claim", "failure")}


def zip_package(folder: Path) -> Path:
    """Write the subpackages that Spark needs into a zip file for `--py-files`, and return its path."""
    # psycopg and pyarrow are compiled, so they have to be installed on the executors.
    file = folder / "airflow_provider_taskq.zip"
    sources = [
        path for part in SHIPPED for path in sorted((PACKAGE / part).rglob("*")) if path.suffix in (".py", ".sql")
    ]
    with ZipFile(file, "w", ZIP_DEFLATED) as archive:
        for source in (PACKAGE / "__init__.py", *sources):
            archive.write(source, Path(PACKAGE.name) / source.relative_to(PACKAGE))
    return file


@contextmanager
def environment(variables: Mapping[str, str | None]) -> Iterator[None]:
    """Set environment variables, which spark-submit inherits, and restore them. None removes a variable."""
    before = {variable: os.environ.get(variable) for variable in variables}
    _set_variables(variables)
    try:
        yield
    finally:
        _set_variables(before)


def _set_variables(variables: Mapping[str, str | None]) -> None:
    for variable, value in variables.items():
        if value is None:
            os.environ.pop(variable, None)
        else:
            os.environ[variable] = value


def _deadline(value: Any) -> str | None:
    """Return a deadline as an argument of the drain: seconds, or a time in ISO format."""
    if value in (None, "", "None"):
        return None
    if isinstance(value, timedelta):
        return str(value.total_seconds())
    return value.isoformat() if isinstance(value, datetime) else str(value)
