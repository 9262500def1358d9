"""The consumers of a program, which start and stop together."""

from collections.abc import Mapping
from contextlib import ExitStack
from types import MappingProxyType
from typing import Self

from airflow_provider_taskq.consumer.config import BUILT_IN, ConsumerConfig
from airflow_provider_taskq.consumer.consumer import Consumer
from airflow_provider_taskq.consumer.group import ConsumerGroup
from airflow_provider_taskq.consumer.partition_loop import OnFailure
from airflow_provider_taskq.queue import InvalidArgument
from airflow_provider_taskq.queue.arguments import DurationLike
from airflow_provider_taskq.worker.connection import Connect


class Consumers:
    """The consumers of a program, which start and stop together. `consumers` has them by group.

        standard = ConsumerConfig(transactional=True)
        consumers = Consumers(dsn, standard, {"books": replace(standard, partitions=2)})
        consumers.add(books, "library")
        consumers.start()

    :param standard: the settings of the groups that `groups` does not name.
    :param groups: all settings of single groups, by name.
    """

    def __init__(
        self,
        dsn: str | Connect | None,
        standard: ConsumerConfig = BUILT_IN,
        groups: Mapping[str, ConsumerConfig] = MappingProxyType({}),
        on_failure: OnFailure | None = None,
    ) -> None:
        self.consumers: dict[str, Consumer] = {}
        self._dsn = dsn
        self._standard = standard
        self._groups = dict(groups)
        self._on_failure = on_failure

    def add(self, group: ConsumerGroup, topic: str) -> Consumer:
        """Create a consumer for a group, and return it. Raises InvalidArgument if the group has a consumer already."""
        if group.name in self.consumers:
            raise InvalidArgument(f"group {group.name!r} already has a consumer")
        config = self._groups.get(group.name, self._standard)
        consumer = Consumer(self._dsn, group, topic, config, on_failure=self._on_failure)
        self.consumers[group.name] = consumer
        return consumer

    def start(self) -> None:
        """Start the consumers with `auto_start`. If one of them cannot start, stop the others and raise the error.

        :raises InvalidArgument: if `groups` has settings for a group that was not added.
        """
        if unknown := sorted(set(self._groups) - set(self.consumers)):
            raise InvalidArgument(f"groups has settings for groups that were not added: {', '.join(unknown)}")
        with ExitStack() as started:
            for consumer in self.consumers.values():
                if consumer.config.auto_start:
                    consumer.start()
                    started.callback(consumer.stop)
            started.pop_all()

    def stop(self, timeout: DurationLike | None = None) -> bool:
        """Stop all consumers. Return False if one of them still runs.

        :param timeout: how long to wait for each consumer; None for no limit.
        """
        for consumer in self.consumers.values():
            consumer.stop(0)  # lets all of them end at the same time
        return min((consumer.stop(timeout) for consumer in self.consumers.values()), default=True)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
