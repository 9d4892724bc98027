"""A user's programs in a session of Spark Connect: `python connect_programs.py URL PROGRAM WORDS`, WORDS as JSON.

The result is the last line of the output, as JSON. A function given to foreachBatch runs in a process of the server.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession, functions

from ottla.pipeline import Pipeline, StepFailed, map_rows
from ottla.spark import write_batch

SLOW = "Python worker failed to connect back"
"""Spark gives a process of its own for foreachBatch ten seconds to start, which a busy machine may need."""
STARTS = 10


def read_source(spark: Any, bootstrap: str, source: str, per_batch: int) -> Any:
    options = {"kafka.bootstrap.servers": bootstrap, "subscribe": source, "startingOffsets": "earliest"}
    read = spark.readStream.format("ottla").options(**options).option("maxOffsetsPerTrigger", per_batch).load()
    return read.selectExpr("CAST(value AS STRING) AS value")


def run_query(writer: Any, checkpoint: str) -> str | None:
    """Run a query to its end; the error, if it fails."""
    for _ in range(STARTS):
        try:
            query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
            query.awaitTermination()
        except Exception as error:
            if SLOW not in str(error):
                return str(error)
        else:
            return None
    return SLOW


def read_and_stream(spark: Any, bootstrap: str, source: str, target: str, checkpoint: str) -> object:
    """A view in SQL, and a stream into the sink; its second run continues the checkpoint, and has nothing to do."""
    spark.sql(
        "CREATE TEMPORARY VIEW orders USING ottla "
        f"OPTIONS (`kafka.bootstrap.servers` '{bootstrap}', subscribe '{source}')"
    )
    found = spark.sql("SELECT count(*) FROM orders").collect()[0][0]
    options = {"kafka.bootstrap.servers": bootstrap, "topic": target, "exactlyOnce": "partition"}
    rows = read_source(spark, bootstrap, source, 1000)
    failed = [run_query(rows.writeStream.format("ottla").options(**options), checkpoint) for _ in range(2)]
    return {"rows": found, "failed": failed}


def strike(directory: str, place: str) -> None:
    """Kill a process if the directory has a file of this name, which says which process; only once."""
    path = Path(directory, place)
    if path.exists():
        victim = os.getppid() if path.read_text() == "server" else os.getpid()
        path.unlink()
        os.kill(victim, signal.SIGKILL)
        time.sleep(60)


def write_wrongly(frame: Any, batch_id: int, checkpoint: str, other: str) -> list[str]:
    """Calls that are refused; their errors."""
    found = []
    for number, place in ((batch_id, None), (batch_id, other), (batch_id - 1, checkpoint), (batch_id + 1, checkpoint)):
        try:
            write_batch(frame, number, {}, sink="first", checkpoint=place)
        except Exception as error:
            found.append(f"{type(error).__name__}: {error}")
    return found


def write_twice(spark: Any, source: str, checkpoint: str, strikes: str, **words: str) -> object:
    """Two writes of one batch: by partition, and all rows as a whole; two runs."""
    options = {"kafka.bootstrap.servers": words["bootstrap"]}
    first, second = ({**options, "topic": words[name]} for name in ("first", "second"))

    def publish(frame: Any, batch_id: int) -> None:
        if batch_id == 1:
            Path(strikes, "errors").write_text(json.dumps(write_wrongly(frame, batch_id, checkpoint, strikes)))
        write_batch(frame, batch_id, first, sink="first", checkpoint=checkpoint)
        strike(strikes, "between")
        write_batch(frame, batch_id, second, sink="second", exactly_once="batch", checkpoint=checkpoint)

    rows = read_source(spark, words["bootstrap"], source, 100)
    return [run_query(rows.writeStream.foreachBatch(publish), checkpoint) for _ in range(2)]


def write_counts(spark: Any, bootstrap: str, source: str, target: str, checkpoint: str, strikes: str) -> object:
    """The result of an aggregation in output mode update."""
    options = {"kafka.bootstrap.servers": bootstrap, "topic": target}

    def publish(frame: Any, batch_id: int) -> None:
        write_batch(frame, batch_id, options, sink="counts", checkpoint=checkpoint)
        strike(strikes, "after")

    counts = read_source(spark, bootstrap, source, 100).groupBy("value").count().select("value")
    return run_query(counts.writeStream.outputMode("update").foreachBatch(publish), checkpoint)


def run_pipeline(spark: Any, bootstrap: str, source: str, target: str, checkpoint: str) -> object:
    """A pipeline of a step of rows and one of DataFrames: its plan, its figures, and the plan over its checkpoint."""
    pipeline = Pipeline("shop", bootstrap)

    @pipeline.step(source, to=target, dead=f"{target}.dead", name="rows")
    @map_rows
    def double(row: Any) -> bytes:
        return b"%d" % (2 * int(row.value))

    @pipeline.step(target, to=f"{target}.large", name="large")
    def select_large(rows: Any) -> Any:
        return rows.where("CAST(CAST(value AS STRING) AS INT) >= 200")

    pipeline.make_topics()
    plans = [*pipeline.plan(spark).steps, *count_step(Pipeline("counting", bootstrap), source).plan(spark).steps]
    figures = pipeline.run(checkpoint, spark=spark, progress=False)
    changes = pipeline.plan(spark, checkpoint).checkpoint
    return {
        "failed": fail_step(Pipeline("broken", bootstrap), spark, source, checkpoint),
        "scopes": [(each.scope, each.offsets) for each in plans],
        "figures": [(each.step, each.rows_in, each.rows_out, each.dead, each.lag) for each in figures],
        "effects": [each.effect for each in changes],
    }


def count_step(pipeline: Pipeline, source: str) -> Pipeline:
    """A step whose rows change tasks; it is only planned."""

    @pipeline.step(source, to=f"{source}.counts", name="counts", output_mode="complete")
    def count_values(rows: Any) -> Any:
        return rows.groupBy(functions.length("value").cast("string").alias("value")).count().select("value")

    return pipeline


def fail_step(pipeline: Pipeline, spark: Any, source: str, checkpoint: str) -> str | None:
    """Run a step whose function fails, without dead letters; the error."""

    @pipeline.step(source, to=f"{source}.broken", name="broken")
    @map_rows
    def refuse(row: Any) -> bytes:
        raise ValueError(f"no price in {bytes(row.value)!r}")

    try:
        pipeline.run(checkpoint, spark=spark, progress=False)
    except StepFailed as error:
        return str(error)
    return None


PROGRAMS: dict[str, Callable[..., object]] = {
    each.__name__: each for each in (read_and_stream, write_twice, write_counts, run_pipeline)
}


def main() -> None:
    """Run a program in a new session."""
    url, name, words = sys.argv[1:]
    spark = SparkSession.builder.remote(url).getOrCreate()
    assert type(spark).__module__.startswith("pyspark.sql.connect."), type(spark)
    found = PROGRAMS[name](spark, **json.loads(words))
    print(json.dumps({"result": found}))
    spark.stop()


if __name__ == "__main__":
    main()
