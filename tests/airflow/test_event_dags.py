"""Event-driven DAGs, with Airflow's own processes."""

import os
import signal
from collections import Counter
from itertools import chain

import psycopg
import pytest
from psycopg import sql

from airflow_provider_taskq.queue import NewTask, State, TaskQueue
from demo.airflow_api import until
from tests.airflow.release_marks import CLAIMS_SHARE_STREAMS
from tests.airflow.site import MARK, PASSWORD, Arguments, SharedAirflow

pytest.importorskip("airflow.triggers.shared_stream", reason=CLAIMS_SHARE_STREAMS)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(2400),
    pytest.mark.promise("An event trigger ends a task only after its event is stored"),
]

UNDER_WAY = (
    "SELECT FROM pg_stat_activity WHERE application_name = 'airflow-taskq' AND datname = current_database()"
    " AND state <> 'idle'"
)


@pytest.fixture(autouse=True, scope="module")
def dags(site: SharedAirflow) -> None:
    """Wait until Airflow knows the DAGs of these tests."""
    site.wait_dags("claimed", "claimed_twin", "taskq_wake", "taskq_each")


@pytest.fixture
def queue(site_queue: TaskQueue) -> TaskQueue:
    return site_queue


def push(queue: TaskQueue, topic: str, count: int) -> list[int]:
    return [task.sequence for task in queue.push(topic, [NewTask(f"{n}", payload=MARK) for n in range(count)])]


def count(queue: TaskQueue, topic: str, state: State) -> int:
    found = queue.count(topic).get(topic, {}).get(state)
    return found.count if found else 0


def ended(queue: TaskQueue, topic: str, number: int) -> bool | None:
    return count(queue, topic, State.SUCCEEDED) == number or None


def stored(site: SharedAirflow, asset: str) -> Counter[int]:
    """Count the events of an asset that Airflow has stored, by task.

    Airflow gives them to runs by the times of its clock, so that one may be in no run if the clock is set.
    """
    query = "SELECT e.extra::jsonb -> 'payload' -> 'sequences' FROM asset_event e JOIN asset a ON a.id = e.asset_id"
    with psycopg.connect(site.metadata_dsn) as metadata:
        rows = metadata.execute(f"{query} WHERE a.name = %s".encode(), (asset,)).fetchall()
    return Counter(chain.from_iterable(sequences for (sequences,) in rows))


def stopped_holding(site: SharedAirflow, queue: TaskQueue, topic: str) -> bool | None:
    """Stop the triggerer (SIGSTOP), and return whether it holds tasks. If it holds none, let it continue."""
    group = site.pids["triggerer"]
    os.killpg(group, signal.SIGSTOP)
    idle = lambda: not queue.conn.execute(UNDER_WAY).fetchall() or None  # noqa: E731
    until(idle, 60, lambda: "its last statement has not ended", pause=0.02)
    if count(queue, topic, State.ACTIVE):
        return True
    os.killpg(group, signal.SIGCONT)
    return None


@pytest.mark.promise("the triggerer is killed while gates wait")
def test_a_triggerer_killed_between_claim_and_completion_loses_no_task_and_no_gate(
    site: SharedAirflow, queue: TaskQueue
) -> None:
    queue.create_topic("outlived")
    gate = site.trigger("gate_only", conf={"topic": "outlived"})
    site.wait_task("gate_only", gate, "gate", {"deferred"}, 300)
    sequences = list[int]()

    def holds_some() -> bool | None:
        if not count(queue, "orders", State.ACTIVE) and not count(queue, "orders", State.READY):
            sequences.extend(push(queue, "orders", 300))
        return stopped_holding(site, queue, "orders") if count(queue, "orders", State.ACTIVE) else None

    until(holds_some, 300, lambda: "nothing was claimed", pause=0.02)
    site.kill("triggerer")
    held = count(queue, "orders", State.ACTIVE)
    assert held  # the tasks that the triggerer held when it died
    queue.push("outlived", ["a"])
    site.restart("triggerer")
    until(lambda: ended(queue, "orders", len(sequences)), 600, lambda: "the tasks were not ended")
    for asset in ("orders", "orders_twin"):
        events = stored(site, asset)
        assert set(events) == set(sequences)
        assert events.total() - len(sequences) <= held
    assert site.wait_run("gate_only", gate, {"success"}, 300) == "success"


def test_the_example_runs_and_starts_again_after_its_topics_were_drained(site: SharedAirflow, queue: TaskQueue) -> None:
    for topic, dag_id in (("invoices", "taskq_wake"), ("signups", "taskq_each")):
        for times in (1, 2):
            push(queue, topic, 3)
            until(lambda: ended(queue, topic, 3 * times), 300, lambda: f"{topic} are left")  # noqa: B023
        succeeded = lambda: site.get(f"dags/{dag_id}/dagRuns", state="success")["dag_runs"] or None  # noqa: B023, E731
        until(succeeded, 300, lambda: f"{dag_id} has not run")  # noqa: B023


@pytest.mark.promise("Payloads and passwords are in no log, error, metric, argument, XCom or plan")
def test_all_tests_with_this_airflow_stored_and_logged_no_payload_and_no_password(
    site: SharedAirflow, arguments: Arguments
) -> None:
    """They are the last ones, and their payloads and the password have marks."""
    logs, metadata = site.log_text(), dump(site.metadata_dsn)
    assert "Trigger fired event" in logs
    assert "function-0" not in metadata  # not even the identifiers that a function returned
    seen = tuple(arguments.seen)  # a copy: the thread still collects
    assert any("triggerer" in line for line in seen)
    for place in (logs, metadata, *seen):
        assert MARK not in place
        assert PASSWORD not in place


def dump(dsn: str) -> str:
    """Return every row of every table as text."""
    with psycopg.connect(dsn) as metadata:
        tables = metadata.execute(
            "SELECT relname FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace"
        )
        rows = [
            str(row[0])
            for (table,) in tables.fetchall()
            for row in metadata.execute(sql.SQL("SELECT to_json(t)::text FROM {} t").format(sql.Identifier(table)))
        ]
    return "\n".join(rows)
