"""The source and the exactly-once sink in a session of Spark Connect, with a server of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from ottla.spark import java_home

pytestmark = [pytest.mark.spark, pytest.mark.slow]
ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import sys
from pyspark.sql import SparkSession
from ottla.spark import write_batch

bootstrap, source, target, refused, checkpoint = sys.argv[1:]
spark = SparkSession.builder.remote("local[1]").getOrCreate()
assert type(spark).__module__.startswith("pyspark.sql.connect."), type(spark)
options = {"kafka.bootstrap.servers": bootstrap}
spark.sql(
    "CREATE TEMPORARY VIEW orders USING ottla "
    f"OPTIONS (`kafka.bootstrap.servers` '{bootstrap}', subscribe '{source}')"
)
print("rows", spark.sql("SELECT count(*) FROM orders").collect()[0][0])
rows = spark.readStream.format("ottla").options(**options, subscribe=source, startingOffsets="earliest").load()
for _ in range(2):  # the second run continues the checkpoint, and has nothing to do
    stream = rows.select("value").writeStream.format("ottla").options(**options, topic=target, exactlyOnce="partition")
    stream.option("checkpointLocation", checkpoint).trigger(availableNow=True).start().awaitTermination()

def publish(frame, batch_id):
    write_batch(frame.select("value"), batch_id, {**options, "topic": refused}, sink="counts")

try:
    query = rows.writeStream.foreachBatch(publish).option("checkpointLocation", checkpoint + "2")
    query.trigger(availableNow=True).start().awaitTermination()
except Exception as error:
    print("refused", error)
spark.stop()
"""


def run_program(*words: str) -> str:
    """Run the program in a process of its own: a process has sessions of one kind only."""
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    environment = {
        **os.environ, "JAVA_HOME": str(java_home()), "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": path,
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *words],
        check=False, env=environment, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_streams_write_exactly_once_and_write_batch_is_refused_by_name(topics: Any, tmp_path: Path) -> None:
    source, target, refused = topics.make(2), topics.make(2), topics.make(1)
    values = [b"%d" % number for number in range(200)]
    for number in range(2):
        topics.put(source, number, values[number::2])
    said = run_program(topics.bootstrap, source, target, refused, str(tmp_path / "checkpoint"))
    assert "rows 200" in said
    assert Counter(topics.values(target)) == Counter(values)
    assert "NoBatch" in said, said
    assert "write_batch cannot ask a Spark Connect session" in said, said
    assert topics.values(refused) == []
