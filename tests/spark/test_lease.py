"""The loss of a drain's lease is reported in time. That it is kept otherwise is in tests/faults/test_services.py."""

import socket
import threading
import time
from datetime import timedelta

import pytest

from airflow_provider_taskq.queue import TaskQueue
from airflow_provider_taskq.spark.connection import ConnectionInfo
from airflow_provider_taskq.spark.lease import DrainLease

pytestmark = pytest.mark.promise("A worker keeps its lease while a handler runs")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ago", "accepts"),
    [(0, False), (6, False), (0, True)],
    ids=["refused", "registered 6 seconds before the answer", "accepted and never answered"],
)
def test_two_thirds_of_a_lease_without_a_heartbeat_since_its_registration_began_is_lost(
    queue: TaskQueue, ago: float, accepts: bool
) -> None:
    owner = queue.register("owner", timedelta(seconds=8))  # a heartbeat may come a third of that late on a busy machine
    lost, since = threading.Event(), time.monotonic() - ago
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1] if accepts else 1
        info = ConnectionInfo(f"postgresql://absent@127.0.0.1:{port}/nowhere")
        with DrainLease(owner, info, lost.set, since) as keeper:
            assert lost.wait(30)
            assert 5.3 < time.monotonic() - since < 8
            assert accepts or "reached the queue for 5.3 seconds of its lease of 8 seconds" in str(keeper.lost)
