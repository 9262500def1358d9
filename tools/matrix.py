"""Test on older releases of Airflow, Spark and PostgreSQL; the first two in environments below .venv, made once.

In `tools/pins/`, `airflow-X.Y.txt` names a release, and `constraints/constraints-airflow-X.Y.txt` pins all packages of
its environment (`--resolve` writes it). `spark-X.Y.txt` names a Spark: its environment has no Airflow, and all other
packages in the versions of .venv. `wheel.txt` names Airflow and the FAB provider: our wheel is installed with them as
pip resolves it, without other pins. `postgres.json` pins npm packages with the programs of those releases of PostgreSQL
that `make test` does not start. They lack pg_dump, so restores are tested on the system's PostgreSQL, if it
has one. .venv itself has the newest Airflow and comes last.

Without arguments it takes the oldest release of each product, with `--all` every release, with `--only airflow-3.1` a
single one. Other arguments are passed to pytest.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from types import FrameType, MappingProxyType
from typing import NamedTuple
from xml.etree import ElementTree as ET

from playground import PlaygroundError, fetch
from setup import PINS, PIP_INSTALL, ROOT, VENV, SetupError, check_spark, ensure_java, fingerprint, run
from setup import constraints as constraints_of_venv

FOLDER = VENV / "matrix"  # goes with .venv: `make clean` and a new .venv remove it
UV = str(VENV / "bin" / "uv")
PIP_CHECK = ("-m", "pip", "--disable-pip-version-check", "check")
TESTS = "tests/airflow"
FAB_TESTS = "tests/fab"  # `make test` leaves them out: FAB conflicts with the pins of .venv
# Warnings of an older Airflow about itself or newer providers. They are filtered by their text: to filter them by their
# class, pytest would import Airflow before conftest.py has set AIRFLOW_HOME.
THEIR_WARNINGS = (
    "ignore:The `airflow.:FutureWarning",  # 3.1: a name has moved
    "ignore:airflow.:FutureWarning",  # 3.2: the same
    "ignore:`durable` has no effect on Airflow:UserWarning",  # 3.1 and 3.2: the operator of the Spark provider
    "ignore:The ``noload`` loader strategy is deprecated:DeprecationWarning",  # 3.2's models under SQLAlchemy 2.1
)
# The tests that share one Spark session: data source, drain, streams. The others start programs and clusters.
SPARK_TESTS = (
    *("push", "complete", "held", "tasks", "read_stream", "write_stream"),
    *("drain", "drain_rounds", "transforms", "follow_ups"),
)
OLDEST_POSTGRES = 14
PROCESSES = ("-n", str((os.cpu_count() or 1) + 1))  # not for Spark, whose tests share one session
NOTHING_SELECTED = 5  # pytest's exit code
SPARKS_WARNING = "ignore:unclosed <socket.socket:ResourceWarning"  # Spark 4.1 lets the garbage collector close sockets


class Leg(NamedTuple):
    """A release, the Python that has it, the arguments of pytest, and further variables of its environment."""

    name: str
    python: Path
    arguments: list[str]
    variables: Mapping[str, str] = MappingProxyType({})


def say(text: str) -> None:
    """Print a line at once, even into a pipe."""
    print("test-matrix: " + text, flush=True)


def releases(product: str = "airflow") -> list[str]:
    """The older releases, such as 3.1, oldest first."""
    names = [path.stem.removeprefix(product + "-") for path in PINS.glob("%s-*.txt" % product)]
    return sorted(names, key=lambda name: [int(part) for part in name.split(".")])


def constraints(release: str) -> Path:
    """The file that pins the packages of a release."""
    return ROOT / "constraints" / ("constraints-airflow-%s.txt" % release)


def resolve(release: str) -> None:
    """Resolve a release's constraints for all Pythons at once, with the versions of .venv if they fit."""
    target = constraints(release)
    # uv prefers the versions of the output file.
    shutil.copyfile(ROOT / "constraints" / "constraints-3.11.txt", target)
    options = ["--quiet", "--universal", "--python-version", "3.11", "--no-annotate", "--no-header"]
    extras = ["--extra", "messaging", "--extra", "demo"]  # no Spark: these tests start none
    sources = ["pyproject.toml", str(PINS / ("airflow-%s.txt" % release))]
    run([UV, "pip", "compile", *options, *extras, "-o", str(target), *sources], "resolving %s" % target.name)


def environment(name: str, wanted: str, install: Callable[[str], None]) -> Path:
    """Return the Python of an environment; if it is missing or differs from its files, `install` gets a new one."""
    folder = FOLDER / name
    stamp, python = folder / "complete", folder / "bin" / "python"
    if stamp.exists() and stamp.read_text(encoding="utf-8") == wanted:
        return python
    began = time.monotonic()
    shutil.rmtree(folder, ignore_errors=True)
    run([sys.executable, "-m", "venv", str(folder)], "making %s" % folder.relative_to(ROOT))
    install(str(python))
    stamp.write_text(wanted, encoding="utf-8")  # last, so that a broken run is never trusted
    say("%s is ready after %d s" % (folder.relative_to(ROOT), time.monotonic() - began))
    return python


