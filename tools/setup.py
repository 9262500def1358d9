"""Make `.venv` from the pinned constraints, once; the second run finds its stamp and does nothing.

This file uses only the standard library and the syntax of an old Python, so that it can report that Python as too old.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

OLDEST = (3, 11)
OLDEST_JAVA = 17
ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
MARK = VENV / "made-by-taskq-setup"  # written first: this script made the venv, and may replace it
STAMP = VENV / "taskq-setup-complete"  # written last: the venv is complete
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
PINS = ROOT / "tools" / "pins"
HASHES = PINS / "hashes.txt"  # a line for each pinned release, with the hashes of all its files
REQUIREMENTS = VENV / "requirements.txt"
# What is not imported needs no bytecode, and compiling all of it takes a third of the time.
PIP_INSTALL = ("-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-input", "--no-compile")
CANDIDATES = ("python3.13", "python3.12", "python3.11", "python3")


class SetupError(Exception):
    """What failed, and what to do, in one sentence."""


def say(text: str) -> None:
    """Print a line at once, even into a pipe."""
    print("setup: " + text, flush=True)


def usable(python: str) -> bool:
    """Whether a Python runs, is new enough and can make virtual environments."""
    probe = "import sys, venv, ensurepip; raise SystemExit(sys.version_info < %r)" % (OLDEST,)
    try:
        done = subprocess.run([python, "-c", probe], capture_output=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def ensure_python() -> None:
    """Continue under a usable Python: this one, or the first usable one of the usual names."""
    if usable(sys.executable):
        return
    for name in CANDIDATES:
        path = shutil.which(name)
        if path and usable(path):
            os.execv(path, [path, *sys.argv])  # noqa: S606 -- the same script under another interpreter
    raise SetupError(
        "TaskQ needs Python {}.{} or newer with its venv module; {} is {}.{}. Install one (on Debian and Ubuntu: "
        "apt-get install python3 python3-venv), or name one: make PYTHON=/path/to/python3".format(
            *OLDEST, sys.executable, *sys.version_info[:2]
        )
    )


def java_version() -> int | None:
    """The major version of the Java that Spark would start, or None without one."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else "java"
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r'version "(?:1\.)?(\d+)', done.stderr)
    return int(found.group(1)) if done.returncode == 0 and found else None


def ensure_java() -> None:
    """Raise SetupError unless Spark will find a Java that it can run on."""
    version = java_version()
    if version is None or version < OLDEST_JAVA:
        where = "JAVA_HOME (%s)" % os.environ["JAVA_HOME"] if os.environ.get("JAVA_HOME") else "the PATH"
        found = "no Java runs on" if version is None else "Java %d is on" % version
        raise SetupError(
            "Spark needs Java %d or newer, and %s %s. Install one (on Debian and Ubuntu: "
            "apt-get install openjdk-17-jre-headless) or set JAVA_HOME." % (OLDEST_JAVA, found, where)
        )


def offer_browser() -> None:
    """Install Debian's Chromium for the tests of the page, if we may; without a browser, those tests are skipped."""
    if any(shutil.which(name) for name in BROWSERS):
        return
    installer = shutil.which("apt-get")
    if os.geteuid() == 0 and installer:
        quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        say("installing Chromium for the tests of the page (apt-get; a minute)")
        packages = ["chromium", "fonts-dejavu-core"]
        for command in (["update"], ["install", "--yes", "--no-install-recommends", *packages]):
            subprocess.run([installer, "--quiet", *command], env=quiet, capture_output=True, check=False)
        if shutil.which("chromium"):
            return
    say("no Chromium on the PATH: the browser tests of the page will be skipped (on Debian: apt-get install chromium)")


def constraints() -> Path:
    """The constraints of this Python, or of the newest Python that we test."""
    own = ROOT / "constraints" / "constraints-{}.{}.txt".format(*sys.version_info[:2])
    if own.exists():
        return own
    files = ROOT.glob("constraints/constraints-3.*.txt")  # those of older Airflow releases have other names
    known = sorted(files, key=lambda path: [int(n) for n in re.findall(r"\d+", path.stem)])
    say("Python {}.{} is newer than those we test; trying {}".format(*sys.version_info[:2], known[-1].name))
    return known[-1]


def fingerprint(pins: Path) -> str:
    """A hash of all that decides which packages are installed; a linter's settings, for example, do not."""
    import tomllib  # missing in the old Pythons that ensure_python() replaces

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    version = (ROOT / "airflow_provider_taskq" / "__init__.py").read_text(encoding="utf-8")
    parts = [project["project"], project["build-system"], version, sys.version, str(ROOT)]
    parts += [pins.read_text(encoding="utf-8"), HASHES.read_text(encoding="utf-8")]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def run(command: list[str], doing: str) -> None:
    """Run one step; show its output only if it fails."""
    say(doing)
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, cwd=ROOT)
    if done.returncode:
        raise SetupError("%s failed:\n%s" % (doing, done.stdout[-8000:].rstrip()))


