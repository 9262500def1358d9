"""`tools/dist.py --release` refuses a tag, a changelog or an address that does not belong to the release."""

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from tests.programs import load

pytestmark = pytest.mark.promise("A release belongs to its tag, its changelog and its schema")

HOME = "https://github.com/home/queue"
CHANGELOG = (
    "# Changelog\n\n## [Unreleased]\n\n## [1.2.3] - 2026-11-22\n\n- News.\n\n## [1.2.2] - 2026-10-01\n\n- Older.\n"
)
Check = Callable[[str, str | None], None]


@pytest.fixture
def tree(repository: Path, tmp_path: Path) -> Path:
    """A small repository at version 1.2.3, with the script."""
    for folder in ("airflow_provider_taskq", "core", "tools"):
        (tmp_path / folder).mkdir(parents=True)
    shutil.copy(repository / "tools" / "dist.py", tmp_path / "tools")
    (tmp_path / "airflow_provider_taskq" / "__init__.py").write_text('__version__ = "1.2.3"\n')
    (tmp_path / "CHANGELOG.md").write_text(CHANGELOG)
    for folder in ("", "core"):
        (tmp_path / folder / "pyproject.toml").write_text(f'[project.urls]\nSource = "{HOME}"\n')
    return tmp_path


@pytest.fixture
def script(tree: Path) -> ModuleType:
    """The script in that repository."""
    return load(tree / "tools" / "dist.py")


@pytest.fixture
def check(script: ModuleType) -> tuple[Check, type[Exception]]:
    """The check of that script, and its error."""
    return script.check_release, script.DistError


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


def test_the_first_release_has_no_number_to_raise(script: ModuleType) -> None:
    script.check_schema("v1.2.3")


CHANGES = {
    "a function": ("sql/api/push.sql", r"\Z", "\n-- Another text.\n"),
    "an internal function": ("sql/internal/locks.sql", r"\Z", "\n-- Another text.\n"),
    "a view": ("sql/views/tasks.sql", r"\Z", "\n-- Another text.\n"),
    "a constant": ("schema.py", r'"NOT_STORED": 0', '"NOT_STORED": 99'),
}


@pytest.mark.parametrize("changed", CHANGES)
def test_statements_that_have_changed_since_the_last_release_need_a_greater_number(
    changed: str, tree: Path, queue: Path, script: ModuleType
) -> None:
    file, pattern, text = CHANGES[changed]
    script.check_schema("v1.2.3")
    change(queue / file, pattern, text)
    release(tree, "v1.2.3")
    with pytest.raises(script.DistError, match=r"changed since v1\.2\.2: raise RELEASE"):
        script.check_schema("v1.2.3")
    change(queue / "schema.py", r"(?m)^RELEASE = 1", "RELEASE = 2")
    script.check_schema("v1.2.3")
    release(tree, "v1.2.4")
    script.check_schema("v1.2.5")


def test_code_that_changes_no_statement_needs_no_greater_number(queue: Path, script: ModuleType) -> None:
    change(queue / "schema.py", r"\Z", "\n# A comment.\n")
    change(queue / "models.py", r"\Z", "\n# A comment.\n")
    script.check_schema("v1.2.3")


def modify(migration: Path) -> None:
    change(migration, r"\Z", "\n-- Another text.\n")


def remove(migration: Path) -> None:
    migration.unlink()


def rename(migration: Path) -> None:
    migration.rename(migration.with_name("0009_stages.sql"))


def renumber_state(migration: Path) -> None:
    change(migration.parents[2] / "models.py", r"(?m)^    SUSPENDED = \d+", "    SUSPENDED = 99")


@pytest.mark.parametrize("alter", [modify, remove, rename, renumber_state])
def test_a_migration_of_the_last_release_must_stay_as_it_is(
    alter: Callable[[Path], None], queue: Path, script: ModuleType
) -> None:
    migrations = queue / "sql" / "migrations"
    alter(migrations / "0004_stages.sql")
    change(queue / "schema.py", r"(?m)^RELEASE = 1", "RELEASE = 2")
    named = "0002_tasks" if alter is renumber_state else "0004_stages"
    with pytest.raises(script.DistError, match=rf"the migration {named} differs from that of v1\.2\.2, or is missing"):
        script.check_schema("v1.2.3")


def test_a_release_may_add_a_migration(queue: Path, script: ModuleType) -> None:
    (queue / "sql" / "migrations" / "0099_more.sql").write_text("SELECT 1;\n")
    script.check_schema("v1.2.3")


def test_a_package_whose_statements_cannot_be_read_is_named(queue: Path, script: ModuleType) -> None:
    (queue / "schema.py").write_text("RELEASE = 2\n")
    with pytest.raises(script.DistError, match=r"the SQL statements of .* cannot be read"):
        script.check_schema("v1.2.3")
