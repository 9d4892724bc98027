"""Batches of a streaming query, each in one transaction with its number: the face for foreachBatch.

Zone: real. Runs on Spark's driver, over one connection: a transaction belongs to one connection, and only so a batch is
in the database whole or not at all, for readers too. Executors that wrote for themselves would write every row twice
(to a staging table, which the driver merges), and a micro-batch is small: it goes through one COPY.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ottla.sinks.postgres.database import Cursor, Database
from ottla.sinks.postgres.errors import BatchesMissing, OtherQuery, UsageError
from ottla.sinks.postgres.tables import LastBatch, Tables

Store = Callable[[Cursor, Any, int], object]
"""(cursor, the batch's DataFrame, its number): writes with the cursor and nothing else; runs again after a lost
connection."""
_QUERY_ID = "sql.streaming.queryId"


class _Changed(Exception):
    """Another driver was quicker: look again at what is stored."""


class Batches:
    """What `foreachBatch` takes."""

    def __init__(
        self, database: Database, tables: Tables, sink: str, store: Store, query: str | None, first: int
    ) -> None:
        self._database = database
        self._tables = tables
        self._sink = sink
        self._store = store
        self._query = query
        self._first = first

    def __call__(self, batch: Any, batch_id: int) -> None:
        """Write a batch unless it is in. Raises OtherQuery, BatchesMissing, DatabaseGone, what the store raises."""
        query = self._query or query_id(batch)
        while True:
            try:
                self._database.run(lambda cursor: self._write(cursor, query, batch, batch_id))
            except _Changed:
                continue
            return

    def _write(self, cursor: Cursor, query: str, batch: Any, batch_id: int) -> None:
        last = self._tables.last_batch(cursor)
        if last is not None and last.query_id != query:
            raise OtherQuery(self._sink, last.query_id, query)
        if last is not None and batch_id <= last.batch_id:
            return  # it is in: a replay, or a commit whose answer was lost
        expected = self._first if last is None else last.batch_id + 1
        if batch_id not in (expected, self._first):
            raise BatchesMissing(self._sink, None if last is None else last.batch_id, batch_id)
        self._store(cursor, batch, batch_id)
        if not self._tables.next_batch(cursor, last, LastBatch(query, batch_id)):
            raise _Changed


def query_id(batch: Any) -> str:
    """The id of the streaming query whose batch this is; it lives in the checkpoint. Raises UsageError."""
    try:
        found = batch.sparkSession.sparkContext.getLocalProperty(_QUERY_ID)
    except Exception as error:  # Spark Connect has no context; what it raises differs between versions
        raise UsageError("the query of this batch cannot be told here", "Name it: batches(…, query=NAME)") from error
    if not found:
        raise UsageError("this is no batch of a streaming query", "Call it through writeStream.foreachBatch")
    return str(found)
