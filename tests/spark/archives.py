"""Archives with which Spark starts in less CPU time: of the classes of its JVM, and of its workers' bytecode.

`python -m tests.spark.archives` makes them in .venv, once, and needs a minute. A JVM ignores an archive of another
Java or of other jars, so the archive is never wrong, only useless. Spark's Python workers import PySpark from a zip
without bytecode, and compile each module that they import, in each process.
"""

import compileall
import os
import py_compile
import re
import shutil
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from zipfile import ZipFile

PROGRAM = Path(__file__).parent / "programs" / "load_classes.py"
ARCHIVE = Path(sys.prefix) / "spark-classes.jsa"
PATIENCE = 900  # seconds
NOT_OF_WORKERS = re.compile(r"/pyspark/(pandas|ml|mllib|streaming|resource|examples|.*/tests)/")

# The JVMs of tests live for seconds or minutes: the optimizing compiler and a parallel collector cost more CPU time
# than they save.
_SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
# JVMs with another class path, such as Spark's launcher, cannot use the archive, and would warn.
_USE = f"-XX:SharedArchiveFile={ARCHIVE} -Xlog:cds=off -Xlog:cds+dynamic=off"


def java_options() -> str:
    """Return the options for the JVMs of tests."""
    return f"{_SHORT_LIVED} {_USE}" if ARCHIVE.exists() else _SHORT_LIVED


def archive_classes(home: Path) -> None:
    """Make the archive of the classes of the Spark in this folder, unless it exists."""
    if ARCHIVE.exists():
        return
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


def add_bytecode(modules: Path) -> None:
    """Add the bytecode of the modules that workers import to this zip, unless it has some."""
    with tempfile.TemporaryDirectory(dir=modules.parent) as folder:
        with ZipFile(modules) as zipped:
            if any(name.endswith(".pyc") for name in zipped.namelist()):
                return
            zipped.extractall(folder)
        compiled = compileall.compile_dir(
            folder,
            rx=NOT_OF_WORKERS,
            quiet=1,
            legacy=True,  # each file next to its source
            workers=0,  # as many as there are cores
            invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,  # the sources in the zip do not change
            stripdir=folder,
            prependdir=str(modules),
        )
        if not compiled:
            raise SystemExit(f"the modules of {modules} were not compiled")
        complete = Path(shutil.copy(modules, Path(folder) / "complete"))
        with ZipFile(complete, "a") as zipped:
            for file in Path(folder).rglob("*.pyc"):
                zipped.write(file, file.relative_to(folder))
        complete.replace(modules)


def main() -> None:
    """Make both archives of the installed Spark."""
    spec = find_spec("pyspark")
    assert spec is not None
    home = Path(str(spec.origin)).parent
    add_bytecode(home / "python" / "lib" / "pyspark.zip")
    archive_classes(home)


if __name__ == "__main__":
    main()
