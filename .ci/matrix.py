"""Test on older releases of Airflow and Spark, too: each in an environment of its own below .venv, made once, as .venv.

`.ci/airflow-X.Y.txt` names a release, `.ci/constraints-airflow-X.Y.txt` all that is installed with it (made anew by
`--resolve`). `.ci/spark-X.Y.txt` names a Spark; what else is beside it, and no Airflow is, has the version of .venv.
`.ci/wheel.txt` names Airflow and the FAB provider: our wheel is installed beside them as pip resolves it, with no other
pin. The ordinary .venv has the newest Airflow and comes last. Arguments are handed on to pytest.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import NamedTuple
from xml.etree import ElementTree as ET

from setup import ROOT, VENV, SetupError, check_spark, ensure_java, fingerprint, run
from setup import constraints as constraints_of_venv

FOLDER = VENV / "matrix"  # goes with .venv: `make clean` and a new .venv remove it
UV = str(VENV / "bin" / "uv")
TESTS = "tests/airflow"
FAB_TESTS = "tests/fab"  # which `make test` leaves out: FAB does not go with the pins of .venv
# What an older Airflow says of itself, or of the providers, which are younger than it. Told by their words: to name
# their classes, pytest would import Airflow before conftest.py has given it a home.
THEIR_WARNINGS = (
    "ignore:The `airflow.:FutureWarning",  # 3.1: a name has moved
    "ignore:airflow.:FutureWarning",  # 3.2: the same
    "ignore:The ``noload`` loader strategy is deprecated:DeprecationWarning",  # 3.2's models under SQLAlchemy 2.1
)
# What goes through one session of Spark: data source, drain, streams. The rest starts programs and clusters.
SPARK_TESTS = (
    *("push", "complete", "held", "tasks", "read_stream", "write_stream"),
    *("drain", "drain_rounds", "transforms", "follow_ups"),
)
NOTHING_SELECTED = 5  # pytest's exit code
SPARKS_WARNING = "ignore:unclosed <socket.socket:ResourceWarning"  # 4.1 leaves the closing to the garbage collector


class Leg(NamedTuple):
    """A release, the Python that has it, and what pytest is to run there."""

    name: str
    python: Path
    arguments: list[str]


def say(text: str) -> None:
    """Tell the person at the terminal, at once even when piped."""
    print("test-matrix: " + text, flush=True)


def releases(product: str = "airflow") -> list[str]:
    """The older releases, such as 3.1, oldest first."""
    names = [path.stem.removeprefix(product + "-") for path in ROOT.glob(".ci/%s-*.txt" % product)]
    return sorted(names, key=lambda name: [int(part) for part in name.split(".")])


def constraints(release: str) -> Path:
    """The file that says what is installed with a release."""
    return ROOT / ".ci" / ("constraints-airflow-%s.txt" % release)


def resolve(release: str) -> None:
    """Resolve a release's constraints anew, for all Pythons at once, keeping to .venv's versions where that goes."""
    target = constraints(release)
    shutil.copyfile(ROOT / ".ci" / "constraints-3.11.txt", target)  # what stands there is preferred
    options = ["--quiet", "--universal", "--python-version", "3.11", "--no-annotate", "--no-header"]
    extras = ["--extra", "messaging", "--extra", "demo"]  # no Spark: these tests start none
    sources = ["pyproject.toml", ".ci/airflow-%s.txt" % release]
    run([UV, "pip", "compile", *options, *extras, "-o", str(target), *sources], "resolving %s" % target.name)


def environment(name: str, wanted: str, install: Callable[[list[str]], None]) -> Path:
    """The Python of an environment, which is made if it isn't there or not as the files say.

    `install` is given the beginning of pip's command.
    """
    folder = FOLDER / name
    stamp, python = folder / "complete", folder / "bin" / "python"
    if stamp.exists() and stamp.read_text(encoding="utf-8") == wanted:
        return python
    began = time.monotonic()
    shutil.rmtree(folder, ignore_errors=True)
    run([sys.executable, "-m", "venv", str(folder)], "making %s" % folder.relative_to(ROOT))
    install([str(python), "-m", "pip", "--disable-pip-version-check"])
    stamp.write_text(wanted, encoding="utf-8")  # last, so that a broken run is never trusted
    say("%s is ready after %d s" % (folder.relative_to(ROOT), time.monotonic() - began))
    return python


def with_airflow(release: str) -> Path:
    """The Python of an environment with that Airflow."""
    pins = constraints(release)

    def install(pip: list[str]) -> None:
        packages = [*pip, "install", "--quiet", "--no-input", "--no-deps"]
        run([*packages, "-r", str(pins)], "installing Airflow %s as in %s (a minute)" % (release, pins.name))
        run([*packages, "-e", "."], "installing TaskQ beside Airflow %s" % release)
        run([*pip, "check"], "checking that everything in %s goes together" % pins.name)

    return environment(release, fingerprint(pins), install)


def with_spark(release: str) -> Path:
    """The Python of an environment with that Spark, no Airflow, and all else of the versions that .venv has."""
    named, pins = ROOT / ".ci" / ("spark-%s.txt" % release), constraints_of_venv()
    others = FOLDER / ("spark-%s.txt" % release)
    lines = pins.read_text(encoding="utf-8").splitlines(keepends=True)
    others.write_text("".join(line for line in lines if not line.startswith("pyspark")), encoding="utf-8")

    def install(pip: list[str]) -> None:
        packages = [*pip, "install", "--quiet", "--no-input"]
        run([*packages, "-c", str(others), "-r", str(named)], "installing Spark %s (a few minutes)" % release)
        run([*packages, "--no-deps", "-e", "."], "installing TaskQ beside Spark %s" % release)
        check_spark(pip[0])

    return environment("spark-" + release, fingerprint(named) + fingerprint(pins), install)


def with_wheel() -> Path:
    """The Python of an environment with our wheel, and what the index has beside it: only Airflow is pinned."""
    named, folder = ROOT / ".ci" / "wheel.txt", FOLDER / "dist"
    shutil.rmtree(folder, ignore_errors=True)
    run([UV, "build", "--quiet", "--wheel", "--out-dir", str(folder)], "building the wheel")
    [wheel] = folder.glob("*.whl")

    def install(pip: list[str]) -> None:
        wanted = ["-r", str(named), "%s[messaging,demo]" % wheel]
        run([*pip, "install", "--quiet", "--no-input", *wanted], "installing the wheel beside FAB (a few minutes)")
        run([*pip, "check"], "checking that everything beside FAB goes together")

    python = environment("wheel", fingerprint(named), install)
    newest = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-deps"]
    run([*newest, "--force-reinstall", str(wheel)], "installing the wheel of the checkout")
    return python


def check_resolutions() -> bool:
    """Whether a plain installation of the extra `spark` has pyspark and pyspark-client in one version."""
    command = [UV, "pip", "compile", "--quiet", "--no-annotate", "--no-header", "--extra", "spark", "pyproject.toml"]
    same = True
    for resolution in ("highest", "lowest-direct"):
        done = subprocess.run(
            [*command, "--resolution", resolution], capture_output=True, text=True, check=False, cwd=ROOT
        )
        pinned = [line for line in done.stdout.splitlines() if line.startswith(("pyspark==", "pyspark-client=="))]
        say("extra spark, resolution %s: %s" % (resolution, ", ".join(pinned) or done.stderr[-2000:]))
        same = same and len(pinned) == 2 and len({line.partition("==")[2] for line in pinned}) == 1
    return same


def version(python: Path, package: str) -> str:
    """The version of a package that a Python imports."""
    program = "from importlib.metadata import version; print(version(%r))" % package
    return subprocess.run([str(python), "-c", program], capture_output=True, text=True, check=True).stdout.strip()


def airflow_leg(python: Path, *, older: bool = False) -> Leg:
    """The tests of tests/airflow that start no processes of Airflow."""
    ignored = ["--ignore=%s" % path for path in sorted((ROOT / TESTS).glob("test_*.py")) if starts_processes(path)]
    theirs = [part for text in THEIR_WARNINGS for part in ("-W", text)] if older else []
    return Leg("Airflow " + version(python, "apache-airflow-core"), python, [*theirs, *ignored, TESTS])


def wheel_leg(python: Path) -> Leg:
    """The same with what the index has, and the tests of the FAB auth manager on servers that run the wheel."""
    leg = airflow_leg(python)
    return Leg(leg.name + " from the index, with FAB", python, [*leg.arguments, FAB_TESTS])


def spark_leg(python: Path) -> Leg:
    """The tests of tests/spark that go through one session."""
    files = ["tests/spark/test_%s.py" % name for name in SPARK_TESTS]
    return Leg("Spark " + version(python, "pyspark"), python, ["-W", SPARKS_WARNING, *files])


def starts_processes(path: Path) -> bool:
    """Whether a file's tests start Airflow's processes; the matrix goes as far as `dag.test()`."""
    text = path.read_text(encoding="utf-8")
    return any(name in text for name in ("AirflowSite", "chaos_site"))


def test(leg: Leg, options: list[str]) -> bool:
    """Run the tests of a leg; whether they passed."""
    say(leg.name)
    with tempfile.TemporaryDirectory(prefix="taskq-matrix-") as folder:
        report = Path(folder, "report.xml")
        command = [str(leg.python), "-m", "pytest", "-q", "-r", "fE", "-p", "no:cacheprovider"]
        code = finished([*command, "--junitxml", str(report), *leg.arguments, *options])
        passed = code == 0 or (bool(options) and code == NOTHING_SELECTED)  # ARGS may mean another leg's tests
        summarize(leg.name, report, passed)
    return passed


def finished(command: list[str]) -> int:
    """Run to its end, for its exit code; whoever ends us ends it as Ctrl-C does, so that it takes its servers down."""
    # A shell has what it starts in the background ignore SIGINT, and children inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with subprocess.Popen(command, cwd=ROOT) as child:

        def end(_number: int, _frame: FrameType | None) -> None:
            raise KeyboardInterrupt

        signal.signal(signal.SIGTERM, end)
        try:
            return child.wait()
        except KeyboardInterrupt:
            child.send_signal(signal.SIGINT)
            child.wait()
            raise


def summarize(name: str, report: Path, passed: bool) -> None:
    """Say how it went, and what was left out for want of a newer release or anything else."""
    if not report.exists():
        say("%s: pytest could not run" % name)
        return
    root = ET.parse(report).getroot()  # noqa: S314 -- our own pytest wrote it
    total = len(list(root.iter("testcase")))
    skipped = [reason(element) for element in root.iter("skipped")]
    say("%s: %s, %d tests, %d of them skipped" % (name, "passed" if passed else "FAILED", total, len(skipped)))
    for text in sorted(set(skipped)):
        say("  %d skipped: %s" % (skipped.count(text), text))


def reason(skipped: ET.Element) -> str:
    """Why a test was skipped. Of a whole file, which counts as one, it stands at the end of the text, in quotes."""
    whole_file = skipped.get("message") == "collection skipped"
    return (skipped.text or "").rpartition("Skipped: ")[2].rstrip("')\"") if whole_file else skipped.get("message", "")


def main() -> None:
    """Make what is missing, then test on every release; fail at the end if one of them failed."""
    if sys.argv[1:] == ["--resolve"]:
        for release in releases():
            resolve(release)
        return
    ensure_java()
    FOLDER.mkdir(exist_ok=True)
    lock = os.open(FOLDER, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)  # two at once: the second waits, then finds the stamps
    older = [airflow_leg(with_airflow(release), older=True) for release in releases()]
    sparks = [spark_leg(with_spark(release)) for release in releases("spark")]
    wheel = wheel_leg(with_wheel())
    fcntl.flock(lock, fcntl.LOCK_UN)
    legs = [*older, *sparks, wheel, airflow_leg(VENV / "bin" / "python")]
    failed = [] if check_resolutions() else ["the versions of pyspark and pyspark-client"]
    failed += [leg.name for leg in legs if not test(leg, sys.argv[1:])]
    if failed:
        sys.exit("test-matrix: failed on " + ", ".join(failed))


if __name__ == "__main__":
    try:
        main()
    except (SetupError, OSError) as error:
        sys.exit("test-matrix: %s" % error)
    except KeyboardInterrupt:
        sys.exit(130)
