"""The journal of a shard: appends to the log of a partition; a position is committed at the high watermark.

Zone: deterministic. There is one journal per leader epoch. It is lost when the partition gets another leader or epoch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ottla.coordinator.shard import JournalProducer
from ottla.errors import ApiError, ErrorCode
from ottla.record.batch import TRANSACTIONAL, Record, encode_batch, encode_one
from ottla.replication.partition.partition import Partition
from ottla.replication.partition.partition_listeners import PartitionListener
from ottla.seams import Instant
from ottla.types import NO_PRODUCER_EPOCH, NO_PRODUCER_ID

_NOBODY: Final = (NO_PRODUCER_ID, NO_PRODUCER_EPOCH)


class PartitionJournal:
    """Appends to a partition while it is led here in one epoch."""

    __slots__ = ("_codec", "epoch", "partition")

    def __init__(self, partition: Partition, codec: int = 0) -> None:
        """`codec`: the compression of batches, as Kafka numbers it."""
        self.partition = partition
        self.epoch = partition.leader_epoch
        self._codec = codec

    @property
    def is_lost(self) -> bool:
        """Whether the leader epoch of this journal is over: state that was applied from it may not be committed."""
        return not self.partition.is_leader or self.partition.leader_epoch != self.epoch

    @property
    def committed_position(self) -> int:
        """All positions up to and including this one are committed."""
        return self.partition.high_watermark

    def append(
        self, records: Sequence[tuple[bytes, bytes | None]], producer: JournalProducer | None, now: Instant
    ) -> tuple[int, int]:
        """Append one batch: (offset of its first record, its position, to be compared with `committed_position`).

        Raises ApiError, with nothing written: NOT_LEADER_OR_FOLLOWER, NOT_ENOUGH_REPLICAS, MESSAGE_TOO_LARGE,
        RECORD_LIST_TOO_LARGE, KAFKA_STORAGE_ERROR; INVALID_PRODUCER_EPOCH when the log has a later epoch of the
        producer.
        """
        partition = self.partition
        if not partition.is_leader or partition.leader_epoch != self.epoch:  # `is_lost`, without a call
            raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{partition.tp} is not led here any more")
        # `append_own` checks no producer, so a late request has to be refused here.
        if producer is not None:
            self._check_epoch(producer)
        # Most decisions are one record without compression: that batch is packed without the general encoder.
        if len(records) == 1 and not self._codec:
            attributes, identity = (0, _NOBODY) if producer is None else (TRANSACTIONAL, producer)
            batch = encode_one(attributes, now.wall_ms, *records[0], *identity, -1 if producer is None else 0)
        else:
            batch = self._encode_records(records, producer, now.wall_ms)
        base = partition.leader_role.append_own(memoryview(batch), now)
        return base, base + len(records)

    def _encode_records(
        self, records: Sequence[tuple[bytes, bytes | None]], producer: JournalProducer | None, wall_ms: int
    ) -> bytearray:
        # Sequence 0 in every batch, as Kafka's coordinator writes it: a transactional batch needs one, and no leader
        # checks those of a coordinator.
        producer_id, epoch, sequence = (-1, -1, -1) if producer is None else (*producer, 0)
        return encode_batch(
            [Record(at, wall_ms, key, value, ()) for at, (key, value) in enumerate(records)],
            codec=self._codec,
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
            transactional=producer is not None,
        )

    def _check_epoch(self, producer: JournalProducer) -> None:
        """Raises ApiError for a late request of an older epoch: its records would open a transaction without an end."""
        known = self.partition.log.producers.get(producer.producer_id)
        if known is not None and known.epoch > producer.epoch:
            text = f"producer {producer.producer_id} is in epoch {known.epoch}; epoch {producer.epoch} is over"
            raise ApiError(ErrorCode.INVALID_PRODUCER_EPOCH, text)

    def add_listener(self, watcher: PartitionListener) -> None:
        """Call `watcher.wake` once, when the high watermark advances or the journal is lost."""
        self.partition.watchers[watcher] = None
