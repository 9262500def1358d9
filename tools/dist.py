"""Build both distributions into dist/, check their metadata, and run tests/packaging on the built files.

`--release v1.2.3` first checks that this tree is that release: the version, the dated section of CHANGELOG.md, the SQL
statements against those of the last tag and, with `--repository`, the address in pyproject.toml. `--notes` only prints
the section of CHANGELOG.md about this version.
The names of files given as arguments go to pytest instead of tests/packaging.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
SOURCES = (ROOT, ROOT / "tools" / "core")  # each with a pyproject.toml
FOLDER = ROOT / "dist"
QUEUE = "airflow_provider_taskq/queue"


class DistError(Exception):
    """What is wrong, and what to do, in one sentence."""


def say(text: str) -> None:
    """Print a line at once, even into a pipe."""
    print("dist: " + text, flush=True)


def version() -> str:
    """Return the version, which only one file states."""
    text = (ROOT / "airflow_provider_taskq" / "__init__.py").read_text(encoding="utf-8")
    found = re.search(r'^__version__ = "([^"]+)"$', text, re.MULTILINE)
    if found is None:
        raise DistError('airflow_provider_taskq/__init__.py has no line __version__ = "..."')
    return found[1]


def release_section(released: str) -> tuple[str, str]:
    """Return the date in the heading of a version in CHANGELOG.md, and the text below the heading."""
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    found = re.search(r"^## \[%s\] - (\S+)\n(.*?)(?=^## \[|\Z)" % re.escape(released), text, re.MULTILINE | re.DOTALL)
    if found is None:
        raise DistError("CHANGELOG.md has no section '## [%s] - <date>': add it" % released)
    return found[1], found[2].strip()


def check_release(tag: str, repository: str | None) -> None:
    """Raise DistError unless this tree may be released under that tag."""
    if tag != "v" + version():
        raise DistError(
            "the tag %s is not v%s: set __version__ in airflow_provider_taskq/__init__.py, or correct the tag"
            % (tag, version())
        )
    date, notes = release_section(version())
    if not re.fullmatch(r"\d{4}-\d\d-\d\d", date) or not notes:
        raise DistError("the section [%s] of CHANGELOG.md needs a date and an entry: it has %r" % (version(), date))
    for source in SOURCES:
        urls = tomllib.loads((source / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]
        if repository and urls["Source"] != repository:
            raise DistError(
                "%s names the repository %s, but this is %s: correct [project.urls]"
                % ((source / "pyproject.toml").relative_to(ROOT), urls["Source"], repository)
            )


class Statements(NamedTuple):
    """The SQL statements of a release, with the values of their constants."""

    release: int
    functions: str
    views: str
    migrations: dict[str, str]


STATEMENTS = """
import json
from airflow_provider_taskq.queue import schema
migrations = {each.name: each.script for each in schema.migrations()}
print(json.dumps([schema.RELEASE, schema.functions().script, schema.views().script, migrations]))
"""


def statements(tree: Path) -> Statements:
    """Return the statements of the package in a folder."""
    env = {**os.environ, "PYTHONPATH": str(tree)}
    command = [sys.executable, "-B", "-c", STATEMENTS]
    done = subprocess.run(command, cwd=tree, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise DistError("the SQL statements of %s cannot be read:\n%s" % (tree, done.stderr.rstrip()))
    return Statements(*json.loads(done.stdout))


def released_statements(tag: str) -> Statements:
    """Return the statements of the package at a tag."""
    with tempfile.TemporaryDirectory() as folder:
        archive = folder + "/package.zip"
        done = git("archive", "--format=zip", "--output", archive, tag, "airflow_provider_taskq/__init__.py", QUEUE)
        if done.returncode:
            raise DistError("git cannot read the package of %s: %s" % (tag, done.stderr.rstrip()))
        with zipfile.ZipFile(archive) as package:
            package.extractall(folder)
        return statements(Path(folder))


def check_schema(tag: str) -> None:
    """Raise DistError if a migration of the last release has changed, or other SQL under the same number RELEASE."""
    found = git("describe", "--tags", "--abbrev=0", "--match", "v*", "--exclude", tag)
    if found.returncode:
        return  # the first release
    last = found.stdout.strip()
    before, now = released_statements(last), statements(ROOT)
    changed = sorted(name for name, script in before.migrations.items() if now.migrations.get(name) != script)
    if changed:
        raise DistError(
            "the migration %s differs from that of %s, or is missing. Its text and the values of its constants in"
            " %s/models.py must stay: restore them, and add a new migration" % (changed[0], last, QUEUE)
        )
    if (now.functions, now.views) != (before.functions, before.views) and now.release <= before.release:
        raise DistError(
            "SQL functions, views or constants have changed since %s: raise RELEASE in %s/schema.py" % (last, QUEUE)
        )


def git(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run git in this repository."""
    command = ["git", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def build(folder: Path) -> list[Path]:
    """Build sdist and wheel of each distribution, the wheel from the sdist.

    The build backend is the one of .venv, whose files have the hashes of tools/pins/hashes.txt. An isolated build would
    install the newest one, without hashes.
    """
    for source in SOURCES:
        say("building %s" % (source.relative_to(ROOT) if source != ROOT else "the repository"))
        command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(source)]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        if done.returncode:
            raise DistError("python -m build %s failed:\n%s" % (source, done.stdout[-8000:].rstrip()))
    return sorted(folder.iterdir())


def main() -> int:
    """Check the release if asked to, build, check and test; return the exit code of the tests."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--release", metavar="TAG", help="the tag that is to be released, such as v1.2.3")
    parser.add_argument("--repository", metavar="URL", help="the address of the repository that releases it")
    parser.add_argument("--notes", action="store_true", help="print the section of CHANGELOG.md, and end")
    parser.add_argument("tests", nargs="*", default=["tests/packaging"])
    wants = parser.parse_args()
    if wants.notes:
        print(release_section(version())[1])
        return 0
    if wants.release:
        check_release(wants.release, wants.repository)
        check_schema(wants.release)
    shutil.rmtree(FOLDER, ignore_errors=True)
    for file in build(FOLDER):
        say("%s, %d kB" % (file.relative_to(ROOT), file.stat().st_size // 1000))
    env = {**os.environ, "TASKQ_TEST_DIST": str(FOLDER)}
    tests = subprocess.run([sys.executable, "-m", "pytest", "-q", *wants.tests], cwd=ROOT, env=env, check=False)
    return tests.returncode


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (DistError, OSError) as error:
        sys.exit("dist: %s" % error)
