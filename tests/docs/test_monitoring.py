"""The dashboard and the alert rules name metrics that exist, with labels that these have."""

import json
import re
from collections import defaultdict
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from airflow_provider_taskq import metrics
from airflow_provider_taskq.worker.metrics_endpoint import METRICS

pytestmark = pytest.mark.promise("A worker reports its health, and serves its metrics to Prometheus")

Labels = dict[str, set[str]]

PRODUCTION = Path(__file__).parents[2] / "docs" / "production"
DASHBOARD = PRODUCTION / "grafana-dashboard.json"
ALERTS = PRODUCTION / "alerts.yml"

SENT = {
    **dict.fromkeys((metrics.PUSHED, metrics.POLLED, metrics.REDELIVERED, metrics.RETRIED), "counter"),
    **dict.fromkeys((metrics.COMPLETED, metrics.EXPIRED, metrics.REVIVED, metrics.PURGED), "counter"),
    metrics.LEASE_LOST: "counter",
    **dict.fromkeys((metrics.GATE_WAIT, metrics.POLL_TIME, metrics.RUN_TIME), "timing"),
    **dict.fromkeys((metrics.DEPTH, metrics.ACTIVE, metrics.OLDEST_READY), "gauge"),
    **dict.fromkeys((metrics.HEALTH, metrics.DEAD_TUPLES), "gauge"),
}
ADDED_BY_PROMETHEUS = {"instance", "job"}
UNITS = {"": "", "ms": "_milliseconds"}


class StatsdClient:
    """A client of StatsD that keeps its lines instead of sending them."""

    lines: list[str]

    def __init__(self, host: str, port: int, prefix: str, ipv6: bool) -> None:  # noqa: ARG002  as Airflow calls it
        self.prefix, self.lines = prefix, []

    def incr(self, stat: str, count: int, rate: float) -> None:  # noqa: ARG002
        self.lines.append(f"{self.prefix}.{stat}:{count}|c")

    def gauge(self, stat: str, value: float, rate: float, delta: bool) -> None:  # noqa: ARG002
        self.lines.append(f"{self.prefix}.{stat}:{value}|g")

    def timing(self, stat: str, delta: Any) -> None:
        self.lines.append(f"{self.prefix}.{stat}:{delta}|ms")


