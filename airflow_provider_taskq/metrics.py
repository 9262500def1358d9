"""The metrics that the provider sends through Airflow.

Airflow sends metrics only if its section `[metrics]` configures a receiver; otherwise a call here does nothing. A tag
is a topic, a state, a result or a subject of health. It is never an identifier, which bounds the number of time series.
Timings are milliseconds in StatsD and OpenTelemetry.

Airflow 3.2 and later has two clients: workers initialize the SDK's, the triggerer the core's. Each does nothing in the
other process, so a trigger has to pass `in_triggerer`. The wait of a gate is measured where the gate opens. If the
trigger ends the gate, it is measured only if metrics were enabled in the process that deferred it.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from typing import Any, Protocol

from airflow.providers.common.compat.sdk import conf

from airflow_provider_taskq.queue import Task

# The text below each metric has its kind, its tags and its meaning: the reference is made of these.
PUSHED = "taskq.pushed"
"""counter; topic; Tasks pushed by operators and through the hook. Follow-ups of a drain on Spark have no topic."""
POLLED = "taskq.polled"
"""counter; topic; Tasks claimed by gates, operators, event triggers and drains."""
COMPLETED = "taskq.completed"
"""counter; topic, result; Completed tasks. A completion by a sequence alone has no topic."""
REDELIVERED = "taskq.redelivered"
"""counter; topic; Tasks claimed through the hook or by `TaskQProcessOperator` whose earlier owner had lost its
lease."""
RETRIED = "taskq.retried"
"""counter; topic; Tasks claimed in the same way that had failed before."""
EXPIRED = "taskq.expired"
"""counter; none; Tasks that `TaskQExpireOperator` gave back."""
REVIVED = "taskq.revived"
"""counter; topic; Tasks that `TaskQReviveOperator` revived."""
PURGED = "taskq.purged"
"""counter; topic; Tasks that `TaskQPurgeOperator` removed."""
LEASE_LOST = "taskq.lease_lost"
"""counter; topic; Completions and event triggers that found their lease gone."""
GATE_WAIT = "taskq.gate_wait_ms"
"""timing; topic; Time from the first check of a gate until it opens."""
POLL_TIME = "taskq.poll_ms"
"""timing; topic; Duration of one call through the hook that claims tasks."""
RUN_TIME = "taskq.run_ms"
"""timing; topic; Duration of a batch in `TaskQProcessOperator`, from its poll to its completion."""
DEPTH = "taskq.depth"
"""gauge; topic, state; Tasks by status (ready, scheduled, retrying, blocked, paused, running, failed, suspended,
expired), counted up to 100,000. `TaskQHealthOperator` sends all gauges."""
ACTIVE = "taskq.active"
"""gauge; topic; Held tasks."""
OLDEST_READY = "taskq.oldest_ready_seconds"
"""gauge; topic; How long the oldest due task has been due."""
HEALTH = "taskq.health"
"""gauge; subject; 0 FINE, 1 NOTICE, 2 WARNING, 3 CRITICAL."""
DEAD_TUPLES = "taskq.dead_tuples"
"""gauge; none; Dead rows of the table that has most of them relative to its limit."""

_RECEIVERS = ("statsd_on", "statsd_datadog_enabled", "otel_on")
_log = logging.getLogger(__name__)


class Drained(Protocol):
    """The counted part of `airflow_provider_taskq.spark.DrainResult`."""

    @property
    def topic(self) -> str:
        """The drained topic."""

    @property
    def claimed(self) -> int:
        """The number of claimed tasks."""

    @property
    def completed(self) -> Mapping[Any, int]:
        """The number of decisions by result, or by its name."""

    @property
    def pushed(self) -> int:
        """The number of pushed follow-up tasks."""


def enabled() -> bool:
    """Return whether Airflow sends metrics. If not, callers can skip the queries that only a gauge needs."""
    return any(conf.getboolean("metrics", receiver, fallback=False) for receiver in _RECEIVERS)


def count(
    name: str, number: int, *, topic: str | None = None, result: str | None = None, in_triggerer: bool = False
) -> None:
    """Add to a counter, unless `number` is 0."""
    if number:
        _send("incr", name, number, topic, {"result": result}, in_triggerer=in_triggerer)


def gauge(name: str, value: float, *, topic: str | None = None, **tags: str) -> None:
    """Set a gauge."""
    _send("gauge", name, value, topic, tags)


def timing(name: str, length: timedelta, *, topic: str | None = None, in_triggerer: bool = False) -> None:
    """Send a timing."""
    _send("timing", name, length, topic, {}, in_triggerer=in_triggerer)


def gate_opened(topic: str, since: datetime, *, in_triggerer: bool = False) -> None:
    """Send how long a gate has waited, from `since` until now."""
    timing(GATE_WAIT, datetime.now(UTC) - since, topic=topic, in_triggerer=in_triggerer)


def polled(topic: str, tasks: Sequence[Task], add: Callable[..., None] = count) -> None:
    """Count polled tasks, and how many of them are redelivered or retried. `add` replaces `count`, to send later."""
    add(POLLED, len(tasks), topic=topic)
    add(REDELIVERED, sum(task.redelivered for task in tasks), topic=topic)
    add(RETRIED, sum(task.attempt > 1 for task in tasks), topic=topic)


def drained(result: Drained) -> None:
    """Count the result of a drain on Spark. Call this in a task that calls `drain`, such as `@task.pyspark`.

    TaskQSparkSubmitOperator counts by itself. Pushed tasks count without a topic, because they may go to several.
    """
    count(POLLED, result.claimed, topic=result.topic)
    for kind, number in result.completed.items():
        count(COMPLETED, number, topic=result.topic, result=kind if isinstance(kind, str) else kind.name)
    count(PUSHED, result.pushed)


def topic_tag(topic: str) -> str:
    """Return the topic if `[taskq] metric_topics` matches it, else `other`."""
    patterns = conf.get("taskq", "metric_topics", fallback="*").split(",")
    return topic if any(fnmatchcase(topic, pattern.strip()) for pattern in patterns) else "other"


def _send(
    kind: str, name: str, value: Any, topic: str | None, extra: Mapping[str, str | None], *, in_triggerer: bool = False
) -> None:
    """Pass a value to Airflow.

    An error is only logged: the caller has committed, and a metric must not make it fail.
    """
    try:
        tags = {tag: text for tag, text in extra.items() if text is not None}
        if topic is not None:
            tags["topic"] = topic_tag(topic)
        getattr(_client(in_triggerer=in_triggerer), kind)(name, value, tags=tags)
    except Exception:  # noqa: BLE001  see above
        _log.warning("Cannot send metric: name=%s", name, exc_info=True)


def _client(*, in_triggerer: bool) -> Any:
    if in_triggerer:
        with suppress(ImportError):  # Airflow 3.1 has one client for all processes
            from airflow.observability.stats import Stats as CoreStats

            return CoreStats
    # common-compat imports the SDK's client since Airflow 3.2, and the core's in 3.1.
    from airflow.providers.common.compat.sdk import Stats

    return Stats
