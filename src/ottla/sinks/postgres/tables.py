"""The sink's two tables: the next offset of each partition with the epoch of its owner, and the last batch of a query.

Zone: real. Statements only; `feed` and `sink` interpret their results.

    ottla_offsets (sink, topic, partition) → next_offset (null: nothing written yet), epoch (claims so far)
    ottla_batches (sink) → query_id, batch_id (the last stored one)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from psycopg import sql

from ottla.sinks.postgres.database import Cursor
from ottla.types import TopicPartition

OFFSETS: Final = "ottla_offsets"
BATCHES: Final = "ottla_batches"

_CREATE: Final = (
    """CREATE TABLE IF NOT EXISTS {offsets} (
        sink text NOT NULL, topic text NOT NULL, partition integer NOT NULL,
        next_offset bigint, epoch bigint NOT NULL,
        PRIMARY KEY (sink, topic, partition))""",
    """CREATE TABLE IF NOT EXISTS {batches} (
        sink text PRIMARY KEY, query_id text NOT NULL, batch_id bigint NOT NULL)""",
)
# The insert locks the row until the commit: of two claims at the same time, the later one gets the higher epoch.
_CLAIM: Final = """INSERT INTO {offsets} AS o (sink, topic, partition, epoch) VALUES (%s, %s, %s, 1)
    ON CONFLICT (sink, topic, partition) DO UPDATE SET epoch = o.epoch + 1 RETURNING next_offset, epoch"""
_ALL: Final = "SELECT topic, partition, next_offset, epoch FROM {offsets} WHERE sink = %s"
_SOME: Final = """SELECT topic, partition, next_offset, epoch FROM {offsets} WHERE sink = %s
    AND (topic, partition) IN (SELECT * FROM unnest(%s::text[], %s::integer[]))"""
# IS NOT DISTINCT FROM: next_offset is null before the first write, and `= NULL` is never true.
_MOVE: Final = """UPDATE {offsets} SET next_offset = %s WHERE sink = %s AND topic = %s AND partition = %s
    AND epoch = %s AND next_offset IS NOT DISTINCT FROM %s"""
_LAST: Final = "SELECT query_id, batch_id FROM {batches} WHERE sink = %s"
_FIRST_BATCH: Final = "INSERT INTO {batches} (sink, query_id, batch_id) VALUES (%s, %s, %s) ON CONFLICT DO NOTHING"
_NEXT_BATCH: Final = "UPDATE {batches} SET batch_id = %s WHERE sink = %s AND query_id = %s AND batch_id = %s"
_FORGET: Final = ("DELETE FROM {offsets} WHERE sink = %s", "DELETE FROM {batches} WHERE sink = %s")


class Stored(NamedTuple):
    """The stored row of a partition."""

    next_offset: int | None
    """The offset of the first record that is not stored; None before the first write."""
    epoch: int


class LastBatch(NamedTuple):
    """The stored row of a query."""

    query_id: str
    batch_id: int


class Tables:
    """The statements of one sink."""

    def __init__(self, sink: str, schema: str | None) -> None:
        self._sink = sink
        self._schema = schema

    def create_tables(self, cursor: Cursor) -> None:
        """Create missing tables. A user without the permission needs tables that another user created."""
        names = [self._table_name(OFFSETS), self._table_name(BATCHES)]
        there = [cursor.execute("SELECT to_regclass(%s)", (each.as_string(),)).fetchone() for each in names]
        if (None,) not in there:
            return
        # Two concurrent CREATE TABLE would collide in the catalogue.
        cursor.execute("SELECT pg_advisory_xact_lock(hashtext('ottla sink tables'))")
        for text in _CREATE:
            cursor.execute(self._statement(text))

    def claim_partitions(self, cursor: Cursor, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Stored]:
        """Claim partitions: from now on writes with earlier claims fail."""
        claimed = {}
        for tp in sorted(partitions):  # always in this order, so that two claims cannot deadlock
            row = cursor.execute(self._statement(_CLAIM), (self._sink, tp.topic, tp.partition)).fetchone()
            assert row is not None
            claimed[tp] = _stored_row(row[0], row[1])
        return claimed

    def read_offsets(
        self, cursor: Cursor, partitions: Sequence[TopicPartition] | None = None
    ) -> dict[TopicPartition, Stored]:
        """The stored rows of these partitions, or of all."""
        if partitions is None:
            cursor.execute(self._statement(_ALL), (self._sink,))
        else:
            names, numbers = [each.topic for each in partitions], [each.partition for each in partitions]
            cursor.execute(self._statement(_SOME), (self._sink, names, numbers))
        return {TopicPartition(str(row[0]), _to_int(row[1])): _stored_row(row[2], row[3]) for row in cursor}

    def move_offsets(
        self, cursor: Cursor, before: Mapping[TopicPartition, Stored], after: Mapping[TopicPartition, int]
    ) -> bool:
        """The optimistic lock: move offsets that are still as in `before`. False when one is not: roll back then."""
        # In the order of `claim_partitions`, so that a write and a claim cannot deadlock.
        for tp in sorted(after):
            values = (after[tp], self._sink, *tp, before[tp].epoch, before[tp].next_offset)
            if cursor.execute(self._statement(_MOVE), values).rowcount != 1:
                return False
        return True

    def last_batch(self, cursor: Cursor) -> LastBatch | None:
        """The last stored batch."""
        row = cursor.execute(self._statement(_LAST), (self._sink,)).fetchone()
        return None if row is None else LastBatch(str(row[0]), _to_int(row[1]))

    def next_batch(self, cursor: Cursor, before: LastBatch | None, after: LastBatch) -> bool:
        """The optimistic lock of a query: False when the stored batch is not `before` any more: roll back then."""
        if before is None:
            cursor.execute(self._statement(_FIRST_BATCH), (self._sink, *after))
        else:
            values = (after.batch_id, self._sink, before.query_id, before.batch_id)
            cursor.execute(self._statement(_NEXT_BATCH), values)
        return cursor.rowcount == 1

    def delete_positions(self, cursor: Cursor) -> None:
        """Delete all rows of this sink."""
        for text in _FORGET:
            cursor.execute(self._statement(text), (self._sink,))

    def _statement(self, text: str) -> sql.Composed:
        return sql.SQL(text).format(offsets=self._table_name(OFFSETS), batches=self._table_name(BATCHES))

    def _table_name(self, table: str) -> sql.Identifier:
        return table_name(table) if self._schema is None else sql.Identifier(self._schema, table)


def table_name(text: str) -> sql.Identifier:
    """The identifier of a table, from its name or from `schema.name`."""
    return sql.Identifier(*text.split(".", 1))


def _stored_row(next_offset: object, epoch: object) -> Stored:
    return Stored(None if next_offset is None else _to_int(next_offset), _to_int(epoch))


def _to_int(value: object) -> int:
    assert isinstance(value, int)
    return value