def with_airflow(release: str) -> Path:
    """The Python of an environment with that Airflow."""
    pins = constraints(release)

    def install(python: str) -> None:
        packages = [python, *PIP_INSTALL, "--no-deps"]
        run([*packages, "-r", str(pins)], "installing Airflow %s as in %s (a minute)" % (release, pins.name))
        run([*packages, "-e", "."], "installing TaskQ with Airflow %s" % release)
        run([python, *PIP_CHECK], "checking that the packages of %s are compatible" % pins.name)

    return environment(release, fingerprint(pins), install)


def with_spark(release: str) -> Path:
    """The Python of an environment with that Spark, no Airflow, and all other packages in the versions of .venv."""
    named, pins = PINS / ("spark-%s.txt" % release), constraints_of_venv()
    others = FOLDER / ("spark-%s.txt" % release)
    lines = pins.read_text(encoding="utf-8").splitlines(keepends=True)
    others.write_text("".join(line for line in lines if not line.startswith("pyspark")), encoding="utf-8")

    def install(python: str) -> None:
        packages = [python, *PIP_INSTALL]
        run([*packages, "-c", str(others), "-r", str(named)], "installing Spark %s (a few minutes)" % release)
        run([*packages, "--no-deps", "-e", "."], "installing TaskQ with Spark %s" % release)
        check_spark(python)

    return environment("spark-" + release, fingerprint(named) + fingerprint(pins), install)


def with_wheel() -> Path:
    """The Python of an environment with our wheel; only Airflow is pinned, pip chooses all other versions."""
    named, folder = PINS / "wheel.txt", FOLDER / "dist"
    shutil.rmtree(folder, ignore_errors=True)
    run([UV, "build", "--quiet", "--wheel", "--out-dir", str(folder)], "building the wheel")
    [wheel] = folder.glob("*.whl")

    def install(python: str) -> None:
        wanted = ["-r", str(named), "%s[messaging,demo]" % wheel]
        run([python, *PIP_INSTALL, *wanted], "installing the wheel with FAB (a few minutes)")
        run([python, *PIP_CHECK], "checking that the packages with FAB are compatible")

    python = environment("wheel", fingerprint(named), install)
    run(
        [str(python), *PIP_INSTALL, "--no-deps", "--force-reinstall", str(wheel)],
        "installing the wheel of the checkout",
    )
    return python


@contextmanager
def with_postgres(pin: dict[str, str]) -> Iterator[Path]:
    """The folder of a server's programs, which an account without privileges can enter."""
    package = fetch(pin, FOLDER / "postgres")
    with tempfile.TemporaryDirectory(prefix="taskq-postgres-") as folder:
        Path(folder).chmod(0o755)
        with tarfile.open(package) as archive:
            archive.extractall(folder, filter="data")
        inside = Path(folder, "package")
        for link in json.loads((inside / "native" / "pg-symlinks.json").read_text(encoding="utf-8")):
            (inside / link["target"]).symlink_to(Path(link["source"]).name)  # npm cannot pack it
        yield inside / "native" / "bin"


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
    return Leg("Airflow " + version(python, "apache-airflow-core"), python, [*theirs, *PROCESSES, *ignored, TESTS])


def older_airflow_leg(release: str) -> Leg:
    """The same tests on an older release."""
    return airflow_leg(with_airflow(release), older=True)


def wheel_leg() -> Leg:
    """The same tests on the wheel's environment, and those of the FAB auth manager."""
    leg = airflow_leg(python := with_wheel())
    return Leg(leg.name + " from the index, with FAB", python, [*leg.arguments, FAB_TESTS])


def spark_leg(release: str) -> Leg:
    """The tests of tests/spark that share one session."""
    python = with_spark(release)
    files = ["tests/spark/test_%s.py" % name for name in SPARK_TESTS]
    return Leg("Spark " + version(python, "pyspark"), python, ["-W", SPARKS_WARNING, *files])


def postgres_leg(pin: dict[str, str], stack: ExitStack) -> Leg:
    """The tests of the queue and of upgrades on that server. The package has no pg_dump for those of restores."""
    programs = stack.enter_context(with_postgres(pin))
    name = "PostgreSQL " + pin["version"].partition("-")[0].removesuffix(".0")
    arguments = [*PROCESSES, "-m", "not slow", "tests/queue", "tests/faults/test_upgrades.py"]
    return Leg(name, VENV / "bin" / "python", arguments, {"TASKQ_TEST_PROGRAMS": str(programs)})


