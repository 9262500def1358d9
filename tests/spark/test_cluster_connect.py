"""Spark Connect: the data source and drains work through it."""

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_taskq.queue import State, TaskQueue

pytestmark = pytest.mark.promise("Executors and clients of Spark Connect need few libraries")

PROGRAM = Path(__file__).parent / "programs" / "connected.py"


@pytest.mark.slow
def test_the_data_source_and_drains_work_through_spark_connect(
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
    check_drains(queue, found.pop("drains"))
    assert found == {"session": "pyspark.sql.connect.session", "claimed": 6, "states": ["SUCCEEDED"] * 6, "ended": True}
    assert {state: count.count for state, count in queue.count("work")["work"].items()} == {
        State.SUCCEEDED: 6,
        State.READY: 2,
    }
    assert [task.output for task in queue.page("work", size=6)] == [{"number": number} for number in range(6)]
    copies = [*(f"item-{number}" for number in range(6)), "a", "b"]
    assert [task.identifier for task in queue.page("copies", size=100)] == copies, "each is copied once in two runs"


def check_drains(queue: TaskQueue, found: dict[str, Any]) -> None:
    """The drains decide and push once. One that loses its lease is cancelled on the server, and commits nothing."""
    assert "unknown result 'DONE'" in found.pop("invalid")
    assert "registered again" in found.pop("lost")
    assert found == {"cores": 2, "rounds": 3, "done": 25, "pushed": 25, "composed": 2, "released": 25}
    assert sorted(task.identifier for task in queue.page("next", size=100)) == sorted(
        f"item-{number}" for number in range(25)
    )
    assert sorted(task.identifier for task in queue.page("notes", size=100)) == ["a", "b"]
    states = {state: count.count for state, count in queue.count("drained")["drained"].items()}
    assert states == {State.SUCCEEDED: 27, State.ACTIVE: 25}
