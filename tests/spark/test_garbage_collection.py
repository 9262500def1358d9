"""Spark's Python workers do not collect garbage among the modules that they import."""

import gc
from collections.abc import Iterator

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from airflow_provider_taskq.spark.connection import freeze_gc

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning"),
    pytest.mark.promise("Executors and clients of Spark Connect need few libraries"),
]


def test_python_workers_exclude_imported_modules_from_garbage_collection(spark: SparkSession) -> None:
    def frozen(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        list(batches)
        freeze_gc()
        yield pa.record_batch({"count": pa.array([gc.get_freeze_count()])})

    counts = [row[0] for row in spark.range(2, numPartitions=2).mapInArrow(frozen, "count long").collect()]
    assert all(count > 10_000 for count in counts)


def test_other_processes_are_not_changed() -> None:
    before = gc.get_freeze_count()
    freeze_gc()
    assert gc.get_freeze_count() == before
