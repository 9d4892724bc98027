"""Runs one Spark in a separate process, and measures the CPU of all its processes; `bench/spark.py` starts it.

Zone: real. `python bench/spark_work.py FORMAT BOOTSTRAP TOPIC DIRECTORY JARS` starts a SparkSession and then runs
the jobs in the lines of standard input, with a line of JSON for each: `read`, `copy TARGET [SCOPE]` (seconds and CPU
seconds), `stream SOURCE TARGET [RECORDS]` (a query that runs until the next line, unless that is `mark`: the number of
its last batch, and the CPU seconds so far).
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

OWN = "ottla"
"""The format of this project; `kafka` is Spark's own connector."""


def tree_cpu_s(root: int) -> float:
    """CPU seconds of a process and its descendants, including those that have ended."""
    parents: dict[int, int] = {}
    spent: dict[int, float] = {}
    for place in Path("/proc").glob("[0-9]*"):
        try:
            words = (place / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents[int(place.name)] = int(words[1])
        spent[int(place.name)] = sum(map(int, words[11:15])) / os.sysconf("SC_CLK_TCK")
    return sum(cpu for pid, cpu in spent.items() if _is_below(pid, root, parents))


def _is_below(pid: int, root: int, parents: dict[int, int]) -> bool:
    while pid and pid != root:
        pid = parents.get(pid, 0)
    return pid == root


def session(directory: str, jars: str) -> Any:
    """A session with two cores, Spark's default settings, and little logging."""
    from pyspark.sql import SparkSession

    from ottla.spark import java_home

    java_home()
    os.environ.update(PYSPARK_PYTHON=sys.executable, SPARK_LOCAL_IP="127.0.0.1", PYTHONWARNINGS="ignore")
    logging = Path(directory, "log4j2.properties")
    logging.write_text("rootLogger.level = off\n")
    builder = SparkSession.builder.master("local[2]").appName("bench")
    for key, value in {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.local.dir": f"{directory}/local",
        "spark.sql.warehouse.dir": f"{directory}/warehouse",
        "spark.jars": jars,
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile=file:{logging}",
    }.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


class Work:
    """The jobs, in one format."""

    def __init__(self, spark: Any, kind: str, bootstrap: str, topic: str, directory: str) -> None:
        self._spark = spark
        self._kind = kind
        self._bootstrap = bootstrap
        self._topic = topic
        self._directory = directory
        self._runs = 0

    def read(self) -> None:
        """Read every record into a noop sink."""
        frame = self._spark.read.format(self._kind).options(**self._source()).option("endingOffsets", "latest").load()
        frame.write.format("noop").mode("overwrite").save()

    def copy(self, target: str, scope: str = "") -> None:
        """Copy every record to another topic: exactly once in Ottla's format, at least once in Spark's.

        scope: the unit that is written at once, in Ottla's format.
        """
        writer = self._query(target)
        (writer.option("exactlyOnce", scope) if scope else writer).trigger(availableNow=True).start().awaitTermination()

    def stream(self, source: str, target: str, on_driver: str = "") -> Any:
        """Copy new records of another topic, batch after batch, without end.

        on_driver: maxRecordsOnDriver, in Ottla's format.
        """
        more = {"maxRecordsOnDriver": on_driver} if on_driver else {}
        return self._query(target, subscribe=source, startingOffsets="latest", **more).start()

    def _source(self) -> dict[str, str]:
        return {
            "kafka.bootstrap.servers": self._bootstrap,
            "subscribe": self._topic,
            "startingOffsets": "earliest",
        }

    def _query(self, target: str, **options: str) -> Any:
        self._runs += 1
        checkpoint = f"{self._directory}/checkpoint{self._runs}"
        frame = self._spark.readStream.format(self._kind).options(**{**self._source(), **options}).load()
        changed = frame.selectExpr("key", "CAST(upper(CAST(value AS STRING)) AS BINARY) AS value")
        writer = changed.writeStream.format(self._kind).option("kafka.bootstrap.servers", self._bootstrap)
        return writer.option("topic", target).option("checkpointLocation", checkpoint)


def measured(job: Any, *words: str) -> dict[str, float]:
    """Time and CPU of a job."""
    cpu, began = tree_cpu_s(os.getpid()), time.perf_counter()
    job(*words)
    return {"seconds": time.perf_counter() - began, "cpu_s": tree_cpu_s(os.getpid()) - cpu}


def main(kind: str, bootstrap: str, topic: str, directory: str, jars: str) -> None:
    """Until the end of standard input."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # Java may print something
    spark = session(directory, jars)
    work = Work(spark, kind, bootstrap, topic, directory)
    query = None
    print("{}", file=answers)
    for line in sys.stdin:
        if query is not None and line.strip() == "mark":
            print(json.dumps({"batches": query.lastProgress.batchId, "cpu_s": tree_cpu_s(os.getpid())}), file=answers)
            continue
        if query is not None:
            query.stop()
            query = None
        name, *words = line.split()
        if name == "stream":
            query = work.stream(*words)
            while not query.recentProgress:
                time.sleep(0.05)
            print("{}", file=answers)
        elif name in ("read", "copy"):
            print(json.dumps(measured(getattr(work, name), *words)), file=answers)
        else:
            print("{}", file=answers)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
