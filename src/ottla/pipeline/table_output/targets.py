"""The tables that a step can write, as values.

Zone: pure. Imports neither Spark nor a format's library.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from ottla.pipeline.errors import BadPipeline


@dataclass(frozen=True)
class TableTarget:
    """A table; made by `iceberg`, `delta` and `parquet`."""

    kind: str
    location: str
    catalog: str = ""
    properties: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.location:
            raise BadPipeline(f"{self.kind}(…) needs the name of the table")

    def __str__(self) -> str:
        """The output of a step in plans and lists. No topic has such a name: it has a blank."""
        return f"{self.kind} {self.location}"

    def encode_text(self) -> str:
        """As JSON."""
        return json.dumps([self.kind, self.location, self.catalog, dict(self.properties)])


def decode_target(text: str) -> TableTarget:
    """The table that `encode_text` wrote."""
    return TableTarget(*json.loads(text))


def iceberg(table: str, *, catalog: str = "default", properties: Mapping[str, str] | None = None) -> TableTarget:
    """An Iceberg table, for `to` of a step.

    table: NAMESPACE.TABLE. catalog, properties: the catalog's name and properties, as pyiceberg documents them.
    """
    return TableTarget("iceberg", table, catalog, dict(properties or {}))


def delta(table: str, *, properties: Mapping[str, str] | None = None) -> TableTarget:
    """A Delta table, for `to` of a step.

    table: its path or URI. properties: of the object store, as delta-rs documents them.
    """
    return TableTarget("delta", table, "", dict(properties or {}))


def parquet(folder: str) -> TableTarget:
    """A folder of Parquet files, for `to` of a step: all processes of Spark see it under this path."""
    return TableTarget("parquet", folder)
