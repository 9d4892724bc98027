"""The offsets of the source's consumer group that are committed in the transaction with the rows made of its records.

Zone: pure. The group then moves exactly when the output does. There are two ways to know the offsets: the task has read
all records of a partition that its batch reads (the reader's note), or the batch is written as a whole, and its rows
name the records that they were made of (the column `_source`). Other offsets are committed by the source after the
batch, as without this module.

Why a group never moves back: one of the attempts at a task commits. After that none can, as it is fenced or finds the
marker, and the next batch begins at the end of this one. Therefore each task that has read records takes its id and
writes its marker, also when no rows came of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import reduce
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ottla.spark.errors import BadRows, OffsetsOutside
from ottla.spark.offsets import Place
from ottla.spark.sink.sink_options import ExactlyOnceOptions, Scope
from ottla.types import TopicPartition

COLUMN: Final = "_source"
FIELDS: Final = {"topic": "string", "partition": "int", "offset": "bigint"}
"""The fields that the column must have."""

Positions = dict[str, dict[TopicPartition, int]]
"""The next offset of each partition, by group."""


class TaskPosition(NamedTuple):
    """The note of a task's reader about one partition of the source."""

    cluster: str | None
    """The id of the cluster."""
    group: str | None
    """The group of the query; None: it has none, or other tasks read parts of this partition as well."""
    tp: TopicPartition
    offset: int
    """The end of this batch."""
    place: Place | None = None
    """None: the planner did not record it."""


class Sources:
    """Collects the origin of the rows of one attempt."""

    def __init__(
        self,
        once: ExactlyOnceOptions,
        scope: Scope,
        notes: Callable[[], Iterable[TaskPosition]],
        cluster: Callable[[], str | None],
    ) -> None:
        """notes: those of the readers in this task, so far. cluster: the id of the sink's cluster."""
        self._wanted = once.offsets
        self._group = once.group
        self._by_rows = once.group if scope is Scope.BATCH else None
        self._notes = notes
        self._cluster = cluster
        self._seen: dict[TopicPartition, int] = {}
        self._rows = 0

    def watch_batches(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Pass the batches on, and collect the offsets in their column `_source`."""
        for batch in batches:
            self._rows += batch.num_rows
            if self._by_rows is not None and self._wanted != "false" and COLUMN in batch.schema.names:
                for tp, offset in next_offsets(batch.column(batch.schema.names.index(COLUMN))).items():
                    self._seen[tp] = max(offset, self._seen.get(tp, 0))
            yield batch

    def known_positions(self) -> Positions:
        """The offsets to commit, as far as they are known by now.

        Raises OffsetsOutside if the user demands them all and those of a row are unknown.
        """
        # 1. Not wanted. 2. A whole batch whose rows name their origin. 3. The notes of the readers, if they are of the
        #    sink's cluster and of the named group.
        if self._wanted == "false":
            return {}
        if self._by_rows is not None and self._seen:
            return {self._by_rows: dict(self._seen)}
        notes = list(self._notes())
        fit = [one for one in notes if self._is_committable(one)]
        if self._wanted == "true" and self._rows and (not fit or len(fit) < len(notes)):
            raise OffsetsOutside(_why_unknown(notes, by_rows=self._by_rows is not None))
        found: Positions = {}
        for one in fit:
            assert one.group is not None
            places = found.setdefault(one.group, {})
            places[one.tp] = max(one.offset, places.get(one.tp, 0))
        return found

    def _is_committable(self, one: TaskPosition) -> bool:
        named = self._group in (None, one.group)
        return one.group is not None and named and one.cluster is not None and one.cluster == self._cluster()


def _why_unknown(notes: Iterable[TaskPosition], *, by_rows: bool) -> str:
    known = list(notes)
    text = "offsetsInTransaction=true is impossible: "
    if known and any(one.group is None for one in known):
        return text + (
            f"{known[0].tp} is read without a consumer group, or by several tasks (minPartitions, "
            "maxRecordsPerPartition). Name the group in the source's kafka.group.id, and do not split partitions"
        )
    if known:
        return text + "source and sink are on different clusters, or sourceGroup is not the source's kafka.group.id"
    if by_rows:
        return text + f"no row names its origin. Keep the column {COLUMN} (topic, partition, offset)"
    return text + (
        "the rows were not read from topics in the task that writes them. Without a shuffle they are; with one, write "
        f"with exactlyOnce=batch, sourceGroup and the column {COLUMN}"
    )


def next_offsets(column: pa.Array) -> dict[TopicPartition, int]:
    """The offset after the last row of each partition, from a column of structs. Rows with nulls are skipped, as the
    unmatched ones of an outer join."""
    names = [column.type.field(number).name for number in range(column.type.num_fields)]
    fields = dict(zip(names, column.flatten(), strict=True))
    known = reduce(pc.and_, (fields[name].is_valid() for name in FIELDS))
    topics, numbers, offsets = (fields[name].filter(known) for name in FIELDS)
    if not len(topics):
        return {}
    topics = topics.dictionary_encode()
    codes = topics.indices.to_numpy(zero_copy_only=False)
    numbers, offsets = numbers.to_numpy(zero_copy_only=False), offsets.to_numpy(zero_copy_only=False)
    places, of_row = np.unique(np.stack([codes, numbers]).astype(np.int64), axis=1, return_inverse=True)
    last = np.zeros(places.shape[1], np.int64)
    np.maximum.at(last, of_row.reshape(-1), offsets.astype(np.int64) + 1)
    called = topics.dictionary.to_pylist()
    return {
        TopicPartition(called[code], int(number)): int(offset)
        for code, number, offset in zip(*places.tolist(), last.tolist(), strict=True)
    }


def check_source_column(schema: Any, once: ExactlyOnceOptions, scope: Scope | None) -> None:
    """Check that rows of this schema name their origin, if they have to. `schema`: Spark's StructType.

    Raises BadRows.
    """
    if scope is not Scope.BATCH or once.group is None or once.offsets == "false":
        return
    types = {field.name: field.dataType for field in schema.fields}
    if COLUMN not in types:
        if once.offsets == "true":
            raise BadRows(f"offsetsInTransaction=true needs the column {COLUMN}: struct(topic, partition, offset)")
        return
    have = {field.name: field.dataType.simpleString() for field in getattr(types[COLUMN], "fields", ())}
    if FIELDS.items() - have.items():
        raise BadRows(f"the column {COLUMN} must be a struct with {', '.join(map(' '.join, FIELDS.items()))}")
