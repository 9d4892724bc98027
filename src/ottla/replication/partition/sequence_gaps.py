"""Sequence gaps of idempotent producers that will close: an earlier batch was refused, or is still in flight.

Zone: pure. A producer has several batches in flight. The first may be refused for a passing reason (too few in-sync
replicas, not the leader yet), and the next one may arrive after the reason is gone. To append it would leave a gap, or,
if the producer is not known here, put it before the batch that will be sent again. Apache Kafka answers
OUT_OF_ORDER_SEQUENCE_NUMBER, on which librdkafka begins a new epoch and writes all unacknowledged batches again, in
every partition. Here the next batch gets the retriable error of the first one, and the producer sends both again.

After an election it is the same: librdkafka sends to the new leader while earlier batches are at the old one, and
repeats those only when the old leader has refused them.

The third case is a leader that does not know yet that it was replaced: the missing batches may be at its successor. It
finds out by waiting until all replicas that could lead instead have fetched (`InSyncReplicas.follows_since`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple, TypeVar

from ottla.errors import ApiError, ErrorCode
from ottla.record.batch import HEADER_SIZE, MAGIC_V2, unpack_header
from ottla.record.header_fields import BASE_SEQUENCE, MAGIC, PRODUCER_EPOCH, PRODUCER_ID
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
"""Errors after which a producer sends the same batch again."""
KEPT_MAX: Final = 1_000
"""Most entries per table; the oldest is dropped."""
NEW_LEADER_NS: Final = 120_000_000_000
"""How long after an election the missing batches may be at the old leader: delivery.timeout.ms, after which producers
give up."""
KEPT_NS: Final = 10_000_000_000
"""How long to wait for a missing batch: batches in flight together arrive within this time. After it, the producer gets
the plain error."""
_SEQUENCE_MASK: Final = 0x7FFFFFFF
_HALF: Final = 2**30


class _RefusedBatch(NamedTuple):
    epoch: int
    sequence: int
    code: ErrorCode
    mono_ns: int


class SequenceGaps:
    """The first refused or missing batch of each producer, until it arrives."""

    __slots__ = ("_doubted", "_gave_up", "_lost", "waiting")

    def __init__(self) -> None:
        self.waiting: dict[int, _RefusedBatch] = {}
        """The missing batches, by producer id."""
        self._gave_up: dict[int, int] = {}
        """Producer id → epoch, of producers whose missing batch did not arrive in time."""
        self._lost: dict[tuple[int, int, int], None] = {}
        """Batches that were refused for good, by producer id, epoch and sequence: no batch waits for them."""
        self._doubted: dict[tuple[int, int, int], int] = {}
        """When a batch with a gap arrived for the first time, by producer id, epoch and sequence."""

    def note_refused(self, records: memoryview, error: ApiError, now: Instant) -> None:
        """Note a batch that was refused before it was written. Its header is not validated yet."""
        # 1. Errors that are retriable for the client, but that no later batch can overtake.
        if len(records) < HEADER_SIZE or (error.code.retriable and error.code not in RETRIABLE):
            return
        header = unpack_header(records, 0)
        producer_id, epoch, sequence = header[PRODUCER_ID], header[PRODUCER_EPOCH], header[BASE_SEQUENCE]
        if header[MAGIC] != MAGIC_V2 or producer_id < 0 or sequence < 0:
            return
        before = self.waiting.pop(producer_id, None)
        # 2. Refused for good: the producer does not send it again. Another missing batch stays missing.
        if error.code not in RETRIABLE:
            _put_bounded(self._lost, (producer_id, epoch, sequence), None)
            if before is not None and (before.epoch, before.sequence) != (epoch, sequence):
                self.waiting[producer_id] = before
            return
        # 3. Refused for now: remember the first missing batch of the producer.
        if before is not None and before.epoch == epoch and _is_behind(sequence, before.sequence):
            sequence = before.sequence
        _put_bounded(self.waiting, producer_id, _RefusedBatch(epoch, sequence, error.code, now.mono_ns))

    def may_be_overtaken(self, header: HeaderTuple, producers: ProducerState, epoch_start: int, now: Instant) -> bool:
        """Whether a batch with a gap may have overtaken earlier ones, which are still at the old leader.

        `epoch_start` is the end of the log when this leader began.
        """
        # 1. The producer has written to this leader already: its batches come in order.
        producer_id, epoch = header[PRODUCER_ID], header[PRODUCER_EPOCH]
        known = producers.get(producer_id)
        if known is not None and known.batches and known.batches[-1][1] >= epoch_start:
            return False
        # 2. Its missing batch has been waited for in vain.
        if self._gave_up.get(producer_id) == epoch:
            return False
        # 3. The batch that is due was refused for good. 4. Wait for it.
        goes_on = known is not None and known.epoch == epoch and known.batches
        due = (known.batches[-1][0] + 1) & _SEQUENCE_MASK if known is not None and goes_on else 0
        if (producer_id, epoch, due) in self._lost:
            return False
        _put_bounded(self.waiting, producer_id, _RefusedBatch(epoch, due, ErrorCode.NOT_ENOUGH_REPLICAS, now.mono_ns))
        return True

    def is_doubted(self, header: HeaderTuple, follows_since: Callable[[int], bool], now: Instant) -> bool:
        """Whether the batches before a gap may have been written at another leader before this batch arrived.

        `follows_since` returns whether surely no other broker had led by a given time of the monotonic clock.
        """
        key = (header[PRODUCER_ID], header[PRODUCER_EPOCH], header[BASE_SEQUENCE])
        came_ns = self._doubted.get(key)
        # A producer repeats a batch within about a second (retry.backoff.max.ms). So an older entry is of another gap
        # before the same sequence.
        if came_ns is None or now.mono_ns - came_ns > KEPT_NS:
            came_ns = now.mono_ns
            _put_bounded(self._doubted, key, came_ns)
        if not follows_since(came_ns):
            return True
        del self._doubted[key]
        return False

    def check_missing(self, header: HeaderTuple, producers: ProducerState, now: Instant) -> None:
        """Raise the error of an earlier batch again if that one is still missing."""
        refused = self.waiting.get(header[PRODUCER_ID])
        if refused is None or refused.epoch != header[PRODUCER_EPOCH]:
            return
        # 1. This is the missing batch, or it is in the log. 2. It did not arrive in time. 3. It is still missing.
        if header[BASE_SEQUENCE] == refused.sequence or _has_batch(producers, header, refused):
            del self.waiting[header[PRODUCER_ID]]
        elif now.mono_ns - refused.mono_ns > KEPT_NS:
            del self.waiting[header[PRODUCER_ID]]
            _put_bounded(self._gave_up, header[PRODUCER_ID], header[PRODUCER_EPOCH])
        elif _is_behind(header[BASE_SEQUENCE], refused.sequence):
            raise ApiError(
                refused.code, f"sequence {refused.sequence} of this producer has to be appended first; retry"
            )


def _put_bounded(kept: dict[K, V], key: K, value: V) -> None:
    # A dict keeps a key's first place. Without this, an entry that was just renewed could be the next one to be
    # dropped.
    kept.pop(key, None)
    kept[key] = value
    if len(kept) > KEPT_MAX:
        del kept[next(iter(kept))]


def _is_behind(sequence: int, other: int) -> bool:
    """Whether a sequence comes after another one."""
    # Sequences continue with 0 after 2^31 - 1: the later of two is less than half of the range ahead.
    return 0 < (sequence - other) & _SEQUENCE_MASK < _HALF


def _has_batch(producers: ProducerState, header: HeaderTuple, refused: _RefusedBatch) -> bool:
    """Whether the refused batch is in the log meanwhile, written by another leader."""
    known = producers.get(header[PRODUCER_ID])
    if known is None or known.epoch != refused.epoch or not known.batches:
        return False
    return known.batches[-1][0] == refused.sequence or _is_behind(known.batches[-1][0], refused.sequence)
