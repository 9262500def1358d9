"""Program that uses what the tests use of Spark, so that its classes are loaded and get into the archive."""

import sys
from collections.abc import Iterator

from pyspark.sql import Row, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition


class Numbers(DataSource):
    """A data source of two partitions with a number each."""

    @classmethod
    def name(cls) -> str:
        return "numbers"

    def schema(self) -> str:
        return "number bigint"

    def reader(self, schema: object) -> "NumbersReader":  # noqa: ARG002  pyspark's signature
        return NumbersReader()


class NumbersReader(DataSourceReader):
    """Reads the number of a partition."""

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(1), InputPartition(2)]

    def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
        yield (partition.value,)


def main(folder: str) -> None:
    """Read, compute, write, and stream."""
    spark = SparkSession.builder.getOrCreate()
    spark.dataSource.register(Numbers)
    numbers = spark.read.format("numbers").load().mapInArrow(lambda batches: batches, "number bigint")
    numbers.union(spark.range(9).toDF("number")).write.mode("overwrite").parquet(f"{folder}/numbers")
    stored = spark.read.parquet(f"{folder}/numbers").selectExpr("number", "to_json(struct(number)) AS payload")
    rows = spark.createDataFrame([Row(number=1, name="one")]).join(stored, "number").groupBy("name").count().collect()
    assert [row["count"] for row in rows] == [2]
    spark.sparkContext.parallelize(range(4), 2).map(lambda number: number * 2).collect()
    stream = spark.readStream.schema("number bigint").parquet(f"{folder}/numbers").writeStream.format("noop")
    stream.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True).start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
