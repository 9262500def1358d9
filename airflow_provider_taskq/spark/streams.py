"""mode=log: readStream reads the log of a topic."""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from airflow_provider_taskq.queue import Cursor, TaskQueueError
from airflow_provider_taskq.queue.jobs import Bounds, TaskRange
from airflow_provider_taskq.spark.binary_copy import record_batches
from airflow_provider_taskq.spark.connection import ConnectionInfo
from airflow_provider_taskq.spark.options import parse_number, parse_options, parse_partitions, require
from airflow_provider_taskq.spark.readers import SequenceRange, arrow_schema, spark_schema

try:
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, SupportsTriggerAvailableNow

    ADMISSION_CONTROL = True
except ImportError:  # before Spark 4.2
    ADMISSION_CONTROL = False

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """A stand-in: Spark before 4.2 has no such class."""


HORIZON_SECONDS = 60.0  # for how long an open transaction may hold back the start of a stream
HORIZON_PAUSE = 0.2  # seconds between two reads of the log's end

LOG_SCHEMA = spark_schema(
    "sequence long, topic string, identifier string, payload string, reference string, priority integer,"
    " created timestamp"
)
_ARROW = arrow_schema(LOG_SCHEMA)
Offset = dict[str, Any]


@dataclass(frozen=True, slots=True)
class LogOptions:
    """Options of mode=log: the topic, the start, and the size of a batch.

    A new stream starts at the cursor of the consumer group `group` if it has one, else after the sequence `after`: a
    number, `earliest` (0) or `latest`. Each finished batch advances the group's cursor. A checkpoint takes precedence.
    """

    topic: str
    after: str
    group: str | None
    max_tasks: int | None
    partitions: int

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> Self:
        """Parse the options. Raises TaskQueueError for one that is missing, unknown or invalid."""
        names = {"topic", "after", "group", "maxtaskspertrigger", "partitions"}
        values = parse_options(options, "log", "read a stream", names)
        topic = require(values, "log", "topic")
        max_tasks = values.get("maxtaskspertrigger")
        if max_tasks is not None and not ADMISSION_CONTROL:
            raise TaskQueueError("format taskq, mode log: option 'maxTasksPerTrigger' needs Spark 4.2 or later")
        after = values.get("after", "earliest").lower()
        if after not in ("earliest", "latest"):
            parse_number(after, "after", 0)  # raises if it is no sequence
        return cls(
            topic=topic,
            after=after,
            group=values.get("group"),
            max_tasks=None if max_tasks is None else parse_number(max_tasks, "maxTasksPerTrigger"),
            partitions=parse_partitions(values),
        )


class LogReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a topic's log as a stream. An offset is the sequence of the last task before it: `{"sequence": 17}`.

    Every offset lies below the log's horizon, so no task appears before it later. A replayed batch has the same rows,
    except for tasks that a purge, DELETE or drop_topic has removed in the meantime.
    """

    def __init__(self, options: LogOptions, connection_info: ConnectionInfo) -> None:
        self.options = options
        self.connection_info = connection_info
        self.available_now: int | None = None  # the end of a stream with trigger availableNow
        self.first: int | None = None
        self.batch_end: int | None = None

    def initialOffset(self) -> Offset:  # noqa: N802
        """Return the start of a stream without a checkpoint."""
        if self.first is None:
            options = self.options
            cursor: Cursor | None = None
            if options.group:
                with self.connection_info.queue() as queue:
                    cursor = queue.progress(options.group, options.topic)
            if cursor is not None:
                self.first = cursor.place
            elif options.after == "latest":
                self.first = self._log_end(0)
            else:
                self.first = 0 if options.after == "earliest" else int(options.after)
        return {"sequence": self.first}

    def getDefaultReadLimit(self) -> Any:  # noqa: N802
        """Return the option maxTasksPerTrigger as a read limit of Spark."""
        return ReadAllAvailable() if self.options.max_tasks is None else ReadMaxRows(self.options.max_tasks)

    def latestOffset(self, start: Offset | None = None, limit: Any = None) -> Offset:  # noqa: N802
        """Return the end of the next batch, which is never before its start."""
        # Spark before 4.2 passes neither the start nor a limit.
        if start:
            after = start["sequence"]
        else:
            after = int(self.initialOffset()["sequence"]) if self.batch_end is None else self.batch_end
        max_tasks = limit.max_rows if ADMISSION_CONTROL and isinstance(limit, ReadMaxRows) else None
        start_is_known = ADMISSION_CONTROL or start is not None or self.batch_end is not None
        end = self._log_end(after, max_tasks) if start_is_known else self._log_end_past_checkpoint(after)
        return {"sequence": end if self.available_now is None else max(after, min(end, self.available_now))}

    def reportLatestOffset(self) -> Offset:  # noqa: N802
        """Return the end of the log, for the query's progress report."""
        return {"sequence": self._log_end(0)}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Let the stream end at the current end of the log."""
        self.available_now = self._log_end(0)

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        """Return ranges with equal numbers of tasks."""
        # When a stream restarts from a checkpoint, Spark before 4.2 calls this with an empty range, and before it calls
        # latestOffset, unless the trigger is availableNow. So this offset is the first that such a reader knows.
        self.batch_end = end["sequence"]
        self._log_end(start["sequence"])  # raises if this database has not reached the start of the batch
        bounds = self._bounds(start["sequence"], end["sequence"], self.options.partitions)
        return [SequenceRange(each.low, each.high) for each in bounds]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the tasks of one range in batches of bounded memory, on an executor."""
        if isinstance(partition, SequenceRange):
            range_of_log = (self.options.topic, partition.low, partition.high)
            with self.connection_info.executor_queue() as queue, queue.log_slice(_ARROW.names, *range_of_log) as copy:
                yield from record_batches(copy, _ARROW)

    def commit(self, end: Offset) -> None:
        """Advance the group's cursor to an offset up to which Spark has processed the stream."""
        if self.options.group is not None:
            with self.connection_info.queue() as queue:
                queue.advance(self.options.group, self.options.topic, 0, Cursor(end["sequence"]))

    def _log_end_past_checkpoint(self, after: int) -> int:
        """Wait until the log's end has passed every task that is visible now, and return that end.

        Spark before 4.2 does not tell a restarted reader the offset of its checkpoint. The checkpoint's tasks are
        visible, so this end does not lie before it, even if other transactions hold back the log's horizon.
        """
        deadline = time.monotonic() + HORIZON_SECONDS
        end = self._log_end(after)
        visible = self._bounds(end, None, 1)
        while visible and end < visible[0].high:
            if time.monotonic() > deadline:
                raise TaskQueueError(
                    f"an open transaction has held back the log of topic {self.options.topic!r} for"
                    f" {HORIZON_SECONDS:.0f} s, and Spark before 4.2 does not report the offset of its checkpoint:"
                    " end the transaction that taskq.log_blockers() names"
                )
            time.sleep(HORIZON_PAUSE)  # no event reports the end of another transaction
            end = self._log_end(after)
        return end

    def _bounds(self, after: int, end: int | None, parts: int) -> list[Bounds]:
        """Return the bounds of ranges of nearly equal size, of the tasks after an offset."""
        with self.connection_info.queue() as queue:
            return queue.task_bounds(self.options.topic, TaskRange(after + 1, end), parts)

    def _log_end(self, after: int, max_tasks: int | None = None) -> int:
        """Return the last sequence of the log after an offset, or the last of the next `max_tasks` tasks."""
        with self.connection_info.queue() as queue:
            return queue.log_end(self.options.topic, after, max_tasks)
