import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from airflow import __version__
from airflow.sdk import DAG

from airflow_provider_taskq.triggers.event import has_shared_streams

pytestmark = pytest.mark.promise("The examples, and the code of each page of this site, run as they are written")

EXAMPLES = Path(__file__).parents[2] / "example_dags"

# Imports that every DAG file with Airflow and its Spark provider needs anyway.
AIRFLOWS = (
    "from airflow.sdk import DAG, Asset, AssetAlias, BaseOperator, BaseSensorOperator, Param, task\n"
    "from airflow.providers.common.compat.sdk import (\n"
    "    AirflowException, BaseOperator, BaseOperatorLink, PokeReturnValue, XComArg, conf, determine_kwargs)\n"
    "from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator\n"
)

# Modules that only a running worker or triggerer needs.
HEAVY = (
    "psycopg_pool",
    "pyspark",
    "fastapi",
    "sqlalchemy",
    "airflow.providers.postgres",
    "airflow.providers.common.sql",
)


# Modules that need a newer Airflow, and that no other module imports on an older one.
UNUSABLE = [] if has_shared_streams() else ["airflow_provider_taskq.triggers.event_stream"]


def run(program: str) -> subprocess.CompletedProcess[str]:
    """Run a program in a process whose Airflow has no database and no connection."""
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW_CONN_")},
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": "sqlite:////nowhere/airflow.db",
        "PYTHONPATH": os.pathsep.join([str(EXAMPLES.parent), str(EXAMPLES)]),
    }
    return subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, env=environment)


def load(file: Path) -> ModuleType:
    """Import an example as the DAG processor does."""
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_every_example_is_parsed_by_a_dag_bag() -> None:
    dags = [file.name for file in EXAMPLES.glob("*.py") if "with DAG(" in file.read_text(encoding="utf-8")]
    program = (EXAMPLES.parent / "tests" / "docs" / "dag_parser.py").read_text(encoding="utf-8")
    found = json.loads(run(program.replace("sys.argv[1]", repr(str(EXAMPLES)))).stdout.splitlines()[-1])
    assert found["errors"] == {}, "without a database"
    assert sorted(Path(file).name for file in found["files"]) == sorted(dags)


def test_the_example_of_a_gate_before_a_spark_job_releases_its_claim_in_a_teardown() -> None:
    dag = load(EXAMPLES / "taskq_own_spark_job.py").gate.dag
    release = dag.get_task("release")
    assert (release.is_teardown, dag.get_task("gate").is_setup) == (True, True)
    assert release.upstream_task_ids == {"gate", "complete"}
    assert dag.get_task("job").downstream_task_ids == {"complete"}


@pytest.mark.promise("A feature that an older Airflow lacks is refused by name")
def test_the_example_of_events_leaves_out_the_dag_that_this_airflow_cannot_run(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    enter = DAG.__enter__

    def entered(dag: DAG) -> DAG:
        made.append(dag.dag_id)
        return enter(dag)

    monkeypatch.setattr(DAG, "__enter__", entered)
    load(EXAMPLES / "taskq_events.py")
    claims = tuple(int(part) for part in __version__.split(".")[:2]) >= (3, 3)
    assert made == (["taskq_wake", "taskq_each"] if claims else ["taskq_wake"])
    assert has_shared_streams() == claims


def test_importing_our_modules_imports_nothing_heavy() -> None:
    """Neither the hook with its SQLAlchemy, nor a pool, nor Spark, nor a web framework."""
    packages = ["operators", "sensors", "triggers", "links", "assets", "notifications", "metrics"]
    program = AIRFLOWS + (
        "import airflow.triggers.base, importlib, json, pkgutil, sys\n"
        "before = set(sys.modules)\n"
        f"for name in {packages}:\n"
        "    package = importlib.import_module('airflow_provider_taskq.' + name)\n"
        "    for module in pkgutil.iter_modules(getattr(package, '__path__', []), package.__name__ + '.'):\n"
        f"        if module.name not in {UNUSABLE}:\n"
        "            importlib.import_module(module.name)\n"
        "print(json.dumps(sorted(set(sys.modules) - before)))"
    )
    brought: list[Any] = json.loads(run(program).stdout.splitlines()[-1])  # Airflow logs to stdout too
    assert {f"airflow_provider_taskq.{package}" for package in packages} <= set(brought)
    assert [name for name in brought if name.startswith(HEAVY)] == []
