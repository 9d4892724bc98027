"""Batches of idempotent producers that are early, not out of order: one before them was refused, or is on its way.

Zone: pure. A producer has several batches on the way. When the first is refused (too few in sync, not the leader yet)
and the next one comes after the reason has gone, appending it would leave a gap, or, when the producer is not known
here, put it before the one that is sent again. Apache Kafka answers OUT_OF_ORDER_SEQUENCE_NUMBER, on which librdkafka
begins a new epoch and writes again what it does not know to be written, in every partition. The reason of the first
refusal, which is retriable, sends the producer back to where it was.

A new leader is the same case: librdkafka turns to it while its earlier batches lie at the old one, and sends them again
when that one has refused them, a moment too late.

And so is a leader that was put aside and has not heard of it: what it misses was written at its successor. It cannot
know, but those that might lead instead still follow it, or not (`InSyncReplicas.follows_since`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple, TypeVar

from ottla.errors import ApiError, ErrorCode
from ottla.record.batch import HEADER_SIZE, MAGIC_V2, unpack_header
from ottla.record.validation import HeaderTuple
from ottla.seams import Instant
from ottla.storage.producers.producer_state import ProducerState

K = TypeVar("K")
V = TypeVar("V")

RETRIABLE: Final = (
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.CONCURRENT_TRANSACTIONS,
)
"""Refusals after which a producer sends the same batch again."""
KEPT_MAX: Final = 1_000
"""Producers per partition; the longest refused is forgotten."""
NEW_LEADER_NS: Final = 120_000_000_000
"""So long after a change of the leader a gap may be what lay at the old one: delivery.timeout.ms, after which producers
give up."""
KEPT_NS: Final = 10_000_000_000
"""What was on the way together arrives within this; a producer that gave a batch up gets the honest error again."""
_SEQUENCE_MASK: Final = 0x7FFFFFFF
_HALF: Final = 2**30


class _RefusedBatch(NamedTuple):
    epoch: int
    sequence: int
    code: ErrorCode
    mono_ns: int


class SequenceGaps:
    """The first refused batch of each producer, until it is here."""

    __slots__ = ("_doubted", "_gave_up", "_lost", "waiting")

    def __init__(self) -> None:
        self.waiting: dict[int, _RefusedBatch] = {}
        """By producer id."""
        self._gave_up: dict[int, int] = {}
        """Producers, with their epochs, whose missing batch did not come in time."""
        self._lost: dict[tuple[int, int, int], None] = {}
        """Batches that were refused for good, by producer id, epoch and sequence: nothing has to wait for them."""
        self._doubted: dict[tuple[int, int, int], int] = {}
        """When a batch came first that leaves a gap, by producer id, epoch and sequence."""

    def note_refused(self, records: memoryview, error: ApiError, now: Instant) -> None:
        """A batch was refused before anything of it was written; nothing of it is checked yet."""
        if len(records) < HEADER_SIZE or (error.code.retriable and error.code not in RETRIABLE):
            return
        header = unpack_header(records, 0)
        producer_id, epoch, sequence = header[9], header[10], header[11]
        if header[3] != MAGIC_V2 or producer_id < 0 or sequence < 0:
            return
        before = self.waiting.pop(producer_id, None)
        if error.code not in RETRIABLE:
            _put(self._lost, (producer_id, epoch, sequence), None)
            if before is not None and (before.epoch, before.sequence) != (epoch, sequence):
                self.waiting[producer_id] = before
            return
        if before is not None and before.epoch == epoch and _is_behind(sequence, before.sequence):
            sequence = before.sequence  # that one is still missing
        _put(self.waiting, producer_id, _RefusedBatch(epoch, sequence, error.code, now.mono_ns))

    def overtaken(self, header: HeaderTuple, producers: ProducerState, epoch_start: int, now: Instant) -> bool:
        """Whether a batch that leaves a gap may have overtaken those before it, which lay at the old leader.

        So it is when its producer has written nothing since `epoch_start`, the end of the log when this leader began;
        for a while, in which the first of its batches can come.
        """
        producer_id, epoch = header[9], header[10]
        known = producers.get(producer_id)
        if known is not None and known.batches and known.batches[-1][1] >= epoch_start:
            return False
        if self._gave_up.get(producer_id) == epoch:
            return False
        goes_on = known is not None and known.epoch == epoch and known.batches
        due = (known.batches[-1][0] + 1) & _SEQUENCE_MASK if known is not None and goes_on else 0
        if (producer_id, epoch, due) in self._lost:
            return False
        _put(self.waiting, producer_id, _RefusedBatch(epoch, due, ErrorCode.NOT_ENOUGH_REPLICAS, now.mono_ns))
        return True

    def doubted(self, header: HeaderTuple, follows_since: Callable[[int], bool], now: Instant) -> bool:
        """Whether what a batch misses may have been written at another leader before it came.

        `follows_since` tells whether surely nobody else had led at a time of the monotonic clock.
        """
        key = (header[9], header[10], header[11])
        came_ns = self._doubted.get(key)
        if came_ns is None or now.mono_ns - came_ns > KEPT_NS:
            came_ns = now.mono_ns
            _put(self._doubted, key, came_ns)
        if not follows_since(came_ns):
            return True
        del self._doubted[key]
        return False

    def check(self, header: HeaderTuple, producers: ProducerState, now: Instant) -> None:
        """Raise the refusal of the batch before this one, if that has still not come."""
        refused = self.waiting.get(header[9])
        if refused is None or refused.epoch != header[10]:
            return
        if header[11] == refused.sequence or _has(producers, header, refused):
            del self.waiting[header[9]]
        elif now.mono_ns - refused.mono_ns > KEPT_NS:
            del self.waiting[header[9]]
            _put(self._gave_up, header[9], header[10])
        elif _is_behind(header[11], refused.sequence):
            raise ApiError(
                refused.code, f"sequence {refused.sequence} of this producer is still to come, and goes first"
            )


def _put(kept: dict[K, V], key: K, value: V) -> None:
    kept.pop(key, None)
    kept[key] = value
    if len(kept) > KEPT_MAX:
        del kept[next(iter(kept))]


def _is_behind(sequence: int, other: int) -> bool:
    """Whether a sequence comes after another one."""
    return 0 < (sequence - other) & _SEQUENCE_MASK < _HALF


def _has(producers: ProducerState, header: HeaderTuple, refused: _RefusedBatch) -> bool:
    """Whether the refused batch is in the log meanwhile: it came through another leader."""
    known = producers.get(header[9])
    if known is None or known.epoch != refused.epoch or not known.batches:
        return False
    return known.batches[-1][0] == refused.sequence or _is_behind(known.batches[-1][0], refused.sequence)
