"""The classes of Spark as Java has loaded them, in a file that a driver maps: it starts in half the processor time.

    export SPARK_SUBMIT_OPTS=$(python -m testbench.spark_archive)

Prints options of Java for programs that run for seconds; the archive is made first if there is none (half a minute).
There is one for each Java and each PySpark. Java ignores an archive that does not fit its class path.

Zone: real.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

import pyspark

from testbench.apache_kafka.packages import cache

SHORT_RUN: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto -Xlog:disable"
_MAKE_S: Final = 600
_PROGRAM: Final = """
import sys
from ottla.server.embedded import EmbeddedBroker
from pyspark.sql import SparkSession

session = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
session.sparkContext.setLogLevel("OFF")
with EmbeddedBroker() as broker:
    address = {"kafka.bootstrap.servers": broker.bootstrap}
    rows = session.range(9).selectExpr("cast(id % 3 as string) as key", "cast(id as string) as value")
    rows.groupBy("key").count().collect()
    rows.write.format("ottla").options(**address, topic="a").save()
    records = session.readStream.format("ottla").options(**address, subscribe="a", startingOffsets="earliest").load()
    sink = records.select("key", "value").writeStream.format("ottla").options(**address, topic="b")
    sink.option("checkpointLocation", sys.argv[1]).trigger(availableNow=True).start().awaitTermination()
session.stop()
"""
"""A write, a read and a stream: what they load is archived."""


def main() -> int:
    """Make the archive if there is none, and print the options."""
    archive = _archive_path()
    if not archive.exists():
        _make_archive(archive)
    print(short_run_options())
    return 0


def short_run_options() -> str:
    """Options of Java for a short run of Spark, with the archive if there is one. Raises NoJava."""
    archive = _archive_path()
    return f"{SHORT_RUN} -XX:SharedArchiveFile={archive}" if archive.exists() else SHORT_RUN


def _archive_path() -> Path:
    from ottla.spark import java_home

    java = Path(java_home(), "bin", "java")
    of = f"{java.resolve()} {java.stat().st_mtime_ns} {pyspark.__file__} {pyspark.__version__}"
    return cache() / "spark" / f"{hashlib.sha256(of.encode()).hexdigest()[:12]}.jsa"


def _make_archive(target: Path) -> None:
    """Make the archive. Where that fails there is none, and Spark starts as it does without one."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as directory:
        fresh = Path(directory, "classes")
        options = f"{SHORT_RUN} -XX:ArchiveClassesAtExit={fresh}"
        environment = os.environ | {"SPARK_SUBMIT_OPTS": options, "PYSPARK_PYTHON": sys.executable}
        words = [sys.executable, "-W", "ignore", "-c", _PROGRAM, str(Path(directory, "checkpoint"))]
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(words, env=environment, capture_output=True, check=False, timeout=_MAKE_S)
        if fresh.exists():
            fresh.replace(target)


if __name__ == "__main__":
    sys.exit(main())
