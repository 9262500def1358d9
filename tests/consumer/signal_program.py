"""A consumer as the main program, which the tests of signals start.

    python -m tests.consumer.signal_program connecting|handling

The DSN comes from TASKQ_DSN. The program writes a line when it connects first, or when its handler has an event. In
that place it waits: for a line from its standard input before it connects, and without an end in the handler.
"""

import sys
import threading

import psycopg

from airflow_provider_taskq.consumer import Consumer, ConsumerConfig, ConsumerGroup
from airflow_provider_taskq.queue import Task, connect

PLACE = sys.argv[1]
group = ConsumerGroup("readers")
told = threading.Event()


@group.on()
def handle(_: Task) -> None:
    """Never ends."""
    if PLACE == "handling":
        report()
    threading.Event().wait()


def report() -> None:
    """Writes that the program is at its place."""
    sys.stdout.write(f"{PLACE}\n")
    sys.stdout.flush()


def connect_when_told() -> psycopg.Connection:
    """Connects, the first time after a line of the standard input."""
    if PLACE == "connecting" and not told.is_set():
        told.set()
        report()
        sys.stdin.readline()
    return connect()


if __name__ == "__main__":
    Consumer(connect_when_told, group, "work", ConsumerConfig()).run()
