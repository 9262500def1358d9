"""Consumers: start, stop, wake-ups, signals and invalid settings."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import pytest

from airflow_provider_taskq.consumer import Consumer, ConsumerGroup
from airflow_provider_taskq.queue import Cursor, InvalidArgument, Task, TaskQueue, TaskQueueError, UnknownTopic
from tests.consumer.consumers import Heard, heard_all, place, quick, state, until_at_end
from tests.queue.conftest import until

pytestmark = pytest.mark.promise("One consumer of a group at a time handles a partition")


def test_a_running_consumer_cannot_be_started_and_can_be_stopped_any_number_of_times(
    dsn: str, queue: TaskQueue
) -> None:
    queue.push("work", ["a"])
    heard = heard_all()
    consumer = Consumer(dsn, heard.group, "work", quick())
    assert consumer.stop() is True
    consumer.start()
    with pytest.raises(TaskQueueError, match="'readers' runs already"):
        consumer.start()
    heard.wait(1)
    assert consumer.stop() is True
    assert consumer.stop() is True
    assert not consumer.is_running
    with consumer:
        until(lambda: consumer.partitions == [0])
    assert consumer.wait(0)


def test_a_stop_waits_for_the_current_event_and_no_longer_than_its_timeout(dsn: str, queue: TaskQueue) -> None:
    queue.push("work", ["a", "b"])
    heard = Heard()
    inside, go = threading.Event(), threading.Event()

    @heard.group.on()
    def slow(event: Task) -> None:
        inside.set()
        assert go.wait(120)
        heard.hear(event)

    consumer = Consumer(dsn, heard.group, "work", quick())
    consumer.start()
    assert inside.wait(120)
    assert consumer.stop(0.05) is False
    go.set()
    assert consumer.stop(120) is True
    assert heard.identifiers == ["a"]
    assert queue.progress("readers", "work") == place(queue, 1)
    assert state(queue).member is None


def test_a_handler_may_stop_its_consumer(dsn: str, queue: TaskQueue) -> None:
    queue.push("work", ["a", "b"])
    heard = Heard()

    @heard.group.on()
    def last(event: Task) -> None:
        heard.hear(event)
        assert consumer.stop() is False

    consumer = Consumer(dsn, heard.group, "work", quick())
    consumer.start()
    assert consumer.wait(120)
    assert heard.identifiers == ["a"]


def test_resume_and_notifications_wake_a_consumer_that_pauses(dsn: str, queue: TaskQueue) -> None:
    heard = heard_all()
    with Consumer(dsn, heard.group, "work", quick(pause=timedelta(hours=1))) as consumer:
        until(lambda: consumer.partitions == [0])
        queue.push("work", ["a"])
        until(lambda: consumer.resume() and bool(heard.events))
        until_at_end(queue)
        queue.push("work", ["b"])
        wake = b"SELECT taskq.notify('work')"
        until(lambda: queue.conn.execute(wake).rowcount and len(heard.events) == 2)


def test_a_group_without_handlers_and_a_handler_with_a_wrong_signature_raise(dsn: str) -> None:
    with pytest.raises(InvalidArgument, match="no handlers"):
        Consumer(dsn, ConsumerGroup("empty"), "work")
    with pytest.raises(InvalidArgument, match="takes no positional argument"):
        ConsumerGroup("odd").on()(lambda: None)
    group = ConsumerGroup("in a transaction")
    group.on()(lambda _event, queue: queue)
    with pytest.raises(InvalidArgument, match="transactional"):
        Consumer(dsn, group, "work")
    with pytest.raises(UnknownTopic, match="nowhere"):
        Consumer(dsn, heard_all().group, "nowhere").start()


# A consumer as the main program: SIGTERM and SIGINT stop it, a second signal at once

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
    queue.advance("readers", "work", 0, Cursor(0))
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
