"""A lease is kept, or its loss is reported in time."""

import socket
import threading
import time
from datetime import timedelta

import pytest

from airflow_provider_taskq.queue import Owner, TaskQueue
from airflow_provider_taskq.spark.connection import ConnectionInfo
from airflow_provider_taskq.spark.lease import DrainLease

pytestmark = pytest.mark.promise("A worker keeps its lease while a handler runs")


@pytest.fixture
def brief(queue: TaskQueue) -> Owner:
    """An owner with a lease of 8 seconds: a heartbeat may come a third of that late, as on a busy machine."""
    return queue.register("owner", timedelta(seconds=8))


@pytest.mark.slow
def test_a_kept_lease_outlives_its_length(dsn: str, queue: TaskQueue, brief: Owner) -> None:
    lost = threading.Event()
    with DrainLease(brief, ConnectionInfo.resolve(dsn), lost.set) as keeper:
        assert not lost.wait(9)
        assert keeper.lost is None
        assert queue.expire() == 0
        assert [owner.name for owner in queue.owners()] == ["owner"]
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("taskq lease")]


@pytest.mark.slow
@pytest.mark.parametrize("ago", [0, 6], ids=["now", "6 seconds before the answer"])
def test_two_thirds_of_a_lease_without_a_heartbeat_since_its_registration_began_is_lost(
    brief: Owner, ago: float
) -> None:
    lost, since = threading.Event(), time.monotonic() - ago
    absent = ConnectionInfo("postgresql://absent@127.0.0.1:1/nowhere")
    with DrainLease(brief, absent, lost.set, since) as keeper:
        assert lost.wait(30)
        assert 5.3 < time.monotonic() - since < 8
        assert "reached the queue for 5.3 seconds of its lease of 8 seconds" in str(keeper.lost)


@pytest.mark.slow
def test_a_server_that_accepts_and_never_answers_does_not_hide_the_loss(brief: Owner) -> None:
    lost = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        connection_info = ConnectionInfo(f"postgresql://absent@127.0.0.1:{silent.getsockname()[1]}/nowhere")
        began = time.monotonic()
        with DrainLease(brief, connection_info, lost.set):
            assert lost.wait(30)  # while a connect is under way, its second
            assert time.monotonic() - began < 8