def system_leg() -> Leg | None:
    """The tests of restores on the oldest PostgreSQL of Debian's packages that the queue supports."""
    found = {int(path.parent.parent.name): path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/pg_dump")}
    oldest = min((release for release in found if release >= OLDEST_POSTGRES), default=None)
    if oldest is None:
        say("this system has no PostgreSQL: no test of restores on an older one")
        return None
    variables = {"TASKQ_TEST_PROGRAMS": str(found[oldest])}
    python, name = VENV / "bin" / "python", "PostgreSQL %d of the system" % oldest
    return Leg(name, python, ["tests/faults/test_restore.py"], variables)


def starts_processes(path: Path) -> bool:
    """Whether a file's tests start Airflow's processes; the matrix runs DAGs by `dag.test()` only."""
    text = path.read_text(encoding="utf-8")
    return any(name in text for name in ("AirflowSite", "SharedAirflow", "chaos_site"))


def test(leg: Leg, options: list[str]) -> bool:
    """Run the tests of a leg; return whether they passed."""
    say(leg.name)
    with tempfile.TemporaryDirectory(prefix="taskq-matrix-") as folder:
        report = Path(folder, "report.xml")
        command = [str(leg.python), "-m", "pytest", "-q", "-r", "fE", "-p", "no:cacheprovider"]
        code = finished([*command, "--junitxml", str(report), *leg.arguments, *options], leg.variables)
        passed = code == 0 or (bool(options) and code == NOTHING_SELECTED)  # ARGS may mean another leg's tests
        summarize(leg.name, report, passed)
    return passed


def finished(command: list[str], variables: Mapping[str, str]) -> int:
    """Run a command with further variables and return its exit code.

    SIGTERM and Ctrl-C interrupt it, so that it stops its servers.
    """
    # A shell makes background processes ignore SIGINT, and children inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with subprocess.Popen(command, cwd=ROOT, env={**os.environ, **variables}) as child:

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
    """Print the numbers of tests and skips, and the reasons of the skips."""
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
    """Why a test was skipped. For a skipped file, which counts as one test, the reason is quoted at the end."""
    whole_file = skipped.get("message") == "collection skipped"
    return (skipped.text or "").rpartition("Skipped: ")[2].rstrip("')\"") if whole_file else skipped.get("message", "")


def servers(stack: ExitStack) -> dict[str, Callable[[], Leg | None]]:
    """The legs of older releases of PostgreSQL by their names; the stack removes the programs at the end."""
    if platform.machine() != "x86_64":
        say("the pinned programs of PostgreSQL run on x86_64 only, and this machine is %s" % platform.machine())
        return {}
    pins = json.loads((PINS / "postgres.json").read_text(encoding="utf-8"))
    found: dict[str, Callable[[], Leg | None]] = {
        "postgresql-%s" % pin["version"].partition(".")[0]: partial(postgres_leg, pin, stack) for pin in pins
    }
    return {**found, "postgresql-system": system_leg}


def all_legs(stack: ExitStack) -> dict[str, Callable[[], Leg | None]]:
    """Every leg by its name. The releases of a product come oldest first; what a leg lacks is made when it begins."""
    older = {"airflow-" + release: partial(older_airflow_leg, release) for release in releases()}
    sparks = {"spark-" + release: partial(spark_leg, release) for release in releases("spark")}
    newest = partial(airflow_leg, VENV / "bin" / "python")
    return {**servers(stack), **older, **sparks, "wheel": wheel_leg, "airflow": newest}


def oldest(names: Iterable[str]) -> list[str]:
    """The first leg of each product."""
    return list({name.partition("-")[0]: name for name in reversed(list(names)) if "-" in name}.values())


@contextmanager
def one_run_at_a_time() -> Iterator[None]:
    """A second run waits while the first makes environments, and then finds them complete."""
    FOLDER.mkdir(exist_ok=True)
    lock = os.open(FOLDER, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def failed_legs(only: list[str], options: list[str], *, every: bool) -> list[str]:
    """Run the chosen legs, every leg, or the oldest of each product; return the names of those that failed."""
    with ExitStack() as stack:
        legs = all_legs(stack)
        chosen = list(legs) if every else only or oldest(legs)
        if unknown := set(chosen) - set(legs):
            sys.exit("test-matrix: unknown leg %s: use %s" % (", ".join(sorted(unknown)), ", ".join(legs)))
        with one_run_at_a_time():
            found = [(name, legs[name]()) for name in chosen]
        return [name for name, leg in found if leg is not None and not test(leg, options)]


def main() -> None:
    """Make missing environments, then test on every release; fail at the end if a release failed."""
    if sys.argv[1:] == ["--resolve"]:
        for release in releases():
            resolve(release)
        return
    parser = argparse.ArgumentParser(
        prog="test-matrix", description="Test on older releases. Other options go to pytest."
    )
    parser.add_argument("--all", action="store_true", help="every release, not only the oldest of each product")
    parser.add_argument(
        "--only", action="append", default=[], metavar="LEG", help="a leg by its name, e.g. airflow-3.1"
    )
    chosen, options = parser.parse_known_args()
    ensure_java()
    failed = ["the versions of pyspark and pyspark-client"] if chosen.all and not check_resolutions() else []
    failed += failed_legs(chosen.only, options, every=chosen.all)
    if failed:
        sys.exit("test-matrix: failed on " + ", ".join(failed))


if __name__ == "__main__":
    try:
        main()
    except (SetupError, PlaygroundError, OSError) as error:
        sys.exit("test-matrix: %s" % error)
    except KeyboardInterrupt:
        sys.exit(130)
