"""Real events whose schema evolves half way: a killed backfill makes tables that independent readers find equal to the
topic.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from testbench.table_readers import read_by_duckdb, read_by_spark
from tests.spark.full_events_test import EVENTS, consume
from tests.tables.conftest import Target, Topic
from tests.tables.kill_test import run_killed
from tests.tables.registered import ServiceInMemory, record, served

from ottla.cli.main import cli
from ottla.client import Producer
from ottla.client.schemas.registry import SchemaRegistry
from ottla.client.schemas.serializers import AvroSerializer, SerializationContext
from ottla.demo.events import directory_of

pytestmark = [pytest.mark.slow, pytest.mark.interop]

WHOLE = os.environ.get("TABLES_EVENTS") == "all"
"""`TABLES_EVENTS=all` (`make tables`): all 101,229 events, and Spark; otherwise an even sample without Spark."""
SAMPLE = 2_000
STRIDES = {"iceberg": 1, "delta": 1} if WHOLE else {"iceberg": 3, "delta": 2}
"""Steps from one killed run to the next."""
READERS = {"duckdb": read_by_duckdb, **({"spark": read_by_spark} if WHOLE else {})}

OLD = record(ts="long", commit="string", ticket=["null", "string"], path="string", added="int", deleted="int")
NEW = {**OLD, "fields": [*OLD["fields"], {"name": "directory", "type": "string", "default": "."}]}
NEW["fields"] = [{**each, "type": "long"} if each["name"] == "added" else each for each in NEW["fields"]]
"""Another field, which has a default, and a wider type of another."""
SCHEMAS = (OLD, NEW)

COLUMNS = pa.schema(
    {
        "_kafka_key": pa.binary(),
        "_kafka_partition": pa.int32(),
        "_kafka_offset": pa.int64(),
        "ts": pa.int64(),
        "commit": pa.string(),
        "ticket": pa.string(),
        "path": pa.string(),
        "added": pa.int64(),
        "deleted": pa.int64(),
        "directory": pa.string(),
    }
)


def load_events() -> list[dict[str, Any]]:
    lines = gzip.decompress(EVENTS.read_bytes()).splitlines()
    number = len(lines) if WHOLE else SAMPLE
    return [json.loads(lines[at * len(lines) // number]) for at in range(number)]


class Events(NamedTuple):
    """Real events in a topic; from the middle on they have the second version of the schema."""

    topic: Topic
    url: str
    events: list[dict[str, Any]]

    def send_half(self, schema: dict[str, Any]) -> None:
        middle = len(self.events) // 2
        serialize = AvroSerializer(SchemaRegistry(self.url), json.dumps(schema))
        context = SerializationContext(self.topic.name, "value")
        with Producer({**self.topic.settings, "linger.ms": "20"}) as producer:
            for event in self.events[:middle] if schema is OLD else self.events[middle:]:
                more = {} if schema is OLD else {"directory": directory_of(event["path"])}
                value = serialize({**event, **more}, context)
                producer.send(self.topic.name, value, key=event["commit"].encode())

    def rows(self) -> pa.Table:
        """The topic as librdkafka reads it and fastavro decodes it, with each record's own schema."""
        parsed = dict(zip(self._numbers(), map(fastavro.parse_schema, SCHEMAS), strict=True))
        ends, rows = dict[int, int](), []
        for partition, key, value in consume(self.topic.bootstrap, self.topic.name, 2):
            offset = ends[partition] = ends.get(partition, -1) + 1
            schema = parsed[int.from_bytes(value[1:5], "big")]
            decoded: Any = fastavro.schemaless_reader(io.BytesIO(value[5:]), schema, None)
            rows.append(
                {
                    "directory": None,
                    **decoded,
                    "_kafka_key": key,
                    "_kafka_partition": partition,
                    "_kafka_offset": offset,
                }
            )
        return sorted_table(pa.Table.from_pylist(rows, COLUMNS))

    def _numbers(self) -> list[int]:
        registry = SchemaRegistry(self.url)
        return [registry.find_version(f"{self.topic.name}-value", version)[0] for version in (1, 2)]


def sorted_table(table: pa.Table) -> pa.Table:
    chosen = table.select(COLUMNS.names).cast(COLUMNS)
    return chosen.sort_by([("_kafka_partition", "ascending"), ("_kafka_offset", "ascending")]).combine_chunks()


def location_of(target: Target) -> str:
    """Where a reader without the catalog finds the table. The catalog's file is read without pyiceberg."""
    if target.kind == "delta":
        return target.location
    with sqlite3.connect(target.properties["uri"].removeprefix("sqlite:///")) as database:
        (location,) = database.execute("SELECT metadata_location FROM iceberg_tables").fetchone()
    database.close()
    return str(location)


def read_independently(reader: str, target: Target, folder: Path) -> pa.Table:
    out = folder / f"{reader}.parquet"
    READERS[reader](target.kind, location_of(target), out)
    return pq.read_table(out)


@pytest.mark.parametrize("kind", ["iceberg", "delta"])
def test_a_killed_backfill_is_equal_to_the_topic(
    topic: Topic, make_target: Callable[[str], Target], tmp_path: Path, kind: str
) -> None:
    target = make_target(kind)
    with served(ServiceInMemory()) as port:
        events = Events(topic, f"http://127.0.0.1:{port}", load_events())
        words = ["table", topic.name, *target.words, "--exit-at-end", "-b", topic.bootstrap, "-o", "json"]
        words += ["--value-schema", "avro", "--schema-registry", events.url, "--commit-mib", "1"]
        events.send_half(OLD)
        if not WHOLE:  # a single commit: the table has it before the schema changes
            assert CliRunner().invoke(cli, words).exit_code == 0
        events.send_half(NEW)
        run_killed(words, lambda _: None, STRIDES[kind])
        wanted = events.rows()
    # The topic has each event of the file once.
    fields = [name for name in COLUMNS.names if name in events.events[0]]
    by_place = sorted(wanted.select(fields).to_pylist(), key=json.dumps)
    assert by_place == sorted(({name: each[name] for name in fields} for each in events.events), key=json.dumps)
    # Old rows have no directory, new ones have that of their path.
    assert wanted["directory"].null_count == len(events.events) // 2
    assert sorted_table(target.read_arrow()).equals(wanted)
    for reader in READERS:
        assert sorted_table(read_independently(reader, target, tmp_path)).equals(wanted), reader
