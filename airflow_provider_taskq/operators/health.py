"""The operator that reports the health of the queue."""

import logging
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import AirflowException

from airflow_provider_taskq import metrics
from airflow_provider_taskq.operators.base import TaskQBaseOperator
from airflow_provider_taskq.parameters import enum_name, parse_enum
from airflow_provider_taskq.queue import HealthFinding, Severity, TaskQueue
from airflow_provider_taskq.queue.arguments import DurationLike
from airflow_provider_taskq.queue.metrics import ACTIVE, DEPTH, HEALTH, OLDEST_READY
from airflow_provider_taskq.queue.reports import DEPTH_COLUMNS

if TYPE_CHECKING:
    from airflow.sdk import Context

_LEVELS = {
    Severity.FINE: logging.DEBUG,
    Severity.NOTICE: logging.INFO,
    Severity.WARNING: logging.WARNING,
    Severity.CRITICAL: logging.ERROR,
}

DEPTH_LIMIT = 100_000  # the depth gauges stop counting here, which bounds the cost of the query
TOPICS_PER_PAGE = 100


class TaskQHealthOperator(TaskQBaseOperator):
    """Logs the findings about the queue's health, sets gauges, and fails at a given severity.

    The operator claims no tasks and takes no locks. If Airflow sends metrics, it sets these gauges:

    - `taskq.health`: the severity of each subject;
    - `taskq.depth`: the number of tasks of each topic by state, up to 100,000;
    - `taskq.active`: the number of held tasks of each topic;
    - `taskq.oldest_ready_seconds`: how long the oldest task of each topic has been due.

    Returns `{"worst", "notice", "warning", "critical"}`: the worst severity, and the number of findings of each.

    :param patience: how long a due task or a lapsed lease may wait before it is a finding, a timedelta or seconds
        (templated).
    :param fail_at: fails if a finding is at least NOTICE, WARNING or CRITICAL; None never fails (templated).
    """

    template_fields: Sequence[str] = ("patience", "fail_at", "taskq_conn_id")

    def __init__(
        self, *, patience: DurationLike = timedelta(minutes=5), fail_at: Severity | str | None = None, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.patience = patience
        self.fail_at = enum_name(fail_at)

    def execute(self, context: "Context") -> dict[str, Any]:  # noqa: ARG002  Airflow's signature
        """Log the findings, and return the number of each severity. Raises AirflowException at `fail_at`."""
        limit = parse_enum(Severity, self.fail_at)
        with self.hook.transaction() as queue:
            findings = queue.health(self.patience)
            if metrics.enabled():
                self._gauge_topics(queue)
        for finding in findings:
            remedy = f"; remedy: {finding.remedy}" if finding.remedy else ""
            self.log.log(_LEVELS[finding.severity], "%s: %s%s", finding.subject, finding.detail, remedy)
        self._gauge_findings(findings)
        worst = max((finding.severity for finding in findings), default=Severity.FINE)
        if limit is not None and worst >= limit:
            first = next(finding for finding in findings if finding.severity == worst)
            raise AirflowException(f"The queue's health is {worst.name}: {first.subject}: {first.detail}")
        found = Counter(finding.severity for finding in findings)
        counts = {severity.name.lower(): found[severity] for severity in Severity if severity is not Severity.FINE}
        return {"worst": worst.name, **counts}

    def _gauge_findings(self, findings: Sequence[HealthFinding]) -> None:
        worst: dict[str, int] = {}
        for finding in findings:
            worst[finding.subject] = max(worst.get(finding.subject, 0), finding.severity)
        for subject, severity in worst.items():
            metrics.record(HEALTH, severity, subject=subject.replace(" ", "_"))

    def _gauge_topics(self, queue: TaskQueue) -> None:
        """Set the gauges of each topic. Topics with the tag `other` share one gauge: the sum, or the greatest age."""
        depths: Counter[tuple[str, str]] = Counter()
        oldest: dict[str, int] = {}
        after: str | None = None
        while topics := queue.browse_topics(after=after, size=TOPICS_PER_PAGE, cap=DEPTH_LIMIT):
            for each in topics:
                tag = metrics.topic_tag(each.topic)
                for state, column in DEPTH_COLUMNS.items():
                    depths[tag, state] += getattr(each, column)
                oldest[tag] = max(oldest.get(tag, 0), each.oldest_seconds or 0)
            after = topics[-1].topic
        for (tag, state), depth in depths.items():
            metrics.record(DEPTH, depth, topic=tag, state=state)
            if state == "running":
                metrics.record(ACTIVE, depth, topic=tag)
        for tag, seconds in oldest.items():
            metrics.record(OLDEST_READY, seconds, topic=tag)
