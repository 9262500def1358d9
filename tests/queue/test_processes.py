"""A server that restarts undoes what was not committed, and a stream of tasks needs little memory."""

import os
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from airflow_provider_taskq.queue import Result, TaskQueue, connect, install
from demo.postgres import EmbeddedPostgres
from tests.queue.conftest import numbered

pytestmark = [pytest.mark.slow, pytest.mark.faults]


@pytest.mark.promise("PostgreSQL restarts")
def test_a_poll_that_the_restart_cut_off_took_nothing() -> None:
    with EmbeddedPostgres() as server:
        with connect(server.dsn, autocommit=True) as conn:
            install(conn)
            queue = TaskQueue(conn)
            queue.create_topic("work")
            queue.push("work", numbered(10))
            owner = queue.register("me")
            held = queue.poll("work", owner, 3)
        with connect(server.dsn) as cut:
            TaskQueue(cut).poll("work", owner, 3)
            TaskQueue(cut).complete(owner, {held[0]: Result.SUCCESS})
            TaskQueue(cut).push("work", ["more"])
            server.stop("immediate")
            with pytest.raises(psycopg.OperationalError):
                cut.commit()
        server.start()
        with connect(server.dsn, autocommit=True) as conn:
            queue = TaskQueue(conn)
            assert queue.held(owner) == held
            assert queue.ready("work", 100) == 7
            queue.complete(owner, dict.fromkeys(held, Result.SUCCESS))


# The maximum resident size is read from the kernel's statistics: `ru_maxrss` starts with that of the parent program.
STREAM = """
import re
from pathlib import Path
from airflow_provider_taskq.queue import NewTask, TaskQueue, connect

def greatest_size():
    return re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]

with connect() as conn:
    before = greatest_size()
    tasks = (NewTask(f"task-{number}", {"number": number, "text": "x" * 100}) for number in range(200_000))
    print(TaskQueue(conn).push_stream("work", tasks).count, before, greatest_size())
"""


@pytest.mark.promise("A push of any length needs little memory in the client")
def test_a_push_of_200_000_tasks_in_one_call_adds_less_than_50_mb(dsn: str, queue: TaskQueue) -> None:
    done = subprocess.run(
        [sys.executable, "-c", STREAM],
        env={**os.environ, "TASKQ_DSN": dsn, "PYTHONPATH": str(Path.cwd())},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    count, before, greatest = (int(word) for word in done.stdout.split())
    assert count == 200_000
    assert greatest - before < 50_000, f"{before} to {greatest} KiB"  # a list of the tasks alone takes more
    assert queue.count_tasks("work") == 200_000
    assert queue.ready("work", 5) == 5
