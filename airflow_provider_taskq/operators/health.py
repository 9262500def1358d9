"""Looks at the queue's health, from a DAG."""

import logging
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import AirflowException

from airflow_provider_taskq import metrics
from airflow_provider_taskq.operators.base import TaskQOperator
from airflow_provider_taskq.operators.rendered import Span, choice, name, span
from airflow_provider_taskq.queue import Finding, Severity

if TYPE_CHECKING:
    import psycopg
    from airflow.sdk import Context

_LEVELS = {
    Severity.FINE: logging.DEBUG,
    Severity.NOTICE: logging.INFO,
    Severity.WARNING: logging.WARNING,
    Severity.CRITICAL: logging.ERROR,
}

# Gauges count a topic's ready tasks no further: beyond that it is a long queue, whatever the number.
DEPTH_LIMIT = 100_000


class TaskQHealthOperator(TaskQOperator):
    """Logs what slows or threatens the queue, sets Airflow's gauges, and fails if it is as bad as you say.

    Takes nothing and locks nothing. Where Airflow sends metrics, `taskq.health` has the severity of each subject,
    `taskq.dead_tuples` the dead rows that wait for vacuum, and `taskq.depth` the ready tasks of each topic.

    Returns `{"worst", "notice", "warning", "critical"}`: the worst severity, and how many findings there are of each.

    :param patience: how long a due task, or a lapsed lease, may wait without being named, a timedelta or seconds
        (templated).
    :param fail_at: NOTICE, WARNING or CRITICAL: fails if a finding is that severe; None never to fail (templated).
    :param taskq_conn_id: the Airflow connection (templated).
    """

    template_fields: Sequence[str] = ("patience", "fail_at", "taskq_conn_id")

    def __init__(
        self, *, patience: Span = timedelta(minutes=5), fail_at: Severity | str | None = None, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.patience = patience
        self.fail_at = name(fail_at)

    def execute(self, context: "Context") -> dict[str, Any]:  # noqa: ARG002  Airflow's signature
        """Looks, and says how bad it is."""
        bound = choice(Severity, self.fail_at)
        with self.hook.transaction() as queue:
            findings = queue.health(span(self.patience))
            if metrics.enabled():
                self._gauge_depths(queue.conn, queue.topics())
        for finding in findings:
            self.log.log(_LEVELS[finding.severity], "%s: %s", finding.subject, finding.detail)
        self._gauge_findings(findings)
        worst = max((finding.severity for finding in findings), default=Severity.FINE)
        if bound is not None and worst >= bound:
            first = next(finding for finding in findings if finding.severity == worst)
            raise AirflowException(f"The queue's health is {worst.name}: {first.subject}: {first.detail}")
        found = Counter(finding.severity for finding in findings)
        counts = {severity.name.lower(): found[severity] for severity in Severity if severity is not Severity.FINE}
        return {"worst": worst.name, **counts}

    def _gauge_findings(self, findings: Sequence[Finding]) -> None:
        """Sets a gauge for each subject, to the worst that was found of it."""
        worst: dict[str, int] = {}
        for finding in findings:
            worst[finding.subject] = max(worst.get(finding.subject, 0), finding.severity)
        for subject, severity in worst.items():
            metrics.gauge(metrics.HEALTH, severity, subject=subject.replace(" ", "_"))
        dead = max((finding.value or 0 for finding in findings if finding.subject == "dead rows"), default=0)
        metrics.gauge(metrics.DEAD_TUPLES, dead)

    def _gauge_depths(self, connection: "psycopg.Connection[Any]", topics: list[str]) -> None:
        """Sets a gauge for each topic, all of them found by one call."""
        rows = connection.execute(
            'SELECT "position", ready FROM taskq.ready_many(%s::text[], %s::int[])',
            (topics, [DEPTH_LIMIT] * len(topics)),
        )
        depths: Counter[str] = Counter()
        for position, ready in rows:
            depths[metrics.topic_tag(topics[position - 1])] += ready or 0
        for topic, depth in depths.items():
            metrics.gauge(metrics.DEPTH, depth, topic=topic, state="ready")
