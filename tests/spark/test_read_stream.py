"""readStream over a topic's log: every task once and in order, batch by batch, across restarts."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from airflow_provider_taskq.queue import Cursor, TaskQueue, TaskQueueError, connect
from airflow_provider_taskq.spark import streams
from airflow_provider_taskq.spark.connection import ConnectionInfo
from airflow_provider_taskq.spark.streams import ADMISSION_CONTROL, LogOptions, LogReader
from tests.spark.conftest import Push

pytestmark = pytest.mark.promise("A stream never passes an open push, and a replayed batch has its effect once")


LIMITED = pytest.mark.skipif(not ADMISSION_CONTROL, reason="maxTasksPerTrigger needs Spark 4.2 or later")


class Seen:
    """The batches that a stream has returned. Its handler fails in the batch `failing`."""

    def __init__(self, failing: int | None = None) -> None:
        self.batches: dict[int, list[int]] = {}
        self._failing = failing

    def __call__(self, frame: DataFrame, number: int) -> None:
        self.batches[number] = sorted(row.sequence for row in frame.select("sequence").collect())
        if number == self._failing:
            raise RuntimeError("the handler fails")

    def rows(self) -> list[int]:
        return [sequence for number in sorted(self.batches) for sequence in self.batches[number]]


@pytest.fixture
def run(spark: SparkSession, source: str, tmp_path: Path) -> Callable[..., Seen]:
    """Runs a stream over the current log of `work`, under a checkpoint, and returns its batches."""

    def ran(checkpoint: str = "checkpoint", handler: Seen | None = None, **options: str) -> Seen:
        seen = handler or Seen()
        given = {"mode": "log", "topic": "work", "partitions": "2", **options}
        stream = spark.readStream.format(source).options(**given).load().writeStream.foreachBatch(seen)
        query = stream.option("checkpointLocation", str(tmp_path / checkpoint)).trigger(availableNow=True).start()
        try:
            assert query.awaitTermination(120)
        finally:
            query.stop()
        return seen

    return ran


def reader(dsn: str, **options: str) -> LogReader:
    given = {"mode": "log", "topic": "work", "partitions": "2", **options}
    return LogReader(LogOptions.parse(given), ConnectionInfo.resolve(dsn))


def rows_of(log_reader: LogReader, start: int, end: int) -> list[int]:
    parts = log_reader.partitions({"sequence": start}, {"sequence": end})
    return [row["sequence"] for part in parts for batch in log_reader.read(part) for row in batch.to_pylist()]


@LIMITED
def test_a_stream_starts_at_the_cursor_of_its_group_and_advances_it(
    run: Callable[..., Seen], push: Push, queue: TaskQueue
) -> None:
    pushed = push(20)
    queue.advance("readers", "work", 0, Cursor(pushed[4]))
    assert run("one", group="readers", maxTasksPerTrigger="6").rows() == pushed[5:]
    place = queue.progress("readers", "work")
    assert place is not None
    again = run("two", group="readers").rows()
    assert pushed[5:] == [n for n in pushed[5:] if n <= place.place] + again
    assert len(again) <= 6, "no more than the last batch comes again under a new checkpoint"


def test_a_stream_never_passes_an_open_push(dsn: str, queue: TaskQueue) -> None:
    log_reader = reader(dsn)
    [before] = queue.push("work", ["before"])
    with connect(dsn) as conn:
        TaskQueue(conn).push("work", ["open"])
        [after] = queue.push("work", ["after"])
        assert log_reader.latestOffset({"sequence": 0}) == {"sequence": before.sequence}
    end = log_reader.latestOffset({"sequence": before.sequence})
    assert end == {"sequence": after.sequence}
    assert len(rows_of(log_reader, before.sequence, after.sequence)) == 2


def test_a_planned_range_returns_the_same_rows_at_every_read(dsn: str, queue: TaskQueue, push: Push) -> None:
    pushed = push(10)
    log_reader = reader(dsn)
    end = log_reader.latestOffset({"sequence": 0})["sequence"]
    owner = queue.register("owner")
    queue.poll("work", owner, 5)
    push(10)
    assert rows_of(log_reader, 0, end) == pushed
    queue.purge_all("work")
    assert rows_of(log_reader, 0, end) == [], "what is purged has left the log"


@LIMITED
def test_batches_respect_the_limit_of_tasks(dsn: str, push: Push) -> None:
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

    pushed = push(10)
    log_reader = reader(dsn, maxTasksPerTrigger="4")
    assert log_reader.getDefaultReadLimit() == ReadMaxRows(4)
    start: dict[str, Any] = log_reader.initialOffset()
    assert start == {"sequence": 0}
    assert log_reader.latestOffset(start, ReadMaxRows(4)) == {"sequence": pushed[3]}
    assert log_reader.latestOffset({"sequence": pushed[7]}, ReadMaxRows(4)) == {"sequence": pushed[9]}
    assert log_reader.latestOffset(start, ReadAllAvailable()) == {"sequence": pushed[9]}
    assert log_reader.reportLatestOffset() == {"sequence": pushed[9]}
    log_reader.prepareForTriggerAvailableNow()
    push(5)
    assert log_reader.latestOffset({"sequence": pushed[9]}, ReadAllAvailable()) == {"sequence": pushed[9]}
    assert log_reader.partitions({"sequence": pushed[9]}, {"sequence": pushed[9]}) == []


def test_a_stream_without_a_limit_continues_from_its_checkpoint_after_a_failure(
    run: Callable[..., Seen], push: Push, queue: TaskQueue
) -> None:
    first = push(6)
    assert run(group="readers").batches == {0: first}
    second, failing = push(4), Seen(failing=1)
    with pytest.raises(PySparkException, match="the handler fails"):
        run(handler=failing, group="readers")
    third = push(2)
    assert failing.batches == {1: second}
    again = run(group="readers").batches
    if not ADMISSION_CONTROL:  # there a run that begins with a replay ends with it
        again |= run(group="readers").batches
    assert again == {1: second, 2: third}
    place = queue.progress("readers", "work")
    assert place is not None
    assert place.place in (second[-1], third[-1]), "the last batch is reported as done with the next one at the latest"


def test_a_stream_that_starts_beyond_the_last_number_is_refused(dsn: str, push: Push) -> None:
    """As one with a checkpoint from before a restore."""
    offset = {"sequence": push(3)[-1] + 2}
    log_reader = reader(dsn, after=str(offset["sequence"]))
    with pytest.raises(TaskQueueError, match="older copy"):
        log_reader.latestOffset(offset)
    with pytest.raises(TaskQueueError, match="older copy"):
        log_reader.partitions(offset, offset)
    assert reader(dsn, after="latest").initialOffset() == {"sequence": offset["sequence"] - 2}


def test_an_offset_never_goes_back_although_spark_does_not_pass_the_start(
    dsn: str, queue: TaskQueue, push: Push
) -> None:
    pushed = push(3)
    log_reader = reader(dsn)
    assert log_reader.latestOffset() == {"sequence": pushed[-1]}
    assert len(log_reader.partitions({"sequence": 0}, {"sequence": pushed[-1]})) == 2
    queue.purge_all("work")
    assert log_reader.latestOffset() == {"sequence": pushed[-1]}
    resumed = reader(dsn)
    assert resumed.partitions({"sequence": pushed[1]}, {"sequence": pushed[1]}) == []
    assert resumed.latestOffset() == {"sequence": pushed[1]}
    assert resumed.initialOffset() == {"sequence": 0}


def test_if_spark_does_not_pass_the_start_the_end_waits_for_all_visible_tasks(
    dsn: str, queue: TaskQueue, push: Push, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "ADMISSION_CONTROL", False)  # as before Spark 4.2
    monkeypatch.setattr(streams, "HORIZON_SECONDS", 0.3)
    queue.create_topic("other")
    push(2)
    with connect(dsn) as holding:
        TaskQueue(holding).push("other", ["begins"])
        push(3)  # a stream may be at the last of these, which its end is no longer now:
        [last] = TaskQueue(holding).push("work", ["comes in behind"])
        with pytest.raises(TaskQueueError, match="an open transaction has held back the log of topic 'work'"):
            reader(dsn).latestOffset()
        monkeypatch.setattr(streams, "HORIZON_SECONDS", 30.0)
        with ThreadPoolExecutor(1) as pool:
            latest = pool.submit(reader(dsn).latestOffset)
            assert not wait([latest], timeout=0.5).done
            holding.commit()
            assert latest.result(120) == {"sequence": last.sequence}
