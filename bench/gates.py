"""Measures 500 deferred gates of a real Airflow: until all wait, and from a push until they are open.

    python -m bench gates

Each of the gates claims from a topic of its own and starts in the triggerer (`start_from_trigger`). Airflow runs with
its default settings but for parallelism 4 (LocalExecutor), and its metadata is in PostgreSQL. "used a worker" counts
task instances that Airflow has given to a worker, by its own account. "open" is the time from a push to the moment at
which Airflow has stored that the gate succeeded. 50 gates that start in a worker are measured as well.
"""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import psycopg

from airflow_provider_taskq.queue import TaskQueue, connect
from bench.rig import Rig, url
from demo.airflow_site import AirflowSite, connection_json

GATES, DAGS = 500, 10
IN_WORKERS = 50
REST_SECONDS = 5  # from the start of the last trigger to the push
SECONDS = 600  # the time limit of a step
DAG_FILE = """
from airflow.sdk import DAG
from airflow_provider_taskq.sensors import TaskQSensor

for kind, stores in (("gates", True), ("silent", False)):
    for number in range({dags}):
        with DAG(f"{{kind}}_{{number}}", schedule=None):
            for gate in range({each}):
                name = f"{{kind}}_{{number}}-{{gate}}"
                TaskQSensor(
                    task_id=name, topic=name, claim=1, do_xcom_push=stores,
                    deferrable=True, start_from_trigger=True, timeout=3600,
                )
with DAG("in_workers", schedule=None, max_active_tasks={in_workers}):
    for gate in range({in_workers}):
        name = f"in_workers-{{gate}}"
        TaskQSensor(task_id=name, topic=name, claim=1, deferrable=True, timeout=3600)
"""
COUNTS = """
SELECT count(*) FILTER (WHERE state = 'deferred'), count(*) FILTER (WHERE state = 'success'),
       count(*) FILTER (WHERE pid IS NOT NULL OR queued_dttm IS NOT NULL)
FROM task_instance WHERE dag_id = ANY (%s)
"""


def run(rig: Rig) -> None:
    """Measures, and prints a table."""
    measured = (
        (f"{GATES} in {DAGS} DAGs, start_from_trigger", [f"gates_{number}" for number in range(DAGS)], GATES),
        ("the same, do_xcom_push=False", [f"silent_{number}" for number in range(DAGS)], GATES),
        (f"{IN_WORKERS} in one DAG, started by workers", ["in_workers"], IN_WORKERS),
    )
    sys.stdout.write("| gates | all wait after | used a worker | first open | half open | all open |\n")
    sys.stdout.write("|---|--:|--:|--:|--:|--:|\n")
    with _airflow(rig) as (site, queue, metadata):
        site.wait_dags("in_workers", *measured[0][1], *measured[1][1])
        for name, dag_ids, count in measured:
            _measure(site, queue, metadata, name, dag_ids, count)


@contextmanager
def _airflow(rig: Rig) -> Iterator[tuple[AirflowSite, TaskQueue, psycopg.Connection]]:
    """An Airflow with the DAGs, the queue with their topics, and a connection to Airflow's metadata."""
    with rig.database() as dsn, rig.empty_database() as metadata_dsn, TemporaryDirectory(prefix="taskq-bench-") as home:
        dags = Path(home) / "dags"
        dags.mkdir()
        (dags / "gates.py").write_text(DAG_FILE.format(dags=DAGS, each=GATES // DAGS, in_workers=IN_WORKERS))
        env = {"AIRFLOW_CONN_TASKQ_DEFAULT": connection_json(dsn), "PYTHONPATH": str(Path(__file__).parents[1])}
        with (
            AirflowSite(Path(home) / "airflow", dags, env=env, metadata_dsn=url(metadata_dsn)) as site,
            connect(dsn, autocommit=True) as connection,
            psycopg.connect(metadata_dsn, autocommit=True) as metadata,
        ):
            queue = TaskQueue(connection)
            for kind in ("gates", "silent"):
                for dag in range(DAGS):
                    for gate in range(GATES // DAGS):
                        queue.create_topic(f"{kind}_{dag}-{gate}")
            for gate in range(IN_WORKERS):
                queue.create_topic(f"in_workers-{gate}")
            yield site, queue, metadata


def _measure(
    site: AirflowSite, queue: TaskQueue, metadata: psycopg.Connection, name: str, dag_ids: list[str], count: int
) -> None:
    began = time.monotonic()
    for dag_id in dag_ids:
        site.trigger(dag_id, "bench")
    waiting = _until(metadata, dag_ids, "deferred", count, began)
    _wait_until_started(site, dag_ids, count)
    topics = [topic for topic in queue.topics() if topic.rsplit("-", 1)[0] in dag_ids]
    began = time.monotonic()
    with queue.conn.transaction():
        for topic in topics:
            queue.push(topic, ["task"])
    opened = [_until(metadata, dag_ids, "success", part, began) for part in (1, count // 2, count)]
    times = " | ".join(f"{seconds:.1f} s" for seconds in opened)
    sys.stdout.write(f"| {name} | {waiting:.1f} s | {_count(metadata, dag_ids, 'worker')} | {times} |\n")
    sys.stdout.flush()


def _wait_until_started(site: AirflowSite, dag_ids: list[str], count: int) -> None:
    """Waits until the triggerer runs all triggers: Airflow writes a log of each from its start on."""
    began = time.monotonic()
    logs = site.home / "logs"
    while sum(len(list((logs / f"dag_id={dag_id}").rglob("*.trigger.*.log"))) for dag_id in dag_ids) < count:
        if time.monotonic() - began > SECONDS:
            raise TimeoutError(f"not all triggers have started after {SECONDS} s")
        time.sleep(0.5)  # Airflow sends no event when a trigger starts
    time.sleep(REST_SECONDS)  # no event reports that the triggerer's load has settled


def _count(metadata: psycopg.Connection, dag_ids: list[str], what: str) -> int:
    """The number of gates that are deferred, have succeeded, or were given to a worker."""
    row = metadata.execute(COUNTS, (dag_ids,)).fetchone()
    assert row is not None
    return int(row[("deferred", "success", "worker").index(what)])


def _until(metadata: psycopg.Connection, dag_ids: list[str], what: str, count: int, began: float) -> float:
    """Waits until `count` gates are in a state; returns the seconds since `began`."""
    while (found := _count(metadata, dag_ids, what)) < count:
        if time.monotonic() - began > SECONDS:
            raise TimeoutError(f"{found} gates are {what} after {SECONDS} s, not {count}")
        time.sleep(0.2)  # Airflow sends no event when a gate changes its state
    return time.monotonic() - began
