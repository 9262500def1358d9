"""`.ci/dist.py --release` refuses a tag, a changelog or an address that does not belong to the release."""

import importlib.util
import shutil
from collections.abc import Callable
from pathlib import Path

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
def check(tree: Path) -> tuple[Check, type[Exception]]:
    """The check of the script in that repository, and its error."""
    spec = importlib.util.spec_from_file_location("dist_of_test", tree / ".ci" / "dist.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.check_release, module.DistError


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
