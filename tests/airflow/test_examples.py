import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
from airflow.sdk import BaseOperator

EXAMPLES = Path(__file__).parents[2] / "example_dags"


@pytest.mark.parametrize(("file", "chain"), [("taskq_gate", ["push", "gate", "drain"])])
def test_an_example_is_a_dag_without_a_database(file: str, chain: list[str]) -> None:
    spec = importlib.util.spec_from_file_location(file, EXAMPLES / f"{file}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    (dag,) = {value.dag for value in vars(module).values() if isinstance(value, BaseOperator)}
    assert [sorted(dag.get_task(task).downstream_task_ids) for task in chain] == [[task] for task in chain[1:]] + [[]]


def test_our_imports_take_less_than_a_second_of_a_dag_file(repository: Path) -> None:
    """Beside what every DAG file pays for Airflow: neither the hook with its SQLAlchemy, nor a pool, nor Spark."""
    program = (
        "import sys, time; from airflow.sdk import DAG, BaseOperator, BaseSensorOperator, conf;"
        "from airflow.providers.common.compat.sdk import BaseOperator, XComArg, PokeReturnValue;"
        "began = time.process_time();"
        "import airflow_provider_taskq.operators, airflow_provider_taskq.sensors;"
        "print(time.process_time() - began,"
        " [name for name in ('sqlalchemy', 'psycopg_pool', 'pyspark', 'fastapi', 'airflow.providers.postgres')"
        "  if name in sys.modules and name not in before])"
    ).replace("began = ", "before = set(sys.modules); began = ", 1)
    result = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, cwd=repository)
    seconds, heavy = result.stdout.splitlines()[-1].split(maxsplit=1)  # Airflow logs to it, too
    assert float(seconds) < 1
    assert heavy.strip() == "[]"
