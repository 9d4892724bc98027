"""Writes Arrow record batches to topics at least once; the encoding is shared with `transactional_write`.

Zone: real. Runs in Spark's Python workers. `ottla.client.columns.columnar` encodes rows into record batches,
`columnar_partitions` chooses partitions, and the client sends and retries.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ottla.client.cluster import Cluster
from ottla.client.columns.columnar import ANONYMOUS, Encoded, Encoder, Producer, fields_of
from ottla.client.columns.columnar_partitions import partition_chunks, partitions_of_keys, spread_rows
from ottla.client.errors import values_of
from ottla.client.metadata import NO_LEADER, TopicView
from ottla.client.produce import Batch, Identity, Sender, new_identity
from ottla.client.retry import wall_ms
from ottla.client.settings import CODECS
from ottla.spark.errors import BadRows
from ottla.spark.sink.sink_options import SinkOptions
from ottla.types import TopicPartition

Ints = npt.NDArray[np.int64]
Queue = deque[Encoded]


def write_batches(options: SinkOptions, batches: Iterable[pa.RecordBatch]) -> int:
    """Write all rows, and wait for their acknowledgement, according to `acks`. Returns their number.

    Raises BadRows for a row without a topic or with a partition that does not exist, and the client's errors. Rows
    written before an error stay written: Spark runs the task again, so that they may be in the topic twice.
    """
    with Cluster(options.client) as cluster:
        sender = Sender(cluster)
        # A producer id per attempt, so that brokers recognize batches that it sends again.
        identity = cache(lambda: new_identity(cluster))
        rows = Rows(cluster, options, identity if options.client.enable_idempotence else None)
        written = 0
        for batch in batches:
            send_all(lambda heads: values_of(sender.send(heads)), rows.encode_rows(batch))
            written += batch.num_rows
        return written


def send_all(send: Callable[[Mapping[TopicPartition, Batch]], object], queues: Mapping[TopicPartition, Queue]) -> None:
    """Send all batches, one per partition at a time, so that their order is kept."""
    while heads := {tp: queue.popleft().data for tp, queue in queues.items() if queue}:
        send(heads)


class Rows:
    """Encodes the rows of one task into record batches by partition."""

    def __init__(
        self,
        cluster: Cluster,
        options: SinkOptions,
        identity: Callable[[], Identity] | None,
        *,
        transactional: bool = False,
    ) -> None:
        """identity: gives the producer id, when there are rows to write. None: batches without a producer."""
        self._transactional = transactional
        self._cluster = cluster
        self._options = options
        self._codec = CODECS[options.client.compression_type]
        self._identity = identity
        # A random beginning: otherwise small tasks would all write their rows to the first partitions.
        self._turn = random.randrange(1 << 16)

    def encode_rows(self, batch: pa.RecordBatch) -> dict[TopicPartition, Queue]:
        """The encoded batches of each partition, in their order. Raises BadRows, and the client's errors."""
        rows: int = batch.num_rows
        if not rows:
            return {}
        columns = {name: batch.column(name) for name in batch.schema.names}
        times = np.full(rows, wall_ms(), np.int64)
        encoder = Encoder(columns.get("key"), columns["value"], times, columns.get("headers"))
        return {
            tp: deque(self._encode_partition(encoder, tp, some))
            for topic, chosen in self._by_topic(columns, rows)
            for tp, some in self._by_partition(topic, chosen, columns)
        }

    def _by_topic(self, columns: Mapping[str, pa.Array], rows: int) -> Iterator[tuple[str, Ints]]:
        """The rows of each topic."""
        if self._options.topic is not None:
            yield self._options.topic, np.arange(rows)
            return
        if columns["topic"].null_count:
            raise BadRows("a row has no topic (null in the column `topic`): set the option topic, or filter such rows")
        names = columns["topic"].dictionary_encode()
        codes = names.indices.to_numpy(zero_copy_only=False)
        for code, topic in enumerate(names.dictionary.to_pylist()):
            yield topic, np.nonzero(codes == code)[0]

    def _by_partition(
        self, topic: str, rows: Ints, columns: Mapping[str, pa.Array]
    ) -> Iterator[tuple[TopicPartition, Ints]]:
        """The rows of each partition, in their order."""
        view = self._cluster.topic(topic, create=True)
        keyed = self._partitions_by_key(rows, columns, len(view.partitions))
        if keyed is None and "partition" not in columns:
            for number, some in partition_chunks(len(rows), _writable_partitions(view), self._next_turn()):
                yield TopicPartition(topic, number), rows[some]
            return
        chosen = np.full(len(rows), -1, np.int64) if keyed is None else keyed
        if "partition" in columns:
            _override_partitions(chosen, columns["partition"], rows, view)
        free = np.nonzero(chosen < 0)[0]
        if len(free):
            chosen[free] = spread_rows(len(free), _writable_partitions(view), self._next_turn())
        # Stable: rows of a partition keep the order that they have in the batch.
        order = np.argsort(chosen, kind="stable")
        edges = np.nonzero(np.diff(chosen[order]))[0] + 1
        for part in np.split(order, edges):
            yield TopicPartition(topic, int(chosen[part[0]])), rows[part]

    def _next_turn(self) -> int:
        self._turn += 1
        return self._turn

    def _partitions_by_key(self, rows: Ints, columns: Mapping[str, pa.Array], partitions: int) -> Ints | None:
        """The partition of each row by its key; -1 for a free choice. None: no row has a key."""
        keys = columns.get("key")
        if keys is None or self._options.ignore_keys or keys.null_count == len(keys):
            return None
        data, places = fields_of(keys)
        return partitions_of_keys((data, places[:, rows]), partitions)

    def _encode_partition(self, encoder: Encoder, tp: TopicPartition, rows: Ints) -> list[Encoded]:
        return encoder.encode_batches(
            rows,
            codec=self._codec,
            level=self._options.level,
            max_bytes=self._options.batch_bytes,
            producer=self._next_producer(tp, len(rows)),
        )

    def _next_producer(self, tp: TopicPartition, records: int) -> Producer:
        if self._identity is None:
            return ANONYMOUS
        identity = self._identity()
        # Numbers are taken in the order in which `send_all` sends: one batch of a partition at a time.
        sequence = identity.take_sequence(tp, records)
        return Producer(identity.producer_id, identity.producer_epoch, sequence, self._transactional)


def _writable_partitions(view: TopicView) -> list[int]:
    """Partitions for rows without a key or partition: those with a leader, or all if none has one."""
    led = [part.partition for part in view.partitions.values() if part.leader != NO_LEADER]
    return led or list(view.partitions)


def _override_partitions(chosen: Ints, named: pa.Array, rows: Ints, view: TopicView) -> None:
    """Override the choice by key with the column `partition`, where it is not null. Raises BadRows."""
    numbers = named.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)[rows]
    given = named.is_valid().to_numpy(zero_copy_only=False)[rows]
    wrong = given & ~np.isin(numbers, list(view.partitions))
    if wrong.any():
        number = int(numbers[int(np.argmax(wrong))])
        raise BadRows(f"a row names partition {number} of {view.name}, which has {len(view.partitions)} partitions")
    chosen[given] = numbers[given]
