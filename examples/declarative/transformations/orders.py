"""From a topic to a table, and from the table to another topic, exactly once. docs/declarative.md explains it."""

from __future__ import annotations

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name

spark = SparkSession.active()
BROKERS = spark.conf.get("shop.brokers")


@dp.table(table_properties={"pipelines.reset.allowed": "false"})  # a full refresh leaves it as it is
def orders() -> DataFrame:
    """Each record of the topic as a row, with its place in the topic."""
    records = (
        spark.readStream.format("ottla")
        .option("kafka.bootstrap.servers", BROKERS)
        .option("subscribe", "orders")
        .option("startingOffsets", "earliest")
        .load()
    )
    order = F.from_json(F.col("value").cast("string"), "id BIGINT, item STRING, cents BIGINT")
    return records.select("partition", "offset", "timestamp", order.alias("order")).select("*", "order.*").drop("order")


@dp.materialized_view
def revenue() -> DataFrame:
    """The sum of each item."""
    sums = spark.read.table("orders").groupBy("item")
    return sums.agg(F.sum("cents").alias("cents"), F.count("*").alias("orders"))


dp.create_sink(
    "large_orders",
    "ottla",
    {
        "kafka.bootstrap.servers": BROKERS,
        "topic": "large_orders",
        "exactlyOnce": "batch",  # the rows come from a table: a task that runs again may get others
        "outputId": "shop.large_orders",  # a full refresh, which would write every row again, is refused
    },
)


@dp.append_flow(target="large_orders")
def find_large_orders() -> DataFrame:
    """Orders of 100 and more."""
    large = spark.readStream.table("orders").where("cents >= 10000")
    return large.select(F.col("item").alias("key"), F.to_json(F.struct("id", "item", "cents")).alias("value"))
