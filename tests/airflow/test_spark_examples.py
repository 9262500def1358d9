"""The examples that drain by Spark and the script of docs/how-to/gate-spark-job.md, run by `dag.test()`."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from psycopg.conninfo import conninfo_to_dict

from airflow_provider_taskq.queue import State, TaskQueue, connect
from tests.airflow.dag_runner import run_dags
from tests.airflow.site import Arguments
from tests.airflow.test_spark_submit import local_spark
from tests.docs.blocks import read_blocks

pytestmark = [
    pytest.mark.slow,
    pytest.mark.documents,
    pytest.mark.timeout(3600),
    pytest.mark.promise("`TaskQSparkSubmitOperator` drains with Spark, and fails as the drain does"),
]

ROOT = Path(__file__).parents[2]
EXAMPLES = ("plane_decisions", "plane_job", "taskq_pyspark", "taskq_gate", "taskq_drain", "taskq_own_spark_job")
RUNS = (
    *("taskq_pyspark", "taskq_gate", "refill_2", "planes"),
    *("refill_1000", "taskq_drain", "refill_1000", "taskq_own_spark_job"),
)
REFILL = """from airflow.sdk import DAG
from airflow_provider_taskq.operators import TaskQPushOperator
for count in (2, 1000):
    with DAG(f"refill_{count}", schedule=None):
        TaskQPushOperator(task_id="push", topic="planes", tasks=[f"N{number}" for number in range(count)])
"""


@dataclass(frozen=True)
class DagRuns:
    """What the runs returned and printed, the arguments of all processes meanwhile, and the queue after them."""

    returned: dict[str, Any]
    shown: str
    password: str
    planes: dict[State, int]
    home: Path


@pytest.fixture(scope="module")
def dag_runs(make_database: Callable[..., str], tmp_path_factory: pytest.TempPathFactory) -> DagRuns:
    """Run the DAGs, with pushes between them, in an Airflow of their own."""
    dsn, home = make_database("spark_examples"), tmp_path_factory.mktemp("runs")
    page = ROOT / "docs" / "how-to" / "gate-spark-job.md"
    blocks = {block.title: block.text for block in read_blocks(page, ROOT)}  # only the paths differ
    written = {
        "planes.py": blocks["planes.py"].replace("/data/planes", str(home / "planes")),
        "planes_dag.py": blocks["dags/planes_dag.py"].replace("/opt/jobs", str(home)),
        "refill.py": REFILL,
    }
    for name, text in written.items():
        (home / name).write_text(text)
    files = [*(ROOT / "example_dags" / f"{name}.py" for name in EXAMPLES), home / "planes_dag.py", home / "refill.py"]
    settings = {"TASKQ_DSN": dsn, "PLANES_FOLDER": str(home / "example"), **local_spark()}
    with connect(dsn, autocommit=True) as connection:
        queue = TaskQueue(connection)
        queue.create_topic("planes")
        queue.push("planes", ["N12345", "D-ABCD"])
        arguments = Arguments()
        arguments.start()
        report = run_dags(home, dsn, files, *RUNS, settings=settings)
        arguments.end()
        assert set(report["states"].values()) == {"success"}, report["output"][-5000:]
        returned = {key.removesuffix("[-1].return_value"): value for key, value in report["xcoms"].items()}
        planes = {state: count.count for state, count in queue.count("planes")["planes"].items()}
    return DagRuns(
        returned, "\n".join((report["output"], *arguments.seen)), str(conninfo_to_dict(dsn)["password"]), planes, home
    )


def test_the_examples_drain_by_a_session_and_by_a_submit_without_showing_the_password(dag_runs: DagRuns) -> None:
    """Unchanged, while the test reads the process table."""
    gate, drained = dag_runs.returned["taskq_gate.gate"], dag_runs.returned["taskq_gate.drain"]
    assert dag_runs.returned["taskq_pyspark.drain_planes"] == 2
    assert (drained["owner"], drained["decided"], gate["claimed"]) == (gate["owner"], 3, 3)
    assert "/gate/" in drained["owner"]
    assert (drained["claimed"], drained["resumed"], drained["undecided"]) == (0, 3, 0)
    assert dag_runs.planes[State.FILTERED] == 1
    assert "application.py" in dag_runs.shown
    assert dag_runs.password not in dag_runs.shown


def test_the_examples_drain_a_topic_and_gate_a_job_of_their_own(dag_runs: DagRuns) -> None:
    assert dag_runs.returned["taskq_drain.drain"]["decided"] == 1000
    assert dag_runs.returned["taskq_own_spark_job.complete"]["completed"] == 1000
    assert list(dag_runs.home.glob("example/*/*.parquet"))
    assert dag_runs.planes == {State.SUCCEEDED: 4 + 2 + 1000 + 1000, State.FILTERED: 1}


def test_the_documented_script_reads_the_tasks_of_a_claim_between_the_gate_and_its_completion(
    dag_runs: DagRuns,
) -> None:
    """It runs in Airflow's own SparkSubmitOperator."""
    assert dag_runs.returned["planes.gate"]["claimed"] == 2
    assert dag_runs.returned["planes.complete"]["completed"] == 2
    assert list(dag_runs.home.glob("planes/*.parquet"))
