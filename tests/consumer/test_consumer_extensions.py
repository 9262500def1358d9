"""Settings of consumers that are functions or objects: partitions, progress and delays."""

import json
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from airflow_provider_taskq.consumer import Consumer, ConsumerConfig, Level
from airflow_provider_taskq.queue import Cursor, InvalidArgument, NewTask, Task, TaskQueue, partition_of
from tests.consumer.consumers import NOW, Heard, heard_all, quick, state
from tests.queue.conftest import until

pytestmark = pytest.mark.promise("One consumer of a group at a time handles a partition")


def by_customer(event: Task) -> str:
    """The customer of an order, which its identifier does not name."""
    assert isinstance(event.payload, dict)
    return str(event.payload["customer"])


def orders(queue: TaskQueue, count: int = 60) -> list[Task]:
    """Orders of seven customers."""
    return queue.push("work", [NewTask(f"order-{n}", {"customer": f"customer-{n % 7}"}) for n in range(count)])


@pytest.mark.parametrize("progress", ["database", "memory"])
def test_a_function_maps_events_to_partitions(dsn: str, queue: TaskQueue, progress: str) -> None:
    pushed = orders(queue)
    heard: list[Heard] = []
    consumers: list[Consumer] = []
    for number in range(3):
        heard.append(heard_all())
        said = quick(partitions=3, level=by_customer, progress=progress, only_partitions=number)
        consumers.append(Consumer(dsn, heard[-1].group, "work", said))
    try:
        for consumer in consumers:
            consumer.start()
        until(lambda: sum(len(each.events) for each in heard) >= len(pushed), 20)
    finally:
        for consumer in consumers:
            consumer.stop()
    for number, each in enumerate(heard):
        mine = [task.identifier for task in pushed if partition_of(by_customer(task), 3) == number]
        assert each.identifiers == mine
    assert max(len(each.events) for each in heard) < len(pushed)


def test_the_default_level_of_opencqrs_has_a_name(dsn: str, queue: TaskQueue) -> None:
    queue.push("work", [f"/book/{n % 5}/page/{n}" for n in range(40)])
    heard = heard_all()
    with Consumer(dsn, heard.group, "work", quick(partitions=2, level="per_second_level_subject")):
        heard.wait(40)
    for number in range(5):
        pages = [each for each in heard.identifiers if each.startswith(f"/book/{number}/")]
        assert pages == sorted(pages, key=lambda page: int(page.rpartition("/")[2]))
    assert state(queue).level == 2


@pytest.mark.parametrize(
    ("name", "level"), [(Level.PER_SUBJECT, None), ("per_second_level_subject", 2), ("no_sequence", 0)]
)
def test_each_name_of_a_level_stands_for_its_number(name: str, level: int | None) -> None:
    assert ConsumerConfig(level=name).database_level == level


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
    tracker = FileTracker(tmp_path)
    queue.push("work", ["a", "b", "c"])
    first = heard_all()
    with Consumer(dsn, first.group, "work", quick(progress=tracker)):
        first.wait(3)
    queue.push("work", ["d"])
    second = heard_all()
    with Consumer(dsn, second.group, "work", quick(progress=tracker)):
        assert second.wait(1) == ["d"]
    assert tracker.current("readers", "work", 0) is not None
    assert queue.partition_states("work") == []


def test_a_tracker_stores_no_progress_for_a_failed_event(dsn: str, queue: TaskQueue, tmp_path: Path) -> None:
    tracker = FileTracker(tmp_path)
    one, _ = queue.push("work", ["good", "bad"])
    heard = Heard()

    @heard.group.on()
    def handle(event: Task) -> None:
        heard.hear(event)
        if event.identifier == "bad":
            raise ValueError("not now")

    with Consumer(dsn, heard.group, "work", quick(progress=tracker)):
        heard.wait(4)
        assert str(tracker.current("readers", "work", 0)) == str(one.sequence)


@pytest.mark.parametrize(
    "retry",
    [[0.001, timedelta(milliseconds=2), "3ms"], lambda failures: None if failures > 3 else failures / 1000],
    ids=["a series", "a function"],
)
def test_a_series_or_a_function_sets_the_delays_between_attempts_and_their_end(
    dsn: str, queue: TaskQueue, retry: object
) -> None:
    queue.push("work", ["bad", "good"])
    heard = Heard()

    @heard.group.on(lambda event: event.identifier == "bad")
    def refuse(event: Task) -> None:
        raise ValueError(event.identifier)

    heard.group.on(lambda event: event.identifier == "good")(heard.hear)
    with Consumer(dsn, heard.group, "work", quick(retry=retry), on_failure=heard.fail):
        heard.wait(1)
    delays = [failure.delay for failure in heard.failures]
    assert delays == [timedelta(milliseconds=1), timedelta(milliseconds=2), timedelta(milliseconds=3), None]


def test_a_consumer_holds_only_the_partitions_of_only_partitions(dsn: str, queue: TaskQueue) -> None:
    heard = heard_all()
    consumer = Consumer(dsn, heard.group, "work", quick(partitions=4, only_partitions=[1, 3]))
    with consumer:
        until(lambda: consumer.partitions == [1, 3], 20)
        queue.push("work", [f"id-{n}" for n in range(40)])
        mine = [name for n in range(40) if partition_of(name := f"id-{n}", 4) in (1, 3)]
        assert sorted(heard.wait(len(mine))) == sorted(mine)
        assert [
            each.member is None for each in sorted(queue.partition_states("work"), key=lambda each: each.partition)
        ] == [*(True, False, True, False)]


def endless() -> Iterator[timedelta]:
    """An iterator, which ends after one use."""
    while True:
        yield NOW


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"retry": endless()}, "retry must not be an iterator, which ends after one event"),
        ({"retry": 3}, "retry must be a name, a function or a series of durations, not 3"),
        ({"retry": "sometimes"}, "retry 'sometimes' must be one of exponential, fixed, none"),
        ({"level": "per_third_level"}, "level 'per_third_level' must be one of per_subject"),
        ({"level": 1.5}, "level must be a number, a name or a function of an event, not 1.5"),
        ({"progress": object()}, "an object with the methods current and proceed"),
        ({"progress": FileTracker(Path()), "transactional": True}, "transactional=True needs progress in the database"),
        ({"only_partitions": 2, "partitions": 2}, "only_partitions .2. must be numbers of partitions, 0 to 1"),
    ],
)
def test_an_object_of_the_wrong_type_as_a_setting_raises(said: dict[str, object], words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        quick(**said)
