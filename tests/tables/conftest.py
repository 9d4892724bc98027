"""A broker, a topic with records of all kinds, and three formats of tables with independent readers.

Zone: real.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import NamedTuple

import duckdb
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog
from testbench.retention import NO_RETENTION

from ottla.client import Admin, ClientConfig, Cluster, NewTopic, Producer
from ottla.server.embedded import EmbeddedBroker

Rows = list[tuple[int, int, bytes | None, bytes | None]]


class Target(NamedTuple):
    """Where a table is, as the command line names it."""

    kind: str
    location: str
    properties: Mapping[str, str]

    @property
    def words(self) -> list[str]:
        named = [f"--property={key}={value}" for key, value in self.properties.items()]
        return ["--to", self.kind, "--table", self.location, *named]

    def read_arrow(self) -> pa.Table:
        """By the format's own library; DuckDB for Parquet."""
        if self.kind == "iceberg":
            return load_catalog("default", **self.properties).load_table(self.location).scan().to_arrow()
        if self.kind == "delta":
            return DeltaTable(self.location).to_pyarrow_table()
        return self.read_duckdb()

    def read_duckdb(self) -> pa.Table:
        """By DuckDB from the files that the table names."""
        if self.kind == "iceberg":
            tasks = load_catalog("default", **self.properties).load_table(self.location).scan().plan_files()
            files = [task.file.file_path.removeprefix("file://") for task in tasks]
        elif self.kind == "delta":
            files = DeltaTable(self.location).file_uris()
        else:
            files = [str(path) for path in sorted(Path(self.location).glob("*.parquet"))]
        return (
            duckdb.connect()
            .sql("SELECT * FROM read_parquet($1, union_by_name = true)", params=[files])
            .to_arrow_table()
        )


def sorted_rows(table: pa.Table) -> Rows:
    columns = [table[name].to_pylist() for name in ("partition", "offset", "key", "value")]
    return sorted(zip(*columns, strict=True), key=lambda row: row[:2])


class Topic(NamedTuple):
    bootstrap: str
    name: str

    @property
    def settings(self) -> dict[str, str | int | bool]:
        return {"bootstrap.servers": self.bootstrap, "client.id": "tables"}

    def send(self, first: int, number: int) -> None:
        with Producer({"bootstrap.servers": self.bootstrap, "linger.ms": "0"}) as producer:
            for at in range(first, first + number):
                value = None if at % 7 == 3 else b"value-%d" % at
                headers = [("n", b"%d" % at)] if at % 5 == 0 else []
                producer.send(self.name, value, key=b"key-%d" % at, headers=headers, partition=at % 2)

    def rows(self, number: int) -> Rows:
        """The rows of the table after records 0 to `number` - 1."""
        found: Rows = [
            (at % 2, at // 2, b"key-%d" % at, None if at % 7 == 3 else b"value-%d" % at) for at in range(number)
        ]
        return sorted(found, key=lambda row: row[:2])


@pytest.fixture(scope="session")
def bootstrap() -> Iterator[str]:
    with EmbeddedBroker(config={**NO_RETENTION, "group.initial.rebalance.delay.ms": "0"}) as broker:
        yield broker.bootstrap


_numbers = count()


@pytest.fixture
def topic(bootstrap: str) -> Topic:
    name = f"orders-{next(_numbers)}"
    with Cluster(ClientConfig.from_mapping({"bootstrap.servers": bootstrap})) as cluster:
        Admin(cluster).create_topics([NewTopic(name, 2, 1)])
    return Topic(bootstrap, name)


def target_of(kind: str, folder: Path) -> Target:
    if kind == "iceberg":
        folder.mkdir(exist_ok=True)
        return Target(kind, "lake.orders", {"uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}"})
    return Target(kind, str(folder / "table"), {})


@pytest.fixture(params=["iceberg", "delta", "parquet"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Target:
    return target_of(request.param, tmp_path)


@pytest.fixture
def make_target(tmp_path: Path) -> Callable[[str], Target]:
    return lambda kind: target_of(kind, tmp_path)
