"""Settings of consumers: their precedence, and the consumers of a program."""

from datetime import timedelta

import pytest

from airflow_provider_taskq.consumer import ConsumerConfig, ConsumerOptions, Consumers, merge_options
from airflow_provider_taskq.queue import InvalidArgument, Result, TaskQueue
from airflow_provider_taskq.worker import Worker
from airflow_provider_taskq.worker.grouped import GroupedWorker
from tests.consumer.consumers import QUICK, heard_all
from tests.queue.conftest import until

pytestmark = pytest.mark.promise("One consumer of a group at a time handles a partition")


def test_options_of_a_group_precede_standard_ones_and_these_the_built_in_defaults() -> None:
    settings = merge_options({"partitions": 2, "level": None}, {"partitions": 5, "level": 1, "retry_max_attempts": 5})
    assert (settings.partitions, settings.level, settings.retry_max_attempts) == (2, None, 5)
    assert settings == ConsumerConfig(partitions=2, retry_max_attempts=5)
    assert merge_options() == ConsumerConfig()


def test_an_unknown_option_raises_with_its_name() -> None:
    with pytest.raises(InvalidArgument, match="partitons"):
        merge_options({"partitons": 2})  # type: ignore[typeddict-unknown-key]


def test_durations_of_settings_may_be_text_as_in_a_configuration_file(dsn: str) -> None:
    """A configuration file has durations such as `pollInterval: PT6S`."""
    settings = merge_options({"pause": "PT6S", "retry_max_elapsed": None}, {"lease": "90s", "retry_initial": 2.5})
    assert (settings.pause, settings.lease) == (timedelta(seconds=6), timedelta(seconds=90))
    assert (settings.retry_initial, settings.retry_max_elapsed) == (timedelta(seconds=2.5), None)
    worker = Worker(dsn, "work", lambda _: Result.SUCCESS, pause="PT6S", lease="5m", limit="1h", slow_after=30)
    made = worker._config
    assert (made.pause, made.lease, made.limit) == (timedelta(seconds=6), timedelta(minutes=5), timedelta(hours=1))
    assert (made.slow_after, made.call_timeout) == (timedelta(seconds=30), None)
    batches = GroupedWorker(dsn, "work", lambda _: Result.SUCCESS, pause="PT6S", lease="PT5M", cleanup="PT1M")
    assert (batches._pause, batches._lease, batches._cleanup) == (6.0, timedelta(minutes=5), timedelta(minutes=1))
    with pytest.raises(InvalidArgument, match="invalid duration 'soon': expected for example 90s, 5m, PT5M"):
        Worker(dsn, "work", lambda _: Result.SUCCESS, lease="soon")


def test_consumers_start_unless_auto_start_is_off(dsn: str, queue: TaskQueue) -> None:
    books, backup = heard_all("books"), heard_all("backup")
    groups: dict[str, ConsumerOptions] = {"books": {"partitions": 2}, "backup": {"auto_start": False}}
    consumers = Consumers(dsn, QUICK, groups)
    consumer, backup_consumer = consumers.add(books.group, "work"), consumers.add(backup.group, "work")
    with pytest.raises(InvalidArgument, match="books"):
        consumers.add(books.group, "work")
    with consumers:
        assert (consumer.is_running, backup_consumer.is_running) == (True, False)
        until(lambda: consumer.partitions == [0, 1])
        backup_consumer.start()
        queue.push("work", ["a"])
        assert books.wait(1) == backup.wait(1)
    assert (consumer.is_running, backup_consumer.is_running) == (False, False)
    assert consumers.stop()


def test_no_consumer_stays_started_if_one_cannot_start(dsn: str, queue: TaskQueue) -> None:
    consumers = Consumers(dsn, QUICK)
    fine, wrong = consumers.add(heard_all("a").group, "work"), consumers.add(heard_all("b").group, "nowhere")
    with pytest.raises(Exception, match="nowhere"):
        consumers.start()
    assert (fine.is_running, wrong.is_running) == (False, False)
    assert queue.partition_states()[0].member is None
