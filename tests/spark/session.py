"""One Spark session for all tests. tests/conftest.py imports these fixtures."""

import logging
import os
import sys
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.spark.archives import java_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]
PROGRAMS = Path(__file__).parent / "programs"

SHORT_LIVED = {"JAVA_TOOL_OPTIONS": java_options()}


@pytest.fixture(scope="session")
def python_environment() -> dict[str, str]:
    """The environment for programs: this Python, this checkout, and no database unless a test sets one."""
    hidden = ("TASKQ_", "PG", "SPARK_", "PYSPARK_", "AIRFLOW")
    env = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
    path = f"{ROOT}{os.pathsep}{PROGRAMS}"
    spec = find_spec("pyspark")
    assert spec is not None
    home = str(Path(str(spec.origin)).parent)  # spark-submit's own search for it fails where a path has a space
    named = {"PYTHONPATH": path, "PYSPARK_PYTHON": sys.executable, "SPARK_HOME": home, "SPARK_LOCAL_IP": "127.0.0.1"}
    return {**env, **named, **SHORT_LIVED}


@pytest.fixture(scope="session")
def spark_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The standard error of Spark's JVM and its Python workers."""
    return tmp_path_factory.mktemp("spark") / "log"


@pytest.fixture(scope="session")
def spark(
    python_environment: Mapping[str, str], spark_log: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator["SparkSession"]:
    """A session with two cores and three tries of a task. Its JVM starts without a database in the environment."""
    from pyspark.sql import SparkSession

    before, stderr = dict(os.environ), os.dup(2)
    os.environ.clear()
    os.environ.update(python_environment)
    with spark_log.open("wb") as log:
        os.dup2(log.fileno(), 2)
    try:
        session = (
            SparkSession.builder.master("local[2,3]")
            .appName("taskq tests")
            .config("spark.ui.enabled", "true")
            .config("spark.ui.port", "0")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
            # For a few rows, plans that adapt and compiled stages cost more CPU than they save: 6 and 9 % of a drain.
            .config("spark.sql.adaptive.enabled", "false")
            .config("spark.sql.codegen.wholeStage", "false")
            .config("spark.sql.codegen.factoryMode", "NO_CODEGEN")
            .getOrCreate()
        )
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        os.environ.clear()
        os.environ.update(before)
    os.environ["PYTHONPATH"] = python_environment["PYTHONPATH"]
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()
    # It logs once more when Python ends. Airflow logs to a stream of pytest, which is closed by then.
    logging.getLogger("py4j").setLevel(logging.WARNING)
