"""An HTTP endpoint with the metrics of workers, for Prometheus. Needs the extra `prometheus`."""

import logging
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from psycopg.rows import tuple_row

from airflow_provider_taskq.queue import Result, TaskQueue, TaskQueueError
from airflow_provider_taskq.queue.connection import CallLimit
from airflow_provider_taskq.queue.reports import DEPTH_FIELDS
from airflow_provider_taskq.queue.topic_status import TOPIC_STATUS_QUERY
from airflow_provider_taskq.worker.connection import Connect
from airflow_provider_taskq.worker.periodic import PeriodicService
from airflow_provider_taskq.worker.worker import Worker

if TYPE_CHECKING:
    from prometheus_client.core import Metric

log = logging.getLogger(__name__)

# Metric: its kind, its labels, and its meaning. The reference is made of these, and the endpoint's help texts.
METRICS: dict[str, tuple[str, tuple[str, ...], str]] = {
    "taskq_worker_completed_total": (
        "counter",
        ("topic", "worker", "result"),
        "Tasks whose decision was committed: SUCCESS, FILTER, SUSPENSION or FAILURE.",
    ),
    "taskq_worker_abandoned_total": (
        "counter",
        ("topic", "worker"),
        "Tasks that were lost with a lease or abandoned at a stop. They are polled again.",
    ),
    "taskq_worker_batch_seconds": (
        "histogram",
        ("topic", "worker"),
        "Duration of the handler call for a batch.",
    ),
    "taskq_worker_in_flight": ("gauge", ("topic", "worker"), "Tasks that are handled or prefetched now."),
    "taskq_worker_leases": ("gauge", ("topic", "worker"), "Leases that the worker holds now, one for each thread."),
    "taskq_worker_lease_seconds_left": (
        "gauge",
        ("topic", "worker"),
        "Time until the first of these leases lapses if no heartbeat reaches the database.",
    ),
    "taskq_worker_leases_lost_total": ("counter", ("topic", "worker"), "Leases that the worker has lost."),
    "taskq_worker_running": ("gauge", ("topic", "worker"), "1 while the worker polls, 0 once it stops."),
    "taskq_worker_database_up": ("gauge", (), "1 if the last query for the depth of the topics was answered, else 0."),
    "taskq_depth": (
        "gauge",
        ("topic", "state"),
        "Tasks of the topic by status, up to 10,000. Statuses failed, suspended and expired need access as reader.",
    ),
    "taskq_oldest_ready_seconds": (
        "gauge",
        ("topic",),
        "How long the oldest due task has been due. Needs access as reader.",
    ),
}

DEPTH_INTERVAL = 15.0  # seconds between two queries for the depth
DEPTH_LIMIT = 10_000  # the depth gauges stop counting here, which bounds the cost of the query
_QUERY_SECONDS = 5.0
# In each query: a role may get access as reader later. A refused call would also write an error to the server's log.
_MAY_BROWSE = """SELECT FROM pg_proc
    WHERE oid = 'taskq.browse_topics'::regproc AND has_function_privilege(oid, 'EXECUTE')"""


@dataclass(frozen=True, slots=True)
class TopicDepth:
    """The tasks of a topic by status, and how many seconds the oldest due task has been due; None if not known."""

    states: dict[str, int]
    oldest: int | None


class DepthReader(PeriodicService):
    """Reads the depth of topics every 15 seconds, so that a scrape never waits for the database."""

    def __init__(self, connect: Connect, topics: Sequence[str]) -> None:
        self.depths: dict[str, TopicDepth] = {}
        self.is_up = False
        self._topics = topics
        super().__init__("metrics", connect, DEPTH_INTERVAL, CallLimit(_QUERY_SECONDS))

    def _run_once(self) -> float:
        try:
            with self._session.queue() as queue:
                may_browse = queue.conn.execute(_MAY_BROWSE).rowcount > 0
                found = {topic: self._read(queue, topic, may_browse) for topic in self._topics}
        except Exception:
            self.depths, self.is_up = {}, False
            raise
        self.depths, self.is_up = {topic: depth for topic, depth in found.items() if depth}, True
        return DEPTH_INTERVAL

    def _read(self, queue: TaskQueue, topic: str, may_browse: bool) -> TopicDepth | None:
        """The depth of a topic; without access as reader, the part that a consumer may see. None if it was dropped."""
        if may_browse and (summary := queue.browse_topic(topic, DEPTH_LIMIT)):
            states = {state: getattr(summary, field) for state, field in DEPTH_FIELDS.items()}
            return TopicDepth(states, summary.oldest_seconds or 0)
        with queue.conn.cursor(row_factory=tuple_row) as cursor:
            row = cursor.execute(TOPIC_STATUS_QUERY, ([topic], ["NONE"], DEPTH_LIMIT)).fetchone()
        return TopicDepth(dict(zip(DEPTH_FIELDS, row[1:7], strict=False)), None) if row else None


