"""Settings of consumers."""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_taskq.consumer import (
    Consumer,
    ConsumerConfig,
    MemoryTracker,
    NonTransient,
)
from airflow_provider_taskq.consumer.config import Resolver
from airflow_provider_taskq.queue import (
    Cursor,
    InvalidArgument,
    InvalidState,
    NewTask,
    RecurringTask,
    Result,
    RetryPolicy,
    Schedule,
    Task,
    TaskQueue,
    partition_of,
    sequence_id,
)
from airflow_provider_taskq.worker import (
    Composite,
    Groups,
    PersistentWorker,
    PriorityLimiter,
    Scheduler,
    SlowReports,
    Timeouts,
    Worker,
    batch,
    each,
)
from tests.consumer.consumers import NOW, Heard, heard_all, place, quick, until_at_end
from tests.queue.conftest import until
from tests.queue.hostile import NO_DURATIONS, NO_INTEGERS

pytestmark = pytest.mark.promise("One consumer of a group at a time handles a partition")


def test_durations_of_settings_may_be_text_as_in_a_configuration_file(dsn: str) -> None:
    """A configuration file has durations such as `pollInterval: PT6S`."""
    settings = ConsumerConfig(pause="PT6S", lease="100s", timeouts=Timeouts(call=2.5), retry=["1m", 2.5])
    assert (settings.stored_lease, settings.call_limit().seconds) == (timedelta(seconds=80), 2.5)
    assert [settings.retry_delay(each) for each in (1, 2, 3)] == [timedelta(minutes=1), timedelta(seconds=2.5), None]
    reports = SlowReports(after=30)
    made = Worker(dsn, "work", lambda _: Result.SUCCESS, pause="PT6S", lease="5m", limit="1h", slow_reports=reports)
    assert (made.pause, made.lease, made.limit) == (timedelta(seconds=6), timedelta(minutes=5), timedelta(hours=1))
    assert (made.slow_reports.after, made.timeouts.call) == (timedelta(seconds=30), None)


def worker(**options: Any) -> Worker:
    """A worker that does not start."""
    return Worker("host=nowhere", "work", print, **options)


def options(make: Callable[..., object], *names: str) -> dict[str, Callable[[Any], object]]:
    """Calls that set one option each."""

    def setting(name: str) -> Callable[[Any], object]:
        return lambda value: make(**{name: value})

    return {f"{make} {name}": setting(name) for name in names}


HOURLY = RecurringTask(Schedule.every("1h"))
SHARED = partial(ConsumerConfig, transactional=True)

TAKES_A_DURATION: dict[str, Callable[[Any], object]] = {
    **options(worker, "lease", "pause", "limit"),
    **options(SlowReports, "after", "every"),
    **options(Timeouts, "call", "handler_statement"),
    **options(Groups, "cluster_lock"),
    "period": Schedule.every,
    "ahead": lambda d: Scheduler("host=nowhere").add("work", "a", replace(HOURLY, ahead=d)),
    "interval": lambda d: Scheduler("host=nowhere").add("work", "a", HOURLY, d),
    **options(ConsumerConfig, "lease", "pause"),
    "worker.stop": lambda d: worker().stop(d),
    "worker.wait": lambda d: worker().wait(d),
    "consumer.stop": lambda d: Consumer("host=nowhere", heard_all().group, "work").stop(d),
    "consumer.wait": lambda d: Consumer("host=nowhere", heard_all().group, "work").wait(d),
    "check_every": lambda d: PersistentWorker(worker(), d),
    "shutdown": lambda d: PersistentWorker(worker()).shutdown(d),
}
TAKES_AN_INTEGER: dict[str, Callable[[Any], object]] = {
    **options(worker, "size", "workers", "prefetch"),
    **options(SHARED, "partitions", "size", "transaction_size", "max_partitions", "level"),
    **options(Groups, "size"),
    **options(PriorityLimiter, "limit"),
    **options(partial(each, print), "threads", "processes", "concurrency"),
    **options(partial(batch, print), "concurrency"),
    **options(partial(Composite, "a"), "threads", "concurrency"),
}


def test_each_option_takes_seconds_for_a_duration_and_refuses_a_negative_one_and_another_value() -> None:
    for name, take in TAKES_A_DURATION.items():
        for duration in (60, 60.5, "1m", timedelta(minutes=1)):
            take(duration)
        for wrong in NO_DURATIONS:
            with pytest.raises(InvalidArgument, match="invalid"):
                pytest.fail(f"{name} took {wrong!r}: {take(wrong)}")


