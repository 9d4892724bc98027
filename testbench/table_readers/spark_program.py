"""Writes the rows of an Iceberg or Delta table into a directory of Parquet files: KIND LOCATION OUT JARS.

Zone: real. It runs with the Spark of the cache and the formats' own jars.
"""

from __future__ import annotations

import sys
import warnings

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.databricks.delta.snapshotPartitions": "2",
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}


def main(kind: str, location: str, out: str, jars: str) -> None:
    """Read by the data source of the format."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PySpark warns about new versions of pandas
        from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[1]").config("spark.jars", jars)
    for key, value in SETTINGS.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.read.format(kind).load(location).coalesce(1).write.parquet(out)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
