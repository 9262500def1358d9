"""The programs of the chaos runs know what they record, whatever the order of their threads."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_taskq.queue import State, TaskQueue
from airflow_provider_taskq.worker.runtime import WorkerRuntime
from tests.chaos.history import Recorder
from tests.chaos.programs import SCHEMA, TOPIC, Options, Program, Working
from tests.queue.conftest import until

ENDS = (State.SUCCEEDED, State.FAILED)


def state(queue: TaskQueue) -> State:
    """The state of the only task."""
    return queue.page(TOPIC)[0].state


@pytest.fixture
def effects(queue: TaskQueue) -> Iterator[None]:
    """The tables of a chaos run."""
    queue.conn.execute(SCHEMA)
    yield
    queue.conn.execute("DROP TABLE effect, reading")


@pytest.mark.usefixtures("effects")
def test_a_worker_knows_owner_and_fence_of_a_task_that_it_handles_before_its_start_has_returned(
    dsn: str, queue: TaskQueue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = WorkerRuntime.start

    def start_and_handle(runtime: WorkerRuntime, *arguments: Any) -> None:
        start(runtime, *arguments)
        until(lambda: state(queue) in ENDS, 60)

    monkeypatch.setattr(WorkerRuntime, "start", start_and_handle)
    queue.push(TOPIC, [{"identifier": "a", "payload": {"key": "task-1"}}])
    stopping = threading.Event()
    with Recorder(tmp_path, "worker") as recorder:
        working = threading.Thread(target=Working(Program("worker", dsn, Options(), recorder, stopping)).run)
        working.start()
        until(lambda: state(queue) in ENDS, 60)
        stopping.set()
        working.join(60)
    assert state(queue) is State.SUCCEEDED, queue.page(TOPIC)[0].error
    events = map(json.loads, (tmp_path / "worker.jsonl").read_text().splitlines())
    [claim] = [event for event in events if event["kind"] == "claim"]
    assert queue.conn.execute("SELECT key, owner, fence FROM effect").fetchall() == [
        ("task-1", claim["owner"], claim["fence"])
    ]
