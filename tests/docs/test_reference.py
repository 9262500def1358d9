"""The reference of the site, which is made of the sources, is complete."""

import importlib.util
import re
import sys
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from airflow_provider_taskq.cli.program import VERBS
from airflow_provider_taskq.get_provider_info import get_provider_info
from airflow_provider_taskq.queue import errors
from airflow_provider_taskq.queue.metrics import METRICS

pytestmark = pytest.mark.promise("A program in any language calls the same functions")

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def parts() -> dict[str, Callable[[], str]]:
    """The functions that make the parts of the reference, by the names that pages use."""
    spec = importlib.util.spec_from_file_location("docs_reference", ROOT / "tools" / "docs_reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look their annotations up
    spec.loader.exec_module(module)
    return dict(module.PARTS)


def test_every_sql_function_and_view_is_in_the_reference(
    parts: dict[str, Callable[[], str]], conn: psycopg.Connection
) -> None:
    schema = "'taskq'::regnamespace"
    functions = conn.execute(f"SELECT DISTINCT proname FROM pg_proc WHERE pronamespace = {schema}").fetchall()
    views = conn.execute(f"SELECT relname FROM pg_class WHERE relkind = 'v' AND relnamespace = {schema}").fetchall()
    text = parts["sql-functions"]()
    assert set(re.findall(r"^### (\w+)$", text, re.MULTILINE)) == {name for (name,) in functions}
    assert {name for (name,) in views} <= set(re.findall(r"^\| `(\w+)`", parts["sql-views"](), re.MULTILINE))


def test_every_command_metric_error_and_option_is_in_the_reference(parts: dict[str, Callable[[], str]]) -> None:
    commands, options = parts["command-line"](), parts["configuration"]() + parts["connection"]()
    assert [verb for verb in VERBS if f"#### taskq {verb} {{" not in commands] == []
    named = {name for metric in METRICS for name in (metric.airflow, metric.prometheus) if name}
    shown = parts["metrics"]() + "\n" + parts["worker-metrics"]()
    assert set(re.findall(r"^\| `(taskq[._][a-z_]+)`", shown, re.MULTILINE)) == named
    assert {kind.__name__ for kind in errors.SQLSTATES.values()} <= set(
        re.findall(r"^## (\w+)$", parts["errors"](), re.MULTILINE)
    )
    info = get_provider_info()
    fields = info["connection-types"][0]["conn-fields"]
    assert [name for name in (*info["config"]["taskq"]["options"], *fields) if name not in options] == []
