"""The documents name tests, make targets and metrics that exist."""

import ast
import re
from pathlib import Path

import pytest

from tests.queue.interleavings.runner import read_specs


@pytest.fixture(scope="module")
def defined_tests(repository: Path) -> set[str]:
    """The names of all tests, and of the permutations of the specifications."""
    return {permutation.test for permutation in read_specs().values()} | {
        node.name
        for file in (repository / "tests").rglob("test_*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def test_every_test_that_a_document_names_exists(repository: Path, defined_tests: set[str]) -> None:
    for page in [*repository.glob("*.md"), *(repository / "docs").rglob("*.md")]:
        named = set(re.findall(r"`(test_\w+)`", page.read_text(encoding="utf-8")))
        assert named - defined_tests == set(), page.name


def test_every_document_that_a_source_names_exists(repository: Path) -> None:
    folders = ("airflow_provider_taskq", "bench", "demo", "example_dags", "tests", "tools")
    for folder in folders:
        for source in (
            path for path in (repository / folder).rglob("*") if path.suffix in {".py", ".sql", ".js", ".txt"}
        ):
            named = re.findall(r"\bdocs/[\w/-]+\.md\b", source.read_text(encoding="utf-8"))
            assert [page for page in named if not (repository / page).is_file()] == [], source


def test_the_readme_names_the_demonstration_the_tests_and_the_site_and_every_make_target_that_a_page_names_exists(
    repository: Path,
) -> None:
    def named(page: str) -> set[str]:
        return set(re.findall(r"(?:^|`)make ([a-z-]+)", (repository / page).read_text(encoding="utf-8"), re.MULTILINE))

    targets = set(re.findall(r"^([a-z-]+):", (repository / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert named("README.md") == {"demo", "docs", "test"}
    assert {"demo", "test", "bench"} <= named("CONTRIBUTING.md") <= targets
