"""The sink: a name in a database, under which results and positions change together.

Zone: real. `feed` is the interface for plain consumers; batches of streaming queries are written here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any

import psycopg

from ottla.client.consumer.consumer import Consumer
from ottla.sinks.postgres.database import Cursor, Database
from ottla.sinks.postgres.errors import BadDatabase, BatchesMissing, OtherQuery, UsageError
from ottla.sinks.postgres.feed import Feed, claim_and_seek
from ottla.sinks.postgres.tables import LastBatch, Tables
from ottla.types import TopicPartition

# Batches of a streaming query, each written in one transaction with its number: the interface for foreachBatch. Runs on
# Spark's driver, over one connection, because a transaction belongs to one connection, and only one transaction makes a
# batch atomic, also for readers. Executors would have to write each row twice (to a staging table, which the driver
# merges), and a micro-batch is small enough for one COPY.

Store = Callable[[Cursor, Any, int], object]
"""(cursor, the batch's DataFrame, its number): must only write, and only with the cursor, because it runs again after a
lost connection."""
_QUERY_ID = "sql.streaming.queryId"


class _Changed(Exception):
    """The optimistic lock failed: another driver was faster. Read again what is stored."""


class Batches:
    """A function for `foreachBatch`."""

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
        """Write a batch unless it is stored. Raises OtherQuery, BatchesMissing, DatabaseGone, errors of `store`."""
        query = self._query or query_id(batch)
        while True:
            try:
                self._database.run_transaction(lambda cursor: self._write_batch(cursor, query, batch, batch_id))
            except _Changed:
                continue
            return

    def _write_batch(self, cursor: Cursor, query: str, batch: Any, batch_id: int) -> None:
        # 1. Batches of another query: its numbers mean other rows. 2. Stored already. 3. A gap, as after an older
        #    database was restored. 4. The next batch: write it, and take the lock last.
        last = self._tables.last_batch(cursor)
        if last is not None and last.query_id != query:
            raise OtherQuery(self._sink, last.query_id, query)
        if last is not None and batch_id <= last.batch_id:
            return  # it is stored: a replay, or a commit whose response was lost
        expected = self._first if last is None else last.batch_id + 1
        # `first_batch` may follow a gap: the user has named the batch with which the results continue.
        if batch_id not in (expected, self._first):
            raise BatchesMissing(self._sink, None if last is None else last.batch_id, batch_id)
        # The lock is taken after the writing, so that a driver that hangs in `store` does not block the next one.
        self._store(cursor, batch, batch_id)
        if not self._tables.next_batch(cursor, last, LastBatch(query, batch_id)):
            raise _Changed


def query_id(batch: Any) -> str:
    """The id of the streaming query of a batch, which is in its checkpoint. Raises UsageError."""
    try:
        found = batch.sparkSession.sparkContext.getLocalProperty(_QUERY_ID)
    except Exception as error:  # Spark Connect has no context; what it raises differs between versions
        raise UsageError("Spark gives no id of this batch's query", "Name it: batches(…, query=NAME)") from error
    if not found:
        raise UsageError("this is not a batch of a streaming query", "Call it through writeStream.foreachBatch")
    return str(found)


class PostgresSink:
    """Results in PostgreSQL, exactly once.

    with PostgresSink("postgresql://me@db/shop", "order-totals") as sink, Consumer(settings) as consumer:
        feed = sink.subscribe(consumer, ["orders"])
        while True:
            feed.write(consumer.poll(1.0), store)  # store(cursor, records)

    The tables `ottla_offsets` and `ottla_batches` are created if they do not exist. `name` must be unique to the job:
    after a restart, the job finds its positions by it.
    """

    def __init__(
        self,
        conninfo: str,
        name: str,
        *,
        schema: str | None = None,
        patience_s: float = 120.0,
        idle_in_transaction_s: float = 600.0,
    ) -> None:
        """Does not connect yet. conninfo: libpq's connection string (URI or key=value); schema: of the sink's tables.

        patience_s: how long a call waits for an unreachable database. idle_in_transaction_s: after this time the server
        aborts a transaction whose owner hangs.
        """
        self.name = name
        self._database = Database(conninfo, patience_s, idle_in_transaction_s)
        self._tables = Tables(name, schema)
        self._created = False

    def __enter__(self) -> PostgresSink:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def assign(self, consumer: Consumer, partitions: Iterable[TopicPartition]) -> Feed:
        """Assign these partitions to the consumer, at the stored offsets; without one, its own settings decide.

        Raises DatabaseGone, BadDatabase.
        """
        wanted = [TopicPartition(*each) for each in partitions]
        feed = self._make_feed()
        consumer.assign(wanted)
        claim_and_seek(feed, consumer, wanted)
        return feed

    def subscribe(self, consumer: Consumer, topics: Iterable[str] | re.Pattern[str]) -> Feed:
        """Subscribe the consumer to topics; assigned partitions are claimed, and their positions set.

        Errors of the database in a rebalance are raised by the consumer's `poll`.
        """
        feed = self._make_feed()

        def begin(partitions: list[TopicPartition]) -> None:
            claim_and_seek(feed, consumer, partitions)

        consumer.subscribe(topics, on_assigned=begin, on_revoked=feed.release)
        return feed

    def claim(self, partitions: Iterable[TopicPartition]) -> Feed:
        """For other clients: claim partitions; the client itself must begin to read at the feed's `positions`."""
        feed = self._make_feed()
        feed.claim(partitions)
        return feed

    def batches(self, store: Store, *, query: str | None = None, first_batch: int = 0) -> Batches:
        """A function for `writeStream.foreachBatch`, which writes each batch of a query once, in one transaction.

        store: `Rows(…)`, or a function (cursor, DataFrame, batch id). query: a name for the query, if Spark gives no id
        of it (Spark Connect). first_batch: the first batch of the results, if that is not the query's first one.
        """
        self._create_tables()
        return Batches(self._database, self._tables, self.name, store, query, first_batch)

    def offsets(self) -> dict[TopicPartition, int]:
        """The stored next offsets."""
        self._create_tables()
        found = self._database.run_transaction(self._tables.read_offsets)
        return {tp: each.next_offset for tp, each in found.items() if each.next_offset is not None}

    def forget(self) -> None:
        """Delete the stored positions of this sink, but not its results. No job may be writing."""
        self._create_tables()
        self._database.run_transaction(self._tables.delete_positions)

    def close(self) -> None:
        """Close the connection."""
        self._database.close()

    def _make_feed(self) -> Feed:
        self._create_tables()
        return Feed(self._database, self._tables)

    def _create_tables(self) -> None:
        if self._created:
            return
        try:
            self._database.run_transaction(self._tables.create_tables)
        except (psycopg.errors.InvalidSchemaName, psycopg.errors.InsufficientPrivilege) as error:
            raise BadDatabase(
                f"the sink's tables do not exist and cannot be created: {' '.join(str(error).split())}",
                "Create the schema, or start the sink once as a user with the permission",
            ) from error
        self._created = True


__all__ = ["Cursor", "PostgresSink"]
