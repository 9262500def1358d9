"""The Spark job of the example `taskq_own_spark_job`: it writes the tasks that the gate holds as Parquet files."""

from argparse import ArgumentParser


def main() -> None:
    """Write the tasks of a claim. Reading changes nothing in the queue, so a retry reads the same tasks."""
    from pyspark.sql import SparkSession

    from airflow_provider_taskq.spark import TaskQDataSource

    parser = ArgumentParser()
    for name in ("owner", "fence", "folder"):
        parser.add_argument(f"--{name}", required=True)
    given = parser.parse_args()
    spark = SparkSession.builder.appName("planes").getOrCreate()
    spark.dataSource.register(TaskQDataSource)
    held = spark.read.format("taskq").options(mode="held", topic="planes", owner=given.owner, fence=given.fence).load()
    held.select("identifier", "payload").write.mode("overwrite").parquet(f"{given.folder}/{given.fence}")


if __name__ == "__main__":
    main()
