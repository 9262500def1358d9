"""A poll that the server carries out after its worker has lost the session, and has looked for claimed tasks."""

import threading
from datetime import timedelta

import pytest

from airflow_provider_taskq.queue import NewTask, State, Task, TaskQueue, connect
from tests.faults.conftest import MakeWorker
from tests.faults.tcp_proxy import TcpProxy
from tests.internals import interrupted
from tests.queue.conftest import until

pytestmark = pytest.mark.promise("A worker continues after errors of polls, handlers and connections")

# A claim waits for the test, as it waits for a slow disk elsewhere. A look at the held tasks does not.
SLOW_CLAIM = "IF OLD.identifier = 'a' THEN PERFORM pg_advisory_xact_lock_shared(1); END IF;"
CLAIMING = """SELECT count(*) FROM pg_stat_activity
    WHERE datname = current_database() AND wait_event = 'advisory' AND query LIKE '%%taskq.poll(%%'"""
POLLED_IN_VAIN = """SELECT count(*) FROM pg_stat_activity
    WHERE datname = current_database() AND state = 'idle' AND query LIKE '%%taskq.poll(%%'"""


def count(queue: TaskQueue, query: str) -> int:
    [found] = queue.conn.execute(query.encode()).fetchone() or (0,)
    return int(found)


@pytest.mark.parametrize("others", [0, 20_000], ids=["idle", "busy"])
def test_a_task_is_handled_that_a_poll_claims_after_its_worker_has_connected_again(
    dsn: str, queue: TaskQueue, proxy: TcpProxy, run_worker: MakeWorker, others: int
) -> None:
    """A busy worker polls together with each completion, and has to look, too."""
    handled, busy = threading.Event(), threading.Event()

    def handle(task: Task) -> None:
        (handled if task.identifier == "a" else busy).set()

    with interrupted(queue.conn, "claim", SLOW_CLAIM), connect(dsn) as blocker:
        blocker.execute("SELECT pg_advisory_xact_lock(1)")
        queue.push("work", ["a"])
        run_worker(proxy.dsn(dsn), handle, workers=1, lease=timedelta(seconds=6))
        until(lambda: count(queue, CLAIMING) == 1)
        proxy.cut()
        until(lambda: count(queue, POLLED_IN_VAIN) == 1)  # it has connected, looked, and polled again
        queue.push("work", [NewTask("b")] * others)
        assert not others or busy.wait(200)
        blocker.rollback()
        assert handled.wait(200)
    assert not others or queue.count_tasks("work", state=State.READY) > 0