def test_each_option_refuses_a_fraction_a_truth_and_a_text_for_an_integer() -> None:
    for name, take in TAKES_AN_INTEGER.items():
        take(2)
        for wrong in (*NO_INTEGERS, -1):
            with pytest.raises(InvalidArgument, match="invalid"):
                pytest.fail(f"{name} took {wrong!r}: {take(wrong)}")


@pytest.mark.parametrize("delay", [-1, -0.001, timedelta(seconds=-1), timedelta.min, None], ids=str)
def test_a_negative_delay_of_a_back_off_skips_the_event(delay: Any) -> None:
    for retry in (lambda _: delay, [delay] if delay is not None else []):
        assert ConsumerConfig(retry=retry).retry_delay(1) is None


# Settings that are functions or objects: partitions, progress and delays


def by_customer(event: Task) -> str:
    """The customer of an order, which its identifier does not name."""
    assert isinstance(event.payload, dict)
    return str(event.payload["customer"])


def by_number(event: Task) -> int:
    """The partition of an order, by the last digit of its identifier."""
    return int(event.identifier[-1]) % 3


def partition_by(event: Task, level: int | Resolver | None) -> int:
    """The partition of an event, of three."""
    key = level(event) if callable(level) else sequence_id(event.identifier, level, event.sequence)
    return key if isinstance(key, int) else partition_of(key, 3)


@pytest.mark.parametrize("in_memory", [False, True], ids=["database", "memory"])
@pytest.mark.parametrize(
    "level",
    [by_customer, by_number, None, 0, 1],
    ids=["a text", "a number", "the identifier", "the sequence", "its first level"],
)
def test_each_partition_gets_its_events_in_their_order_and_no_other(
    dsn: str, queue: TaskQueue, in_memory: bool, level: int | Resolver | None
) -> None:
    orders = [NewTask(f"day-{n % 5}/order-{n}", {"customer": f"customer-{n % 7}"}) for n in range(60)]
    pushed = queue.push("work", orders)
    heard: list[Heard] = []
    consumers: list[Consumer] = []
    for number in range(3):
        heard.append(heard_all())
        progress = MemoryTracker() if in_memory else None
        said = quick(partitions=3, level=level, progress=progress, only_partitions=[number])
        consumers.append(Consumer(dsn, heard[-1].group, "work", said))
    try:
        for consumer in consumers:
            consumer.start()
        until(lambda: [each.partitions for each in consumers] == [[0], [1], [2]])
        until(lambda: sum(len(each.events) for each in heard) >= len(pushed))
    finally:
        for consumer in consumers:
            consumer.stop()
    for number, one in enumerate(heard):
        mine = [task.identifier for task in pushed if partition_by(task, level) == number]
        assert one.identifiers == mine
    assert max(len(each.events) for each in heard) < len(pushed)


@pytest.mark.parametrize("key", [1.5, 2, None])
def test_a_function_that_returns_no_partition_is_refused_at_the_start_and_ends_partitions_later(
    dsn: str, queue: TaskQueue, key: object
) -> None:
    queue.push("work", ["fine"])
    heard = heard_all()
    resolve: Any = lambda event: 0 if event.identifier == "fine" else key  # noqa: E731
    with Consumer(dsn, heard.group, "work", quick(level=resolve, partitions=2)) as consumer:
        heard.wait(1)
        queue.push("work", ["odd"])
        with pytest.raises(NonTransient, match="level must return a text, or the number of a partition, 0 to 1, not"):
            consumer.wait(20)
    queue.purge_all("work")
    queue.push("work", ["odd"])
    with pytest.raises(InvalidArgument, match="level must return a text, or the number of a partition, 0 to 1, not"):
        Consumer(dsn, heard.group, "work", quick(level=resolve, partitions=2)).start()


@pytest.mark.promise("Another number of partitions leaves no gap and no duplicate")
def test_a_program_with_another_version_of_the_function_waits_until_the_group_is_at_one_place(
    dsn: str, queue: TaskQueue, caplog: pytest.LogCaptureFixture
) -> None:
    queue.push("work", [f"id-{n}" for n in range(20)])
    old, new = heard_all(), heard_all()
    settings = quick(partitions=2, level=lambda event: event.identifier, version="1")
    with Consumer(dsn, old.group, "work", settings) as first:
        old.wait(20)
        until_at_end(queue)
        settings = replace(settings, level=lambda event: event.sequence % 2, version="2")
        with Consumer(dsn, new.group, "work", settings) as second:
            until(lambda: "group 'readers' is in use: programs hold its partitions 0, 1" in caplog.text)
            queue.advance("readers", "work", 0, place(queue, 1))
            old.wait(21)
            until_at_end(queue)
            first.stop()
            second.resume()
            queue.push("work", ["last"])
            assert new.wait(1) == ["last"]
            until_at_end(queue)
            second.stop()
    assert {each.resolver for each in queue.partition_states()} == {"2"}
    queue.advance("readers", "work", 0, place(queue, 1))
    me = queue.register("me")
    with pytest.raises(InvalidState, match="only programs with version '2' of its resolver know what they handled"):
        queue.acquire_partition("readers", "work", me, 2, resolver="3")
    queue.advance("readers", "work", 1, place(queue, 1))
    assert queue.acquire_partition("readers", "work", me, 2, resolver="3") is not None


