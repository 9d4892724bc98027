"""State by key, and the source positions that it includes, changed together in one transaction.

Zone: real. Exactly once by the positions alone: records below them are skipped when they come again, so that nothing
depends on a checkpoint. A transactional id ensures that only one job of a name writes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any, Final, TypeVar

from ottla.client.errors import ClientError, RefusedError
from ottla.client.producer import Producer
from ottla.errors import ErrorCode
from ottla.sinks.changelog.errors import ChangelogBroken, Superseded
from ottla.sinks.changelog.topics import Topics
from ottla.sinks.errors import UsageError
from ottla.types import TopicPartition

R = TypeVar("R")
Merge = Callable[[bytes | None, R], bytes | None]
"""(the key's value or None, a new row) → the next value; None deletes the key."""
Aggregate = Callable[[Any], Any]
"""DataFrame of a batch → DataFrame with a column `key`."""
_PLACE: Final = ("topic", "partition", "offset")
_FENCED: Final = (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH)


class Changelog:
    """Keyed state whose changelog is a compacted topic; for one thread.

    with Changelog({"bootstrap.servers": "localhost:9092"}, "totals") as totals:
        query = orders.writeStream.foreachBatch(totals.batches(aggregate, merge)).option(…).start()

    The state is in this process's memory (in Spark: the driver's); each batch writes the keys that it changed. The
    topics `totals` and `totals-positions` are created if they do not exist.
    """

    def __init__(
        self, settings: Mapping[str, str], topic: str, *, partitions: int = 1, replication_factor: int = -1
    ) -> None:
        """Does not connect yet. settings: the cluster and the login, by Kafka's keys. partitions, replication_factor:
        of topics that are created.
        """
        self.topic = topic
        self._settings = dict(settings)
        self._topics = Topics(settings, topic, partitions, replication_factor)
        self._producer: Producer | None = None
        self._superseded = False
        self._state: dict[bytes, bytes] = {}
        self._positions: dict[TopicPartition, int] = {}

    def __enter__(self) -> Changelog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        raise UsageError("a changelog cannot be sent to another process", "Use it on the driver, in foreachBatch")

    def restore(self) -> int:
        """Fence earlier jobs of this name, and read the state; done automatically on first use.

        Returns the number of keys. Earlier jobs can write nothing from now on, and their open transaction is aborted.
        Raises Superseded, NotCompacted, ChangelogBroken, ClientError.
        """
        if self._superseded:
            raise Superseded(self.topic)
        self.close()
        self._topics.ensure_topics()
        producer = Producer({**self._settings, "transactional.id": f"ottla-changelog-{self.topic}"})
        try:
            # Fence first, read then: an earlier job could otherwise commit after the state was read.
            producer.init_transactions()
            positions, state = self._topics.read_positions(), self._topics.read_state()
            # State without positions would be counted twice: every record would look new.
            if state and not positions:
                raise ChangelogBroken(f"topic {self.topic} holds state, and {self._topics.positions} no positions")
        except BaseException:
            producer.close()
            raise
        self._producer, self._positions, self._state = producer, positions, state
        return len(state)

    @property
    def positions(self) -> dict[TopicPartition, int]:
        """The next offset of each partition of the source that the state does not include yet."""
        self._open_producer()
        return dict(self._positions)

    def get(self, key: bytes) -> bytes | None:
        """The value of a key, or None."""
        self._open_producer()
        return self._state.get(key)

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        """All keys and values."""
        self._open_producer()
        return iter(list(self._state.items()))

    def starting_offsets(self, *topics: str) -> str:
        """The option `startingOffsets` for a query whose checkpoint is lost: it continues where the state ends.

        `earliest` would give the same state, but read more.
        """
        self._open_producer()
        found: dict[str, dict[str, int]] = {}
        for tp in self._topics.source_partitions(topics):
            # -2 is Spark's number for the earliest offset.
            found.setdefault(tp.topic, {})[str(tp.partition)] = self._positions.get(tp, -2)
        return json.dumps(found)

    def batches(self, aggregate: Aggregate, merge: Merge[Any]) -> Batches:
        """A function for `foreachBatch`, for batches with the columns topic, partition and offset of their source.

        aggregate: turns the new rows of a batch into rows with a column `key`, on the executors. merge: merges these
        rows into the state, on the driver.
        """
        return Batches(self, aggregate, merge)

    def write(self, records: Iterable[Any], merge: Merge[Any]) -> int:
        """For plain consumers: merge records with a key, in order; those below the positions are skipped.

        Returns how many were new. Raises Superseded, UsageError, ClientError: then all or nothing was written; the next
        call reads which.
        """
        self._open_producer()
        fresh = [each for each in records if self.is_new(TopicPartition(each.topic, each.partition), each.offset)]
        ends: dict[TopicPartition, int] = {}
        for each in fresh:
            ends[TopicPartition(each.topic, each.partition)] = each.offset + 1
        self.change(((each.key, each) for each in fresh), merge, ends)
        return len(fresh)

    def is_new(self, tp: TopicPartition, offset: int) -> bool:
        """Whether the state does not include the record yet."""
        return offset >= self._positions.get(tp, 0)

    def change(
        self, rows: Iterable[tuple[bytes | None, R]], merge: Merge[R], ends: Mapping[TopicPartition, int]
    ) -> None:
        """Merge rows by key, and write the changed keys and the new positions in one transaction."""
        producer = self._open_producer()
        changes: dict[bytes, bytes | None] = {}
        for key, row in rows:
            if key is None:
                raise UsageError("a row has no key", "Filter such rows, or give them one")
            changes[key] = merge(changes[key] if key in changes else self._state.get(key), row)
        # An unchanged key needs no record: its last one is still in the compacted topic.
        changes = {key: value for key, value in changes.items() if self._state.get(key) != value}
        if ends:
            self._commit_changes(producer, changes, ends)

    def _commit_changes(
        self, producer: Producer, changes: Mapping[bytes, bytes | None], ends: Mapping[TopicPartition, int]
    ) -> None:
        try:
            producer.begin_transaction()
            for key, value in changes.items():
                producer.send(self.topic, value, key=key)
            for tp, offset in ends.items():
                key, value = self._topics.position_record(tp, offset)
                producer.send(self._topics.positions, value, key=key)
            producer.commit_transaction()
        except ClientError as error:
            self._superseded = _is_fenced(error)
            self.close()  # reading the state again shows whether it was committed
            if self._superseded:
                raise Superseded(self.topic) from error
            raise
        for key, value in changes.items():
            if value is None:
                self._state.pop(key, None)
            else:
                self._state[key] = value
        # State and positions in memory change only after the commit; after an error both are read from the topics
        # again.
        self._positions |= ends

    def _open_producer(self) -> Producer:
        if self._producer is None:
            self.restore()
        assert self._producer is not None
        return self._producer

    def close(self) -> None:
        """Close the connections; the next call reads the state again."""
        producer, self._producer = self._producer, None
        self._state, self._positions = {}, {}
        if producer is not None:
            # 0: an open transaction is not aborted here. The next `init_transactions` of this id aborts it.
            producer.close(0)


class Batches:
    """A function for `foreachBatch`, on Spark's driver.

    A batch is identified by the offsets of its rows, not by its number, so that a query with a new checkpoint, or with
    other batches, continues the same state.
    """

    def __init__(self, changelog: Changelog, aggregate: Aggregate, merge: Merge[Any]) -> None:
        self._changelog = changelog
        self._aggregate = aggregate
        self._merge = merge

    def __call__(self, batch: Any, batch_id: int) -> None:  # noqa: ARG002 - Spark's signature
        """Bring the state up to the end of a batch. Raises UsageError, Superseded, ClientError."""
        if missing := [each for each in _PLACE if each not in batch.columns]:
            raise UsageError(
                f"the batch has no column {missing[0]}", "Keep the source's columns topic, partition, offset"
            )
        batch.persist()  # it is read twice
        try:
            positions = self._changelog.positions
            ends = {tp: end for tp, end in _end_offsets(batch).items() if end > positions.get(tp, 0)}
            if ends:
                fresh = batch.where(_new_rows_condition({tp: positions.get(tp, 0) for tp in ends}))
                self._changelog.change(_keyed_rows(self._aggregate(fresh)), self._merge, ends)
        finally:
            batch.unpersist()


def _is_fenced(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, RefusedError) and error.code in _FENCED:
            return True
        error = error.__cause__
    return False


def _end_offsets(batch: Any) -> dict[TopicPartition, int]:
    found = batch.groupBy("topic", "partition").agg({"offset": "max"}).collect()
    return {TopicPartition(topic, partition): offset + 1 for topic, partition, offset in found}


def _new_rows_condition(positions: dict[TopicPartition, int]) -> str:
    """An SQL condition for new rows. Names of topics contain no quotes."""
    return " OR ".join(
        f"(topic = '{tp.topic}' AND partition = {tp.partition} AND offset >= {offset})"
        for tp, offset in positions.items()
    )


def _keyed_rows(rows: Any) -> Iterator[tuple[bytes | None, Any]]:
    if "key" not in rows.columns:
        raise UsageError("the aggregated rows have no column key", "Name the grouping column `key`")
    for row in rows.toLocalIterator(prefetchPartitions=True):
        key = row["key"]
        yield (key.encode() if isinstance(key, str) else None if key is None else bytes(key)), row
