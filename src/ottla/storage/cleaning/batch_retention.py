"""What becomes of each batch when a log is rewritten.

Zone: deterministic. Second pass of compaction; the judge is shown every batch in offset order and reads no bytes.

A record stays when no later one has its key. A tombstone stays `delete.retention.ms` longer: the first pass that finds
nothing older of its key gives its batch a delete horizon, a later one removes it (KIP-534). So do markers once the
records of their transaction are gone. The last batch of a producer stays without its records: who restores its state
from the log must find its sequence number.
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
    """What becomes of a batch."""

    COPY = 1
    """Stays, byte for byte."""
    REWRITE = 2
    """Loses records, or gets a delete horizon."""
    BARE = 3
    """Stays without its records."""
    DROP = 4
    """Goes."""


class RetentionDecision(NamedTuple):
    """A batch's fate; for REWRITE with what stays."""

    fate: RetentionFate
    keep: bytes | array[int] = b""
    """One byte per record, 1: stays; or the offsets that stay (`Rewrite`)."""
    delete_horizon_ms: int | None = None
    """To be set now."""


class LastBatch(NamedTuple):
    """A producer, as `ProducerState` knows it."""

    epoch: int
    last_offset: int
    """Of its last data batch in this epoch; -1: there is none, only a marker."""


class RetentionProducers(Protocol):
    """What a log knows of its producers."""

    def get(self, producer_id: int, /) -> LastBatch | None:
        """The one with this id."""
        ...


@dataclass(frozen=True, slots=True)
class RetentionBounds:
    """What may go at all."""

    now_ms: int
    """Wall time of the pass."""
    delete_retention_ms: int
    """How long a tombstone stays after it is the only record of its key (delete.retention.ms)."""
    removable_below: int
    """Tombstones and markers from this offset on stay in any case: a replica has not cleaned past them."""
    tombstones_stay: bool = True
    """The safeguard."""


COPY, BARE, DROP = (
    RetentionDecision(RetentionFate.COPY),
    RetentionDecision(RetentionFate.BARE),
    RetentionDecision(RetentionFate.DROP),
)


class BatchRetention:
    """The verdicts of one pass."""

    __slots__ = ("_alive", "_bounds", "_latest", "_producers", "_transactions")

    def __init__(
        self,
        latest: OffsetMap,
        alive: LiveOffsets,
        transactions: CleanedTransactions,
        producers: RetentionProducers,
        bounds: RetentionBounds,
    ) -> None:
        """`alive`: of what is in `latest`."""
        self._latest = latest
        self._alive = alive
        self._transactions = transactions
        self._producers = producers
        self._bounds = bounds

    def control(self, header: BatchHeader, marker: Marker | None) -> RetentionDecision:
        """A control batch. `marker`: what is in it, None for another control record or none."""
        if not self._transactions.is_needless(header, marker):
            return COPY
        if not header.record_count or self._is_due(header):
            return self._emptied(header)
        if header.delete_horizon_ms is None:
            return RetentionDecision(RetentionFate.REWRITE, b"\1" * header.record_count, self._horizon())
        return COPY

    def without_keys(self, header: BatchHeader) -> RetentionDecision | None:
        """A data batch; None when its keys decide."""
        if self._transactions.is_aborted(header) or not header.record_count:
            return self._emptied(header)
        if header.base_offset >= self._alive.end_offset:
            return COPY
        whole = header.record_count == header.last_offset_delta + 1
        seen = header.base_offset >= self._alive.start_offset and header.last_offset < self._alive.end_offset
        return self._by_offsets(header) if seen and whole else None

    def _by_offsets(self, header: BatchHeader) -> RetentionDecision | None:
        """A batch that the first pass has seen whole, and of which no record was ever taken out."""
        place = header.base_offset, header.last_offset
        kept = self._alive.within(*place)
        horizon = None
        if self._alive.has_tombstones(*place):
            if self._is_due(header):
                return None
            horizon = self._horizon() if header.delete_horizon_ms is None else None
        if not kept:
            return self._emptied(header)
        if len(kept) == header.record_count and horizon is None:
            return COPY
        return RetentionDecision(RetentionFate.REWRITE, kept, horizon)

    def kept(self, header: BatchHeader, keys: Keys) -> tuple[bytearray, bool]:
        """Which of some records of a batch stay, one byte for each, and whether a tombstone is among them.

        For batches about which `without_keys` is silent, piece by piece.
        """
        keep = self._latest.kept(header.base_offset, keys)
        standing = [index for index in keys.tombstones if keep[index]]
        if standing and self._is_due(header):
            for index in standing:
                keep[index] = 0
            standing = []
        return keep, bool(standing)

    def with_keys(self, header: BatchHeader, keep: bytearray, has_tombstones: bool) -> RetentionDecision:
        """A batch of which `kept` has seen all records."""
        horizon = self._horizon() if has_tombstones and header.delete_horizon_ms is None else None
        if 1 not in keep:
            return self._emptied(header)
        if 0 not in keep and horizon is None:
            return COPY
        return RetentionDecision(RetentionFate.REWRITE, bytes(keep), horizon)

    def _horizon(self) -> int:
        return add_saturating(self._bounds.now_ms, self._bounds.delete_retention_ms)

    def _is_due(self, header: BatchHeader) -> bool:
        """Whether tombstones and needless markers of a batch may go."""
        if not self._bounds.tombstones_stay:
            return True
        horizon = header.delete_horizon_ms
        return (
            horizon is not None and self._bounds.now_ms >= horizon and header.last_offset < self._bounds.removable_below
        )

    def _emptied(self, header: BatchHeader) -> RetentionDecision:
        """A batch of which no record stays."""
        if not self._is_last_of_its_producer(header):
            return DROP
        return BARE if header.record_count else COPY

    def _is_last_of_its_producer(self, header: BatchHeader) -> bool:
        last = self._producers.get(header.producer_id)
        if last is None or last.epoch != header.producer_epoch:
            return False
        return header.last_offset == last.last_offset if last.last_offset >= 0 else header.is_control
