#!/usr/bin/env python3
"""Measure the decoding of registered schemas in Spark: `from_avro` beside a Python UDF with fastavro and spark-avro's,
`from_protobuf` beside a Python UDF with Protobuf's classes.

    bench/schemas.py [--runs N] [--only KEY,KEY… [--keep]] [--quick] [--out DIR]

Exit code 1 when a row is over its limit. `--quick` is a short run for development; its verdicts are not kept.
"""

from __future__ import annotations

import io
import json
import random
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
from google.protobuf.message_factory import GetMessageClass
from testbench.apache_kafka import packages
from testbench.ottla_node import OttlaNode
from testbench.registry import RegistryProcess

from bench.filling import Filling
from bench.program import Program, run_program
from bench.rows import Row
from bench.schema_work import COLUMNAR_INPUT
from bench.spark import Spark
from ottla.client.schemas.registry import RegisteredSchema, SchemaRegistry
from ottla.schemas.protobuf.schema import ProtobufSchema

HEAD = """# Results: schemas

Written by `bench/schemas.py`; do not edit. 1,000,000 payloads of 12 fields, framed as Confluent's serializers frame
them, from a Parquet file to Spark's noop sink, on two cores. CPU is that of Spark's whole process tree, Java and
Python; each start of Spark does the job three times, and the third counts; medians of {{runs}} starts of each, in turn.
Beside it a Python UDF that calls fastavro, or a class of Protobuf's, and spark-avro {avro} in the JVM, which reads one
schema only and no framing. *Of rows*: with `{columnar}=false`. By default Spark 4.3 has
an operator over a file's columns that makes rows of the function's result, columns of these rows, and rows again.
The last rows are jobs without decoding: an Arrow function whose columns were made before, so that Spark's transfer to
Python and back is left, and the lengths of the payloads, so that reading the file is left. The machine may have other
work: CPU and ratios decide, times are stated.

Machine: {{machine}}. Load average during the runs: {{load}}. Measured {{when}}.
Command: `{{command}}`

| what | unit | Ottla | the other | × | limit | verdict |
|---|---|---|---|---|---|---|
"""
RECORDS = 1_000_000
FIELDS = {
    "id": "long", "customer": "string", "count": "int", "price": "double", "paid": "boolean",
    "note": ["null", "string"],
    "country": {"type": "enum", "name": "Country", "symbols": ["DE", "FR", "GB", "US"]}, "discount": ["null", "double"],
    "at": {"type": "long", "logicalType": "timestamp-millis"}, "sku": "string", "weight": "float", "raw": "bytes",
}  # fmt: skip
SCHEMA = json.dumps(
    {"type": "record", "name": "Order", "fields": [{"name": name, "type": kind} for name, kind in FIELDS.items()]}
)


JOBS = {
    "ottla": ("ottla", ["avro-udf", "avro-jvm", "avro-time"]),
    "rows": ("ottla", ["rows-udf", "rows-jvm"]),
    "udf": ("udf", ["avro-udf", "rows-udf"]),
    "jvm": ("jvm", ["avro-jvm", "avro-time", "rows-jvm"]),
    "protobuf": ("ottla", ["protobuf-udf"]),
    "protobuf-udf": ("udf", ["protobuf-udf"]),
    "transfer": ("ottla", ["transfer"]),
    "floor": ("ottla", ["floor"]),
}
"""Jobs of `schema_work`: whose figure each is, and in which rows."""


def table() -> dict[str, Row]:
    """All rows, in the order of the report."""
    rows = [
        Row("avro-udf", "Avro decoded, beside a Python UDF with fastavro", "s of CPU", 0.2, "udf"),
        Row("avro-jvm", "Avro decoded, beside spark-avro in the JVM", "s of CPU", 1.5, "jvm"),
        Row("avro-time", "the same", "s", None, "jvm"),
        Row("rows-udf", "Avro decoded of rows, beside a Python UDF with fastavro", "s of CPU", None, "udf"),
        Row("rows-jvm", "Avro decoded of rows, beside spark-avro in the JVM", "s of CPU", None, "jvm"),
        Row("protobuf-udf", "Protobuf decoded, beside a Python UDF with Protobuf's classes", "s of CPU", None, "udf"),
        Row("transfer", "columns of Avro that were made before", "s of CPU", None, None),
        Row("floor", "the payloads' lengths only", "s of CPU", None, None),
    ]
    return {row.key: row for row in rows}


PROTOBUF_SCHEMA = """syntax = "proto3"; import "google/protobuf/timestamp.proto";
message Order {
  enum Country { DE = 0; FR = 1; GB = 2; US = 3; }
  int64 id = 1; string customer = 2; int32 count = 3; double price = 4; bool paid = 5; optional string note = 6;
  Country country = 7; optional double discount = 8; google.protobuf.Timestamp at = 9; string sku = 10;
  float weight = 11; bytes raw = 12; }"""


