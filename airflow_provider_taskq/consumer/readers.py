"""All readers of a program: their settings by precedence, started and stopped together."""

from collections.abc import Mapping
from types import TracebackType
from typing import Self

from airflow_provider_taskq.consumer.config import Properties, merged
from airflow_provider_taskq.consumer.consumer import Reader
from airflow_provider_taskq.consumer.group import Group
from airflow_provider_taskq.consumer.partition_loop import OnFailure
from airflow_provider_taskq.queue import InvalidArgument
from airflow_provider_taskq.worker.connection import Connect

NOTHING = Properties()


class Readers:
    """Readers by their group's name. `standard` is for all of them, `groups` for one each, and goes first.

    readers = Readers(dsn, standard={"retry_max_attempts": 5}, groups={"books": {"partitions": 2}})
    readers.add(books, "library")
    readers.start()
    """

    def __init__(
        self,
        dsn: str | Connect | None,
        standard: Properties = NOTHING,
        groups: Mapping[str, Properties] | None = None,
        on_failure: OnFailure | None = None,
    ) -> None:
        self.readers: dict[str, Reader] = {}
        self._dsn = dsn
        self._standard = standard
        self._groups = dict(groups or {})
        self._on_failure = on_failure

    def add(self, group: Group, topic: str) -> Reader:
        """A reader for a group, by its settings; not started yet."""
        if group.name in self.readers:
            raise InvalidArgument(f"group {group.name!r} has a reader already")
        settings = merged(self._groups.get(group.name, NOTHING), self._standard)
        reader = Reader(self._dsn, group, topic, settings, on_failure=self._on_failure)
        self.readers[group.name] = reader
        return reader

    def start(self) -> None:
        """Starts those that are to start by themselves, or none where one can't."""
        started: list[Reader] = []
        try:
            for reader in self.readers.values():
                if reader.settings.auto_start:
                    reader.start()
                    started.append(reader)
        except BaseException:
            for reader in started:
                reader.stop()
            raise

    def stop(self, timeout: float | None = None) -> bool:
        """Stops all, each within the timeout; whether all were."""
        for reader in self.readers.values():
            reader.stop(0)  # so that they end at once
        return min((reader.stop(timeout) for reader in self.readers.values()), default=True)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
