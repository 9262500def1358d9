"""An archive of the classes that Spark loads at its start, with which a JVM starts in half the CPU time.

`python -m tests.spark.class_archive` makes it in .venv, once, and needs half a minute. A JVM ignores an archive of
another Java or of other jars, so the archive is never wrong, only useless.
"""

import os
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

PROGRAM = Path(__file__).parent / "programs" / "load_classes.py"
ARCHIVE = Path(sys.prefix) / "spark-classes.jsa"
PATIENCE = 900  # seconds

# The JVMs of tests live for seconds or minutes: the optimizing compiler and a parallel collector cost more CPU time
# than they save.
_SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
# JVMs with another class path, such as Spark's launcher, cannot use the archive, and would warn.
_USE = f"-XX:SharedArchiveFile={ARCHIVE} -Xlog:cds=off -Xlog:cds+dynamic=off"


def java_options() -> str:
    """Return the options for the JVMs of tests."""
    return f"{_SHORT_LIVED} {_USE}" if ARCHIVE.exists() else _SHORT_LIVED


def make() -> None:
    """Make the archive, unless it exists."""
    if ARCHIVE.exists():
        return
    spec = find_spec("pyspark")
    assert spec is not None
    home = Path(str(spec.origin)).parent
    with tempfile.TemporaryDirectory(dir=sys.prefix) as folder:  # from where a file can be moved at once
        made = Path(folder) / "classes.jsa"
        env = {
            **os.environ,
            "JAVA_TOOL_OPTIONS": f"{_SHORT_LIVED} -XX:ArchiveClassesAtExit={made} -Xlog:cds=off -Xlog:cds+dynamic=off",
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        command = [str(home / "bin" / "spark-submit"), "--master", "local[2]", str(PROGRAM), folder]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=PATIENCE, check=False)
        if done.returncode:
            raise SystemExit(f"Spark's classes were not loaded:\n{done.stderr[-3000:]}")
        made.replace(ARCHIVE)


if __name__ == "__main__":
    make()