def avro_encoder() -> Callable[[dict[str, Any]], bytes]:
    """A function that encodes an order with fastavro."""
    parsed = fastavro.parse_schema(json.loads(SCHEMA))

    def encode(order: dict[str, Any]) -> bytes:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, parsed, order)
        return out.getvalue()

    return encode


def protobuf_encoder() -> Callable[[dict[str, Any]], bytes]:
    """A function that encodes an order with Protobuf's class, after the index of the first message."""
    made = GetMessageClass(ProtobufSchema(PROTOBUF_SCHEMA).pool.FindMessageTypeByName("Order"))

    def encode(order: dict[str, Any]) -> bytes:
        millis = order.pop("at")
        value = made(**order, at={"seconds": millis // 1000, "nanos": millis % 1000 * 1_000_000})
        return b"\0" + bytes(value.SerializeToString())

    return encode


def write_payloads(path: Path, number: int, count: int, encode: Callable[[dict[str, Any]], bytes]) -> None:
    """A Parquet file of framed payloads."""
    draw = random.Random(7)
    payloads = [b"\0" + number.to_bytes(4) + encode(_order(at, draw)) for at in range(count)]
    pq.write_table(pa.table({"value": pa.array(payloads, pa.binary())}), path)


def _order(at: int, draw: random.Random) -> dict[str, Any]:
    return {
        "id": at, "customer": f"customer-{draw.randrange(100_000)}", "count": draw.randrange(100),
        "price": draw.random() * 1000, "paid": draw.random() < 0.5, "note": "a note" if at % 3 else None,
        "country": draw.choice(("DE", "FR", "GB", "US")), "discount": None if at % 4 else 0.1,
        "at": 1_790_000_000_000 + at, "sku": f"{draw.randrange(10**9):09}", "weight": 0.5, "raw": b"12345678",
    }  # fmt: skip


class Bench(Filling):
    """Runs the rows."""

    def run(self) -> None:
        """Run all rows: one start of Spark for each way to decode, per run."""
        files = self.directory / "payloads.parquet", self.directory / "protobuf.parquet"
        with (
            OttlaNode(self.directory / "broker") as node,
            RegistryProcess(self.directory, node.bootstrap) as registry,
        ):
            self._write_files(SchemaRegistry(registry.url), *files)
            words = [*map(str, files), registry.url, SCHEMA, PROTOBUF_SCHEMA]
            for run in range(self.options.runs):
                self.begin_run(run)
                for job in [each for each, (_, rows) in JOBS.items() if self.wants(*rows)]:
                    directory = self.directory / f"{job}{run}"
                    with closing(Spark("schema_work.py", words, directory, packages.avro_jars())) as spark:
                        self._keep(job, [spark.ask(job) for _ in range(3)][-1])

    def _write_files(self, registry: SchemaRegistry, avro: Path, protobuf: Path) -> None:
        count = int(RECORDS * self.scale)
        number = registry.register("orders-value", RegisteredSchema(SCHEMA, "AVRO"))
        write_payloads(avro, number, count, avro_encoder())
        number = registry.register("protobuf-orders-value", RegisteredSchema(PROTOBUF_SCHEMA, "PROTOBUF"))
        write_payloads(protobuf, number, count, protobuf_encoder())

    def _keep(self, job: str, found: dict[str, float]) -> None:
        peer, keys = JOBS[job]
        for key in keys:
            self.add(key, peer, found["seconds" if self.rows[key].unit == "s" else "cpu_s"])


def profile_notes(rows: dict[str, Row]) -> list[str]:
    """Where the time of rows over their limits is spent, by the figures of this run."""
    own, jvm, moved = rows["avro-jvm"].figure("ottla"), rows["avro-jvm"].figure("jvm"), rows["transfer"].measured
    if rows["avro-jvm"].verdict != "over" or own is None or jvm is None or moved is None:
        return []
    text = (
        f"Over the limit, {rows['avro-jvm'].title}: of {own:.2f} s, {moved:.2f} s are Spark's transfer of payloads to "
        f"Python and of columns back, with the start of a worker; {own - moved:.2f} s are the decoding. spark-avro "
        f"takes {jvm:.2f} s and transfers nothing: if decoding took no time, the row would be {moved / jvm:.2f} ×."
    )
    return [text]


PROGRAM = Program("schemas", __doc__, 3, "each Spark")


def main(arguments: list[str]) -> int:
    """Run the bench."""
    head = HEAD.format(avro=packages.CONNECTOR, columnar=COLUMNAR_INPUT)
    return run_program(PROGRAM, lambda *given: Bench(table(), *given), head, arguments, profile_notes)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
