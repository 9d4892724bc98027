"""Reads a range of a partition as Arrow record batches: the work of a task of the source.

Zone: real. Runs in Spark's Python workers. The client fetches and `ottla.client.columns.columnar` decodes; this module
makes the columns of Spark's own Kafka source.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ottla.client.admin.admin import Admin
from ottla.client.cluster import Cluster
from ottla.client.columns.columnar import HEADER_TYPE, Columns, decode_batches
from ottla.client.errors import ClientError, CorruptBatchError, RefusedError
from ottla.client.fetching.batches import Fetched, visible_positions
from ottla.client.fetching.fetch import Fetcher
from ottla.client.metadata import ClusterView, TopicView
from ottla.client.retry import Deadline
from ottla.errors import ErrorCode
from ottla.record.batch import ATTRIBUTES_POS, CODEC_MASK
from ottla.record.errors import CorruptRecord
from ottla.spark.connection_cache import cached_connections
from ottla.spark.errors import DataLoss
from ottla.spark.offsets import Place, Range
from ottla.spark.option_values import EARLIEST
from ottla.spark.options import SourceOptions
from ottla.spark.source.source_positions import TaskPosition
from ottla.spark.tasks import write_note

ARROW_SCHEMA: Final = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("timestampType", pa.int32()),
    ]
)
HEADERS_FIELD: Final = pa.field("headers", pa.list_(pa.field("element", HEADER_TYPE)))

ROWS: Final = 1 << 16
"""The most rows of an Arrow batch: Spark holds a whole batch in memory."""
COMPRESSED_BYTES: Final = 1 << 19
"""Compressed bytes that are decompressed together."""
_GONE: Final = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)
_LAST_MS: Final = (2**63 - 1) // 1000
"""The largest timestamp in Spark's microseconds (the year 294247); later ones are shown as this one."""


def read_range(
    options: SourceOptions, wanted: Range, group: str | None = None, place: Place | None = None, *, noted: bool = True
) -> Iterator[pa.RecordBatch]:
    """All visible records of a range, in offset order.

    Leaves a note for the writer of the same task, which means that there is no shuffle in between (`tasks`). group: of
    the query, if its batch reads no other range of this partition. place: of the task in the query's plan. noted: False
    to leave no note.
    Raises DataLoss when the log begins after the range's start, or no record comes for `kafkaConsumer.pollTimeoutMs`
    (with failOnDataLoss=false it continues with the records that exist), and the client's errors.
    """
    with cached_connections(options.client) as links:
        # The metadata of cached connections may be old: the topic may have been created again since.
        view = links.cluster.refresh([wanted.tp.topic])
        if noted:
            write_note(_note_of(view, wanted, group)._replace(place=place))
        fetcher = Fetcher(links.cluster, {wanted.tp: wanted.start}, until={wanted.tp: wanted.end})
        for fetched in _fetch_range(fetcher, links.cluster, options, wanted):
            yield from _decode_rows(fetched, options, wanted)
        if fetcher.waits:
            # a fetch is still waiting: the next task's first response would wait for its response
            links.close_connections()


def _note_of(view: ClusterView, wanted: Range, group: str | None) -> TaskPosition:
    if group is None:
        return TaskPosition(None, None, wanted.tp, wanted.end)
    # A coordinator refuses offsets of a topic that no longer exists.
    there = isinstance(view.topics.get(wanted.tp.topic), TopicView)
    return TaskPosition(view.cluster_id, group if there else None, wanted.tp, wanted.end)


def _fetch_range(fetcher: Fetcher, cluster: Cluster, options: SourceOptions, wanted: Range) -> Iterator[Fetched]:
    position = wanted.start
    patience = Deadline.after_ms(options.poll_timeout_ms)
    while position < wanted.end and fetcher.active:
        for fetched in _poll_fetcher(fetcher, options, wanted):
            if fetched.error is not None:
                position = _log_start(cluster, options, wanted, position, fetched.error)
                fetcher.seek(wanted.tp, position)
                continue
            # 1. Progress, also past records that are not visible (markers, aborted ones): the patience starts again.
            if fetched.next_offset > position:
                patience = Deadline.after_ms(options.poll_timeout_ms)
            position = fetched.next_offset
            # 2. The end of the range, or of the log as far as it is readable: offsets between may have no records.
            if position >= wanted.end or (fetched.caught_up and fetched.end_offset >= wanted.end):
                fetcher.remove(wanted.tp)
                position = wanted.end
            if fetched.records:
                yield fetched
        if position < wanted.end and patience.expired:
            _on_data_loss(
                options, f"{wanted.tp} returned no record at offset {position}, and the query expects {wanted.end}"
            )
            return


