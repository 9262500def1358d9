"""The driver unpickles nothing that a task or a transform supplies, and refuses columns that decisions do not have."""

import base64
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from airflow_provider_taskq.queue import InvalidTask, NewTask, Task, TaskQueue
from airflow_provider_taskq.spark import by_composite, by_task, in_arrow
from airflow_provider_taskq.spark.connection import ConnectionInfo
from airflow_provider_taskq.spark.encoding import check_decision_columns
from airflow_provider_taskq.spark.options import HeldOptions
from airflow_provider_taskq.spark.writers import BatchWriter, StreamWriter, decisions
from tests.spark.conftest import Drained, states
from tests.worker.orders import orders

pytestmark = pytest.mark.promise("The package never runs data as code")


INTERNAL = ["company", "stage"]
ALLOWED = "use sequence, result, message, error, delay"


class Attack:
    """Its pickle creates a file in the process that loads it."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[Callable[[Path], None], tuple[Path]]:
        return Path.touch, (self.file,)


@pytest.fixture
def created(tmp_path: Path) -> Path:
    """The file that exists once a process has loaded the attack."""
    return tmp_path / "created"


@pytest.fixture
def attacked(queue: TaskQueue, created: Path) -> None:
    """Two tasks whose payloads hold the attack."""
    attack = base64.b64encode(pickle.dumps(Attack(created))).decode()
    queue.push("work", [NewTask(name, {"attack": attack}) for name in ("a", "b")])


def columns(name: str) -> tuple[str, str, str]:
    """Decisions with one column more, of the bytes in the payload."""
    return "sequence", "'SUCCESS' AS result", f"unbase64(get_json_object(payload, '$.attack')) AS {name}"


@pytest.mark.parametrize("name", INTERNAL)
def test_decisions_have_no_internal_column(name: str) -> None:
    with pytest.raises(InvalidTask, match=f"unknown column '{name}' in the decisions: {ALLOWED}, continued, push"):
        check_decision_columns(dict.fromkeys(["sequence", "result", name], ""))
    rows = decisions(HeldOptions.parse({"mode": "complete", "owner": "me", "fence": "1"}, "complete"))
    schema = StructType().add("sequence", "long").add("result", "string").add(name, "binary")
    for writer in (BatchWriter, StreamWriter):
        with pytest.raises(InvalidTask, match=f"unknown column '{name.lower()}' in the decisions: {ALLOWED}"):
            writer.open(rows, schema, ConnectionInfo("postgresql://absent@127.0.0.1:1/nowhere"))


@pytest.mark.usefixtures("attacked")
def test_a_transform_cannot_supply_an_internal_column(drained: Drained, queue: TaskQueue, created: Path) -> None:
    with pytest.raises(InvalidTask, match="unknown column 'company' in the decisions"):
        drained(lambda tasks: tasks.selectExpr(*columns("company")))
    assert not created.exists()
    assert states(queue) == {"READY": 2}


@pytest.mark.usefixtures("attacked")
def test_functions_on_executors_cannot_supply_an_internal_column(
    drained: Drained, queue: TaskQueue, created: Path
) -> None:
    attack = pickle.dumps(Attack(created))

    def arrow(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            count = batch.num_rows
            results, attacks = pa.repeat("SUCCESS", count), pa.repeat(pa.scalar(attack), count)
            yield pa.record_batch({"sequence": batch["sequence"], "result": results, "company": attacks})

    def each(task: Task) -> Any:
        return {"sequence": task.sequence, "result": "SUCCESS", "company": attack}

    with pytest.raises(InvalidTask, match=f"unknown column 'company' in the decisions: {ALLOWED}"):
        drained(in_arrow(arrow), partitions=1)
    assert states(queue) == {"READY": 2}
    drained(by_task(each))
    assert states(queue) == {"FAILED": 2}
    assert not created.exists()


def test_a_composite_may_be_a_part_of_another_transform(drained: Drained, queue: TaskQueue) -> None:
    queue.push("work", ["a", "b"])
    drained(lambda tasks: by_composite(orders)(tasks).drop("delay"))
    assert states(queue) == {"SUCCEEDED": 2}
    assert {task.output for task in queue.page("work")} == {"orders: a", "orders: b"}
