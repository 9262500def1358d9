"""`tools/dist.py --release` refuses a tag, a changelog or an address that does not belong to the release."""

import re
import shutil
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

from tests.programs import load

pytestmark = pytest.mark.promise("A release belongs to its tag, its changelog and its schema")

HOME = "https://github.com/home/queue"
CHANGELOG = (
    "# Changelog\n\n## [Unreleased]\n\n## [1.2.3] - 2026-11-22\n\n- News.\n\n## [1.2.2] - 2026-10-01\n\n- Older.\n"
)


@pytest.fixture
def tree(repository: Path, tmp_path: Path) -> Path:
    """A small repository at version 1.2.3, with the script."""
    for folder in ("airflow_provider_taskq", "tools/core"):
        (tmp_path / folder).mkdir(parents=True)
    shutil.copy(repository / "tools" / "dist.py", tmp_path / "tools")
    (tmp_path / "airflow_provider_taskq" / "__init__.py").write_text('__version__ = "1.2.3"\n')
    (tmp_path / "CHANGELOG.md").write_text(CHANGELOG)
    for folder in ("", "tools/core"):
        (tmp_path / folder / "pyproject.toml").write_text(f'[project.urls]\nSource = "{HOME}"\n')
    return tmp_path


@pytest.fixture
def script(tree: Path) -> ModuleType:
    """The script in that repository."""
    return load(tree / "tools" / "dist.py")


@pytest.fixture
def queue(repository: Path, tree: Path) -> Path:
    """The package of the queue in that repository, which has the release v1.2.2. Its RELEASE is 1."""
    folder = tree / "airflow_provider_taskq" / "queue"
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(repository / "airflow_provider_taskq" / "queue", folder, ignore=ignored)
    change(folder / "schema.py", r"(?m)^RELEASE = \d+", "RELEASE = 1")
    release(tree, "v1.2.2")
    return folder


def change(file: Path, pattern: str, text: str) -> None:
    """Replaces the first match of a pattern in a file."""
    before = file.read_text()
    file.write_text(re.sub(pattern, text, before, count=1))


def release(tree: Path, tag: str) -> None:
    """Commits the tree under a tag."""
    author = ("-c", "user.name=me", "-c", "user.email=me@example.org")
    for arguments in (
        ("init", "-q"),
        ("add", "."),
        (*author, "commit", "--allow-empty", "-qm", tag),
        (*author, "tag", "-am", tag, tag),
    ):
        command = ["git", *arguments]
        subprocess.run(command, cwd=tree, check=True)


@pytest.mark.parametrize(
    ("change", "tag", "home", "message"),
    [
        (("", ""), "v1.2.2", HOME, r"is not v1\.2\.3"),
        (("", ""), "v1.2.3", "https://github.com/another/queue", r"correct \[project\.urls\]"),
        (("[1.2.3] - 2026-11-22", "[1.2.3] - unreleased"), "v1.2.3", HOME, "needs a date and an entry"),
        (("- News.", ""), "v1.2.3", HOME, "needs a date and an entry"),
        (("## [1.2.3] - 2026-11-22", "## News"), "v1.2.3", HOME, r"no section '## \[1\.2\.3\]"),
    ],
)
def test_a_tag_a_changelog_or_an_address_of_another_release_is_refused(
    change: tuple[str, str], tag: str, home: str, message: str, tree: Path, script: ModuleType
) -> None:
    script.check_release("v1.2.3", HOME)
    (tree / "CHANGELOG.md").write_text(CHANGELOG.replace(*change))
    with pytest.raises(script.DistError, match=message):
        script.check_release(tag, home)


@pytest.mark.slow
def test_statements_that_have_changed_since_the_last_release_need_a_greater_number(
    tree: Path, queue: Path, script: ModuleType
) -> None:
    script.check_schema("v1.2.3")
    change(queue / "schema.py", r'"NOT_STORED": 0', '"NOT_STORED": 99')
    release(tree, "v1.2.3")
    with pytest.raises(script.DistError, match=r"changed since v1\.2\.2: raise RELEASE"):
        script.check_schema("v1.2.3")
    change(queue / "schema.py", r"(?m)^RELEASE = 1", "RELEASE = 2")
    script.check_schema("v1.2.3")
    release(tree, "v1.2.4")
    script.check_schema("v1.2.5")


@pytest.mark.parametrize("renumbered", [False, True])
def test_a_migration_of_the_last_release_must_stay_as_it_is(renumbered: bool, queue: Path, script: ModuleType) -> None:
    migrations = queue / "sql" / "migrations"
    if renumbered:
        change(queue / "models.py", r"(?m)^    SUSPENDED = \d+", "    SUSPENDED = 99")
    else:
        change(migrations / "0004_stages.sql", r"\Z", "\n-- Another text.\n")
    change(queue / "schema.py", r"(?m)^RELEASE = 1", "RELEASE = 2")
    named = "0002_tasks" if renumbered else "0004_stages"
    with pytest.raises(script.DistError, match=rf"the migration {named} differs from that of v1\.2\.2, or is missing"):
        script.check_schema("v1.2.3")
