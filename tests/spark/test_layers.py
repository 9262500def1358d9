"""The imports of each module, checked in an interpreter of its own."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

pytestmark = pytest.mark.promise("Executors and clients of Spark Connect need few libraries")

BLOCK = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name in {names!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Absent())
"""


def run(program: str, environment: Mapping[str, str], *absent: str) -> subprocess.CompletedProcess[str]:
    text = BLOCK.format(names=absent) + program
    return subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, env=dict(environment), check=False
    )


@pytest.mark.parametrize("module", ["data_source", "readers", "writers", "drain", "application"])
def test_an_executor_needs_no_airflow(module: str, python_environment: Mapping[str, str]) -> None:
    program = (
        f"import airflow_provider_taskq.spark.{module}; print([m for m in sys.modules if m.startswith('airflow.')])"
    )
    done = run(program, python_environment, "airflow", "pendulum", "sqlalchemy", "pandas")
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr


def test_the_data_source_loads_no_pandas(python_environment: Mapping[str, str]) -> None:
    program = "import airflow_provider_taskq.spark.data_source; print('pandas' in sys.modules)"
    done = run(program, python_environment)
    assert (done.returncode, done.stdout) == (0, "False\n"), done.stderr


def test_a_client_of_spark_connect_needs_no_spark_core(python_environment: Mapping[str, str]) -> None:
    program = """
import airflow_provider_taskq.spark.application
import airflow_provider_taskq.spark.composite
from pyspark.util import is_remote_only
print(is_remote_only())
"""
    done = run(program, python_environment, "pyspark.core", "py4j")
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr


def test_importing_the_package_imports_no_pyspark(python_environment: Mapping[str, str]) -> None:
    program = "import airflow_provider_taskq.spark as s; print(s.application_path(), 'pyspark' in sys.modules)"
    done = run(program, python_environment, "pyspark")
    path, imported = done.stdout.strip().rsplit(maxsplit=1)
    assert imported == "False"
    assert Path(path).is_file()


@pytest.mark.parametrize(("absent", "named"), [("pyspark", "pyspark"), ("pyarrow", "pyarrow"), ("py4j", "py4j")])
def test_a_missing_extra_is_reported_in_one_line(
    absent: str, named: str, python_environment: Mapping[str, str]
) -> None:
    done = run("from airflow_provider_taskq.spark import drain", python_environment, absent)
    assert done.returncode == 1
    assert f"ImportError: airflow_provider_taskq.spark needs {named}" in done.stderr.splitlines()[-1]
    assert "install airflow-provider-taskq with its extra spark" in done.stderr.splitlines()[-1]


def test_the_program_reports_a_missing_extra(python_environment: Mapping[str, str]) -> None:
    program = "import runpy; runpy.run_module('airflow_provider_taskq.spark.drain', run_name='__main__')"
    done = run(program, python_environment, "pyspark")
    assert done.returncode != 0
    assert done.stderr.strip().splitlines()[-1].endswith("install airflow-provider-taskq with its extra spark")


def test_the_function_is_found_in_any_order_of_imports(python_environment: Mapping[str, str]) -> None:
    program = """
from airflow_provider_taskq.spark import drain as first
import airflow_provider_taskq.spark.drain as module
from airflow_provider_taskq.spark import TaskQDataSource, drain as second
assert first is second and callable(first), (first, second)
assert TaskQDataSource.name() == "taskq"
"""
    assert run(program, python_environment).returncode == 0


def test_an_unknown_name_is_an_attribute_error() -> None:
    import airflow_provider_taskq.spark as package

    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        package.nothing  # noqa: B018
    assert os.path.basename(package.application_path()) == "application.py"  # noqa: PTH119
