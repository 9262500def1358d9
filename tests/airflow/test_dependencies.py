"""The declared dependencies: every provider that is imported, and what Airflow does not bring in each release."""

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions, requires
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.promise("The distributions contain what they need, and declare what they import")

# Imported distributions that are not declared, each with the distribution that requires it.
BROUGHT_BY = {
    "apache-airflow-core": "apache-airflow",
    "apache-airflow-task-sdk": "apache-airflow",
    "croniter": "apache-airflow-core",
    "fastapi": "apache-airflow-core",
    "jinja2": "apache-airflow-core",
    "pydantic": "apache-airflow-core",
    "rich": "apache-airflow-core",
    "sqlalchemy": "apache-airflow-core",
    "starlette": "apache-airflow-core",
    "uvicorn": "apache-airflow-core",
    "click": "uvicorn",
}
# Distributions of extras, imported where they are used.
OF_EXTRAS = {"prometheus-client"}
# Subpackages whose imports are declared by an extra of the same name.
EXTRAS = {"spark", "demo"}


def normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def named(requirement: str) -> str:
    found = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert found is not None
    return normalized(found[0])


def required_by(distribution: str) -> set[str]:
    """Return the requirements of a distribution on every system, without extras."""
    return {named(each) for each in requires(distribution) or [] if "extra ==" not in each}


def imported(package: Path) -> set[str]:
    """Return the top-level modules that the package imports, also in functions; for Airflow, its distributions."""
    found: set[str] = set()
    for path in package.rglob("*.py"):
        if path.relative_to(package).parts[0] in EXTRAS:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                found.add(node.module)
    return {name for name in found if name.partition(".")[0] not in {*sys.stdlib_module_names, package.name}}


def project(repository: Path) -> dict[str, Any]:
    """Return the table `project` of pyproject.toml."""
    found: dict[str, Any] = tomllib.loads((repository / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return found


def test_every_other_import_is_of_a_distribution_that_airflow_requires(repository: Path) -> None:
    modules = imported(repository / "airflow_provider_taskq")
    declared = {named(each) for each in project(repository)["dependencies"]}
    assert len(declared) == 6
    homes = packages_distributions()
    undeclared = {
        normalized(home)
        for module in modules
        if (top := module.partition(".")[0]) != "airflow"
        for home in homes.get(top, [top])
    } - declared
    extras = project(repository)["optional-dependencies"].values()
    assert {named(each) for extra in extras for each in extra} >= OF_EXTRAS
    assert undeclared - {"psycopg-binary"} <= {*BROUGHT_BY, *OF_EXTRAS}
    assert {"click", "croniter", "fastapi", "pydantic", "rich", "starlette"} <= undeclared


def test_the_declared_providers_are_those_that_are_imported(repository: Path) -> None:
    provider = re.compile(r"airflow\.providers\.((?:apache\.|common\.)?\w+)")
    matches = map(provider.match, imported(repository / "airflow_provider_taskq"))
    found = project(repository)
    declared = {named(each) for each in found["dependencies"]} | {
        named(each) for extra in found["optional-dependencies"].values() for each in extra
    }
    assert {normalized(f"apache-airflow-providers-{match[1]}") for match in matches if match} == {
        each for each in declared if each.startswith("apache-airflow-providers-")
    }


@pytest.mark.parametrize(("distribution", "by"), BROUGHT_BY.items())
def test_the_named_distribution_requires_the_undeclared_import(distribution: str, by: str) -> None:
    assert distribution in required_by(by)


def test_pyspark_and_pyspark_client_have_one_exact_version(repository: Path) -> None:
    """Version ranges would let the two differ. `make test-matrix` resolves the extra on the index."""
    extra = project(repository)["optional-dependencies"]["spark"]
    pinned = {named(each): each.partition("==")[2] for each in extra if named(each).startswith("pyspark")}
    assert set(pinned) == {"pyspark", "pyspark-client"}
    assert len(set(pinned.values())) == 1
    assert all(re.fullmatch(r"\d+\.\d+\.\d+", version) for version in pinned.values())
