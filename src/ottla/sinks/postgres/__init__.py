"""Results and offsets in one PostgreSQL transaction, for plain consumers and for Spark's foreachBatch (docs/sinks.md).

Zone: real. Needs the extra `postgres` (psycopg 3).
"""

from __future__ import annotations

from ottla.sinks.postgres.errors import (
    BadDatabase,
    BadResults,
    BatchesMissing,
    DatabaseGone,
    OffsetsMoved,
    OtherQuery,
    SinkError,
    Superseded,
    UsageError,
)
from ottla.sinks.postgres.feed import Feed
from ottla.sinks.postgres.rows import Rows
from ottla.sinks.postgres.sink import PostgresSink

__all__ = [
    "BadDatabase",
    "BadResults",
    "BatchesMissing",
    "DatabaseGone",
    "Feed",
    "OffsetsMoved",
    "OtherQuery",
    "PostgresSink",
    "Rows",
    "SinkError",
    "Superseded",
    "UsageError",
]