def send_all(backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sends each metric of the provider through a backend of Airflow."""
    monkeypatch.setattr(metrics, "_client", lambda **_: backend)
    for name, kind in SENT.items():
        if kind == "counter":
            metrics.count(name, 1, topic="orders", result="SUCCESS" if name == metrics.COMPLETED else None)
        elif kind == "timing":
            metrics.timing(name, timedelta(seconds=1), topic="orders")
        elif name == metrics.HEALTH:
            metrics.gauge(name, 0, subject="dead_rows")
        elif name == metrics.DEAD_TUPLES:
            metrics.gauge(name, 0)
        else:
            metrics.gauge(name, 1, topic="orders", **({"state": "ready"} if name == metrics.DEPTH else {}))


@pytest.fixture
def from_statsd(monkeypatch: pytest.MonkeyPatch) -> Labels:
    """The names in Prometheus of what Airflow sends to a statsd_exporter, with their labels.

    The exporter replaces what a name may not have by an underscore, and shows a timer as a summary.
    """
    statsd = pytest.importorskip("airflow.sdk._shared.observability.metrics.statsd_logger")
    backend = statsd.get_statsd_logger(
        stats_class=StatsdClient, prefix="airflow", influxdb_tags_enabled=True, statsd_influxdb_enabled=True
    )
    send_all(backend, monkeypatch)
    found: Labels = defaultdict(set)
    for line in backend.statsd.lines:
        name, *tags = line.partition(":")[0].split(",")
        kind = line.rpartition("|")[2]
        labels = {tag.partition("=")[0] for tag in tags}
        found[re.sub(r"\W", "_", name)] |= {*labels, "quantile"} if kind == "ms" else labels
    return found


@pytest.fixture
def from_otel(monkeypatch: pytest.MonkeyPatch) -> Labels:
    """The names in Prometheus of what Airflow sends by OpenTelemetry, with their labels.

    A collector replaces dots, and adds the unit and, to a counter, `_total`.
    """
    otel = pytest.importorskip("airflow.sdk._shared.observability.metrics.otel_logger")
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader, Sum

    reader = InMemoryMetricReader()
    provider = MeterProvider(metric_readers=[reader], shutdown_on_exit=False)
    send_all(otel.SafeOtelLogger(provider), monkeypatch)
    data = reader.get_metrics_data()
    assert data is not None
    found: Labels = defaultdict(set)
    for resource in data.resource_metrics:
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                suffix = "_total" if isinstance(metric.data, Sum) else ""
                name = re.sub(r"\W", "_", metric.name) + UNITS[metric.unit or ""] + suffix
                found[name] |= {label for point in metric.data.data_points for label in point.attributes or {}}
    provider.shutdown()
    return found


def from_workers() -> Labels:
    """The names that the endpoint of plain workers serves, with their labels."""
    found: Labels = {}
    for name, (kind, labels, _) in METRICS.items():
        if kind == "histogram":
            found |= {f"{name}_bucket": {*labels, "le"}, f"{name}_count": set(labels), f"{name}_sum": set(labels)}
        else:
            found[name] = set(labels)
    return found


def expressions() -> Iterator[tuple[str, str]]:
    """Each query of the dashboard and each rule: where it is, and its expression."""
    for panel in json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]:
        for target in panel.get("targets", ()):
            yield f"{panel['title']} {target['refId']}", target["expr"]
    for group in yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"]:
        for rule in group["rules"]:
            yield rule["alert"], rule["expr"]


def selectors(expression: str) -> Iterator[tuple[str, set[str]]]:
    """The pattern of the names that each selector of an expression matches, and the labels that it tests."""
    rest = expression
    for found in re.finditer(r"(\w*)\{([^}]*)\}", expression):
        labels = dict(re.findall(r'(\w+)=~?"([^"]*)"', found[2]))
        yield labels.pop("__name__", "") or re.escape(found[1]), set(labels)
        rest = rest.replace(found[0], "")
    for name in re.findall(r"\b(?:airflow_)?taskq_\w+", rest):
        yield re.escape(name), set()


def labels_of(pattern: str, *known: Labels) -> list[set[str]]:
    """The labels of each known metric whose name a pattern matches."""
    return [labels for each in known for name, labels in each.items() if re.fullmatch(pattern, name)]


def test_both_receivers_of_airflow_get_every_metric_with_its_tags(from_statsd: Labels, from_otel: Labels) -> None:
    constants = {value for value in vars(metrics).values() if isinstance(value, str) and value.startswith("taskq.")}
    assert set(SENT) == constants
    assert set(from_statsd) == {f"airflow_{name.replace('.', '_')}" for name in constants}
    assert len(from_otel) == len(constants)
    assert from_otel["airflow_taskq_completed_total"] == from_statsd["airflow_taskq_completed"] == {"topic", "result"}
    assert from_otel["airflow_taskq_depth"] == from_statsd["airflow_taskq_depth"] == {"topic", "state"}
    assert "airflow_taskq_gate_wait_ms_milliseconds" in from_otel


@pytest.mark.parametrize(("place", "expression"), list(expressions()))
def test_an_expression_names_metrics_that_are_sent_with_labels_that_they_have(
    place: str, expression: str, from_statsd: Labels, from_otel: Labels
) -> None:
    matched = []
    for pattern, labels in selectors(expression):
        found = labels_of(pattern, from_statsd, from_otel, from_workers())
        assert found, f"{place}: no metric is named {pattern}"
        for alternative in pattern.split("|"):
            assert labels_of(alternative, from_statsd, from_otel, from_workers()), f"{place}: {alternative}"
        assert all(labels <= known for known in found), f"{place}: {pattern} has not all of {labels}"
        matched += found
    assert matched, f"{place} names no metric"
    grouped = {label for found in re.findall(r"\b(?:by|on) \(([^)]*)\)", expression) for label in found.split(", ")}
    assert grouped <= set.union(*matched) | ADDED_BY_PROMETHEUS, place
