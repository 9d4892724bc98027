"""The demo's two streaming queries, written as a user would write them.

Zone: real. Only Spark; `run` has the brokers, the files and the output.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from ottla.demo.events import WINDOW, Counts

RAW: Final = "file-changes"
ENRICHED: Final = "file-changes-enriched"
_EVENT: Final = "ts bigint, commit string, ticket string, path string, added int, deleted int"
_PER_TRIGGER: Final = 4_000

Progress = Callable[[int, int], None]
"""Called with the number of finished events and batches."""


def enrich_events(spark: Any, bootstrap: str, directory: Path, progress: Progress) -> None:
    """From topic to topic, exactly once: every event gets its directory, file extension, year and changed lines."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 - the usual name; slow to import

    path = F.col("path")
    events = _read_events(spark, bootstrap, RAW, _EVENT)
    enriched = events.select(
        F.col("key"),
        F.to_json(
            F.struct(
                *(F.col(name) for name in ("ts", "commit", "ticket", "path", "added", "deleted")),
                F.when(path.contains("/"), F.substring_index(path, "/", 1)).otherwise(".").alias("directory"),
                F.lower(F.regexp_extract(path, r"\.([A-Za-z0-9]+)$", 1)).alias("extension"),
                F.year(F.timestamp_millis("ts")).alias("year"),
                (F.col("added") + F.col("deleted")).alias("changed"),
            ),
            {"ignoreNullFields": "false"},
        ).alias("value"),
    )
    query = (
        enriched.writeStream.format("ottla")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("topic", ENRICHED)
        .option("exactlyOnce", "partition")  # as by default: rows of a task and its marker in one transaction
        .option("checkpointLocation", str(directory / "enrich"))
        .trigger(availableNow=True)
        .start()
    )
    _follow_query(query, progress)


def count_events(spark: Any, bootstrap: str, directory: Path, progress: Progress) -> Counts:
    """Events and changed lines per half year and directory, kept by Spark while the enriched topic streams in."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    events = _read_events(spark, bootstrap, ENRICHED, "ts bigint, directory string, changed bigint")
    counts = events.groupBy(F.window(F.timestamp_millis("ts"), WINDOW), "directory").agg(
        F.count("*").alias("events"), F.sum("changed").alias("changed")
    )
    query = (
        counts.writeStream.outputMode("complete")
        .format("memory")
        .queryName("counts")
        .option("checkpointLocation", str(directory / "count"))
        .trigger(availableNow=True)
        .start()
    )
    _follow_query(query, progress)
    rows = spark.table("counts").select(F.unix_millis("window.start").alias("start"), "directory", "events", "changed")
    return {(row.start, row.directory): (row.events, row.changed) for row in rows.collect()}


def _read_events(spark: Any, bootstrap: str, topic: str, schema: str) -> Any:
    """A topic of JSON documents as a streaming DataFrame: `key` and the document's fields."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    return (
        spark.readStream.format("ottla")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", str(_PER_TRIGGER))
        .load()
        .select("key", F.from_json(F.col("value").cast("string"), schema).alias("event"))
        .select("key", "event.*")
    )


def _follow_query(query: Any, progress: Progress) -> None:
    """Wait for the end of a query. Raises its error."""
    done: dict[int, int] = {}
    try:
        while query.isActive:
            done |= {one["batchId"]: one["numInputRows"] for one in query.recentProgress}
            progress(sum(done.values()), len(done))
            time.sleep(0.02)
        query.awaitTermination()
    finally:
        query.stop()
    done |= {one["batchId"]: one["numInputRows"] for one in query.recentProgress}
    progress(sum(done.values()), len(done))
