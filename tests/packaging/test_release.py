"""`.ci/dist.py --release` refuses a tag, a changelog or an address that does not belong to the release."""

import importlib.util
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

HOME = "https://github.com/home/queue"
CHANGELOG = (
    "# Changelog\n\n## [Unreleased]\n\n## [1.2.3] - 2026-11-22\n\n- News.\n\n## [1.2.2] - 2026-10-01\n\n- Older.\n"
)
Check = Callable[[str, str | None], None]


@pytest.fixture
def tree(repository: Path, tmp_path: Path) -> Path:
    """A small repository at version 1.2.3, with the script."""
    for folder in ("airflow_provider_taskq", ".ci/core"):
        (tmp_path / folder).mkdir(parents=True)
    shutil.copy(repository / ".ci" / "dist.py", tmp_path / ".ci")
    (tmp_path / "airflow_provider_taskq" / "__init__.py").write_text('__version__ = "1.2.3"\n')
    (tmp_path / "CHANGELOG.md").write_text(CHANGELOG)
    for folder in ("", ".ci/core"):
        (tmp_path / folder / "pyproject.toml").write_text(f'[project.urls]\nSource = "{HOME}"\n')
    return tmp_path


@pytest.fixture
def script(tree: Path) -> ModuleType:
    """The script in that repository."""
    spec = importlib.util.spec_from_file_location("dist_of_test", tree / ".ci" / "dist.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def check(script: ModuleType) -> tuple[Check, type[Exception]]:
    """The check of that script, and its error."""
    return script.check_release, script.DistError


def commit(tree: Path, number: int, function: str, tag: str) -> None:
    """Commits the number of the functions and the text of one, under a tag."""
    queue = tree / "airflow_provider_taskq" / "queue"
    (queue / "sql" / "api").mkdir(parents=True, exist_ok=True)
    (queue / "schema.py").write_text(f"RELEASE = {number}  # of functions\n")
    (queue / "sql" / "api" / "push.sql").write_text(function)
    author = ("-c", "user.name=me", "-c", "user.email=me@example.org")
    for arguments in (
        ("init", "-q"),
        ("add", "."),
        (*author, "commit", "--allow-empty", "-qm", tag),
        (*author, "tag", "-am", tag, tag),
    ):
        command = ["git", *arguments]
        subprocess.run(command, cwd=tree, check=True)


def test_a_release_with_its_tag_its_date_and_its_address_is_accepted(check: tuple[Check, type[Exception]]) -> None:
    accept, _ = check
    accept("v1.2.3", HOME)
    accept("v1.2.3", None)


@pytest.mark.parametrize("tag", ["v1.2.2", "1.2.3", "v1.2.3rc1"])
def test_a_tag_of_another_version_is_refused(tag: str, check: tuple[Check, type[Exception]]) -> None:
    accept, error = check
    with pytest.raises(error, match=r"is not v1\.2\.3"):
        accept(tag, None)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("[1.2.3] - 2026-11-22", "[1.2.3] - unreleased"), "needs a date and an entry"),
        (("- News.", ""), "needs a date and an entry"),
        (("## [1.2.3] - 2026-11-22", "## News"), r"no section '## \[1\.2\.3\]"),
    ],
)
def test_a_changelog_without_the_date_or_the_entries_of_the_release_is_refused(
    change: tuple[str, str], message: str, tree: Path, check: tuple[Check, type[Exception]]
) -> None:
    (tree / "CHANGELOG.md").write_text(CHANGELOG.replace(*change))
    accept, error = check
    with pytest.raises(error, match=message):
        accept("v1.2.3", None)


def test_a_repository_that_is_not_the_one_of_the_metadata_is_refused(check: tuple[Check, type[Exception]]) -> None:
    accept, error = check
    with pytest.raises(error, match=r"correct \[project\.urls\]"):
        accept("v1.2.3", "https://github.com/another/queue")


def test_functions_that_have_changed_since_the_last_release_need_a_greater_number(
    tree: Path, script: ModuleType
) -> None:
    script.check_functions("v1.2.3")
    commit(tree, 1, "SELECT 1", "v1.2.2")
    commit(tree, 1, "SELECT 2", "v1.2.3")
    with pytest.raises(script.DistError, match=r"changed since v1\.2\.2: raise RELEASE"):
        script.check_functions("v1.2.3")
    commit(tree, 2, "SELECT 2", "v1.2.4")
    script.check_functions("v1.2.4")
    commit(tree, 2, "SELECT 2", "v1.2.5")
    script.check_functions("v1.2.5")
