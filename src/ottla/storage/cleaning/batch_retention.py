"""Decides the fate of each batch when a log is rewritten.

Zone: deterministic. The second pass of compaction shows it every batch in offset order; it reads no bytes.

A record stays when no later one has its key. A tombstone stays `delete.retention.ms` longer: the first pass that finds
nothing older of its key gives its batch a delete horizon, a later one removes it (KIP-534). Markers are treated the
same way once the records of their transaction are removed. The last batch of a producer stays without its records: its
sequence number is needed to restore the producer's state from the log.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Protocol

from ottla.int64 import add_saturating
from ottla.record.batch import BatchHeader
from ottla.record.compaction import Keys
from ottla.record.control import Marker
from ottla.storage.cleaning.live_offsets import LiveOffsets
from ottla.storage.cleaning.offset_map import OffsetMap
from ottla.storage.cleaning.transactions import CleanedTransactions


class RetentionFate(Enum):
    """What happens to a batch."""

    COPY = 1
    """It stays, byte for byte."""
    REWRITE = 2
    """It loses records, or gets a delete horizon."""
    BARE = 3
    """It stays without its records."""
    DROP = 4
    """It is removed."""


class RetentionDecision(NamedTuple):
    """A batch's fate; for REWRITE, with the records to keep."""

    fate: RetentionFate
    keep: bytes | array[int] = b""
    """One byte per record, 1 keeps it; or the offsets to keep (`Rewrite`)."""
    delete_horizon_ms: int | None = None
    """The delete horizon to set, if any."""


class LastBatch(NamedTuple):
    """A producer, as `ProducerState` knows it."""

    epoch: int
    last_offset: int
    """Last offset of its last data batch in this epoch; -1 when the epoch has only a marker."""


class RetentionProducers(Protocol):
    """The producers of a log."""

    def get(self, producer_id: int, /) -> LastBatch | None:
        """The producer with this id; None when it is not known."""
        ...


@dataclass(frozen=True, slots=True)
class RetentionBounds:
    """Limits of what may be removed."""

    now_ms: int
    """Wall time of the pass."""
    delete_retention_ms: int
    """How long a tombstone stays after it is the only record of its key (delete.retention.ms)."""
    removable_below: int
    """Tombstones and markers from this offset on stay in any case: a replica has not cleaned past them."""


COPY, BARE, DROP = (
    RetentionDecision(RetentionFate.COPY),
    RetentionDecision(RetentionFate.BARE),
    RetentionDecision(RetentionFate.DROP),
)


class BatchRetention:
    """The decisions of one pass."""

    __slots__ = ("_alive", "_bounds", "_latest", "_producers", "_transactions")

    def __init__(
        self,
        latest: OffsetMap,
        alive: LiveOffsets,
        transactions: CleanedTransactions,
        producers: RetentionProducers,
        bounds: RetentionBounds,
    ) -> None:
        """`alive`: the live offsets of the part of the log that is in `latest`."""
        self._latest = latest
        self._alive = alive
        self._transactions = transactions
        self._producers = producers
        self._bounds = bounds

    def decide_control(self, header: BatchHeader, marker: Marker | None) -> RetentionDecision:
        """Decide about a control batch. `marker`: its transaction marker; None for another control record or none."""
        # 1. Records of its transaction are left, or it is not a marker: it stays.
        if not self._transactions.is_needless(header, marker):
            return COPY
        # 2. Nothing is left to remove, or its delete horizon has passed.
        if not header.record_count or self._is_due(header):
            return self._decide_empty(header)
        # 3. The first pass that finds it needless sets the horizon; 4. later passes wait for that time.
        if header.delete_horizon_ms is None:
            return RetentionDecision(RetentionFate.REWRITE, b"\1" * header.record_count, self._new_delete_horizon())
        return COPY

    def decide_without_keys(self, header: BatchHeader) -> RetentionDecision | None:
        """Decide about a data batch without reading its keys; None when they are needed."""
        # 1. Aborted records are never seen by consumers of committed ones, and have no part in the map of keys.
        if self._transactions.is_aborted(header) or not header.record_count:
            return self._decide_empty(header)
        # 2. The first pass did not come this far.
        if header.base_offset >= self._alive.end_offset:
            return COPY
        # 3. The first pass has read all its records, none is missing: its live offsets are known without its keys.
        whole = header.record_count == header.last_offset_delta + 1
        seen = header.base_offset >= self._alive.start_offset and header.last_offset < self._alive.end_offset
        return self._decide_by_offsets(header) if seen and whole else None

    def _decide_by_offsets(self, header: BatchHeader) -> RetentionDecision | None:
        """Decide about a batch that the first pass has read whole, and that never lost a record; None: by its keys."""
        place = header.base_offset, header.last_offset
        kept = self._alive.offsets_within(*place)
        horizon = None
        if self._alive.has_tombstones(*place):
            # Its tombstones may be removed now: only the keys show which of its live records are tombstones.
            if self._is_due(header):
                return None
            horizon = self._new_delete_horizon() if header.delete_horizon_ms is None else None
        if not kept:
            return self._decide_empty(header)
        if len(kept) == header.record_count and horizon is None:
            return COPY
        return RetentionDecision(RetentionFate.REWRITE, kept, horizon)

    def kept_records(self, header: BatchHeader, keys: Keys) -> tuple[bytearray, bool]:
        """Which of some records of a batch stay, one byte for each, and whether a tombstone is among them.

        For batches for which `decide_without_keys` returned None, piece by piece.
        """
        keep = self._latest.kept_records(header.base_offset, keys)
        standing = [index for index in keys.tombstones if keep[index]]
        if standing and self._is_due(header):
            for index in standing:
                keep[index] = 0
            standing = []
        return keep, bool(standing)

    def decide_with_keys(self, header: BatchHeader, keep: bytearray, has_tombstones: bool) -> RetentionDecision:
        """Decide about a batch after `kept_records` has seen all its records."""
        horizon = self._new_delete_horizon() if has_tombstones and header.delete_horizon_ms is None else None
        if 1 not in keep:
            return self._decide_empty(header)
        if 0 not in keep and horizon is None:
            return COPY
        return RetentionDecision(RetentionFate.REWRITE, bytes(keep), horizon)

    def _new_delete_horizon(self) -> int:
        return add_saturating(self._bounds.now_ms, self._bounds.delete_retention_ms)

    def _is_due(self, header: BatchHeader) -> bool:
        """Whether tombstones and needless markers of a batch may be removed."""
        horizon = header.delete_horizon_ms
        return (
            horizon is not None and self._bounds.now_ms >= horizon and header.last_offset < self._bounds.removable_below
        )

    def _decide_empty(self, header: BatchHeader) -> RetentionDecision:
        """Decide about a batch of which no record stays."""
        if not self._is_last_of_its_producer(header):
            return DROP
        return BARE if header.record_count else COPY

    def _is_last_of_its_producer(self, header: BatchHeader) -> bool:
        # Without data batches in its epoch, the producer's marker is the only batch that shows the epoch.
        last = self._producers.get(header.producer_id)
        if last is None or last.epoch != header.producer_epoch:
            return False
        return header.last_offset == last.last_offset if last.last_offset >= 0 else header.is_control
