"""Runs one Spark in a separate process that decodes a file of payloads; `bench/schemas.py` starts it.

Zone: real. `python bench/schema_work.py FILE REGISTRY SCHEMA DIRECTORY JARS` starts a SparkSession and then runs the
jobs in the lines of standard input, with a line of JSON for each: `ottla`, `udf`, `jvm`, `floor`.
"""

from __future__ import annotations

import io
import json
import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.spark_work import measured, session


def decoded(frame: Any, job: str, registry: str, schema: str) -> Any:
    """The frame with its payloads decoded."""
    from pyspark.sql.avro.functions import from_avro as jvm_from_avro
    from pyspark.sql.functions import expr, length

    from ottla.spark.functions import from_avro

    if job == "ottla":
        return frame.select(
            from_avro("value", schema_registry=registry, subject="orders-value", mode="FAILFAST").alias("o")
        )
    if job == "jvm":
        return frame.select(jvm_from_avro(expr("substring(value, 6)"), schema).alias("o"))
    if job == "udf":
        return frame.select(fastavro_udf(schema)("value").alias("o"))
    return frame.select(length("value"))


def fastavro_udf(schema: str) -> Any:
    """The function that people write: fastavro, record by record."""
    import fastavro
    from pyspark.sql.functions import udf

    kind = (
        "id long, customer string, count int, price double, paid boolean, note string, country string, discount double,"
        "at timestamp, sku string, weight float, raw binary"
    )
    parsed = fastavro.parse_schema(json.loads(schema))

    @udf(kind)
    def decode(payload: bytes) -> dict[str, Any]:
        return fastavro.schemaless_reader(io.BytesIO(payload[5:]), parsed, None)  # type: ignore[return-value]

    return decode


def main(file: str, registry: str, schema: str, directory: str, jars: str) -> None:
    """Until the end of standard input."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # Java may print something
    spark = session(directory, jars)
    frame = spark.read.parquet(file)
    print("{}", file=answers)
    for line in sys.stdin:
        made = decoded(frame, line.strip(), registry, schema)
        print(json.dumps(measured(made.write.format("noop").mode("overwrite").save)), file=answers)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
