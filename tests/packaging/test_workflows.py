"""The workflows of GitHub: valid, pinned, and made of make targets that exist."""

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

pytestmark = pytest.mark.promise("A release belongs to its tag, its changelog and its schema")


@pytest.fixture
def workflows(repository: Path) -> dict[str, str]:
    """The texts of the workflows by file name."""
    found = {path.name: path.read_text(encoding="utf-8") for path in repository.glob(".github/workflows/*.yml")}
    assert set(found) == {"ci.yml", "docs.yml", "release.yml"}
    return found


def jobs(text: str) -> dict[str, Any]:
    """The jobs of a workflow."""
    found: dict[str, Any] = yaml.safe_load(text)["jobs"]
    return found


@pytest.mark.parametrize(
    ("schema", "pattern"),
    [
        ("github-workflows", "workflows/*.yml"),
        ("github-issue-forms", "ISSUE_TEMPLATE/[!c]*.yml"),
        ("github-issue-config", "ISSUE_TEMPLATE/config.yml"),
        ("dependabot", "dependabot.yml"),
    ],
)
def test_every_file_is_valid_by_its_schema(schema: str, pattern: str, repository: Path) -> None:
    files = [str(path) for path in (repository / ".github").glob(pattern)]
    assert files
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}", *files]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_workflows_have_no_known_weakness(repository: Path) -> None:
    program = shutil.which("zizmor", path=str(Path(sys.executable).parent))
    assert program is not None, "run `make setup`: .venv has no zizmor"
    command = [program, "--offline", "--no-progress", "--quiet", "--min-severity", "medium", ".github"]
    done = subprocess.run(command, cwd=repository, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_action_is_pinned_to_a_commit_with_its_version(workflows: dict[str, str]) -> None:
    used = {line.strip() for text in workflows.values() for line in re.findall(r"uses: (.+)", text)}
    pinned = re.compile(r"[\w.-]+/[\w.-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+|\./\.github/workflows/ci\.yml")
    assert {action for action in used if not pinned.fullmatch(action)} == set()
    versions = {action.partition("@")[0] for action in used}
    assert len(versions) == len(used), "an action has two versions"


def test_no_job_has_more_permissions_than_it_names(workflows: dict[str, str]) -> None:
    for name, text in workflows.items():
        assert yaml.safe_load(text)["permissions"] == {}, name
        assert all("permissions" in job for job in jobs(text).values()), name
    writing = {
        (name, job, permission)
        for name, text in workflows.items()
        for job, settings in jobs(text).items()
        for permission, level in settings["permissions"].items()
        if level == "write"
    }
    assert writing == {
        ("docs.yml", "publish", "pages"),
        ("docs.yml", "publish", "id-token"),
        ("release.yml", "publish", "id-token"),
        ("release.yml", "announce", "contents"),
    }
    assert not any("secrets." in text for text in workflows.values())
    release = jobs(workflows["release.yml"])
    assert release["test"]["uses"] == "./.github/workflows/ci.yml"
    assert set(release["publish"]["needs"]) == {"test", "build"}
    assert release["publish"]["environment"] == "pypi"


def test_every_job_runs_make_targets_that_exist(workflows: dict[str, str], repository: Path) -> None:
    named = {target for text in workflows.values() for target in re.findall(r"run: make ([a-z-]+)", text)}
    defined = set(re.findall(r"^([a-z-]+):", (repository / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    tests = {"test", "test-fast", "test-faults", "test-docs", "test-matrix", "chaos", "fuzz"}
    assert {*tests, "constraints", "docs", "dist"} == named
    assert named - defined == set()


def test_ci_runs_on_each_supported_release(workflows: dict[str, str], repository: Path) -> None:
    project = tomllib.loads((repository / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    pythons = {found[1] for each in project["classifiers"] if (found := re.search(r":: (3\.\d+)$", each))}
    rows = jobs(workflows["ci.yml"])["releases"]["strategy"]["matrix"]["include"]
    assert {row["python"] for row in rows} == pythons
    assert [int(row["postgresql"]) for row in rows] == list(range(14, 19))
    pinned = {path.stem for path in (repository / "tools" / "pins").glob("*-?.?.txt")}
    assert {row["leg"] for row in rows} == {*pinned, "airflow", "wheel"}
