"""What the wheels and source distributions contain, and what they must not contain."""

import ast
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.packaging.conftest import CORE, FULL, Distribution

pytestmark = [
    pytest.mark.slow,
    pytest.mark.promise("The distributions contain what they need, and declare what they import"),
]  # builds both distributions

PACKAGE = "airflow_provider_taskq"
OF_CORE = ("__init__.py", "py.typed", "cli/", "consumer/", "queue/", "worker/")
# The modules that the core may import; those of an extra where it is used.
REQUIREMENTS = {"click", "croniter", "pendulum", "prometheus_client", "psycopg", "rich"}


def tracked(repository: Path, *folders: str) -> set[str]:
    """The files that git tracks."""
    command = ["git", "ls-files", "-z", *folders]
    listed = subprocess.run(command, cwd=repository, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip(f"not a checkout of git: {listed.stderr.strip()}")
    return {name for name in listed.stdout.split("\0") if name}


def in_core(name: str) -> bool:
    """Whether a file of the package belongs to the core."""
    inside = name.removeprefix(f"{PACKAGE}/")
    return inside.startswith(OF_CORE) and inside != "cli/airflow.py"


def test_a_wheel_has_the_tracked_files_of_its_package_and_no_other(
    built: dict[str, Distribution], repository: Path
) -> None:
    assert built[CORE].wheel_files() == {name for name in tracked(repository, PACKAGE) if in_core(name)}
    files = built[FULL].wheel_files()
    assert files == tracked(repository, PACKAGE)
    assert {f"{PACKAGE}/py.typed", f"{PACKAGE}/plugins/www/taskq.js", f"{PACKAGE}/plugins/www/icon.svg"} <= files
    assert any(re.fullmatch(rf"{PACKAGE}/queue/sql/migrations/\d{{4}}_\w+\.sql", name) for name in files)


@pytest.mark.parametrize("name", [FULL, CORE])
def test_the_source_distribution_has_tracked_files_only(
    name: str, built: dict[str, Distribution], repository: Path
) -> None:
    root = "" if name == FULL else "tools/core/"
    known = tracked(repository) | {"PKG-INFO"}
    assert {f for f in built[name].sdist_files() if f not in known and root + f not in known} == set()


@pytest.mark.parametrize("name", [FULL, CORE])
def test_the_tree_and_the_source_distribution_build_the_same_wheel(
    name: str, built: dict[str, Distribution], repository: Path, tmp_path: Path
) -> None:
    """`built` has the wheel of the source distribution."""
    source = repository if name == FULL else repository / "tools/core"
    command = [sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", str(tmp_path), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert (tmp_path / built[name].wheel.name).read_bytes() == built[name].wheel.read_bytes()


def imports(source: str) -> Iterator[str]:
    """The modules that a source imports, also in functions, and for names of our package the module or name."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            if node.module == PACKAGE:
                yield from (f"{PACKAGE}.{alias.name}" for alias in node.names if not alias.name.startswith("__"))


def test_the_core_imports_its_own_modules_and_its_requirements_only(built: dict[str, Distribution]) -> None:
    files = built[CORE].wheel_files()
    allowed = REQUIREMENTS | set(sys.stdlib_module_names)
    with zipfile.ZipFile(built[CORE].wheel) as archive:
        sources = {file: archive.read(file).decode() for file in files if file.endswith(".py")}
    named = {(file, name) for file, source in sources.items() for name in imports(source)}
    ours = {(file, name) for file, name in named if name.partition(".")[0] == PACKAGE}
    modules = {name.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for name in files}
    assert {(file, name) for file, name in ours if name not in modules} == set()
    assert {(file, name) for file, name in named - ours if name.partition(".")[0] not in allowed} == set()
