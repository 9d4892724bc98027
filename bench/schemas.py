#!/usr/bin/env python3
"""Measure the decoding of registered schemas in Spark: `from_avro`, a Python UDF with fastavro, and spark-avro's.

    bench/schemas.py [--runs N] [--only KEY,KEY…] [--quick] [--out DIR]

Exit code 1 when a row is over its limit. `--quick` is a short run for development; its verdicts are not kept.
"""

from __future__ import annotations

import argparse
import io
import json
import random
import sys
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
from testbench.apache_kafka import packages
from testbench.ottla_node import OttlaNode
from testbench.registry import RegistryProcess

from bench.filling import Filling, judge
from bench.report import write
from bench.rows import Row
from bench.spark import Spark, line
from ottla.client.schemas.registry import RegisteredSchema, SchemaRegistry

HEAD = """# Results: schemas

Written by `bench/schemas.py`; do not edit. 1,000,000 payloads of 12 fields, framed as Confluent's serializers frame
them, from a Parquet file to Spark's noop sink, on two cores. CPU is that of Spark's whole process tree, Java and
Python; each start of Spark does the job three times, and the third counts; medians of {{runs}} starts of each, in turn.
Beside it a Python UDF that calls fastavro, and spark-avro {avro} in the JVM, which reads one schema only and no
framing. The last row is the job without decoding: what reading the file costs.

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


def table() -> dict[str, Row]:
    """All rows, in the order of the report."""
    rows = [
        Row("avro-udf", "Avro decoded, beside a Python UDF with fastavro", "s of CPU", 0.2, "udf"),
        Row("avro-jvm", "Avro decoded, beside spark-avro in the JVM", "s of CPU", 1.5, "jvm"),
        Row("avro-time", "the same", "s", None, "jvm"),
        Row("floor", "the payloads' lengths only", "s of CPU", None, None),
    ]
    return {row.key: row for row in rows}


def write_payloads(path: Path, number: int, count: int) -> None:
    """A Parquet file of framed payloads."""
    parsed, draw = fastavro.parse_schema(json.loads(SCHEMA)), random.Random(7)
    payloads = []
    for at in range(count):
        out = io.BytesIO(b"\0" + number.to_bytes(4))
        out.seek(5)
        fastavro.schemaless_writer(out, parsed, _order(at, draw))
        payloads.append(out.getvalue())
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
        file = self.directory / "payloads.parquet"
        with (
            OttlaNode(self.directory / "broker") as node,
            RegistryProcess(self.directory, node.bootstrap) as registry,
        ):
            number = SchemaRegistry(registry.url).register("orders-value", RegisteredSchema(SCHEMA, "AVRO"))
            write_payloads(file, number, int(RECORDS * self.scale))
            words = [str(file), registry.url, SCHEMA]
            for run in range(self.options.runs):
                self.begin_run(run)
                for job in ("ottla", "udf", "jvm", "floor"):
                    directory = self.directory / f"{job}{run}"
                    with closing(Spark("schema_work.py", words, directory, packages.avro_jars())) as spark:
                        self._keep(job, [spark.ask(job) for _ in range(3)][-1])

    def _keep(self, job: str, found: dict[str, float]) -> None:
        if job == "floor":
            self.add("floor", "ottla", found["cpu_s"])
            return
        for key in ("avro-udf", "avro-jvm"):
            if job in ("ottla", self.rows[key].against):
                self.add(key, job, found["cpu_s"])
        self.add("avro-time", job, found["seconds"])


def parse(arguments: list[str]) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3, help="starts of each Spark (default 3)")
    parser.add_argument("--only", default="", help="keys of rows, separated by commas")
    parser.add_argument("--quick", action="store_true", help="a short dose")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent, help="where SCHEMAS.md goes")
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    """Run the bench."""
    options = parse(arguments)
    with tempfile.TemporaryDirectory(prefix="ottla-bench-", ignore_cleanup_errors=True) as name:
        bench = Bench(table(), options, Path(name))
        bench.run()
    command = ("bench/schemas.py " + " ".join(arguments)).rstrip()
    head = HEAD.format(avro=packages.CONNECTOR)
    write(bench.rows, bench.loads, options.runs, command, options.out, name="schemas", head=head, line=line)
    return judge(bench.rows, bench.only)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
