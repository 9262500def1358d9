"""Slices of held tasks are read as Arrow batches, without Spark."""

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

from airflow_provider_taskq.queue import LeaseLost, NewTask, Owner, TaskQueue, TaskQueueError, UnknownTopic
from airflow_provider_taskq.spark import binary_copy
from airflow_provider_taskq.spark.connection import ConnectionInfo
from airflow_provider_taskq.spark.options import HeldOptions, PushOptions
from airflow_provider_taskq.spark.readers import HELD_SCHEMA, HeldReader, SequenceRange, TasksOptions
from airflow_provider_taskq.spark.streams import ADMISSION_CONTROL, LogOptions

pytestmark = pytest.mark.promise("Held tasks are read again with the same rows, in partitions of nearly equal size")

ODD = [
    "plain",
    "",
    'a "quoted", text',
    "line\nbreak\r\n",
    "back\\slash \\N \\.",
    "tab\t",
    "ünï 😀",
    "  ",
    "NULL",
    "t",
]


def reader(dsn: str, options: dict[str, str], partitions: int = 3) -> HeldReader:
    values = {"mode": "held", "partitions": str(partitions), **options}
    return HeldReader(HeldOptions.parse(values, "held"), ConnectionInfo.resolve(dsn))


def all_rows(reader: HeldReader) -> list[dict[str, object]]:
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    return [row for batch in batches for row in batch.to_pylist()]


def test_every_text_is_read_unchanged(dsn: str, queue: TaskQueue, owner: Owner) -> None:
    tasks = [NewTask(f"id {text}", {"text": text}, text or None, priority=n) for n, text in enumerate(ODD)]
    began = datetime.now(UTC)
    queue.push("work", [*tasks, NewTask("bare"), NewTask("empty reference", reference="")])
    queue.claim("work", owner, 100)
    rows = all_rows(reader(dsn, {"topic": "work", "owner": owner.name, "fence": str(owner.fence)}))
    assert [row["identifier"] for row in rows] == [*(task.identifier for task in tasks), "bare", "empty reference"]
    assert [json.loads(str(row["payload"]))["text"] for row in rows[: len(ODD)]] == ODD
    assert [row["reference"] for row in rows] == [*(text or None for text in ODD), None, ""]
    assert [row["priority"] for row in rows[: len(ODD)]] == list(range(len(ODD)))
    assert rows[-1]["payload"] is None
    assert {(row["attempt"], row["redelivered"], row["topic"]) for row in rows} == {(1, False, "work")}
    stored = queue.task("work", int(str(rows[0]["sequence"])))
    assert stored
    assert rows[0]["created"] == stored.created
    assert abs(stored.created - began) < timedelta(minutes=5)


def test_batches_have_the_declared_schema(dsn: str, held: Callable[[int], dict[str, str]]) -> None:
    from pyspark.sql.pandas.types import to_arrow_schema

    held_reader = reader(dsn, held(1))
    batch = next(held_reader.read(held_reader.partitions()[0]))
    assert batch.schema == to_arrow_schema(HELD_SCHEMA, timezone="UTC")


def test_slices_are_even_and_whole(dsn: str, held: Callable[[int], dict[str, str]]) -> None:
    held_reader = reader(dsn, held(10))
    parts = held_reader.partitions()
    sizes = [sum(batch.num_rows for batch in held_reader.read(part)) for part in parts]
    assert sizes == [4, 3, 3]
    assert len({row["sequence"] for row in all_rows(held_reader)}) == 10


