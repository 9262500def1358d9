"""The recorder of metrics for Airflow's Stats.

Airflow sends metrics only if its section `[metrics]` configures a receiver; otherwise a call here does nothing.
Timings are milliseconds in StatsD and OpenTelemetry.

Airflow 3.2 and later has two clients: workers initialize the SDK's, the triggerer the core's. Each does nothing in the
other process, so a trigger has to call `record_in_triggerer`. The wait of a gate is measured where the gate opens. If
the trigger ends the gate, it is measured only if metrics were enabled in the process that deferred it.
"""

import logging
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from typing import Any, Protocol

from airflow.providers.common.compat.sdk import conf

from airflow_provider_taskq.queue.metrics import COMPLETED, GATE_WAIT, POLLED, PUSHED, Metric, Recorder

_RECEIVERS = ("statsd_on", "statsd_datadog_enabled", "otel_on")
_METHODS = {"counter": "incr", "gauge": "gauge", "histogram": "timing"}
_log = logging.getLogger(__name__)


def enabled() -> bool:
    """Return whether Airflow sends metrics. If not, callers can skip the queries that only a gauge needs."""
    return any(conf.getboolean("metrics", receiver, fallback=False) for receiver in _RECEIVERS)


def record(metric: Metric, value: float, /, **labels: str | None) -> None:
    """Send a value to Airflow, unless it adds 0 to a counter: see `Recorder`."""
    _send(metric, value, labels, in_triggerer=False)


def record_in_triggerer(metric: Metric, value: float, /, **labels: str | None) -> None:
    """Send a value as `record` does, from a triggerer."""
    _send(metric, value, labels, in_triggerer=True)


def gate_opened(topic: str, since: datetime, record: Recorder = record) -> None:
    """Send how long a gate has waited, from `since` until now."""
    record(GATE_WAIT, (datetime.now(UTC) - since).total_seconds(), topic=topic)


class Reporting(Protocol):
    """A result with a report, such as `airflow_provider_taskq.spark.DrainResult`."""

    def report(self) -> dict[str, Any]:
        """Return the report."""


def drained(result: Reporting | Mapping[str, Any]) -> None:
    """Count the result of a drain on Spark. Call this in a task that calls `drain`, such as `@task.pyspark`.

    TaskQSparkSubmitOperator counts by itself. Pushed tasks count without a topic, because they may go to several.
    """
    report = result if isinstance(result, Mapping) else result.report()
    record(POLLED, report["claimed"], topic=report["topic"])
    for name, number in report["completed"].items():
        record(COMPLETED, number, topic=report["topic"], result=name)
    record(PUSHED, report["pushed"])


def topic_tag(topic: str) -> str:
    """Return the topic if `[taskq] metric_topics` matches it, else `other`."""
    patterns = conf.get("taskq", "metric_topics", fallback="*").split(",")
    return topic if any(fnmatchcase(topic, pattern.strip()) for pattern in patterns) else "other"


def _send(metric: Metric, value: float, labels: Mapping[str, str | None], *, in_triggerer: bool) -> None:
    """Pass a value to Airflow.

    An error is only logged: the caller has committed, and a metric must not make it fail.
    """
    if not metric.airflow or (metric.kind == "counter" and not value):
        return
    try:
        tags = {label: text for label, text in labels.items() if text is not None and label != "worker"}
        if "topic" in tags:
            tags["topic"] = topic_tag(tags["topic"])
        passed = timedelta(seconds=value) if metric.kind == "histogram" else value
        getattr(_client(in_triggerer=in_triggerer), _METHODS[metric.kind])(metric.airflow, passed, tags=tags)
    except Exception:  # noqa: BLE001  see above
        _log.warning("Cannot send metric: name=%s", metric.airflow, exc_info=True)


def _client(*, in_triggerer: bool) -> Any:
    if in_triggerer:
        with suppress(ImportError):  # Airflow 3.1 has one client for all processes
            from airflow.observability.stats import Stats as CoreStats

            return CoreStats
    # common-compat imports the SDK's client since Airflow 3.2, and the core's in 3.1.
    from airflow.providers.common.compat.sdk import Stats

    return Stats
