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
# It writes a line when it connects first, or when its handler has an event. There it waits: for a line from its
# standard input before it connects, and without an end in the handler.
PROGRAM = """
import sys, threading
from airflow_provider_taskq.consumer import Consumer, ConsumerConfig, ConsumerGroup
from airflow_provider_taskq.queue import connect

group, waited = ConsumerGroup("readers"), []

def report(place):
    if sys.argv[1] == place:
        print(place, flush=True)

@group.on()
def handle(_):
    report("handling")
    threading.Event().wait()

def connect_when_told():
    if not waited and sys.argv[1] == "connecting":
        waited.append(report("connecting"))
        sys.stdin.readline()
    return connect()

Consumer(connect_when_told, group, "work", ConsumerConfig()).run()
"""


@contextmanager
def consumer_at(where: str, dsn: str) -> Iterator[subprocess.Popen[str]]:
    """Runs the program, and yields it when it is at this place."""
    command = [sys.executable, "-c", PROGRAM, where]
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
