"""Writes the rows of an Iceberg or Delta table into a Parquet file: KIND LOCATION OUT.

Zone: real. It runs with the DuckDB of the cache, which loads the extensions that are beside it, and nothing else.
"""

from __future__ import annotations

import sys
from pathlib import Path

import duckdb


def main(kind: str, location: str, out: str) -> None:
    """Read by the extension of the format."""
    database = duckdb.connect()
    # As Spark does: without it timestamps are written in the zone of this machine.
    database.execute("SET TimeZone = 'UTC'")
    (extensions,) = (Path(duckdb.__file__).parents[1] / "duckdb_ext" / "extensions").glob("*/*")
    for name in ("avro", "iceberg") if kind == "iceberg" else ("delta",):
        database.execute(f"LOAD '{extensions / name}.duckdb_extension'")
    database.execute(f"COPY (SELECT * FROM {kind}_scan('{location}')) TO '{out}' (FORMAT parquet)")


if __name__ == "__main__":
    main(*sys.argv[1:])