class MetricsEndpoint:
    """Serves the metrics of workers of one database over HTTP, from `start` to `stop` or in a `with` block.

    The endpoint has no authentication, and its answer has the names of topics. So it listens on the loopback interface
    unless `host` names another address.

    :param workers: with different topics or names.
    :param port: 0 for any free port; see `url`.
    :param host: the address to listen on, for example `0.0.0.0` in a container.
    """

    def __init__(self, *workers: Worker, port: int, host: str = "127.0.0.1") -> None:
        labels = [(worker.topic, worker.name) for worker in workers]
        if not workers or len(set(labels)) < len(labels):
            raise ValueError("the endpoint needs workers, each with another topic or name")
        self._workers = workers
        self._address = (host, port)
        self._depth = DepthReader(workers[0].connect, list(dict.fromkeys(worker.topic for worker in workers)))
        self._server: Any = None
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        """Its address, once it was started."""
        host, port = self._server.server_address[:2]
        return f"http://{f'[{host}]' if ':' in host else host}:{port}/metrics"

    def start(self) -> None:
        """Starts to listen.

        :raises TaskQueueError: without the extra `prometheus`.
        :raises OSError: if the port is in use, or the host has no address.
        """
        try:
            from prometheus_client import CollectorRegistry, ProcessCollector, start_http_server
        except ImportError:
            raise TaskQueueError(
                "the metrics endpoint needs the package prometheus-client: pip install prometheus-client"
            ) from None
        registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        registry.register(self)
        host, port = self._address
        try:
            self._server, self._thread = start_http_server(port, host, registry)
        except UnicodeError:  # of Python's socket module
            raise OSError("the name of the host is invalid") from None
        self._depth.start()
        log.info("metrics endpoint started: url=%s", self.url)

    def stop(self) -> None:
        """Stops to listen."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
        if self._thread is not None:
            self._thread.join()
        self._depth.stop(_QUERY_SECONDS)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def collect(self) -> Iterator["Metric"]:
        """The metrics as they are now: the interface of a collector of prometheus_client."""
        families = _new_families()
        for worker in self._workers:
            _add_worker(families, worker)
        families["taskq_worker_database_up"].add_metric([], int(self._depth.is_up))
        for topic, depth in self._depth.depths.items():
            for state, tasks in depth.states.items():
                families["taskq_depth"].add_metric([topic, state], tasks)
            if depth.oldest is not None:
                families["taskq_oldest_ready_seconds"].add_metric([topic], depth.oldest)
        yield from families.values()

    def describe(self) -> Iterator["Metric"]:
        """The metrics without values, so that a registry need not collect them to know their names."""
        yield from _new_families().values()


def _new_families() -> dict[str, Any]:
    """The metrics without values, by name."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

    kinds = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily, "histogram": HistogramMetricFamily}
    return {name: kinds[kind](name, text, labels=labels) for name, (kind, labels, text) in METRICS.items()}


def _add_worker(families: dict[str, Any], worker: Worker) -> None:
    labels = [worker.topic, worker.name]
    counts, durations, leases = worker.statistics(), worker.batch_durations(), worker.lease_seconds_left()
    results = {
        Result.SUCCESS: counts.succeeded,
        Result.FILTER: counts.filtered,
        Result.SUSPENSION: counts.suspended,
        Result.FAILURE: counts.failed,
    }
    for result, tasks in results.items():
        families["taskq_worker_completed_total"].add_metric([*labels, result.name], tasks)
    families["taskq_worker_batch_seconds"].add_metric(labels, durations.cumulative(), durations.total)
    families["taskq_worker_abandoned_total"].add_metric(labels, counts.abandoned)
    families["taskq_worker_in_flight"].add_metric(labels, counts.in_flight)
    families["taskq_worker_leases"].add_metric(labels, len(leases))
    families["taskq_worker_leases_lost_total"].add_metric(labels, counts.leases_lost)
    families["taskq_worker_running"].add_metric(labels, int(worker.is_active))
    if leases:
        families["taskq_worker_lease_seconds_left"].add_metric(labels, max(0.0, min(leases)))
