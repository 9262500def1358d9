"""The imports of each module, checked in an interpreter of its own."""

import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

import airflow_provider_taskq

pytestmark = pytest.mark.promise("Executors and clients of Spark Connect need few libraries")

BLOCK = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name in {names!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Absent())
"""
MODULES = ("data_source", "readers", "writers", "drain", "application", "composite")
ALL = "; ".join(f"import airflow_provider_taskq.spark.{module}" for module in MODULES)
REMOTE = f"{ALL}; import pyspark.util; print(pyspark.util.is_remote_only())"


def run(program: str, environment: Mapping[str, str], *absent: str) -> subprocess.CompletedProcess[str]:
    text = BLOCK.format(names=absent) + program
    return subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, env=dict(environment), check=False
    )


@pytest.mark.parametrize(
    ("program", "absent", "printed"),
    [
        (f"{ALL}; print([m for m in sys.modules if m[:8] == 'airflow.'])", ("airflow", "pendulum", "sqlalchemy"), "[]"),
        ("import airflow_provider_taskq.spark.data_source; print('pandas' in sys.modules)", (), "False"),
        (REMOTE, ("pyspark.core", "py4j", "pandas"), "True"),
        ("from airflow_provider_taskq import spark; print('pyspark' in sys.modules)", ("pyspark",), "False"),
    ],
    ids=["without Airflow", "without pandas", "without Spark's core", "without PySpark"],
)
def test_a_module_imports_only_what_it_needs(
    python_environment: Mapping[str, str], program: str, absent: tuple[str, ...], printed: str
) -> None:
    done = run(program, python_environment, *absent)
    assert (done.returncode, done.stdout) == (0, f"{printed}\n"), done.stderr


@pytest.mark.parametrize(
    ("program", "absent"),
    [
        ("from airflow_provider_taskq.spark import drain", "pyspark"),
        ("from airflow_provider_taskq.spark import drain", "pyarrow"),
        ("from airflow_provider_taskq.spark import drain", "py4j"),
        ("import runpy; runpy.run_module('airflow_provider_taskq.spark.drain', run_name='__main__')", "pyspark"),
    ],
)
def test_a_missing_extra_is_reported_in_one_line(
    python_environment: Mapping[str, str], program: str, absent: str
) -> None:
    done = run(program, python_environment, absent)
    assert done.returncode == 1
    assert f"airflow_provider_taskq.spark needs {absent}" in done.stderr.splitlines()[-1]
    assert done.stderr.strip().endswith("install airflow-provider-taskq with its extra spark")


def test_only_the_queue_writes_statements_of_the_engine() -> None:
    package = Path(airflow_provider_taskq.__file__).parent / "spark"
    texts = {module.name: module.read_text(encoding="utf-8") for module in package.glob("*.py")}
    assert len(texts) > 15
    assert [name for name, text in texts.items() if re.search(r"(SELECT|FROM|COPY)\s+taskq\.", text)] == []


def test_the_function_is_found_in_any_order_of_imports(python_environment: Mapping[str, str]) -> None:
    program = """
from airflow_provider_taskq.spark import drain as first
import airflow_provider_taskq.spark.drain as module
from airflow_provider_taskq.spark import TaskQDataSource, drain as second
assert first is second and callable(first), (first, second)
assert TaskQDataSource.name() == "taskq"
"""
    assert run(program, python_environment).returncode == 0
