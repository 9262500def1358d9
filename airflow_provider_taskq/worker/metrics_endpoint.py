"""An HTTP endpoint with the metrics of workers, for Prometheus. Needs the extra `prometheus`."""

import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from math import nan
from typing import Any

from airflow_provider_taskq.queue import TaskQueue, TaskQueueError, UnknownTopic, metrics
from airflow_provider_taskq.queue.arguments import DurationLike
from airflow_provider_taskq.queue.connection import CallLimit
from airflow_provider_taskq.queue.metrics import METRICS, Metric
from airflow_provider_taskq.queue.reports import DEPTH_COLUMNS
from airflow_provider_taskq.worker.services import PeriodicService
from airflow_provider_taskq.worker.worker import Worker

log = logging.getLogger(__name__)

BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
DEPTH_INTERVAL = 15.0  # seconds between two queries for the depth
DEPTH_LIMIT = 10_000  # the depth gauges stop counting here, which bounds the cost of the query
_QUERY_SECONDS = 5.0
_METHODS = {"counter": "inc", "gauge": "set", "histogram": "observe"}
# In each query: a role may get access as reader later. A refused call would also write an error to the server's log.
_MAY_BROWSE = """SELECT FROM pg_proc
    WHERE oid = 'taskq.browse_topics'::regproc AND has_function_privilege(oid, 'EXECUTE')"""


class MetricsEndpoint(PeriodicService):
    """Serves the metrics of workers of one database over HTTP, from `start` to `stop` or in a `with` block.

    It reads the depth of the topics every 15 seconds, so that a scrape never waits for the database.
    The endpoint has no authentication, and its answer has the names of topics. So it listens on the loopback interface
    unless `host` names another address.

    :param workers: with different topics or names.
    :param port: 0 for any free port; see `url`.
    :param host: the address to listen on, for example `0.0.0.0` in a container.
    :raises TaskQueueError: without the extra `prometheus`.
    """

    def __init__(self, *workers: Worker, port: int, host: str = "127.0.0.1") -> None:
        if not workers or len({(worker.topic, worker.name) for worker in workers}) < len(workers):
            raise ValueError("the endpoint needs workers, each with another topic or name")
        super().__init__("metrics", workers[0].connect, None, CallLimit(_QUERY_SECONDS))
        self._address = (host, port)
        self._server: Any = None
        self._topics = list(dict.fromkeys(worker.topic for worker in workers))
        self._registry, self._families = _prometheus_families()
        for worker in workers:
            self._add(worker)

    def _add(self, worker: Worker) -> None:
        worker.record_to(self._record)
        labels = {"topic": worker.topic, "worker": worker.name}
        self._families[metrics.RUN_TIME].labels(**labels)  # serves it before the first batch
        gauges: dict[Metric, Callable[[], float]] = {
            metrics.IN_FLIGHT: lambda: worker.statistics().in_flight,
            metrics.LEASES: lambda: len(worker.lease_seconds_left()),
            metrics.LEASE_SECONDS: lambda: min((max(0.0, left) for left in worker.lease_seconds_left()), default=nan),
            metrics.RUNNING: lambda: worker.is_active,
        }
        for metric, read in gauges.items():
            self._families[metric].labels(**labels).set_function(read)

    def _record(self, metric: Metric, value: float, /, **labels: str | None) -> None:
        """Record a value; see `Recorder`."""
        if family := self._families.get(metric):
            getattr(family.labels(**labels) if labels else family, _METHODS[metric.kind])(value)

    @property
    def url(self) -> str:
        """Its address, once it was started."""
        host, port = self._server.server_address[:2]
        return f"http://{f'[{host}]' if ':' in host else host}:{port}/metrics"

    def start(self) -> None:
        """Start to listen.

        :raises TaskQueueError: if it runs already.
        :raises OSError: if the port is in use, or the host has no address.
        """
        from prometheus_client import start_http_server

        if self.is_running:
            raise TaskQueueError("the metrics endpoint runs already")
        host, port = self._address
        try:
            self._server, self._server_thread = start_http_server(port, host, self._registry)
        except UnicodeError:  # of Python's socket module
            raise OSError("the name of the host is invalid") from None
        super().start()
        log.info("metrics endpoint started: url=%s", self.url)

    def stop(self, timeout: DurationLike | None = _QUERY_SECONDS) -> bool:
        """Stop to listen. Return False if the last query takes longer than `timeout`."""
        if self.is_running:
            self._server.shutdown()
            self._server.server_close()
            self._server_thread.join()
        return super().stop(timeout)

    def _run_once(self) -> float:
        samples: list[tuple[Metric, float, dict[str, str]]] = []
        is_up = False
        try:
            with self._session.queue() as queue:
                may_browse = queue.conn.execute(_MAY_BROWSE).rowcount > 0
                samples = [sample for topic in self._topics for sample in self._read(queue, topic, may_browse)]
            is_up = True
        finally:
            for metric in (metrics.DEPTH, metrics.OLDEST_READY):
                self._families[metric].clear()
            for metric, number, labels in samples:
                self._record(metric, number, **labels)
            self._record(metrics.DATABASE_UP, is_up)
        return DEPTH_INTERVAL

    def _read(self, queue: TaskQueue, topic: str, may_browse: bool) -> Iterator[tuple[Metric, float, dict[str, str]]]:
        """Yield the tasks of a topic by status, and how many seconds the oldest due task has been due.

        Without access as reader, this is the part that a consumer may see. It is empty if the topic was dropped.
        """
        tasks: dict[str, int] = {}
        if may_browse and (summary := queue.browse_topic(topic, DEPTH_LIMIT)):
            tasks = {state: getattr(summary, column) for state, column in DEPTH_COLUMNS.items()}
            yield metrics.OLDEST_READY, summary.oldest_seconds or 0, {"topic": topic}
        else:
            with suppress(UnknownTopic):
                status = queue.topic_status(topic, cap=DEPTH_LIMIT)
                tasks = {state: getattr(status, state) for state in DEPTH_COLUMNS if hasattr(status, state)}
        for state, number in tasks.items():
            yield metrics.DEPTH, number, {"topic": topic, "state": state}


def _prometheus_families() -> tuple[Any, dict[Metric, Any]]:
    """Return a registry of prometheus_client of its own, and the metrics in it."""
    try:
        import prometheus_client
    except ImportError:
        raise TaskQueueError(
            "the metrics endpoint needs the package prometheus-client: pip install prometheus-client"
        ) from None
    registry, families = prometheus_client.CollectorRegistry(), {}
    prometheus_client.ProcessCollector(registry=registry)
    for metric in (each for each in METRICS if each.prometheus):
        kind = getattr(prometheus_client, metric.kind.title())
        options = {"buckets": BUCKETS} if metric.kind == "histogram" else {}
        families[metric] = kind(metric.prometheus, metric.meaning, metric.labels, registry=registry, **options)
    return registry, families
