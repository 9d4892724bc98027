"""Runs one Spark in a separate process that decodes a file of payloads; `bench/schemas.py` starts it.

Zone: real. `python bench/schema_work.py FILE PROTOBUF_FILE REGISTRY SCHEMA PROTOBUF_SCHEMA DIRECTORY JARS` starts a
SparkSession and then runs the jobs in the lines of standard input, with a line of JSON for each: `ottla`, `rows`,
`udf`, `jvm`, `transfer` and `floor` with payloads of Avro, `protobuf` and `protobuf-udf` with those of Protobuf. `rows`
is `ottla` with COLUMNAR_INPUT off.
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

COLUMNAR_INPUT = "spark.sql.execution.arrow.pythonUDF.columnarInput.enabled"
COLUMNS = (
    "id long, customer string, count int, price double, paid boolean, note string, country string, discount double,"
    "at timestamp, sku string, weight float, raw binary"
)


def decoded(job: str, registry: str, schema: str, protobuf_schema: str) -> Any:
    """The column that a job makes of payloads."""
    from pyspark.sql.avro.functions import from_avro as jvm_from_avro
    from pyspark.sql.functions import expr, length

    from ottla.spark.functions import from_avro, from_protobuf

    jobs = {
        "ottla": lambda: from_avro("value", schema_registry=registry, subject="orders-value", mode="FAILFAST"),
        "jvm": lambda: jvm_from_avro(expr("substring(value, 6)"), schema),
        "udf": lambda: fastavro_udf(schema)("value"),
        "transfer": lambda: transfer_udf(registry, schema)("value"),
        "protobuf": lambda: from_protobuf(
            "value", schema_registry=registry, subject="protobuf-orders-value", mode="FAILFAST"
        ),
        "protobuf-udf": lambda: protobuf_udf(protobuf_schema)("value"),
        "floor": lambda: length("value"),
    }
    return jobs["ottla" if job == "rows" else job]()


def transfer_udf(registry: str, schema: str) -> Any:
    """A function whose result has the columns of `from_avro`, which decodes the largest batch only."""
    import pyarrow as pa
    from pyspark.sql.functions import arrow_udf
    from pyspark.sql.pandas.types import from_arrow_type

    from ottla.client.schemas.framed_columns import FramedColumns
    from ottla.client.schemas.registry import RegisteredSchema, SchemaRegistry
    from ottla.spark.arrow_types import spark_arrow_type

    reader = RegisteredSchema(schema, "AVRO")
    kind = spark_arrow_type(FramedColumns(SchemaRegistry(registry), reader).type)
    made: list[pa.Array] = []

    def repeat(payloads: pa.Array) -> pa.Array:
        if not made or len(made[0]) < len(payloads):
            made[:] = [FramedColumns(SchemaRegistry(registry), reader).decode(payloads)[0].cast(kind)]
        return made[0][: len(payloads)]

    # PySpark reads types from annotations, but cannot resolve the text "pa.Array": pa is local here.
    repeat.__annotations__ = {"payloads": pa.Array, "return": pa.Array}
    return arrow_udf(repeat, from_arrow_type(kind))


def protobuf_udf(schema: str) -> Any:
    """The function that people write: a class of Protobuf's, record by record."""
    from google.protobuf.message_factory import GetMessageClass
    from pyspark.sql.functions import udf

    from ottla.schemas.protobuf.schema import ProtobufSchema

    made: list[Any] = []

    @udf(COLUMNS)
    def parse(payload: bytes) -> tuple[Any, ...]:
        if not made:
            made.append(GetMessageClass(ProtobufSchema(schema).pool.FindMessageTypeByName("Order")))
        order = made[0].FromString(payload[6:])
        note = order.note if order.HasField("note") else None
        discount = order.discount if order.HasField("discount") else None
        return (
            order.id, order.customer, order.count, order.price, order.paid, note,
            order.DESCRIPTOR.enum_types_by_name["Country"].values_by_number[order.country].name, discount,
            order.at.ToDatetime(), order.sku, order.weight, order.raw,
        )  # fmt: skip

    return parse


def fastavro_udf(schema: str) -> Any:
    """The function that people write: fastavro, record by record."""
    import fastavro
    from pyspark.sql.functions import udf

    parsed = fastavro.parse_schema(json.loads(schema))

    @udf(COLUMNS)
    def decode(payload: bytes) -> dict[str, Any]:
        return fastavro.schemaless_reader(io.BytesIO(payload[5:]), parsed, None)  # type: ignore[return-value]

    return decode


def main(
    file: str, protobuf_file: str, registry: str, schema: str, protobuf_schema: str, directory: str, jars: str
) -> None:
    """Until the end of standard input."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # Java may print something
    spark = session(directory, jars)
    frames = {"protobuf": spark.read.parquet(protobuf_file), "avro": spark.read.parquet(file)}
    print("{}", file=answers)
    for line in sys.stdin:
        job = line.strip()
        if job == "rows":
            spark.conf.set(COLUMNAR_INPUT, "false")
        frame = frames["protobuf" if job.startswith("protobuf") else "avro"]
        made = frame.select(decoded(job, registry, schema, protobuf_schema).alias("o"))
        print(json.dumps(measured(made.write.format("noop").mode("overwrite").save)), file=answers)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
