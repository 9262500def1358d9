"""Event-driven DAGs, with Airflow's own processes."""

import importlib.util
import os
import secrets
import shutil
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from airflow_provider_taskq.queue import NewTask, State, TaskQueue, connect
from demo.airflow_api import until
from demo.airflow_site import AirflowSite
from tests.airflow.conftest import connection_json
from tests.airflow.release_marks import CLAIMS_SHARE_STREAMS

pytest.importorskip("airflow.triggers.shared_stream", reason=CLAIMS_SHARE_STREAMS)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.promise("An event trigger ends a task only after its event is stored"),
]

DAGS = Path(__file__).parent / "dags" / "events.py"
EXAMPLE = Path(__file__).parents[2] / "example_dags" / "taskq_events.py"
MARK = f"marked-payload-{secrets.token_hex(8)}"
TOPICS = ("orders", "letters", "parcels", "recorded-claimed", "recorded-twin", "recorded-queued", "invoices", "signups")
UNDER_WAY = (
    "SELECT FROM pg_stat_activity WHERE application_name = 'airflow-taskq' AND datname = current_database()"
    " AND state <> 'idle'"
)


@pytest.fixture(scope="module")
def databases(server_dsn: str, template: str) -> Iterator[tuple[str, str]]:
    """Yield the DSNs of a queue database and of Airflow's metadata database."""
    queue, metadata = f"taskq_events_{uuid4().hex[:8]}", f"airflow_events_{uuid4().hex[:8]}"
    with psycopg.connect(server_dsn, autocommit=True) as admin:
        made = sql.SQL("CREATE DATABASE {} TEMPLATE {}")
        admin.execute(made.format(sql.Identifier(queue), sql.Identifier(template)))
        admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(metadata)))
    yield make_conninfo(server_dsn, dbname=queue), make_conninfo(server_dsn, dbname=metadata)
    with psycopg.connect(server_dsn, autocommit=True) as admin:
        for name in (queue, metadata):
            admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


