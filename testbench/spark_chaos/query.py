"""The query under test: topic to topic through Spark, `python -m testbench.spark_chaos.query PLAN`, PLAN as JSON.

Zone: real.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from ottla.pipeline.queries import reason_of
from testbench.spark_archive import short_run_options
from testbench.spark_chaos.waiting import GO

HERE = "127.0.0.1"


class Plan(NamedTuple):
    """The plan of a run."""

    bootstrap: str
    source: str
    sink: str
    directory: str
    """Checkpoint, strikes (`strikes/`) and the pid of the driver's JVM."""
    per_batch: int
    """Offsets per batch."""
    once: str = "auto"
    stock: bool = False
    """Spark's own connector is the sink."""
    shuffle: str = ""
    """A shuffle of the rows: "1" for repartition(1), "4" by value into four partitions, "value" by value, "round" for
    repartition(3), "join" with a static table."""
    foreach: str = ""
    """append, cached (the rows are kept in Spark's cache), or update (a count by value): within foreachBatch."""
    group: str = ""
    """The consumer group whose offsets must be in the transactions of the rows."""
    prefix: str = ""
    """transactionalIdPrefix."""
    name: str = ""
    """The option sink."""
    offsets: str = "true"
    """offsetsInTransaction, with a group."""
    suffix: str = ""
    """Suffix of the name of the sink's topic."""
    keyed: bool = False
    """Rows have keys: another expression."""
    union: bool = False
    """Even and odd numbers are read apart, and united."""
    files: bool = False
    """Half of the numbers are read from files, and united."""
    moved_first: int = 0
    """The rows of files are shuffled into so many partitions, and come before those of the topic."""
    slow_s: int = 0
    """How long those of a batch take then, together: meanwhile tasks of the topic commit theirs."""
    on_driver: bool = False
    """The driver reads all batches, and one task gets all rows of each."""
    kept: bool = False
    """In foreachBatch rows are cached and counted, and written by two writes, the second in a separate thread."""
    others: int = 0
    """Tasks that read beside the query while one of its tasks waits."""
    unsafe: str = ""
    """The safeguard that is switched off."""
    settings: tuple[tuple[str, str], ...] = ()
    master: str = "local[2,4]"

    @property
    def strikes(self) -> Path:
        """The directory of the strikes."""
        return Path(self.directory, "strikes")


def start(spark: Any, plan: Plan) -> Any:
    """The running query."""
    from testbench.spark_chaos import stock

    rows = _rows(spark, plan)
    writer = stock.writer(rows, plan) if plan.stock else _writer(spark, rows, plan)
    return writer.option("checkpointLocation", f"{plan.directory}/checkpoint").trigger(availableNow=True).start()


def read_beside(spark: Any, plan: Plan, query: Any) -> None:
    """Run many reading tasks once a task of the query waits; then release that task."""
    while any(plan.strikes.iterdir()) and query.isActive:
        time.sleep(0.1)
    options = {"kafka.bootstrap.servers": plan.bootstrap, "subscribe": plan.source, "minPartitions": "600"}
    rows, done = spark.read.format("ottla").options(**options).load(), 0
    while done < plan.others and query.isActive:
        rows.write.format("noop").mode("overwrite").save()
        done += 600
    Path(plan.directory, GO).touch()


def _writer(spark: Any, rows: Any, plan: Plan) -> Any:
    """Write into Ottla's sink."""
    from testbench.spark_chaos.source import ChaosSource

    spark.dataSource.register(ChaosSource)
    options = {"kafka.bootstrap.servers": plan.bootstrap, "topic": plan.sink + plan.suffix, "exactlyOnce": plan.once}
    options |= {"transactionalIdPrefix": plan.prefix} if plan.prefix else {}
    options |= {"sink": plan.name} if plan.name else {}
    # Drivers sleep and start slowly here; the transactions of a decided batch must not expire meanwhile.
    options |= {"kafka.transaction.timeout.ms": "600000"} if plan.once == "batch" or plan.files else {}
    if plan.kept:
        return rows.writeStream.foreachBatch(_keeping(plan, options))
    options |= {"chaos": str(plan.strikes)} | ({"unsafe": plan.unsafe} if plan.unsafe else {})
    if plan.group:
        options |= {"offsetsInTransaction": plan.offsets, "sourceGroup": plan.group}
    if plan.foreach:

        def publish(frame: Any, batch: int) -> None:  # noqa: ARG001 - Spark's signature
            scope = "partition" if plan.once == "auto" else plan.once
            if plan.foreach == "cached":
                frame.persist().count()
            named = frame.write.format("ottla_chaos").options(**{**options, "sink": "x", "exactlyOnce": scope})
            named.mode("append").save()
            frame.unpersist()

        return rows.writeStream.foreachBatch(publish).outputMode("update" if plan.foreach == "update" else "append")
    return rows.writeStream.format("ottla_chaos").options(**options)


