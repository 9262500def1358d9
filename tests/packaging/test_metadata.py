"""One version, one address and one set of requirements, in the metadata, the documents and the program."""

import re
import subprocess
import sys
import tomllib
from email import message_from_string
from email.message import Message
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_taskq import __version__
from airflow_provider_taskq.get_provider_info import get_provider_info
from tests.packaging.conftest import CORE, FULL, Distribution

pytestmark = pytest.mark.promise("The distributions contain what they need, and declare what they import")


def project(repository: Path, folder: str = "") -> dict[str, Any]:
    """The table `project` of pyproject.toml, of the root or of a folder."""
    text = (repository / folder / "pyproject.toml").read_text(encoding="utf-8")
    found: dict[str, Any] = tomllib.loads(text)["project"]
    return found


def texts(repository: Path) -> dict[str, str]:
    """The tracked texts that may name a version or an address, by path."""
    command = ["git", "ls-files", "-z", "*.md", "*.toml", "*.yml", "*.py", "*.html", "*.js"]
    listed = subprocess.run(command, cwd=repository, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip(f"not a checkout of git: {listed.stderr.strip()}")
    names = [name for name in listed.stdout.split("\0") if name]
    return {name: (repository / name).read_text(encoding="utf-8") for name in names if (repository / name).is_file()}


def test_airflow_knows_the_provider_by_the_name_of_the_distribution(repository: Path) -> None:
    name = get_provider_info()["package-name"]
    assert name == project(repository)["name"] == FULL
    assert version(name) == __version__, "run `make setup`: .venv has another version"


def test_documents_name_only_versions_that_the_changelog_has(repository: Path) -> None:
    changelog = (repository / "CHANGELOG.md").read_text(encoding="utf-8")
    released = re.findall(r"^## \[(\d[^\]]*)\]", changelog, re.MULTILINE)
    assert __version__ == released[0], "the newest section of CHANGELOG.md is that of __version__"
    named = re.compile(r"airflow-provider-taskq(?:-core)?(?:\[[a-z,]+\])?(?:==| )v?(\d+\.\d+\.\d+)")
    documents = {path: text for path, text in texts(repository).items() if not path.startswith("tests/")}
    found = {(path, one) for path, text in documents.items() for one in named.findall(text)}
    options = get_provider_info()["config"]["taskq"]["options"]
    found |= {(name, option["version_added"]) for name, option in options.items()}
    assert {(path, one) for path, one in found if one not in released} == set()


def test_every_address_of_the_project_is_that_of_pyproject(repository: Path) -> None:
    urls = project(repository)["urls"]
    assert urls == project(repository, "tools/core")["urls"]
    assert all(url == urls["Source"] or url.startswith(urls["Source"] + "/") for url in urls.values())
    address = re.compile(r"https://github\.com/[\w.-]+/airflow-provider-taskq\b(?!-)")
    for path, text in texts(repository).items():
        assert set(address.findall(text)) <= {urls["Source"]}, path


@pytest.mark.slow
class TestBuilt:
    """The metadata in the built wheels."""

    def metadata(self, distribution: Distribution) -> Message:
        return message_from_string(distribution.wheel_info()["METADATA"])

    @pytest.mark.parametrize("name", [FULL, CORE])
    def test_is_of_this_version_and_has_the_address_and_the_license(
        self, name: str, built: dict[str, Distribution], repository: Path
    ) -> None:
        found = self.metadata(built[name])
        assert (found["Name"], found["Version"], found["License-Expression"]) == (name, __version__, "Apache-2.0")
        assert dict(url.split(", ", 1) for url in found.get_all("Project-URL", [])) == project(repository)["urls"]
        assert "licenses/LICENSE" in built[name].wheel_info()

    def test_has_the_entry_points_that_airflow_reads_in_the_full_distribution_only(
        self, built: dict[str, Distribution]
    ) -> None:
        full, core = (built[name].wheel_info()["entry_points.txt"] for name in (FULL, CORE))
        assert "[apache_airflow_provider]" in full
        assert "[airflow.plugins]" in full
        assert core.split() == ["[console_scripts]", "taskq", "=", "airflow_provider_taskq.cli.__main__:main"]

    @pytest.mark.parametrize("name", [FULL, CORE])
    def test_passes_the_checks_of_the_package_index(self, name: str, built: dict[str, Distribution]) -> None:
        files = [str(built[name].wheel), str(built[name].sdist)]
        command = [sys.executable, "-m", "twine", "check", "--strict", *files]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    @pytest.mark.parametrize("name", [FULL, CORE])
    def test_shows_a_readme_without_a_relative_link(
        self, name: str, built: dict[str, Distribution], repository: Path
    ) -> None:
        from readme_renderer.markdown import render

        html = render(str(self.metadata(built[name]).get_payload())) or ""
        links = re.findall(r'\b(?:href|src|srcset)="([^"]*)"', html)
        # The renderer adds a link to each heading.
        assert {link for link in links if not link.startswith(("https://", "#user-content-"))} == set()
        source = re.escape(project(repository)["urls"]["Source"])
        files = re.findall(rf'"{source}/(?:blob|raw)/v{re.escape(__version__)}/([^"#]+)', html)
        assert {file for file in files if not (repository / file).exists()} == set()
        assert name == CORE or len(files) > 3
