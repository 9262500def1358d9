"""The documents name tests, make targets and metrics that exist."""

import ast
import re
from pathlib import Path

import pytest


@pytest.mark.parametrize(
    ("document", "least"), [("guarantees.md", 50), ("features.md", 50), ("spark.md", 20), ("operations.md", 8)]
)
def test_every_test_that_a_document_names_exists(repository: Path, document: str, least: int) -> None:
    named = set(re.findall(r"`(test_\w+)`", (repository / "docs" / document).read_text(encoding="utf-8")))
    defined = {
        node.name
        for file in (repository / "tests").rglob("test_*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert named - defined == set()
    assert len(named) > least


def test_every_make_target_that_the_readme_names_exists(repository: Path) -> None:
    named = set(re.findall(r"\bmake ([a-z]+)", (repository / "README.md").read_text(encoding="utf-8")))
    targets = set(re.findall(r"^([a-z-]+):", (repository / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert {"demo", "test", "bench"} <= named
    assert named - targets == set()


def test_the_page_for_operators_lists_every_metric_and_no_other(repository: Path) -> None:
    listed = set(re.findall(r"`(taskq\.[a-z_]+)`", _section(repository / "docs" / "operations.md", "## Metrics")))
    source = (repository / "airflow_provider_taskq" / "metrics.py").read_text(encoding="utf-8")
    assert listed == set(re.findall(r'^[A-Z_]+ = "(taskq\.[a-z_]+)"', source, re.MULTILINE))


def _section(document: Path, heading: str) -> str:
    """The text below a heading, up to the next heading of its level."""
    return document.read_text(encoding="utf-8").partition(f"{heading}\n")[2].partition("\n## ")[0]
