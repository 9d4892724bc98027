"""Merges batches of a streaming query into a changelog: the interface for foreachBatch.

Zone: real. Runs on Spark's driver. A batch is identified by the offsets of its rows, not by its number, so that a query
with a new checkpoint, or with other batches, continues the same state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, Protocol

from ottla.sinks.errors import UsageError
from ottla.types import TopicPartition

Aggregate = Callable[[Any], Any]
"""DataFrame of a batch → DataFrame with a column `key`."""
Merge = Callable[[bytes | None, Any], bytes | None]
_PLACE: Final = ("topic", "partition", "offset")


class State(Protocol):
    """What batches are merged into."""

    @property
    def positions(self) -> dict[TopicPartition, int]:
        """The next offset of each partition of the source that the state does not include yet."""

    def change(self, rows: Iterable[tuple[bytes | None, Any]], merge: Merge, ends: dict[TopicPartition, int]) -> None:
        """Merge rows into the state, and move its positions to `ends`, in one transaction."""


class Batches:
    """A function for `foreachBatch`."""

    def __init__(self, changelog: State, aggregate: Aggregate, merge: Merge) -> None:
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
