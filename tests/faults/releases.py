"""The next release of this package, made from its files, for tests of upgrades."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from airflow_provider_taskq.queue.schema import FLOORS, RELEASE
from tests.internals import ADDING_MIGRATION

ROOT = Path(__file__).resolve().parents[2]


def make_next_release(folder: Path, migration: str = ADDING_MIGRATION) -> None:
    """A copy of this package with one more migration, and another body of each function in PL/pgSQL."""
    package = folder / "airflow_provider_taskq"
    shutil.copytree(ROOT / "airflow_provider_taskq", package, ignore=shutil.ignore_patterns("__pycache__"))
    schema = package / "queue" / "schema.py"
    text = schema.read_text(encoding="utf-8")
    following = text.replace(f"\nRELEASE = {RELEASE}  ", f"\nRELEASE = {RELEASE + 1}  ")
    assert following != text
    schema.write_text(following, encoding="utf-8")
    scripts = package / "queue" / "sql"
    numbers = [int(file.name[:4]) for file in (scripts / "migrations").glob("*.sql")]
    (scripts / "migrations" / f"{max(numbers) + 1:04}_next.sql").write_text(migration, encoding="utf-8")
    for file in (file for floor in FLOORS for file in (scripts / floor).glob("*.sql")):
        given = file.read_text(encoding="utf-8")
        file.write_text(given.replace("\nBEGIN\n", "\nBEGIN\n    -- Of the next release.\n    PERFORM 1;\n"))


def run_next_release(dsn: str, action: str, migration: str = ADDING_MIGRATION) -> subprocess.CompletedProcess[str]:
    """A command of the next release, such as `install` or `verify`, in a process of its own."""
    with tempfile.TemporaryDirectory(prefix="taskq-release-") as folder:
        make_next_release(Path(folder), migration)
        environment = {**os.environ, "PYTHONPATH": folder, "TASKQ_DSN": dsn}
        command = [sys.executable, "-m", "airflow_provider_taskq.cli", *action.split()]
        return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def install_next_release(dsn: str, migration: str = ADDING_MIGRATION) -> None:
    """The next release upgrades the schema."""
    done = run_next_release(dsn, "install", migration)
    if done.returncode:
        raise RuntimeError(f"the next release did not install: {done.stderr}")
