"""All readers of a program: their settings by precedence, started and stopped together."""

from collections.abc import Mapping
from types import TracebackType
from typing import Self

from airflow_provider_taskq.consumer.config import ConsumerOptions, merge_options
from airflow_provider_taskq.consumer.consumer import Consumer
from airflow_provider_taskq.consumer.group import ConsumerGroup
from airflow_provider_taskq.consumer.partition_loop import OnFailure
from airflow_provider_taskq.queue import InvalidArgument
from airflow_provider_taskq.worker.connection import Connect

NOTHING = ConsumerOptions()


class Consumers:
    """Readers by their group's name. `standard` is for all of them, `groups` for one each, and goes first.

    readers = Readers(dsn, standard={"retry_max_attempts": 5}, groups={"books": {"partitions": 2}})
    readers.add(books, "library")
    readers.start()
    """

    def __init__(
        self,
        dsn: str | Connect | None,
        standard: ConsumerOptions = NOTHING,
        groups: Mapping[str, ConsumerOptions] | None = None,
        on_failure: OnFailure | None = None,
    ) -> None:
        self.readers: dict[str, Consumer] = {}
        self._dsn = dsn
        self._standard = standard
        self._groups = dict(groups or {})
        self._on_failure = on_failure

    def add(self, group: ConsumerGroup, topic: str) -> Consumer:
        """A reader for a group, by its settings; not started yet."""
        if group.name in self.readers:
            raise InvalidArgument(f"group {group.name!r} has a reader already")
        settings = merge_options(self._groups.get(group.name, NOTHING), self._standard)
        consumer = Consumer(self._dsn, group, topic, settings, on_failure=self._on_failure)
        self.readers[group.name] = consumer
        return consumer

    def start(self) -> None:
        """Starts those that are to start by themselves, or none where one can't."""
        started: list[Consumer] = []
        try:
            for consumer in self.readers.values():
                if consumer.settings.auto_start:
                    consumer.start()
                    started.append(consumer)
        except BaseException:
            for consumer in started:
                consumer.stop()
            raise

    def stop(self, timeout: float | None = None) -> bool:
        """Stops all, each within the timeout; whether all were."""
        for consumer in self.readers.values():
            consumer.stop(0)  # so that they end at once
        return min((consumer.stop(timeout) for consumer in self.readers.values()), default=True)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
