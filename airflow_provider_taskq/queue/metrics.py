"""The metrics: what is counted, its names, and the interface of what records it. The reference is made of this table.

There are two recorders: the workers' endpoint for Prometheus, and Airflow's Stats.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple, Protocol

from airflow_provider_taskq.queue.models import Task


class Metric(NamedTuple):
    """A metric. A name is empty if that recorder does not have the metric. Airflow calls a histogram a timing.

    A label is a topic, a worker, a state, a result or a subject of health. It is never an identifier, which bounds the
    number of time series. Airflow's metrics have no label `worker`.
    """

    kind: Literal["counter", "gauge", "histogram"]
    airflow: str
    prometheus: str
    labels: tuple[str, ...]
    meaning: str


class Recorder(Protocol):
    """Adds to a counter, sets a gauge, or observes seconds. It does not raise, and any thread may call it."""

    def __call__(self, metric: Metric, value: float, /, **labels: str | None) -> None:
        """Record a value. A metric without a name for this recorder, and a label of None, are left out."""


_TOPIC, _WORKER = ("topic",), ("topic", "worker")
# fmt: off
PUSHED = Metric("counter", "taskq.pushed", "", _TOPIC,
    "Tasks pushed by operators and through the hook. Follow-ups of a drain on Spark have no topic.")
POLLED = Metric("counter", "taskq.polled", "", _TOPIC, "Tasks claimed by gates, operators, event triggers and drains.")
REDELIVERED = Metric("counter", "taskq.redelivered", "", _TOPIC,
    "Tasks claimed through the hook or by `TaskQProcessOperator` whose earlier owner had lost its lease.")
RETRIED = Metric("counter", "taskq.retried", "", _TOPIC, "Tasks claimed in the same way that had failed before.")
COMPLETED = Metric("counter", "taskq.completed", "taskq_worker_completed_total", (*_WORKER, "result"),
    "Tasks whose decision was committed: SUCCESS, FILTER, SUSPENSION or FAILURE. Completed by sequence alone, they have"
    " no topic.")
ABANDONED = Metric("counter", "", "taskq_worker_abandoned_total", _WORKER,
    "Tasks that were lost with a lease or abandoned at a stop. They are polled again.")
EXPIRED = Metric("counter", "taskq.expired", "", (), "Tasks that `TaskQExpireOperator` gave back.")
REVIVED = Metric("counter", "taskq.revived", "", _TOPIC, "Tasks that `TaskQReviveOperator` revived.")
PURGED = Metric("counter", "taskq.purged", "", _TOPIC, "Tasks that `TaskQPurgeOperator` removed.")
LEASE_LOST = Metric("counter", "taskq.lease_lost", "taskq_worker_leases_lost_total", _WORKER,
    "Leases that a worker has lost, and completions and event triggers that found their lease gone.")
GATE_WAIT = Metric("histogram", "taskq.gate_wait_ms", "", _TOPIC,
    "Time from the first check of a gate until it opens.")
POLL_TIME = Metric("histogram", "taskq.poll_ms", "", _TOPIC,
    "Duration of one call through the hook that claims tasks.")
RUN_TIME = Metric("histogram", "taskq.run_ms", "taskq_worker_batch_seconds", _WORKER,
    "Duration of the handler call for a batch, in a worker or `TaskQProcessOperator`.")
IN_FLIGHT = Metric("gauge", "", "taskq_worker_in_flight", _WORKER, "Tasks that are handled or prefetched now.")
LEASES = Metric("gauge", "", "taskq_worker_leases", _WORKER,
    "Leases that the worker holds now, one for each thread.")
LEASE_SECONDS = Metric("gauge", "", "taskq_worker_lease_seconds_left", _WORKER,
    "Time until the first of these leases lapses if no heartbeat reaches the database. NaN without a lease.")
RUNNING = Metric("gauge", "", "taskq_worker_running", _WORKER, "1 while the worker polls, 0 once it stops.")
DATABASE_UP = Metric("gauge", "", "taskq_worker_database_up", (),
    "1 if the last query for the depth of the topics was answered, else 0.")
DEPTH = Metric("gauge", "taskq.depth", "taskq_depth", (*_TOPIC, "state"),
    "Tasks of the topic by status (ready, scheduled, retrying, blocked, paused, running, failed, suspended, expired),"
    " up to 10,000, or 100,000 by `TaskQHealthOperator`. A worker needs access as reader for the last three.")
ACTIVE = Metric("gauge", "taskq.active", "", _TOPIC, "Held tasks. `TaskQHealthOperator` sends all gauges.")
OLDEST_READY = Metric("gauge", "taskq.oldest_ready_seconds", "taskq_oldest_ready_seconds", _TOPIC,
    "How long the oldest due task has been due. A worker needs access as reader.")
HEALTH = Metric("gauge", "taskq.health", "", ("subject",), "0 FINE, 1 NOTICE, 2 WARNING, 3 CRITICAL.")
# fmt: on

METRICS = tuple(metric for metric in vars().copy().values() if isinstance(metric, Metric))


def record_polled(record: Recorder, tasks: Sequence[Task], **labels: str) -> None:
    """Count polled tasks, and how many of them are redelivered or retried."""
    record(POLLED, len(tasks), **labels)
    record(REDELIVERED, sum(task.redelivered for task in tasks), **labels)
    record(RETRIED, sum(task.attempt > 1 for task in tasks), **labels)