def _keeping(plan: Plan, options: dict[str, str]) -> Callable[[Any, int], None]:
    """Cache and count rows, then write them with two writes; points: between and after them."""
    from pyspark import InheritableThread

    from ottla.spark import write_batch
    from testbench.spark_chaos.source import Strikes

    said = {name: options[name] for name in ("kafka.bootstrap.servers", "topic")}
    strikes = Strikes(str(plan.strikes), plan.bootstrap, plan.sink)

    def publish(frame: Any, batch: int) -> None:
        kept = frame.persist()
        kept.count()
        even, odd = (kept.where(f"CAST(substr(value, 3) AS INT) % 2 = {half}") for half in (0, 1))
        write_batch(even, batch, said, sink="even")
        strikes.at("between", batch)
        failed: list[Exception] = []

        def write_odd() -> None:
            try:
                write_batch(odd, batch, said, sink="odd")
            except Exception as error:
                failed.append(error)

        thread = InheritableThread(target=write_odd)
        thread.start()
        thread.join()
        if failed:
            raise failed[0]
        strikes.at("behind", batch)
        kept.unpersist()

    return publish


def _rows(spark: Any, plan: Plan) -> Any:
    source = spark.readStream.format("ottla").option("kafka.bootstrap.servers", plan.bootstrap)
    source = source.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", plan.per_batch)
    if plan.on_driver:
        source = source.option("maxRecordsOnDriver", 100_000)
    kept = ["struct(topic, partition, offset) AS _source"] if plan.group else []
    if plan.group:
        source = source.option("kafka.group.id", plan.group)
    rows = source.option("subscribe", plan.source).load().selectExpr("CAST(value AS STRING) AS value", *kept)
    if plan.union:
        rows = rows.where("CAST(value AS INT) % 8 < 4").union(rows.where("CAST(value AS INT) % 8 >= 4"))
    if plan.files:
        own, others = rows.where("CAST(value AS INT) % 8 < 4"), _numbers_in_files(spark, plan)
        rows = _moved(others, plan).union(own) if plan.moved_first else own.union(others)
    if plan.shuffle == "value":
        rows = rows.repartition("value")
    elif plan.shuffle == "round":
        rows = rows.repartition(3)
    elif plan.shuffle == "join":
        # All numbers of the source, and a shuffle on both sides.
        table = spark.range(4 * plan.per_batch).selectExpr("CAST(id AS STRING) AS value")
        rows = rows.join(table.hint("shuffle_hash"), "value")
    elif plan.shuffle:
        rows = rows.repartition(int(plan.shuffle), *(["value"] if plan.shuffle != "1" else []))
    if plan.foreach == "update":
        rows = rows.groupBy("value").count().select("value")
    key = ["value AS key"] if plan.keyed else []
    return rows.selectExpr("concat('x-', value) AS value", *key, *(["_source"] if kept else []))


def _moved(rows: Any, plan: Plan) -> Any:
    """The rows of files in other tasks, where each of them takes its time."""
    pause_ms = plan.slow_s * 2_000 // plan.per_batch
    sleep = f"length(reflect('java.lang.Thread', 'sleep', CAST({pause_ms} AS BIGINT)))"
    moved = rows.repartition(plan.moved_first)
    return moved.where(f"coalesce({sleep}, 0) >= 0") if plan.slow_s else moved


def _numbers_in_files(spark: Any, plan: Plan) -> Any:
    """The numbers whose remainder by 8 is 4 or more, in one file for each batch."""
    files = Path(plan.directory, "files")
    if not files.exists():
        files.mkdir()
        for batch in range(4):
            numbers = (n for n in range(batch * plan.per_batch, (batch + 1) * plan.per_batch) if n % 8 >= 4)
            (files / f"{batch}.txt").write_text("".join(f"{number}\n" for number in numbers))
    return spark.readStream.schema("value STRING").option("maxFilesPerTrigger", 1).text(str(files))


def main() -> int:
    """Run a query. Exit code 0: it reached its end."""
    plan = Plan(**json.loads(sys.argv[1]))
    spark = session(plan)
    Path(plan.directory, "jvm.pid").write_text(str(spark.sparkContext._gateway.proc.pid))
    try:
        query = start(spark, plan)
        if plan.others:
            read_beside(spark, plan, query)
        query.awaitTermination()
    except Exception as error:
        print(type(error).__name__, reason_of(error)[:500], flush=True)
        return 3
    finally:
        sys.stdout.flush()
    os._exit(0)  # without waiting for the shutdown of the JVM


def session(plan: Plan) -> Any:
    """Create a Spark session."""
    from ottla.spark import java_home

    java_home()
    os.environ.update(PYSPARK_PYTHON=sys.executable, SPARK_LOCAL_IP=HERE, PYTHONWARNINGS="ignore")
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(plan.master)
    fixed = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": HERE,
        "spark.driver.memory": "1g",
        "spark.executor.memory": "1g",
        "spark.sql.shuffle.partitions": "4",
        "spark.local.dir": f"{plan.directory}/local",
        "spark.executorEnv.PYTHONPATH": os.environ.get("PYTHONPATH", ""),
        "spark.executorEnv.SPARK_LOCAL_IP": HERE,
        "spark.driver.extraJavaOptions": short_run_options(),
        "spark.executor.extraJavaOptions": short_run_options(),
    }
    if plan.stock:
        from testbench.spark_chaos import stock

        fixed["spark.jars"] = stock.jars()
    for key, value in {**fixed, **dict(plan.settings)}.items():
        builder = builder.config(key, value)
    found = builder.getOrCreate()
    found.sparkContext.setLogLevel("OFF")
    return found


if __name__ == "__main__":
    sys.exit(main())
