"""readStream over a topic's log: its tasks in the order in which they came in, read by anybody, taken by nobody."""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from airflow_provider_taskq.queue import Cursor, TaskQueue, TaskQueueError
from airflow_provider_taskq.queue.errors import translate_errors
from airflow_provider_taskq.spark.binary_copy import record_batches
from airflow_provider_taskq.spark.connection import Route
from airflow_provider_taskq.spark.options import PARTITIONS, known, number
from airflow_provider_taskq.spark.readers import HeldSlice

try:
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, SupportsTriggerAvailableNow

    ADMISSION = True
except ImportError:  # before Spark 4.2
    ADMISSION = False

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """What Spark before 4.2 has no name for."""


SETTLE_SECONDS = 60.0
SETTLE_PAUSE = 0.2
MOST = 2**63 - 1

LOG_SCHEMA = (
    StructType()
    .add("sequence", "long")
    .add("topic", "string")
    .add("identifier", "string")
    .add("payload", "string")
    .add("reference", "string")
    .add("priority", "integer")
    .add("created", "timestamp")
)
_ARROW = pa.schema(
    [
        ("sequence", pa.int64()),
        ("topic", pa.string()),
        ("identifier", pa.string()),
        ("payload", pa.string()),
        ("reference", pa.string()),
        ("priority", pa.int32()),
        ("created", pa.timestamp("us", tz="UTC")),
    ]
)
_COPY = (
    f"COPY (SELECT {', '.join(_ARROW.names)} FROM taskq.log_slice(%s::text, %s::bigint, %s::bigint))"  # noqa: S608
    " TO STDOUT (FORMAT binary)"
)
Offset = dict[str, Any]


@dataclass(frozen=True, slots=True)
class LogOptions:
    """Which log is read, from where, and how much of it at a time.

    A new stream begins after the sequence `after`, which is a number, `earliest` (0) or `latest`; or where the `group`
    of readers is, whose place is moved on with each batch that is done. What a checkpoint says goes before both.
    """

    topic: str
    after: str
    group: str | None
    most: int | None
    partitions: int

    @classmethod
    def parsed(cls, options: Mapping[str, str]) -> Self:
        """The options of mode=log; a sentence for each that is missing, unknown or nonsense."""
        names = {"topic", "after", "group", "maxtaskspertrigger", "partitions"}
        given = known(options, "log", "read a stream", names)
        if not given.get("topic"):
            raise TaskQueueError("format taskq, mode log: option 'topic' is missing")
        if "maxtaskspertrigger" in given and not ADMISSION:
            raise TaskQueueError("format taskq, mode log: option 'maxTasksPerTrigger' needs Spark 4.2 or later")
        after = given.get("after", "earliest").lower()
        if after not in ("earliest", "latest"):
            number(after, "after", 0)
        most = given.get("maxtaskspertrigger")
        return cls(
            topic=given["topic"],
            after=after,
            group=given.get("group"),
            most=None if most is None else number(most, "maxTasksPerTrigger"),
            partitions=number(given.get("partitions", str(PARTITIONS)), "partitions"),
        )


class LogReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The log as a stream. An offset is the sequence of the last task before it: `{"sequence": 17}`.

    Offsets are taken below the log's horizon, so that no task comes in behind one: a batch that is replayed has the
    rows it had, but for those that a purge, DELETE or drop_topic has removed since.
    """

    def __init__(self, options: LogOptions, route: Route) -> None:
        self.options = options
        self.route = route
        self.target: int | None = None
        self.begins: int | None = None
        self.place: int | None = None  # where the last batch ended

    def initialOffset(self) -> Offset:  # noqa: N802
        """Where a stream without a checkpoint begins."""
        if self.begins is None:
            self.begins = self._beginning()
        return {"sequence": self.begins}

    def getDefaultReadLimit(self) -> Any:  # noqa: N802
        """The option maxTasksPerTrigger as Spark has it."""
        return ReadAllAvailable() if self.options.most is None else ReadMaxRows(self.options.most)

    def latestOffset(self, start: Offset | None = None, limit: Any = None) -> Offset:  # noqa: N802
        """Where the next batch ends: never before where it begins, which Spark before 4.2 does not say here."""
        after = start["sequence"] if start else self._place()
        most = limit.max_rows if ADMISSION and isinstance(limit, ReadMaxRows) else None
        told = ADMISSION or start is not None or self.place is not None
        end = self._end(after, most) if told else self._settled_end(after)
        return {"sequence": end if self.target is None else max(after, min(end, self.target))}

    def reportLatestOffset(self) -> Offset:  # noqa: N802
        """How far the log goes, for the query's progress."""
        return {"sequence": self._end(0, None)}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Ends the stream where the log ends now."""
        self.target = self._end(0, None)

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        """The batch in ranges with equally many tasks.

        Spark before 4.2 also asks with an empty range where a stream goes on at a checkpoint: unless the trigger is
        availableNow before it asks for its end.
        """
        asked = self.options
        self.place = end["sequence"]
        with self.route.connect() as conn, translate_errors():
            bounds = conn.execute(
                "SELECT low, high FROM taskq.log_bounds(%s::text, %s::bigint, %s::bigint, %s::int)",
                (asked.topic, start["sequence"], end["sequence"], asked.partitions),
            )
            return [HeldSlice(low, high) for low, high in bounds]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The tasks of one range, streamed in bounded memory."""
        if not isinstance(partition, HeldSlice):
            return
        wanted = (self.options.topic, partition.low, partition.high)
        with self.route.connect_executor() as conn, translate_errors(), conn.cursor().copy(_COPY, wanted) as copy:
            yield from record_batches(copy, _ARROW)

    def commit(self, end: Offset) -> None:
        """Moves the group's place on: Spark is done with everything up to here."""
        if self.options.group is not None:
            with self.route.connect(autocommit=True) as conn:
                TaskQueue(conn).advance(self.options.group, self.options.topic, 0, Cursor(end["sequence"]))

    def _beginning(self) -> int:
        """The place of the group, if it has one, or what the option `after` says."""
        asked = self.options
        with self.route.connect(autocommit=True) as conn:
            place = TaskQueue(conn).progress(asked.group, asked.topic) if asked.group else None
        if place is not None:
            return place.place
        if asked.after == "latest":
            return self._end(0, None)
        return 0 if asked.after == "earliest" else int(asked.after)

    def _place(self) -> int:
        """Where the next batch begins, as far as Spark has told this reader."""
        return int(self.initialOffset()["sequence"]) if self.place is None else self.place

    def _settled_end(self, after: int) -> int:
        """The log's end once nothing that can be seen lies behind it.

        So it is not before the place of a checkpoint that Spark before 4.2 has not told, whoever has pushed meanwhile.
        """
        deadline = time.monotonic() + SETTLE_SECONDS
        end = self._end(after, None)
        with self.route.connect(autocommit=True) as conn, translate_errors():
            seen = conn.execute(
                "SELECT high FROM taskq.log_bounds(%s::text, %s::bigint, %s::bigint, 1)",
                (self.options.topic, end, MOST),
            ).fetchone()
        while seen is not None and end < seen[0]:
            if time.monotonic() > deadline:
                raise TaskQueueError(
                    f"an open transaction has held back the log of topic {self.options.topic!r} for"
                    f" {SETTLE_SECONDS:.0f} s, and Spark before 4.2 does not tell how far the stream is:"
                    " taskq.log_blockers() names the transaction"
                )
            time.sleep(SETTLE_PAUSE)  # nothing tells when a transaction of somebody else ends
            end = self._end(after, None)
        return end

    def _end(self, after: int, most: int | None) -> int:
        """The last task of the log after a place, or of the next so many."""
        with self.route.connect(autocommit=True) as conn, translate_errors():
            found = conn.execute(
                "SELECT taskq.log_end(%s::text, %s::bigint, %s::bigint)", (self.options.topic, after, most)
            ).fetchone()
        return int(found[0]) if found else after
