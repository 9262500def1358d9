"""The dashboard and the alert rules name metrics that exist, with labels that these have."""

import json
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from airflow_provider_taskq import metrics
from airflow_provider_taskq.queue.metrics import METRICS, Metric

pytestmark = pytest.mark.promise("A worker reports its health, and serves its metrics to Prometheus")

Labels = dict[str, set[str]]

PRODUCTION = Path(__file__).parents[2] / "docs" / "production"
DASHBOARD = PRODUCTION / "grafana-dashboard.json"
ALERTS = PRODUCTION / "alerts.yml"

EXAMPLES = {"topic": "orders", "result": "SUCCESS", "state": "ready", "subject": "dead_rows"}
ADDED_BY_PROMETHEUS = {"instance", "job"}
UNITS = {"": "", "ms": "_milliseconds"}


def tags_of(metric: Metric) -> dict[str, str]:
    """Values of the labels that Airflow sends."""
    return {label: EXAMPLES[label] for label in metric.labels if label in EXAMPLES}


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
    monkeypatch.setattr(metrics, "_client", lambda **_: otel.SafeOtelLogger(provider))
    for sent in METRICS:
        metrics.record(sent, 1, **tags_of(sent))
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


def from_statsd() -> Labels:
    """The same from a statsd_exporter, which shows a timer as a summary. tests/airflow/test_metrics.py sends to one."""
    summary = {"counter": set[str](), "gauge": set[str](), "histogram": {"quantile"}}
    sent = [metric for metric in METRICS if metric.airflow]
    return {f"airflow_{each.airflow.replace('.', '_')}": {*tags_of(each), *summary[each.kind]} for each in sent}


def from_workers() -> Labels:
    """The names that the endpoint of plain workers serves, with their labels."""
    found: Labels = {}
    for kind, _, name, labels, _ in METRICS:
        if kind == "histogram" and name:
            found |= {f"{name}_bucket": {*labels, "le"}, f"{name}_count": set(labels), f"{name}_sum": set(labels)}
        elif name:
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


@pytest.mark.parametrize(("place", "expression"), list(expressions()))
def test_an_expression_names_metrics_that_are_sent_with_labels_that_they_have(
    place: str, expression: str, from_otel: Labels
) -> None:
    matched = []
    for pattern, labels in selectors(expression):
        found = labels_of(pattern, from_otel, from_statsd(), from_workers())
        assert found, f"{place}: no metric is named {pattern}"
        for alternative in pattern.split("|"):
            assert labels_of(alternative, from_otel, from_statsd(), from_workers()), f"{place}: {alternative}"
        assert all(labels <= known for known in found), f"{place}: {pattern} has not all of {labels}"
        matched += found
    assert matched, f"{place} names no metric"
    grouped = {label for found in re.findall(r"\b(?:by|on) \(([^)]*)\)", expression) for label in found.split(", ")}
    assert grouped <= set.union(*matched) | ADDED_BY_PROMETHEUS, place
