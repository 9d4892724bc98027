"""The tables that a step can write, as values.

Zone: pure. Imports neither Spark nor a format's library.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from ottla.pipeline.errors import BadPipeline
from ottla.tables.partitionings import NONE, TIME_PARTITIONINGS, describe_possible, is_possible


@dataclass(frozen=True)
class TableTarget:
    """A table; made by `iceberg`, `delta` and `parquet`."""

    kind: str
    location: str
    catalog: str = ""
    properties: Mapping[str, str] = field(default_factory=dict)
    partition_by: str | None = None
    """none; day or hour of the column `timestamp`; bucket[NUMBER], the hash of the column `key`, with Iceberg. None: as
    the table is, and a new one has no partitions."""
    upsert: bool = False
    """One row per key: the last."""

    def __post_init__(self) -> None:
        if not self.location:
            raise BadPipeline(f"{self.kind}(…) needs the name of the table")
        if self.kind == "parquet" and (self.partition_by not in (None, NONE) or self.upsert):
            option = "upsert" if self.upsert else "partition_by"
            raise BadPipeline(f"{self}: {option} is not possible with a folder of files: take iceberg or delta")
        if self.partition_by is not None and not is_possible(self.kind, self.partition_by):
            allowed = describe_possible(self.kind)
            raise BadPipeline(f"{self}: partition_by must be {allowed}, not {self.partition_by!r}")

    @property
    def is_partitioned_by_time(self) -> bool:
        """Whether rows need a column `timestamp`."""
        return self.partition_by in TIME_PARTITIONINGS

    def __str__(self) -> str:
        """The output of a step in plans and lists. No topic has such a name: it has a blank."""
        return f"{self.kind} {self.location}"

    def encode_text(self) -> str:
        """As JSON, with references of properties as they are."""
        making = [self.partition_by, self.upsert]
        return json.dumps([self.kind, self.location, self.catalog, dict(self.properties), *making])


def decode_target(text: str) -> TableTarget:
    """The table that `encode_text` wrote."""
    return TableTarget(*json.loads(text))


def iceberg(
    table: str,
    *,
    catalog: str = "default",
    properties: Mapping[str, str] | None = None,
    partition_by: str | None = None,
    upsert: bool = False,
) -> TableTarget:
    """An Iceberg table, for `to` of a step.

    table: NAMESPACE.TABLE. catalog, properties: the catalog's name and properties, as pyiceberg documents them; a value
    may contain `${env:NAME}`. partition_by: `day` or `hour` of the column `timestamp`, `bucket[16]` by the hash of the
    column `key`, or `none`; None: as the table is, and a new one has no partitions. upsert: one row for each value of
    the column `key`. Raises BadPipeline.
    """
    return TableTarget("iceberg", table, catalog, dict(properties or {}), partition_by, upsert)


def delta(
    table: str,
    *,
    properties: Mapping[str, str] | None = None,
    partition_by: str | None = None,
    upsert: bool = False,
) -> TableTarget:
    """A Delta table, for `to` of a step.

    table: its path or URI. properties: of the object store, as delta-rs documents them; the others as of `iceberg`, but
    Delta has no partitions by hash. Raises BadPipeline.
    """
    return TableTarget("delta", table, "", dict(properties or {}), partition_by, upsert)


def parquet(folder: str) -> TableTarget:
    """A folder of Parquet files, for `to` of a step: all processes of Spark see it under this path."""
    return TableTarget("parquet", folder)
