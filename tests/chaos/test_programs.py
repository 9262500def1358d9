"""What the processes of a chaos run write to their history."""

import subprocess
import sys
from pathlib import Path

import psycopg

from airflow_provider_taskq.queue import NewTask, TaskQueue
from tests.chaos.checker import SUCCESS
from tests.chaos.history import read
from tests.chaos.programs import SCHEMA, TOPIC
from tests.queue.conftest import until

BLOCKED = "SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
SECONDS = 120.0


def test_a_loop_that_is_killed_within_a_decision_has_written_it(own_dsn: str, tmp_path: Path, repository: Path) -> None:
    with psycopg.connect(own_dsn) as conn, psycopg.connect(own_dsn, autocommit=True) as observer:
        conn.execute(SCHEMA)
        queue = TaskQueue(conn)
        queue.create_topic(TOPIC)
        queue.push(TOPIC, [NewTask("id", {"key": "first"})])
        conn.commit()
        conn.execute("LOCK effect")
        command = [sys.executable, "-m", "tests.chaos.programs", "loop", "loop-1", own_dsn, str(tmp_path)]
        with subprocess.Popen(command, cwd=repository, stdin=subprocess.PIPE) as loop:
            until(lambda: observer.execute(BLOCKED).rowcount == 1, SECONDS)
            loop.kill()
    claim, decision = read(tmp_path)
    assert (claim["kind"], claim["task"], claim["ended"] is not None) == ("claim", "first", True)
    assert (decision["kind"], decision["task"], decision["ended"]) == ("decision", "first", None)
    assert decision["result"] == SUCCESS, "the checker compares names"
