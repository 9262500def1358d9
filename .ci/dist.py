"""Build both distributions into dist/, check their metadata, and run tests/packaging on the built files.

`--release v1.2.3` first checks that this tree is that release: the version, the dated section of CHANGELOG.md, the
number RELEASE if SQL functions differ from those of the last tag and, with `--repository`, the address in
pyproject.toml. `--notes` only prints the section of CHANGELOG.md about this version.
The names of files given as arguments go to pytest instead of tests/packaging.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = (ROOT, ROOT / ".ci" / "core")  # each with a pyproject.toml
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


def check_functions(tag: str) -> None:
    """Raise DistError if SQL functions differ from those of the last release, under the same number."""
    found = git("describe", "--tags", "--abbrev=0", "--match", "v*", "--exclude", tag)
    if found.returncode:
        return  # the first release
    last = found.stdout.strip()
    if git("diff", "--quiet", last, "--", QUEUE + "/sql/api", QUEUE + "/sql/internal").returncode == 0:
        return
    number = re.compile(r"^RELEASE = (\d+)", re.MULTILINE)
    before = number.search(git("show", "%s:%s/schema.py" % (last, QUEUE)).stdout)
    now = number.search((ROOT / QUEUE / "schema.py").read_text(encoding="utf-8"))
    if before is None or now is None or int(now[1]) <= int(before[1]):
        raise DistError("SQL functions have changed since %s: raise RELEASE in %s/schema.py" % (last, QUEUE))


def git(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run git in this repository."""
    command = ["git", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def build(folder: Path) -> list[Path]:
    """Build sdist and wheel of each distribution; the wheel is built from the sdist, each in a clean environment."""
    for source in SOURCES:
        say("building %s" % (source.relative_to(ROOT) if source != ROOT else "the repository"))
        command = [sys.executable, "-m", "build", "--outdir", str(folder), str(source)]
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
        check_functions(wants.release)
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
