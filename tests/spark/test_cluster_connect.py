"""Spark Connect: the data source works through it, and the drain does not."""

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from airflow_provider_taskq.queue import State, TaskQueue

PROGRAM = Path(__file__).parent / "programs" / "connected.py"


@pytest.mark.slow
def test_the_data_source_works_through_spark_connect_and_the_drain_claims_nothing(
    dsn: str, queue: TaskQueue, push: Callable[[int], list[int]], python_environment: Mapping[str, str], tmp_path: Path
) -> None:
    push(6)
    queue.create_topic("copies")
    (tmp_path / "dsn").write_text(dsn)
    command = [sys.executable, str(PROGRAM), str(tmp_path / "dsn")]
    done = subprocess.run(
        command, env=dict(python_environment), cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found.pop("drain").startswith(
        "TaskQueueError: drain cannot run in a session of Spark Connect, which has no "
    )
    assert found == {"session": "pyspark.sql.connect.session", "claimed": 6, "states": ["SUCCEEDED"] * 6, "ended": True}
    assert {state: count.count for state, count in queue.count("work")["work"].items()} == {
        State.SUCCEEDED: 6,
        State.READY: 2,
    }
    assert [task.output for task in queue.page("work", size=6)] == [{"number": number} for number in range(6)]
    copies = [*(f"item-{number}" for number in range(6)), "a", "b"]
    assert [task.identifier for task in queue.page("copies", size=100)] == copies, "each is copied once in two runs"