class FileTracker:
    """Progress in a file for each partition."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def current(self, group: str, topic: str, partition: int) -> Cursor | None:
        file = self._file(group, topic, partition)
        return Cursor.parse(json.loads(file.read_text())) if file.exists() else None

    def proceed(self, group: str, topic: str, partition: int, work: Callable[[], None], cursor: Cursor) -> None:
        work()
        self._file(group, topic, partition).write_text(json.dumps(str(cursor)))

    def _file(self, group: str, topic: str, partition: int) -> Path:
        return self.folder / f"{group}-{topic}-{partition}.json"


def test_a_tracker_stores_progress_and_a_later_consumer_continues_from_it(
    dsn: str, queue: TaskQueue, tmp_path: Path
) -> None:
    """It stores none for an event that fails."""
    tracker = FileTracker(tmp_path)
    one, _ = queue.push("work", ["good", "bad"])
    first, second = Heard(), heard_all()

    @first.group.on()
    def handle(event: Task) -> None:
        first.hear(event)
        if event.identifier == "bad":
            raise ValueError("not now")

    with Consumer(dsn, first.group, "work", quick(progress=tracker)):
        first.wait(4)
        assert str(tracker.current("readers", "work", 0)) == str(one.sequence)
    with Consumer(dsn, second.group, "work", quick(progress=tracker)):
        assert second.wait(1) == ["bad"]
    assert queue.partition_states("work") == []


@pytest.mark.parametrize(
    "retry",
    [[0.001, timedelta(milliseconds=2), "3ms"], lambda failures: None if failures > 3 else failures / 1000],
    ids=["a series", "a function"],
)
def test_a_series_or_a_function_sets_the_delays_between_attempts_and_their_end(
    dsn: str, queue: TaskQueue, retry: object
) -> None:
    queue.push("work", ["bad", "bad too", "good"])
    heard = Heard()

    @heard.group.on(lambda event: event.identifier != "good")
    def refuse(event: Task) -> None:
        raise ValueError(event.identifier)

    heard.group.on(lambda event: event.identifier == "good")(heard.hear)
    with Consumer(dsn, heard.group, "work", quick(retry=retry), on_failure=heard.fail):
        heard.wait(1)
    delays = [failure.delay for failure in heard.failures]
    assert delays == 2 * [timedelta(milliseconds=1), timedelta(milliseconds=2), timedelta(milliseconds=3), None]


def endless() -> Iterator[timedelta]:
    """An iterator, which ends after one use."""
    while True:
        yield NOW


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"partitions": 0}, "partitions"),
        ({"size": 0}, "size"),
        ({"transaction_size": 2}, "transaction_size"),
        ({"max_partitions": 0}, "max_partitions"),
        ({"lease": timedelta(0)}, "lease"),
        ({"lease": timedelta(days=99_999_999)}, "at most 3650 days"),
        ({"pause": timedelta(0)}, "pause"),
        ({"progress": "paper"}, "progress"),
        ({"progress": MemoryTracker(), "transactional": True}, "transactional"),
        ({"exclusive": False}, "exclusive=False needs progress in a tracker"),
        ({"recursive": False}, "recursive=False needs a subject"),
        ({"retry": endless()}, "retry must be a RetryPolicy, a function or a list of delays"),
        ({"retry": "sometimes"}, "retry must be a RetryPolicy, a function or a list of delays, not 'sometimes'"),
        ({"retry": RetryPolicy(jitter=0.5)}, "retry must have no horizon, jitter or probe"),
        ({"level": 1.5}, "invalid level 1.5"),
        ({"progress": object()}, "an object with the methods current and proceed"),
        ({"progress": FileTracker(Path()), "transactional": True}, "transactional=True needs progress in the database"),
        ({"only_partitions": [2], "partitions": 2}, "only_partitions .2. must be numbers of partitions, 0 to 1"),
    ],
)
def test_an_invalid_setting_raises(said: dict[str, object], words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        quick(**said)
