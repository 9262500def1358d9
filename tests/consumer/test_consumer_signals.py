"""A consumer as the main program of a process: SIGTERM and SIGINT stop it, a second signal at once."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from airflow_provider_taskq.queue import TaskQueue
from tests.consumer.consumers import place, state

pytestmark = pytest.mark.promise("One consumer of a group at a time handles a partition")

SECONDS = 120


@contextmanager
def consumer_at(where: str, dsn: str) -> Iterator[subprocess.Popen[str]]:
    """Runs the program, and yields it when it is at this place."""
    command = [sys.executable, "-m", "tests.consumer.signal_program", where]
    environment = {**os.environ, "TASKQ_DSN": dsn}
    with subprocess.Popen(
        command, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as program:
        try:
            assert program.stdout is not None
            assert program.stdout.readline() == f"{where}\n"
            yield program
        finally:
            program.kill()


@pytest.mark.parametrize(
    "signals", [(signal.SIGTERM, signal.SIGINT), (signal.SIGINT, signal.SIGTERM)], ids=lambda each: each[1].name
)
def test_a_second_signal_ends_a_consumer_at_once_and_releases_its_partition(
    dsn: str, queue: TaskQueue, signals: tuple[signal.Signals, signal.Signals]
) -> None:
    queue.push("work", ["a", "b"])
    queue.join_group("readers", "work", 1, None)
    begin = queue.progress("readers", "work")
    with consumer_at("handling", dsn) as program:
        for number in signals:
            program.send_signal(number)
        assert program.wait(SECONDS) == 0
    assert state(queue).member is None
    assert queue.progress("readers", "work") == begin != place(queue, 1)


def test_a_signal_during_the_start_of_a_consumer_stops_it(dsn: str, queue: TaskQueue) -> None:
    with consumer_at("connecting", dsn) as program:
        program.send_signal(signal.SIGTERM)
        program.communicate("go on\n", SECONDS)
    assert program.returncode == 0
    assert state(queue).member is None
