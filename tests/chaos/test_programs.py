"""What the processes of a chaos run write to their history."""

import subprocess
import sys
from pathlib import Path

import psycopg

from airflow_provider_taskq.queue import NewTask, Owner, TaskQueue
from airflow_provider_taskq.spark import TaskOutcome
from airflow_provider_taskq.worker import BatchContext, BatchOwner
from tests.chaos.checker import SUCCEEDED, SUCCESS, judge
from tests.chaos.history import Recorder, read
from tests.chaos.programs import EFFECTS, SCHEMA, TOPIC
from tests.chaos.spark_program import Deciding
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


def test_a_drain_that_decides_after_the_claim_of_a_later_one_is_found_out(
    queue: TaskQueue, owner: Owner, tmp_path: Path
) -> None:
    row = {"task": "first", "identifier": "id"}
    with Recorder(tmp_path, "producer") as recorder:
        recorder.write("push", 0.0, 1.0, [row])
        recorder.final("task", [{**row, "state": SUCCEEDED}])
    queue.push(TOPIC, [NewTask("id", {"key": "first"})])
    [task] = queue.poll(TOPIC, owner, 1)
    earlier, later = (
        Deciding("driver", 60.0, str(tmp_path))(task, BatchContext(BatchOwner("driver", queue.draw_fence(owner))))
        for _ in range(2)
    )

    def rules(committed: TaskOutcome) -> set[str]:
        [effect] = committed.push[EFFECTS]
        assert isinstance(effect, NewTask)
        assert isinstance(effect.payload, dict)
        event = {"kind": "effect", "began": 0.0, "ended": 0.0, "task": effect.identifier, **effect.payload}
        return {violation.rule for violation in judge([*read(tmp_path), event])}

    assert rules(later) == set()
    assert rules(earlier) == {"superseded"}
