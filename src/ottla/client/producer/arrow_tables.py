"""Encodes the rows of an Arrow table as batches of a producer, without Python code per row.

Zone: pure. Checks columns, chooses the partition of each row, and encodes batches, one at a time; `accumulator` queues
them. Imported by the first `send_table`, because Arrow is slow to load.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ottla.client.columns.columnar import BATCH_BYTES, HEADER_TYPE, Encoder, Ints, Plain, fields_of
from ottla.client.columns.columnar_partitions import partitions_of_keys, spread_rows
from ottla.client.errors import RefusedError, UsageError
from ottla.client.producer.batch import ProducerBatch
from ottla.client.producer.config import ProducerConfig
from ottla.client.producer.core import ProducerCore
from ottla.client.producer.partitioning import Partitioner, RoundRobin
from ottla.client.producer.topic_metadata import ProducedTopic
from ottla.errors import ErrorCode
from ottla.record.batch import HEADER_SIZE
from ottla.types import TopicPartition

COLUMNS: Final = ("value", "key", "headers", "partition", "timestamp")
_SLICE_BYTES: Final = 16 << 20
_SLICE_ROWS: Final = 200_000
"""The most rows to process in one piece, which takes some 100 bytes per row in addition to the table."""
_HEADERS: Final = pa.list_(HEADER_TYPE)
_OVERHEAD: Final = 64
"""More than a record needs in addition to its key, value and headers."""


class PartitionChoice(NamedTuple):
    """How to choose partitions for rows without one in the column `partition`."""

    partitions: int
    """Number of partitions; for rows with a key."""
    available: Sequence[int]
    """Partitions with a leader; for rows without a key."""
    turn: int
    """Index of the first of these to use."""
    cyclic: bool
    """Round robin: every row goes to the next partition, with a key or without."""
    ignore_keys: bool


def partition_choice(
    topic: ProducedTopic, rows: int, partitioner: Partitioner | None, core: ProducerCore
) -> PartitionChoice:
    """How to choose partitions for the next `rows` rows of a table; advances the round robin by that number."""
    available = topic.led or list(topic.view.partitions)
    cyclic = isinstance(partitioner, RoundRobin)
    turn = (
        partitioner.advance_turns(topic.name, rows)
        if isinstance(partitioner, RoundRobin)
        else core.below(len(available))
    )
    return PartitionChoice(len(topic.view.partitions), available, turn, cyclic, core.config.partitioner_ignore_keys)


def whole_batch(topic: str, partition: int, plain: Plain) -> ProducerBatch:
    """The batch as an object for the accumulator."""
    tp = TopicPartition(topic, partition)
    return ProducerBatch.from_encoded(tp, plain.data, plain.records, plain.base_timestamp, plain.max_timestamp)


class TableRows:
    """A checked table; the checks that need the topic are in `check_partitions`."""

    def __init__(self, table: pa.Table | pa.RecordBatch, config: ProducerConfig, now_ms: int) -> None:
        """now_ms: the timestamp for rows without one. Raises UsageError for wrong columns, types, sizes or values."""
        if isinstance(table, pa.RecordBatch):
            table = pa.Table.from_batches([table])
        if not isinstance(table, pa.Table):
            raise UsageError(f"{type(table).__name__} is not an Arrow table", "Give a pyarrow.Table or RecordBatch")
        _check_columns(table)
        self.rows: int = table.num_rows
        self._now = now_ms
        # At most a quarter of the memory per batch, so that some can be filled while others are unanswered.
        most = min(config.client.max_request_size, config.buffer_memory // 4, BATCH_BYTES)
        self._batch_bytes = max(1, most - HEADER_SIZE)
        self._table = _checked_table(table)
        self._check_sizes(config)

    def check_partitions(self, topic: ProducedTopic, partitioner: Partitioner | None) -> None:
        """Check that the given partitions exist; if the application has its own partitioner, all must be given.

        Raises RefusedError, UsageError.
        """
        given = self._find_column("partition")
        existing = topic.view.partitions
        own = partitioner is not None and not isinstance(partitioner, RoundRobin)
        if own and (given is None or given.null_count):
            raise UsageError(
                "rows without a partition need the producer's partitioner function, which only takes single records",
                "Add a column `partition`",
            )
        wrong = set() if given is None else set(pc.unique(given).to_pylist()) - {None, *existing}
        if wrong:
            raise RefusedError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"partition {min(wrong)} of topic {topic.name}",
                f"it has partitions 0 to {len(existing) - 1}",
            )

    def encode_batches(self, places: Callable[[int], PartitionChoice]) -> Iterator[tuple[int, Plain]]:
        """(partition, batch), each encoded when the iterator reaches it; the rows of a partition keep their order.

        places: returns how to choose partitions for the next rows, given their number.
        """
        for piece in self._table_slices():
            partitions = _row_partitions(piece, places(piece.num_rows))
            encoder = self._slice_encoder(piece)
            for partition in np.nonzero(np.bincount(partitions))[0].tolist():
                rows = np.nonzero(partitions == partition)[0]
                for batch in encoder.encode_plain(rows, self._batch_bytes):
                    yield partition, batch

    def _find_column(self, name: str) -> Any:
        return self._table.column(name) if name in self._table.column_names else None

    def _table_slices(self) -> Iterator[pa.Table]:
        step = max(1, min(_SLICE_ROWS, self.rows * _SLICE_BYTES // max(1, self._table.nbytes)))
        for at in range(0, self.rows, step):
            yield self._table.slice(at, step)

    def _slice_encoder(self, piece: pa.Table) -> Encoder:
        times = _column_array(piece, "timestamp")
        if times is None:
            stamps = np.full(piece.num_rows, self._now, np.int64)
        else:
            stamps = pc.fill_null(times, self._now).to_numpy(zero_copy_only=False)
        return Encoder(
            _binary_column(piece, "key"), _binary_column(piece, "value"), stamps, _column_array(piece, "headers")
        )

    def _check_sizes(self, config: ProducerConfig) -> None:
        limits = (("max.request.size", config.client.max_request_size), ("buffer.memory", config.buffer_memory))
        name, limit = min(limits, key=lambda each: each[1])
        for piece in self._table_slices():
            # A cheap bound first: only if that is too large, the size of each row is computed.
            if "headers" not in piece.column_names and _longest_fields(piece) + _OVERHEAD <= limit:
                continue
            largest = int(self._slice_encoder(piece).sizes_alone().max(initial=0))
            if largest > limit:
                raise UsageError(
                    f"a row of {largest} bytes is larger than {name}",
                    f"Send smaller records, or raise {name} (now {limit})",
                )


def _check_columns(table: pa.Table) -> None:
    names = table.column_names
    unknown = [name for name in names if name not in COLUMNS]
    if "value" not in names or unknown or len(set(names)) < len(names):
        raise UsageError(
            f"a table with columns {', '.join(map(repr, names)) or '(none)'} cannot be sent",
            f"It needs `value`, and may have {', '.join(f'`{name}`' for name in COLUMNS[1:])}, each once; choose them "
            "with table.select",
        )
    for name in ("value", "key"):
        if name in names:
            _cast_column(name, pa.array([], table.schema.field(name).type), pa.binary())


def _checked_table(table: pa.Table) -> pa.Table:
    """The table with partitions, timestamps and headers cast to the types used here, and their values checked."""
    if "partition" in table.column_names:
        table = _replace_column(table, "partition", pa.int32(), pa.types.is_integer)
    if "timestamp" in table.column_names:
        if pa.types.is_timestamp(table.schema.field("timestamp").type):
            table = _replace_column(table, "timestamp", pa.timestamp("ms"), pa.types.is_timestamp)
        table = _replace_column(table, "timestamp", pa.int64(), lambda kind: pa.types.is_integer(kind) or _is_ms(kind))
        earliest = pc.min(table.column("timestamp")).as_py()
        if earliest is not None and earliest < 0:
            raise UsageError(f"timestamp {earliest} is not in milliseconds since 1970")
    if "headers" in table.column_names:
        table = _replace_column(table, "headers", _HEADERS, lambda kind: pa.types.is_list(kind) or _is_pairs(kind))
        if pc.struct_field(pc.list_flatten(table.column("headers")), "key").null_count:
            raise UsageError("a header has no key", f"Give headers as {_HEADERS}, keys never null")
    return table


def _is_ms(kind: pa.DataType) -> bool:
    return bool(kind == pa.timestamp("ms"))


def _is_pairs(kind: pa.DataType) -> bool:
    return bool(pa.types.is_map(kind) or pa.types.is_large_list(kind))


def _replace_column(table: pa.Table, name: str, kind: pa.DataType, fits: Callable[[pa.DataType], bool]) -> pa.Table:
    found = table.schema.field(name).type
    if not fits(found) and not pa.types.is_null(found):
        raise UsageError(f"column `{name}` is {found}, not {kind}")
    return table.set_column(table.column_names.index(name), name, _cast_column(name, table.column(name), kind))


def _cast_column(name: str, column: Any, kind: pa.DataType) -> Any:
    try:
        return column.cast(kind, safe=kind != pa.timestamp("ms"))  # finer units lose their digits
    except pa.ArrowException as error:
        raise UsageError(f"column `{name}` is {column.type}, which cannot be cast to {kind}: {error}") from None


def _column_array(piece: pa.Table, name: str) -> Any:
    """A column as one chunk; None if the table does not have it."""
    if name not in piece.column_names:
        return None
    column = piece.column(name)
    # Combining copies. Headers are copied on purpose: a slice of a list column still refers to all its headers.
    return column.chunk(0) if column.num_chunks == 1 and name != "headers" else column.combine_chunks()


def _binary_column(piece: pa.Table, name: str) -> Any:
    column = _column_array(piece, name)
    return None if column is None else column.cast(pa.binary())


def _longest_fields(piece: pa.Table) -> int:
    """The sum of the sizes of the longest key and the longest value."""
    found = 0
    for name in ("key", "value"):
        column = _binary_column(piece, name)
        if column is not None:
            found += pc.max(pc.binary_length(column)).as_py() or 0
    return found


def _row_partitions(piece: pa.Table, places: PartitionChoice) -> Ints:
    """The partition of every row: 1. from the column; 2. by the key; 3. one of the available partitions."""
    count, given, keys = piece.num_rows, _column_array(piece, "partition"), _binary_column(piece, "key")
    if given is None and keys is None and not places.cyclic:
        return spread_rows(count, places.available, places.turn)
    chosen: Ints = np.full(count, -1, np.int64)
    if given is not None:
        chosen = pc.fill_null(given, -1).to_numpy(zero_copy_only=False).astype(np.int64)
    if keys is not None and not places.cyclic and not places.ignore_keys:
        chosen = np.where(chosen < 0, partitions_of_keys(fields_of(keys), places.partitions), chosen)
    left = np.nonzero(chosen < 0)[0]
    if len(left) and places.cyclic:
        chosen[left] = np.array(places.available)[(places.turn + np.arange(len(left))) % len(places.available)]
    elif len(left):
        chosen[left] = spread_rows(len(left), places.available, places.turn)
    return chosen