def test_batches_are_bounded_by_rows_and_bytes(
    dsn: str, held: Callable[[int], dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    held_reader = reader(dsn, held(100), partitions=1)
    monkeypatch.setattr(binary_copy, "BATCH_ROWS", 30)
    assert [batch.num_rows for batch in held_reader.read(held_reader.partitions()[0])] == [30, 30, 30, 10]
    monkeypatch.setattr(binary_copy, "BATCH_BYTES", 1)
    assert {batch.num_rows for batch in held_reader.read(held_reader.partitions()[0])} == {1}


def test_a_row_may_be_larger_than_a_batch(dsn: str, queue: TaskQueue, owner: Owner) -> None:
    queue.push("work", [NewTask("large", "x" * 250_000), NewTask("small")])
    queue.claim("work", owner, 2)
    options = {"topic": "work", "owner": owner.name, "fence": str(owner.fence)}
    assert [len(str(row["payload"])) for row in all_rows(reader(dsn, options))] == [250_002, 4]


def test_an_owner_without_tasks_has_no_slice(dsn: str, queue: TaskQueue, owner: Owner) -> None:
    held_reader = reader(dsn, {"topic": "work", "owner": owner.name, "fence": str(owner.fence)})
    assert held_reader.partitions() == []
    assert list(held_reader.read(SequenceRange(1, 10))) == []
    queue.release(owner)


def test_a_lease_that_is_gone_refuses_readers(
    dsn: str, queue: TaskQueue, owner: Owner, held: Callable[[int], dict[str, str]]
) -> None:
    held_reader = reader(dsn, held(3))
    parts = held_reader.partitions()
    queue.register(owner.name)
    with pytest.raises(LeaseLost):
        list(held_reader.read(parts[0]))
    with pytest.raises(LeaseLost):
        held_reader.partitions()


def test_an_unknown_topic_is_named(dsn: str, owner: Owner) -> None:
    with pytest.raises(UnknownTopic, match="'nowhere'"):
        reader(dsn, {"topic": "nowhere", "owner": owner.name, "fence": str(owner.fence)}).partitions()


def test_a_reader_that_stops_early_ends_its_session(dsn: str, held: Callable[[int], dict[str, str]]) -> None:
    held_reader = reader(dsn, held(5), partitions=1)
    stream = held_reader.read(held_reader.partitions()[0])
    assert isinstance(next(stream), pa.RecordBatch)
    stream.close()  # type: ignore[attr-defined]
    with ConnectionInfo.resolve(dsn).connect() as conn:
        left = conn.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'COPY%'"
        ).fetchone()
    assert left == (0,)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"mode": "tasks"}, "to read, set option mode to 'held', not 'tasks'"),
        ({"owner": ""}, "option 'owner' is missing"),
        ({"fence": "-1"}, "option 'fence' must be a whole number of at least 1, not '-1'"),
        ({"partitions": "many"}, "option 'partitions' must be a whole number of at least 1, not 'many'"),
        ({"partition": "4"}, "unknown option 'partition': use fence, owner, partitions, topic"),
        ({"dsn": "postgresql://u:secret@h/d"}, "unknown option 'dsn'"),
    ],
)
def test_options_are_checked(options: dict[str, str], sentence: str) -> None:
    with pytest.raises(TaskQueueError, match=sentence) as refused:
        HeldOptions.parse({"mode": "held", "topic": "t", "owner": "o", "fence": "1", **options}, "held")
    assert "secret" not in str(refused.value)


HELD = {"mode": "held", "topic": "t", "owner": "o"}
PUSH = {"mode": "push", "topic": "t", "stream": "s"}
LOG = {"mode": "log", "topic": "t"}
TASKS = {"mode": "tasks", "topic": "t"}
BIGINT, INT = 2**63 - 1, 2**31 - 1
NUMBERS: list[tuple[Callable[[dict[str, str]], object], str, int]] = [
    (lambda more: HeldOptions.parse({**HELD, **more}, "held"), "fence", BIGINT),
    (lambda more: HeldOptions.parse({**HELD, **more}, "held"), "partitions", INT),
    (lambda more: TasksOptions.parse({**TASKS, **more}), "partitions", INT),
    (lambda more: PushOptions.parse({**PUSH, **more}), "batch", BIGINT),
    (lambda more: LogOptions.parse({**LOG, **more}), "after", BIGINT),
]
if ADMISSION_CONTROL:
    NUMBERS.append((lambda more: LogOptions.parse({**LOG, **more}), "maxTasksPerTrigger", BIGINT))


@pytest.mark.parametrize(("parse", "name", "most"), NUMBERS)
def test_a_number_beyond_its_type_in_the_database_is_refused_by_name(
    parse: Callable[[dict[str, str]], object], name: str, most: int
) -> None:
    parse({name: str(most)})
    for text in (str(most + 1), "9" * 20, "9" * 5000):  # Python converts no text of more than 4,300 digits
        with pytest.raises(TaskQueueError, match=f"'{name}' must be a whole number of at most {most},") as refused:
            parse({name: text})
        assert len(str(refused.value)) < 200
