"""Shared by the consumer tests: settings with short waits, groups that record events, and queries."""

import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

from airflow_provider_taskq.consumer import (
    Consumer,
    ConsumerConfig,
    ConsumerGroup,
    EventFailure,
)
from airflow_provider_taskq.queue import Cursor, NewTask, PartitionState, RetryPolicy, Task, TaskQueue
from tests.queue.conftest import until

LEASE = timedelta(seconds=1)
NOW = timedelta(milliseconds=1)

NEVER = RetryPolicy()


def at_once(max_attempts: int | None = None) -> RetryPolicy:
    """This many retries, without delays to wait for."""
    return RetryPolicy.event_handling(initial=NOW, max_interval=NOW, max_attempts=max_attempts)


QUICK = ConsumerConfig(lease=LEASE, pause=timedelta(milliseconds=20), retry=at_once())


def quick(**said: Any) -> ConsumerConfig:
    """Settings with short waits, and the given ones."""
    return replace(QUICK, **said)


class Heard:
    """Records the events and failures of a group. A test can wait for events."""

    def __init__(self, name: str = "readers") -> None:
        self.group = ConsumerGroup(name)
        self.events: list[Task] = []
        self.failures: list[EventFailure] = []
        self._changed = threading.Condition()

    def hear(self, event: Task) -> None:
        """The handler: records the event."""
        with self._changed:
            self.events.append(event)
            self._changed.notify_all()

    def fail(self, failure: EventFailure) -> None:
        """Records a failure."""
        with self._changed:
            self.failures.append(failure)
            self._changed.notify_all()

    def wait(self, count: int, seconds: float = 200) -> list[str]:
        """The identifiers of all events, once there are this many."""
        self._wait(lambda: len(self.events) >= count, seconds)
        return self.identifiers

    def wait_failures(self, count: int, seconds: float = 200) -> list[EventFailure]:
        """All failures, once there are this many."""
        self._wait(lambda: len(self.failures) >= count, seconds)
        return self.failures

    @property
    def identifiers(self) -> list[str]:
        """The identifiers of all events so far."""
        return [event.identifier for event in self.events]

    def _wait(self, condition: Callable[[], bool], seconds: float) -> None:
        with self._changed:
            assert self._changed.wait_for(condition, seconds), f"{self.identifiers} {self.failures}"


def heard_all(name: str = "readers") -> Heard:
    """A group with one handler, for all events."""
    heard = Heard(name)
    heard.group.on()(heard.hear)
    return heard


def typed(identifier: str, kind: str) -> NewTask:
    """An event of a kind."""
    return NewTask(identifier, {"type": kind})


def state(queue: TaskQueue, partition: int = 0, group: str = "readers") -> PartitionState:
    """The state of a partition in the database."""
    [found] = [each for each in queue.partition_states("work") if (each.group, each.partition) == (group, partition)]
    return found


def table(queue: TaskQueue, name: str, columns: str) -> None:
    """An empty table for effects. Other tests share the database."""
    queue.conn.execute(f"DROP TABLE IF EXISTS {name}".encode())
    queue.conn.execute(f"CREATE TABLE {name} ({columns})".encode())


def at_end(queue: TaskQueue, group: str = "readers") -> bool:
    """Whether all partitions of the group have reached the end of the log."""
    end = queue.events("work", None, 1_000_000).cursor
    partitions = [each for each in queue.partition_states("work") if each.group == group]
    return bool(partitions) and all(each.cursor >= end for each in partitions)


def until_at_end(queue: TaskQueue, group: str = "readers") -> None:
    """Returns when the group has passed the whole log."""
    until(lambda: at_end(queue, group))


def place(queue: TaskQueue, nth: int) -> Cursor:
    """The cursor after the nth event of the log, counted from 1."""
    return queue.events("work", None)[nth - 1][0]


def read_all(queue: TaskQueue, consumer: Consumer, group: str = "readers") -> None:
    """Runs a consumer until the end of the log."""
    with consumer:
        until_at_end(queue, group)
