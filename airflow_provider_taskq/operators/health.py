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
from airflow_provider_taskq.queue import HealthFinding, Severity, TaskQueue

if TYPE_CHECKING:
    from airflow.sdk import Context

_LEVELS = {
    Severity.FINE: logging.DEBUG,
    Severity.NOTICE: logging.INFO,
    Severity.WARNING: logging.WARNING,
    Severity.CRITICAL: logging.ERROR,
}

# Gauges count a topic's tasks of a state no further: beyond that it is a long queue, whatever the number.
DEPTH_LIMIT = 100_000
TOPICS_AT_ONCE = 100

# The tag `state` of `taskq.depth`, and what counts it.
_STATES = {
    "ready": "ready",
    "scheduled": "scheduled",
    "retrying": "retrying",
    "blocked": "blocked",
    "paused": "paused_tasks",
    "running": "running",
    "failed": "failed",
    "suspended": "suspended",
    "expired": "expired",
}


class TaskQHealthOperator(TaskQOperator):
    """Logs what slows or threatens the queue, sets Airflow's gauges, and fails if it is as bad as you say.

    Takes nothing and locks nothing. Where Airflow sends metrics, `taskq.health` has the severity of each subject, and
    `taskq.dead_tuples` the dead rows that wait for vacuum. Of each topic `taskq.depth` has the tasks by state, counted
    to 100,000, `taskq.active` those that are held, `taskq.oldest_ready_seconds` how long the oldest has been due.

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
                self._gauge_topics(queue)
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

    def _gauge_findings(self, findings: Sequence[HealthFinding]) -> None:
        """Sets a gauge for each subject, to the worst that was found of it."""
        worst: dict[str, int] = {}
        for finding in findings:
            worst[finding.subject] = max(worst.get(finding.subject, 0), finding.severity)
        for subject, severity in worst.items():
            metrics.gauge(metrics.HEALTH, severity, subject=subject.replace(" ", "_"))
        dead = max((finding.value or 0 for finding in findings if finding.subject == "dead rows"), default=0)
        metrics.gauge(metrics.DEAD_TUPLES, dead)

    def _gauge_topics(self, queue: TaskQueue) -> None:
        """Sets the gauges of each topic. Those reported as `other` are added up; of their ages the greatest counts."""
        depths: Counter[tuple[str, str]] = Counter()
        oldest: dict[str, int] = {}
        after: str | None = None
        while glances := queue.browse_topics(after=after, size=TOPICS_AT_ONCE, cap=DEPTH_LIMIT):
            for glance in glances:
                tag = metrics.topic_tag(glance.topic)
                for state, field in _STATES.items():
                    depths[tag, state] += getattr(glance, field)
                oldest[tag] = max(oldest.get(tag, 0), glance.oldest_seconds or 0)
            after = glances[-1].topic
        for (tag, state), depth in depths.items():
            metrics.gauge(metrics.DEPTH, depth, topic=tag, state=state)
            if state == "running":
                metrics.gauge(metrics.ACTIVE, depth, topic=tag)
        for tag, seconds in oldest.items():
            metrics.gauge(metrics.OLDEST_READY, seconds, topic=tag)
