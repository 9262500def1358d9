"""The transform of the demo: a DataFrame of flights in, a DataFrame of decisions out.

Only the Spark application imports this module.
"""

from collections.abc import Mapping

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 -- the usual name

from demo.flights import MISSING, data_folder

FLIGHT = "origin string, time_hour string, dep_time int, arr_delay int"


def decide(tasks: DataFrame, options: Mapping[str, str]) -> DataFrame:  # noqa: ARG001 - drain's signature
    """Join each flight with its aircraft and the weather of its hour, and decide the flight.

    FAILURE if the tail number is missing or names no known aircraft, SUSPENSION if the weather of the hour has not been
    loaded, FILTER for a cancelled flight, else SUCCESS with a small result. The first condition that holds decides.
    """
    spark = tasks.sparkSession
    flights = tasks.select("sequence", F.col("identifier").alias("tailnum"), F.from_json("payload", FLIGHT).alias("f"))
    joined = (
        flights.select("sequence", "tailnum", "f.*")
        .join(_planes(spark), "tailnum", "left")
        .join(_weather(spark), ["origin", "time_hour"], "left")
    )
    unknown, unloaded = F.col("model").isNull(), F.col("loaded").isNull()
    cancelled = F.col("dep_time").isNull()
    return joined.select(
        "sequence",
        F.when(unknown, "FAILURE")
        .when(unloaded, "SUSPENSION")
        .when(cancelled, "FILTER")
        .otherwise("SUCCESS")
        .alias("result"),
        F.when(unknown, None)
        .when(unloaded, _waits())
        .when(cancelled, _cancelled())
        .otherwise(_flown())
        .alias("message"),
        F.when(unknown, _unknown()).alias("error"),
    )


def _planes(spark: SparkSession) -> DataFrame:
    planes = spark.read.csv(str(data_folder() / "planes.csv"), header=True, nullValue=MISSING)
    return planes.selectExpr("tailnum", "concat(manufacturer, ' ', model) AS model", "cast(seats AS int) AS seats")


def _weather(spark: SparkSession) -> DataFrame:
    weather = spark.read.csv(str(data_folder() / "weather.csv"), header=True, nullValue=MISSING)
    return weather.selectExpr("origin", "time_hour", "true AS loaded", "cast(wind_speed AS double) AS wind_speed")


def _waits() -> Column:
    waits_for = F.concat_ws(" ", F.lit("the weather of"), "origin", F.lit("at"), "time_hour")
    return F.to_json(F.struct(waits_for.alias("waits_for")))


def _cancelled() -> Column:
    return F.to_json(F.struct(F.lit("cancelled: it has no departure time").alias("reason")))


def _flown() -> Column:
    return F.to_json(F.struct("model", "seats", F.round("wind_speed", 1).alias("wind_mph"), "arr_delay"))


def _unknown() -> Column:
    return F.when(F.col("tailnum") == MISSING, "the flight has no tail number").otherwise(
        F.concat("tailnum", F.lit(" is not a known aircraft"))
    )
