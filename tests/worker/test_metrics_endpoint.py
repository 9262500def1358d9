"""The metrics endpoint of workers, scraped as Prometheus does."""

import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from airflow_provider_taskq.queue import Result, Task, TaskQueue, TaskQueueError, connect
from airflow_provider_taskq.queue.metrics import METRICS
from airflow_provider_taskq.worker import MetricsEndpoint, Worker, metrics_endpoint
from tests.queue.conftest import pass_time, until
from tests.roles import logged_in
from tests.worker.conftest import MakeWorker

pytestmark = pytest.mark.promise("A worker reports its health, and serves its metrics to Prometheus")

parser = pytest.importorskip("prometheus_client.parser", reason="needs the extra prometheus")

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]
Serve = Callable[..., MetricsEndpoint]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Starts endpoints on free ports, and stops them at the end."""
    with ExitStack() as stack:
        yield lambda *workers, **settings: stack.enter_context(MetricsEndpoint(*workers, port=0, **settings))


def scrape(endpoint: MetricsEndpoint | str) -> Samples:
    """The samples of an endpoint, by name and labels."""
    url = endpoint if isinstance(endpoint, str) else endpoint.url
    with urllib.request.urlopen(url, timeout=30) as answer:  # noqa: S310  of this test's own server
        text = answer.read().decode()
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in parser.text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(samples: Samples, name: str, **labels: str) -> float | None:
    """The sample with exactly these labels."""
    return samples.get((name, frozenset(labels.items())))


def of_worker(samples: Samples, name: str, **labels: str) -> float | None:
    """The sample of the worker of the topic `work`."""
    return value(samples, name, topic="work", worker="work", **labels)


def decide(task: Task) -> Result:
    return Result[task.identifier.partition(" ")[0]]


def test_a_scrape_shows_what_a_worker_has_done(queue: TaskQueue, make_worker: MakeWorker, serve: Serve) -> None:
    queue.push("work", ["SUCCESS 1", "SUCCESS 2", "SUCCESS 3", "FAILURE", "FILTER", "SUSPENSION"])
    worker = make_worker(decide, size=2, workers=2)
    endpoint = serve(worker)
    assert of_worker(scrape(endpoint), "taskq_worker_running") == 0
    worker.start()
    until(lambda: worker.statistics().handled == 6)
    found = scrape(endpoint)
    done = {name: of_worker(found, "taskq_worker_completed_total", result=name) for name in Result.__members__}
    assert done == {"SUCCESS": 3, "FAILURE": 1, "FILTER": 1, "SUSPENSION": 1}
    assert of_worker(found, "taskq_worker_batch_seconds_count") == worker.statistics().batches
    assert of_worker(found, "taskq_worker_batch_seconds_bucket", le="+Inf") == worker.statistics().batches
    assert of_worker(found, "taskq_worker_in_flight") == 0
    assert of_worker(found, "taskq_worker_running") == 1
    assert of_worker(found, "taskq_worker_leases") == len(worker.lease_seconds_left()) > 0
    assert 0 < (of_worker(found, "taskq_worker_lease_seconds_left") or 0) <= 60
    worker.stop()
    found = scrape(endpoint)
    assert of_worker(found, "taskq_worker_running") == of_worker(found, "taskq_worker_leases") == 0
    assert of_worker(found, "taskq_worker_completed_total", result="SUCCESS") == 3
    assert of_worker(scrape(serve(worker)), "taskq_worker_completed_total", result="SUCCESS") == 3, "made later"


def test_a_lost_lease_is_counted(queue: TaskQueue, make_worker: MakeWorker, serve: Serve) -> None:
    worker = make_worker(decide, lease=timedelta(seconds=1))
    endpoint = serve(worker)
    worker.start()
    for owner in queue.owners():
        queue.release(owner)
    until(lambda: of_worker(scrape(endpoint), "taskq_worker_leases_lost_total") == 1)


def test_a_scrape_shows_the_depth_of_the_topic_by_status(
    queue: TaskQueue, make_worker: MakeWorker, serve: Serve
) -> None:
    queue.push("work", ["FAILURE", "a", "b", "c"])
    owner = queue.register("other")
    [failing] = queue.poll("work", owner)
    queue.complete(owner, {failing: Result.FAILURE})
    queue.poll("work", owner)
    pass_time(queue, timedelta(minutes=5))
    endpoint = serve(make_worker(decide))
    until(lambda: value(scrape(endpoint), "taskq_worker_database_up") == 1)
    found = scrape(endpoint)
    assert value(found, "taskq_depth", topic="work", state="ready") == 2
    assert value(found, "taskq_depth", topic="work", state="running") == 1
    assert value(found, "taskq_depth", topic="work", state="failed") == 1
    assert 300 <= (value(found, "taskq_oldest_ready_seconds", topic="work") or 0) < 400


STATUSES = {"ready", "scheduled", "retrying", "blocked", "paused", "running", "failed", "suspended", "expired"}


def statuses(endpoint: MetricsEndpoint) -> set[str]:
    """The statuses of which the endpoint has the depth of the topic `work`."""
    found = scrape(endpoint)
    return {dict(labels)["state"] for name, labels in found if name == "taskq_depth" and ("topic", "work") in labels}


def test_a_role_sees_all_statuses_once_it_may_read_the_topic(
    queue: TaskQueue, conn: psycopg.Connection, dsn: str, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics_endpoint, "DEPTH_INTERVAL", 0.05)
    queue.create_topic("other")
    with logged_in(conn, dsn, "consumer") as reader:
        endpoint = serve(Worker(reader, "work", decide), Worker(reader, "other", decide))
        until(lambda: statuses(endpoint) == STATUSES - {"failed", "suspended", "expired"})
        assert value(scrape(endpoint), "taskq_oldest_ready_seconds", topic="work") is None
        conn.execute("SELECT taskq.grant_access(%s, 'reader', '{work}')", (conninfo_to_dict(reader)["user"],))
        until(lambda: statuses(endpoint) == STATUSES)
        assert value(scrape(endpoint), "taskq_oldest_ready_seconds", topic="work") == 0
        assert value(scrape(endpoint), "taskq_depth", topic="other", state="ready") == 0, "which it may consume only"
        assert value(scrape(endpoint), "taskq_depth", topic="other", state="failed") is None
        endpoint.stop()


def test_many_scrapes_share_one_bounded_query(
    queue: TaskQueue, make_worker: MakeWorker, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def counting(endpoint: MetricsEndpoint, queue: TaskQueue, topic: str, may_browse: bool) -> Any:
        asked.append(topic)
        return read(endpoint, queue, topic, may_browse)

    read = MetricsEndpoint._read
    monkeypatch.setattr(MetricsEndpoint, "_read", counting)
    monkeypatch.setattr(metrics_endpoint, "DEPTH_LIMIT", 3)
    queue.push("work", [str(number) for number in range(9)])
    endpoint = serve(make_worker(decide), make_worker(decide, name="another"))
    until(lambda: value(scrape(endpoint), "taskq_worker_database_up") == 1)
    for _ in range(20):
        assert value(scrape(endpoint), "taskq_depth", topic="work", state="ready") == 3
    assert asked == ["work"]


def test_a_scrape_needs_no_database(
    queue: TaskQueue, dsn: str, serve: Serve, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(metrics_endpoint, "DEPTH_INTERVAL", 0.05)
    reachable = True

    def connecting() -> psycopg.Connection[Any]:
        if not reachable:
            raise psycopg.OperationalError("connection refused")
        return connect(dsn, application_name="metrics")

    endpoint = serve(Worker(connecting, "work", decide))
    until(lambda: value(scrape(endpoint), "taskq_depth", topic="work", state="ready") == 0)
    reachable = False
    ended = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'metrics'"
    queue.conn.execute(ended)
    until(lambda: value(scrape(endpoint), "taskq_worker_database_up") == 0)
    found = scrape(endpoint)
    assert value(found, "taskq_depth", topic="work", state="ready") is None
    assert of_worker(found, "taskq_worker_running") == 0
    reachable = True
    until(lambda: value(scrape(endpoint), "taskq_depth", topic="work", state="ready") == 0)
    assert "will retry: service=metrics" in caplog.text


@pytest.mark.usefixtures("queue")
def test_every_metric_is_served_with_its_labels_and_is_documented(make_worker: MakeWorker, serve: Serve) -> None:
    worker = make_worker(decide)
    worker.start()
    endpoint = serve(worker)
    until(lambda: value(scrape(endpoint), "taskq_worker_database_up") == 1)
    served = {
        re.sub(r"_(bucket|count|sum)$", "", name): {label for label, _ in labels} - {"le"}
        for name, labels in scrape(endpoint)
        if name.startswith("taskq_") and not name.endswith("_created")
    }
    assert served == {metric.prometheus: set(metric.labels) for metric in METRICS if metric.prometheus}


def test_an_endpoint_that_cannot_be_served_says_why(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    workers = [Worker(dsn, "work", decide) for _ in range(2)]
    with pytest.raises(ValueError, match="another topic or name"):
        MetricsEndpoint(*workers, port=0)
    with MetricsEndpoint(workers[0], port=0) as endpoint, pytest.raises(TaskQueueError, match="runs already"):
        endpoint.start()
    with endpoint:
        assert scrape(endpoint), "it starts again after a stop"
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(TaskQueueError, match="pip install prometheus-client"):
        MetricsEndpoint(workers[0], port=0).start()


@pytest.mark.usefixtures("queue")
def test_the_endpoint_listens_on_the_loopback_interface_unless_told_otherwise(
    make_worker: MakeWorker, serve: Serve
) -> None:
    worker = make_worker(decide)
    assert serve(worker).url.startswith("http://127.0.0.1:")
    assert serve(worker, host="0.0.0.0").url.startswith("http://0.0.0.0:")  # noqa: S104
    endpoint = serve(worker)
    endpoint.stop()
    with pytest.raises(OSError, match="refused"):
        scrape(endpoint.url)


def test_a_worker_of_the_command_line_serves_its_metrics_until_it_stops(
    dsn: str, queue: TaskQueue, repository: Path
) -> None:
    queue.push("work", ["a", "b"])
    command = [sys.executable, "-m", "airflow_provider_taskq.cli", "worker", "tests.cli.handlers:succeed"]
    command += ["--topic", "work", "--metrics-port", "0"]
    environment = {**os.environ, "TASKQ_DSN": dsn, "PYTHONPATH": str(repository)}
    worker = subprocess.Popen(command, env=environment, cwd=repository, stderr=subprocess.PIPE, text=True)
    try:
        assert worker.stderr is not None
        started = re.compile(r"metrics endpoint started: url=(\S+)")
        url = next(found[1] for line in iter(worker.stderr.readline, "") if (found := started.search(line)))
        until(lambda: of_worker(scrape(url), "taskq_worker_completed_total", result="SUCCESS") == 2, 60)
        assert value(scrape(url), "process_resident_memory_bytes")
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(60) == 0
    finally:
        worker.kill()
        worker.communicate()
    with pytest.raises(OSError, match="refused"):
        scrape(url)