@pytest.fixture(scope="module")
def site(
    databases: tuple[str, str], repository: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[AirflowSite]:
    folder = tmp_path_factory.mktemp("dags")
    for file in (DAGS, EXAMPLE):
        shutil.copy(file, folder)
    with connect(databases[0], autocommit=True) as connection:
        for topic in TOPICS:
            TaskQueue(connection).create_topic(topic)
    env = {
        "AIRFLOW_CONN_TASKQ_DEFAULT": connection_json(databases[0]),
        "TASKQ_TEST_EVENTS": "1",
        "PYTHONPATH": str(repository),
        "AIRFLOW__TRIGGERER__JOB_HEARTBEAT_SEC": "2",
        "AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "6",
    }
    metadata = "postgresql://{user}:{password}@{host}:{port}/{dbname}".format(
        **{"password": "", **conninfo_to_dict(databases[1])}
    )
    with AirflowSite(tmp_path_factory.mktemp("airflow"), folder, env=env, metadata_dsn=metadata) as site:
        site.wait_dags("claimed", "claimed_twin", "queued", "peeked", "taskq_wake", "taskq_each")
        yield site


@pytest.fixture
def queue(databases: tuple[str, str]) -> Iterator[TaskQueue]:
    with connect(databases[0], autocommit=True) as connection:
        yield TaskQueue(connection)


def push(queue: TaskQueue, topic: str, count: int) -> list[int]:
    return [task.sequence for task in queue.push(topic, [NewTask(f"{n}", payload=MARK) for n in range(count)])]


def count(queue: TaskQueue, topic: str, state: State) -> int:
    found = queue.count(topic).get(topic, {}).get(state)
    return found.count if found else 0


def ended(queue: TaskQueue, topic: str, number: int) -> bool | None:
    return count(queue, topic, State.SUCCEEDED) == number or None


def recorded(queue: TaskQueue, topic: str) -> Counter[int]:
    """Count the DAG runs by task whose event they had."""
    return Counter(int(task.identifier) for task in queue.page(topic, size=10_000))


def wait_recorded(queue: TaskQueue, topic: str, sequences: list[int], seconds: float = 120) -> None:
    missing = set(sequences)

    def all_of_them() -> bool | None:
        missing.difference_update(recorded(queue, topic))
        return not missing or None

    until(all_of_them, seconds, lambda: f"no run had the events of {sorted(missing)}")


def stopped_holding(site: AirflowSite, queue: TaskQueue, topic: str) -> bool | None:
    """Stop the triggerer (SIGSTOP), and return whether it holds tasks. If it holds none, let it continue."""
    group = site.pids["triggerer"]
    os.killpg(group, signal.SIGSTOP)
    idle = lambda: not queue.conn.execute(UNDER_WAY).fetchall() or None  # noqa: E731
    until(idle, 60, lambda: "its last statement has not ended", pause=0.02)
    if count(queue, topic, State.ACTIVE):
        return True
    os.killpg(group, signal.SIGCONT)
    return None


def test_every_task_of_a_claimed_topic_reaches_the_runs_of_both_assets(site: AirflowSite, queue: TaskQueue) -> None:
    assert site.pids
    sequences = push(queue, "orders", 3)
    for topic in ("recorded-claimed", "recorded-twin"):
        wait_recorded(queue, topic, sequences)
        assert set(recorded(queue, topic).values()) == {1}
    until(lambda: ended(queue, "orders", 3), 30, lambda: "the tasks were not ended")


def test_a_dag_is_scheduled_by_a_message_queue(site: AirflowSite, queue: TaskQueue) -> None:
    assert site.pids
    sequences = push(queue, "letters", 25)
    wait_recorded(queue, "recorded-queued", sequences)


def test_a_peek_starts_a_dag_again_after_the_topic_was_drained(site: AirflowSite, queue: TaskQueue) -> None:
    assert site.pids
    for times in (1, 2):
        push(queue, "parcels", 3)
        until(lambda: ended(queue, "parcels", 3 * times), 50, lambda: "the DAG was not woken")  # noqa: B023  sooner than the peek would repeat itself


def test_a_triggerer_killed_between_claim_and_completion_loses_no_task(site: AirflowSite, queue: TaskQueue) -> None:
    before, sequences = recorded(queue, "recorded-claimed"), list[int]()

    def holds_some() -> bool | None:
        if not count(queue, "orders", State.ACTIVE) and not count(queue, "orders", State.READY):
            sequences.extend(push(queue, "orders", 300))
        return stopped_holding(site, queue, "orders") if count(queue, "orders", State.ACTIVE) else None

    until(holds_some, 60, lambda: "nothing was claimed", pause=0.02)
    site.kill("triggerer")
    held = count(queue, "orders", State.ACTIVE)
    assert held  # the tasks that the triggerer held when it died
    site.restart("triggerer")
    for topic in ("recorded-claimed", "recorded-twin"):
        wait_recorded(queue, topic, sequences)
    until(lambda: ended(queue, "orders", len(before) + len(sequences)), 60, lambda: "the tasks were not ended")
    again = sum(times - 1 for times in (recorded(queue, "recorded-claimed") - before).values())
    assert again <= held, f"{held} were held at the kill, {again} events came twice"


def test_the_example_runs(site: AirflowSite, queue: TaskQueue) -> None:
    for topic, dag_id in (("invoices", "taskq_wake"), ("signups", "taskq_each")):
        push(queue, topic, 3)
        until(lambda: ended(queue, topic, 3), 60, lambda: f"{topic} are left")  # noqa: B023
        succeeded = lambda: site.get(f"dags/{dag_id}/dagRuns", state="success")["dag_runs"] or None  # noqa: B023, E731
        until(succeeded, 60, lambda: f"{dag_id} has not run")  # noqa: B023


def test_these_tests_stored_and_logged_no_payload(site: AirflowSite, databases: tuple[str, str]) -> None:
    logs = site.log_text()
    assert "Trigger fired event" in logs
    assert MARK not in logs
    with psycopg.connect(databases[1]) as metadata:
        tables = metadata.execute(
            "SELECT relname FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace"
        )
        for (table,) in tables.fetchall():
            rows = metadata.execute(sql.SQL("SELECT to_json(t)::text FROM {} t").format(sql.Identifier(table)))
            assert not any(MARK in row[0] for row in rows)


def test_the_example_parses_without_a_database() -> None:
    spec = importlib.util.spec_from_file_location("taskq_events", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.invoices.watchers