def _poll_fetcher(fetcher: Fetcher, options: SourceOptions, wanted: Range) -> Iterable[Fetched]:
    """The next responses; none when the partition was deleted, which then is removed from the fetcher."""
    try:
        return fetcher.poll(min(options.poll_timeout_ms, 10_000))
    except RefusedError as error:
        if error.code not in _GONE:
            raise
    _on_data_loss(options, f"{wanted.tp} no longer exists")
    fetcher.remove(wanted.tp)
    return ()


def _log_start(cluster: Cluster, options: SourceOptions, wanted: Range, position: int, error: ClientError) -> int:
    """The offset at which to continue after the broker refused `position`."""
    if isinstance(error, RefusedError) and error.code in _GONE:
        _on_data_loss(options, f"{wanted.tp} no longer exists")
        return wanted.end
    if not isinstance(error, RefusedError) or error.code is not ErrorCode.OFFSET_OUT_OF_RANGE:
        raise error
    answer = Admin(cluster).list_offsets({wanted.tp: EARLIEST})[wanted.tp]
    if isinstance(answer, ClientError):
        raise answer
    _on_data_loss(options, f"{wanted.tp} begins at offset {answer.offset}, and the query expects offset {position}")
    # If the log begins at or before the position, the position is after its end: nothing of the range is left.
    return answer.offset if answer.offset > position else wanted.end


def _on_data_loss(options: SourceOptions, what: str) -> None:
    if options.fail_on_data_loss:
        raise DataLoss(what)


def _decode_rows(fetched: Fetched, options: SourceOptions, wanted: Range) -> Iterator[pa.RecordBatch]:
    tp = fetched.tp
    visible = visible_positions(fetched.records, tp, fetched.aborted, check_crcs=options.client.check_crcs)
    for group in _group_batches(fetched.records, visible):
        try:
            columns = decode_batches(
                fetched.records,
                group,
                start=max(wanted.start, fetched.fetch_offset),
                end=wanted.end,
                headers=options.include_headers,
            )
        except CorruptRecord as error:
            raise CorruptBatchError(f"{tp} after offset {fetched.fetch_offset}: {error.message}") from error
        batch = to_arrow(columns, tp.topic, tp.partition)
        for first in range(0, batch.num_rows, ROWS):
            yield batch.slice(first, ROWS)


def _group_batches(records: memoryview, batches: Sequence[int]) -> Iterator[list[int]]:
    """Groups of batches to decode together: limited, so that their decompressed size stays small."""
    group: list[int] = []
    packed = 0
    for pos, following in pairwise((*batches, len(records))):
        group.append(pos)
        # Attributes are an int16, big-endian: the codec is in the low bits of the second byte.
        packed += following - pos if records[pos + ATTRIBUTES_POS + 1] & CODEC_MASK else 0
        if packed >= COMPRESSED_BYTES:
            yield group
            group, packed = [], 0
    if group:
        yield group


def to_arrow(columns: Columns, topic: str, partition: int) -> pa.RecordBatch:
    """An Arrow batch with the columns of Spark's Kafka source."""
    count = len(columns.offsets)
    micros = np.clip(columns.timestamps, -_LAST_MS, _LAST_MS) * 1000
    name = topic.encode()
    ends = np.arange(count + 1, dtype=np.int32) * len(name)
    # From buffers: pa.array and pa.scalar would import an installed pandas, a quarter of a second in every worker.
    arrays = [
        columns.keys,
        columns.values,
        pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(ends), pa.py_buffer(name * count)]),
        _number_array(ARROW_SCHEMA.field("partition").type, np.full(count, partition, np.int32)),
        _number_array(ARROW_SCHEMA.field("offset").type, columns.offsets),
        _number_array(ARROW_SCHEMA.field("timestamp").type, micros),
        _number_array(ARROW_SCHEMA.field("timestampType").type, columns.timestamp_types),
    ]
    if columns.headers is None:
        return pa.RecordBatch.from_arrays(arrays, schema=ARROW_SCHEMA)
    return pa.RecordBatch.from_arrays([*arrays, columns.headers], schema=ARROW_SCHEMA.append(HEADERS_FIELD))


def _number_array(kind: pa.DataType, numbers: npt.NDArray[np.int32] | npt.NDArray[np.int64]) -> pa.Array:
    return pa.Array.from_buffers(kind, len(numbers), [None, pa.py_buffer(np.ascontiguousarray(numbers))])