def clear_old() -> None:
    """Remove the .venv of an earlier run; refuse to remove one that this script did not make."""
    old = VENV.with_name(".venv.old")  # renamed first, so that an interrupted removal leaves no half .venv
    shutil.rmtree(old, ignore_errors=True)
    if not VENV.exists() and not VENV.is_symlink():
        return
    if not MARK.exists() and any(VENV.iterdir()):
        raise SetupError("%s exists and was not made by `make setup`: move it away, then try again." % VENV)
    VENV.rename(old)
    shutil.rmtree(old)


def check_spark(python: str) -> None:
    """Fail if pyspark's modules and jars come from two releases; pyspark-client can overwrite the modules."""
    probe = (
        "import pathlib, pyspark, sys; jars = pathlib.Path(pyspark.__file__).parent / 'jars'; "
        "sys.exit(not list(jars.glob('spark-core_*-%s.jar' % pyspark.__version__)))"
    )
    run([python, "-c", probe], "checking that pyspark's modules and jars are of one version")


def hashed(pins: Path) -> str:
    """The requirements of pip that pin the same releases, and for each the hashes of its files."""
    wanted = pins.read_text(encoding="utf-8").split()
    known = {line.partition(" ")[0]: line for line in HASHES.read_text(encoding="utf-8").splitlines()}
    missing = [pin for pin in wanted if pin not in known]
    if missing:
        raise SetupError("%s has no hash of %s: run `make constraints`" % (HASHES.relative_to(ROOT), missing[0]))
    return "".join(known[pin] + "\n" for pin in wanted)


def install_pinned(python: str, pins: Path) -> None:
    """Install what is pinned, and no file whose hash is not known."""
    REQUIREMENTS.write_text(hashed(pins), encoding="utf-8")
    command = [python, *PIP_INSTALL, "--require-hashes", "-r", str(REQUIREMENTS)]
    run(command, "installing Airflow, Spark and the rest as in %s (a few minutes)" % pins.name)


def install(python: str, pins: Path) -> None:
    """Install what is pinned, and this checkout."""
    if pins.name == "constraints-%d.%d.txt" % sys.version_info[:2]:
        install_pinned(python, pins)
        run([python, *PIP_INSTALL, "--no-deps", "--no-build-isolation", "-e", "."], "installing TaskQ")
    else:  # a newer Python may need other packages
        everything = ".[spark,messaging,prometheus,demo,docs,dev]"
        run([python, *PIP_INSTALL, "-c", str(pins), "-e", everything], "installing all without hashes (a few minutes)")


def build(pins: Path, stamp: str) -> None:
    """Make the virtual environment. The stamp is written last, so that the next run replaces an incomplete one."""
    began = time.monotonic()
    # If .venv is activated, this Python is about to be removed: use the one that its link points to.
    base = os.path.realpath(sys.executable) if Path(sys.prefix) == VENV else sys.executable
    clear_old()
    VENV.mkdir()
    MARK.touch()
    python = str(VENV / "bin" / "python")
    run([base, "-m", "venv", str(VENV)], "making .venv with Python {}.{}".format(*sys.version_info[:2]))
    install(python, pins)
    check_spark(python)
    STAMP.write_text(stamp, encoding="utf-8")
    say("ready after %d s" % (time.monotonic() - began))


def main() -> None:
    """Check the requirements that pip cannot install, then make the virtual environment if it is missing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--java", action="store_true", help="also check that Spark will find a Java")
    parser.add_argument("--browser", action="store_true", help="also look for a Chromium, and install one if we may")
    wants = parser.parse_args()
    if sys.version_info < OLDEST or not STAMP.exists():
        ensure_python()
    if wants.java:
        ensure_java()
    if wants.browser:
        offer_browser()
    folder = os.open(ROOT / "tools", os.O_RDONLY)
    fcntl.flock(folder, fcntl.LOCK_EX)  # a second make waits, and then finds the stamp
    pins = constraints()
    stamp = fingerprint(pins)
    if not (STAMP.exists() and STAMP.read_text(encoding="utf-8") == stamp):
        ensure_python()
        build(pins, stamp)


if __name__ == "__main__":
    try:
        main()
    except (SetupError, OSError) as error:
        sys.exit("setup: %s" % error)
