"""Three faults under load, each for TASKQ_FAULT_SECONDS: no task is lost or done twice, and no worker stops."""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from airflow_provider_taskq.queue import State
from tests.faults.faults_under_load import TaskRecord, poison_payloads, read_only_servers, silent_connections

pytestmark = [
    pytest.mark.slow,
    pytest.mark.faults,
    pytest.mark.timeout(1800),
    pytest.mark.promise("A worker continues after errors of polls, handlers and connections"),
    pytest.mark.promise("a connection never answers"),
]

Programs = dict[str, "Future[TaskRecord]"]


@pytest.fixture(scope="module")
def programs(server_dsn: str) -> Iterator[Programs]:
    """Runs all three programs at once, each on its own database, because they mostly wait."""
    names = [f"taskq_faults_{uuid4().hex[:12]}" for _ in range(2)]
    with psycopg.connect(server_dsn, autocommit=True) as admin:
        for name in names:
            admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        poisoned, silent = (make_conninfo(server_dsn, dbname=name) for name in names)
        with ThreadPoolExecutor(3) as pool:
            yield {
                "poison": pool.submit(poison_payloads, poisoned),
                "silent": pool.submit(silent_connections, silent),
                "read-only": pool.submit(read_only_servers),
            }
        for name in names:
            admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


def all_done_once(record: TaskRecord) -> None:
    """Checks that every task but the poisoned ones has one effect."""
    done = record.pushed - record.poisoned
    assert len(record.pushed) > 100, "there was load"
    assert record.faults, "there were faults"
    assert record.states.pop(State.SUCCEEDED) == record.effects == done


def test_poison_payloads_stop_neither_workers_nor_consumer_groups(programs: Programs) -> None:
    record = programs["poison"].result()
    all_done_once(record)
    assert record.states == {State.FAILED: record.poisoned}
    assert record.skipped == record.poisoned
    assert record.read == sorted(record.pushed - record.poisoned)


def test_connections_that_never_answer_stop_no_worker(programs: Programs) -> None:
    record = programs["silent"].result()
    all_done_once(record)
    assert not record.states


def test_a_standby_behind_the_address_of_the_primary_stops_no_worker(programs: Programs) -> None:
    record = programs["read-only"].result()
    all_done_once(record)
    assert not record.states
