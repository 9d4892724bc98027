"""Reading a range of a partition as Arrow record batches: what a task of the source does.

Zone: real. Runs in Spark's Python workers. Fetching is the client's, decoding is `ottla.client.columns.columnar`; here
they become the columns of Spark's own Kafka source.
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
from ottla.client.columns.columnar import HEADER_TYPE, Columns, decode
from ottla.client.errors import ClientError, CorruptBatchError, RefusedError
from ottla.client.fetching.batches import Fetched, visible_positions
from ottla.client.fetching.fetch import Fetcher
from ottla.client.metadata import ClusterView, TopicView
from ottla.client.retry import Deadline
from ottla.errors import ErrorCode
from ottla.record.batch import ATTRIBUTES_POS, CODEC_MASK
from ottla.record.errors import CorruptRecord
from ottla.spark.connection_cache import kept_links
from ottla.spark.errors import DataLoss
from ottla.spark.offsets import Range
from ottla.spark.options import EARLIEST, SourceOptions
from ottla.spark.source.source_positions import TaskPosition
from ottla.spark.tasks import leave_note

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
"""Rows of one Arrow batch at most: Spark holds a whole one in memory."""
COMPRESSED_BYTES: Final = 1 << 19
"""Compressed bytes that are decompressed in one go."""
_GONE: Final = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)
_LAST_MS: Final = (2**63 - 1) // 1000
"""Spark counts microseconds: a timestamp beyond (the year 294247) is shown as this one."""


def read_range(options: SourceOptions, wanted: Range, group: str | None = None) -> Iterator[pa.RecordBatch]:
    """All visible records of a range, in offset order.

    Tells the writer of the same task that there is no shuffle in between (`tasks`). group: of the query, if the range
    is all that its batch reads of this partition.
    Raises DataLoss when the log begins behind the range's start, or nothing comes for `kafkaConsumer.pollTimeoutMs`
    (with failOnDataLoss=false: goes on with what is there); otherwise the client's errors.
    """
    with kept_links(options.client) as links:
        # Kept connections know the topic as it was: it may be another one of that name by now.
        view = links.cluster.refresh([wanted.tp.topic])
        leave_note(_check_known(view, wanted, group))
        fetcher = Fetcher(links.cluster, {wanted.tp: wanted.start}, until={wanted.tp: wanted.end})
        for fetched in _fetch(fetcher, links.cluster, options, wanted):
            yield from _rows(fetched, options, wanted)
        if fetcher.waits:
            links.close()  # the next one's first answer would come behind that one


def _check_known(view: ClusterView, wanted: Range, group: str | None) -> TaskPosition:
    if group is None:
        return TaskPosition(None, None, wanted.tp, wanted.end)
    # Of a topic that is gone nobody takes offsets.
    there = isinstance(view.topics.get(wanted.tp.topic), TopicView)
    return TaskPosition(view.cluster_id, group if there else None, wanted.tp, wanted.end)


def _fetch(fetcher: Fetcher, cluster: Cluster, options: SourceOptions, wanted: Range) -> Iterator[Fetched]:
    position = wanted.start
    patience = Deadline.after_ms(options.poll_timeout_ms)
    while position < wanted.end and fetcher.active:
        for fetched in _poll(fetcher, options, wanted):
            if fetched.error is not None:
                position = _log_start(cluster, options, wanted, position, fetched.error)
                fetcher.seek(wanted.tp, position)
                continue
            if fetched.next_offset > position:
                patience = Deadline.after_ms(options.poll_timeout_ms)
            position = fetched.next_offset
            if position >= wanted.end or (fetched.caught_up and fetched.end_offset >= wanted.end):
                fetcher.remove(wanted.tp)
                position = wanted.end
            if fetched.records:
                yield fetched
        if position < wanted.end and patience.expired:
            _lost(options, f"{wanted.tp} gave nothing at offset {position} although the query expects {wanted.end}")
            return


def _poll(fetcher: Fetcher, options: SourceOptions, wanted: Range) -> Iterable[Fetched]:
    """The next answers. A partition that is not there any more has nothing left to read."""
    try:
        return fetcher.poll(min(options.poll_timeout_ms, 10_000))
    except RefusedError as error:
        if error.code not in _GONE:
            raise
    _lost(options, f"{wanted.tp} does not exist any more")
    fetcher.remove(wanted.tp)
    return ()


def _log_start(cluster: Cluster, options: SourceOptions, wanted: Range, position: int, error: ClientError) -> int:
    """Where to go on after the broker refused `position`."""
    if isinstance(error, RefusedError) and error.code in _GONE:
        _lost(options, f"{wanted.tp} does not exist any more")
        return wanted.end
    if not isinstance(error, RefusedError) or error.code is not ErrorCode.OFFSET_OUT_OF_RANGE:
        raise error
    answer = Admin(cluster).list_offsets({wanted.tp: EARLIEST})[wanted.tp]
    if isinstance(answer, ClientError):
        raise answer
    _lost(options, f"{wanted.tp} begins at offset {answer.offset}, and the query expects offset {position}")
    return answer.offset if answer.offset > position else wanted.end


def _lost(options: SourceOptions, what: str) -> None:
    if options.fail_on_data_loss:
        raise DataLoss(what)


def _rows(fetched: Fetched, options: SourceOptions, wanted: Range) -> Iterator[pa.RecordBatch]:
    tp = fetched.tp
    visible = visible_positions(fetched.records, tp, fetched.aborted, check_crcs=options.client.check_crcs)
    for group in _groups(fetched.records, visible):
        try:
            columns = decode(
                fetched.records,
                group,
                start=max(wanted.start, fetched.fetch_offset),
                end=wanted.end,
                headers=options.include_headers,
            )
        except CorruptRecord as error:
            raise CorruptBatchError(f"{tp} behind offset {fetched.fetch_offset}: {error.message}") from error
        batch = to_arrow(columns, tp.topic, tp.partition)
        for first in range(0, batch.num_rows, ROWS):
            yield batch.slice(first, ROWS)


def _groups(records: memoryview, batches: Sequence[int]) -> Iterator[list[int]]:
    """Batches to decode together: few enough that what they decompress to stays small."""
    group: list[int] = []
    packed = 0
    for pos, following in pairwise((*batches, len(records))):
        group.append(pos)
        packed += following - pos if records[pos + ATTRIBUTES_POS + 1] & CODEC_MASK else 0
        if packed >= COMPRESSED_BYTES:
            yield group
            group, packed = [], 0
    if group:
        yield group


def to_arrow(columns: Columns, topic: str, partition: int) -> pa.RecordBatch:
    """The columns of Spark's Kafka source."""
    count = len(columns.offsets)
    micros = np.clip(columns.timestamps, -_LAST_MS, _LAST_MS) * 1000
    name = topic.encode()
    ends = np.arange(count + 1, dtype=np.int32) * len(name)
    # From buffers: pa.array and pa.scalar would import pandas where it is there, a quarter of a second in every worker.
    arrays = [
        columns.keys,
        columns.values,
        pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(ends), pa.py_buffer(name * count)]),
        _numbers(ARROW_SCHEMA.field("partition").type, np.full(count, partition, np.int32)),
        _numbers(ARROW_SCHEMA.field("offset").type, columns.offsets),
        _numbers(ARROW_SCHEMA.field("timestamp").type, micros),
        _numbers(ARROW_SCHEMA.field("timestampType").type, columns.timestamp_types),
    ]
    if columns.headers is None:
        return pa.RecordBatch.from_arrays(arrays, schema=ARROW_SCHEMA)
    return pa.RecordBatch.from_arrays([*arrays, columns.headers], schema=ARROW_SCHEMA.append(HEADERS_FIELD))


def _numbers(kind: pa.DataType, numbers: npt.NDArray[np.int32] | npt.NDArray[np.int64]) -> pa.Array:
    return pa.Array.from_buffers(kind, len(numbers), [None, pa.py_buffer(np.ascontiguousarray(numbers))])
