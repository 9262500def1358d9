"""What TaskQ reports through Airflow's own metrics, and under which names.

Airflow sends metrics only where its section `[metrics]` names a receiver; without one, a call here does nothing. Tags
are a topic, a state, a result or a subject of health: never an identifier, so that their number stays bounded. A timing
is what the receiver makes of it: milliseconds in StatsD and OpenTelemetry.

Airflow has two clients since 3.2: the SDK's, which it makes ready in the workers, and the core's, which it makes ready
in the triggerer. Each does nothing in the other's process, so whoever reports from a trigger says so. A gate is timed
where it opens; one that is ended by its trigger, only if metrics were on where it was deferred.
"""

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from typing import Any, Protocol

from airflow.providers.common.compat.sdk import conf

from airflow_provider_taskq.queue import Task

# Counters
PUSHED = "taskq.pushed"
POLLED = "taskq.polled"
COMPLETED = "taskq.completed"  # by result
REDELIVERED = "taskq.redelivered"  # polled, after an owner before had lost its lease
RETRIED = "taskq.retried"  # polled, after a failure that was noted
EXPIRED = "taskq.expired"
REVIVED = "taskq.revived"
PURGED = "taskq.purged"
LEASE_LOST = "taskq.lease_lost"

# Timings
GATE_WAIT = "taskq.gate_wait_ms"  # from a gate's first look until it opened
POLL_TIME = "taskq.poll_ms"  # of one call that takes tasks
RUN_TIME = "taskq.run_ms"  # of a batch, from its poll to its completion

# Gauges
DEPTH = "taskq.depth"  # by state
ACTIVE = "taskq.active"  # tasks that are held
OLDEST_READY = "taskq.oldest_ready_seconds"  # how long the oldest due task has been due
HEALTH = "taskq.health"  # by subject: 0 fine, 1 notice, 2 warning, 3 critical
DEAD_TUPLES = "taskq.dead_tuples"  # of the table that has most of them, against its bound

_RECEIVERS = ("statsd_on", "statsd_datadog_enabled", "otel_on")
_log = logging.getLogger(__name__)


class Drained(Protocol):
    """What is counted of a drain: `airflow_provider_taskq.spark.DrainResult` has it."""

    @property
    def topic(self) -> str:
        """The topic that was drained."""

    @property
    def claimed(self) -> int:
        """How many tasks were taken."""

    @property
    def completed(self) -> Mapping[Any, int]:
        """How many were decided, by result or its name."""

    @property
    def pushed(self) -> int:
        """How many tasks followed."""


def enabled() -> bool:
    """Whether anybody receives metrics: ask before looking for what only a gauge needs."""
    return any(conf.getboolean("metrics", receiver, fallback=False) for receiver in _RECEIVERS)


def count(
    name: str, number: int, *, topic: str | None = None, result: str | None = None, in_triggerer: bool = False
) -> None:
    """Adds to a counter; nothing where there is nothing to add."""
    if number:
        _send("incr", name, number, topic, {"result": result}, in_triggerer=in_triggerer)


def gauge(name: str, value: float, *, topic: str | None = None, **tags: str) -> None:
    """Sets a gauge."""
    _send("gauge", name, value, topic, tags)


def timing(name: str, length: timedelta, *, topic: str | None = None, in_triggerer: bool = False) -> None:
    """Reports how long something took."""
    _send("timing", name, length, topic, {}, in_triggerer=in_triggerer)


def gate_opened(topic: str, since: datetime, *, in_triggerer: bool = False) -> None:
    """Reports that a gate has opened, which had begun to look at that moment."""
    timing(GATE_WAIT, datetime.now(UTC) - since, topic=topic, in_triggerer=in_triggerer)


def polled(topic: str, tasks: Sequence[Task]) -> None:
    """Counts tasks that were taken, and which of them had been lost or had failed before."""
    count(POLLED, len(tasks), topic=topic)
    count(REDELIVERED, sum(task.redelivered for task in tasks), topic=topic)
    count(RETRIED, sum(task.attempt > 1 for task in tasks), topic=topic)


def drained(result: Drained) -> None:
    """Reports what a drain on Spark has committed: for a task that calls `drain` itself, as under `@task.pyspark`.

    TaskQSparkSubmitOperator does so by itself. What was pushed has no topic: it may have gone to several.
    """
    count(POLLED, result.claimed, topic=result.topic)
    for kind, number in result.completed.items():
        count(COMPLETED, number, topic=result.topic, result=kind if isinstance(kind, str) else kind.name)
    count(PUSHED, result.pushed)


def topic_tag(topic: str) -> str:
    """The name under which a topic is reported: its own if `[taskq] metric_topics` has it, else `other`."""
    patterns = conf.get("taskq", "metric_topics", fallback="*").split(",")
    return topic if any(fnmatchcase(topic, pattern.strip()) for pattern in patterns) else "other"


def _send(
    kind: str, name: str, value: Any, topic: str | None, given: Mapping[str, str | None], *, in_triggerer: bool = False
) -> None:
    """Hands a value to Airflow. What it counts is committed by then: an error here must not fail anybody's task."""
    try:
        tags = {tag: text for tag, text in given.items() if text is not None}
        if topic is not None:
            tags["topic"] = topic_tag(topic)
        getattr(_client(in_triggerer=in_triggerer), kind)(name, value, tags=tags)
    except Exception:  # noqa: BLE001  see above
        _log.warning("The metric %s could not be sent.", name, exc_info=True)


def _client(*, in_triggerer: bool) -> Any:
    """Airflow's client in this kind of process."""
    if in_triggerer:
        with suppress(ImportError):  # Airflow 3.1 has one for all
            from airflow.observability.stats import Stats as CoreStats

            return CoreStats
    # Found by common-compat where the release has it: in the SDK since 3.2, in the core of 3.1.
    from airflow.providers.common.compat.sdk import Stats

    return Stats
