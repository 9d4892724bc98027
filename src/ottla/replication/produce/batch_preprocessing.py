"""Inspects or recompresses batches before they are appended: for compacted topics, for topics that limit the size of
records in compressed batches, and for topics with a codec of their own (compression.type).

Zone: deterministic. A step of a Produce request before it runs; `record.inspection` has the checks. Small batches are
inspected within the turn, others in a worker, one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from ottla.errors import ApiError, ErrorCode
from ottla.record.headerless_records import LIMIT_MAX
from ottla.record.inspection import (
    INLINE_EXPANDED,
    Recoding,
    RecordRules,
    Refusal,
    RefusedRecords,
    inspect_batch,
    is_small,
)
from ottla.record.validation import validate_produced
from ottla.replication.partition.partition import Partition
from ottla.replication.partition_registry import Topics, find_writable
from ottla.seams import Failure, Kind, World

IN_TURN: Final = 8
"""Small batches of a request that are inspected within a turn, a millisecond each; a worker inspects the next one."""
PREPARE_JOB: Final = "ottla.record.inspection:prepare_batch"
_CODEC_POS: Final = 22
_CODEC_MASK: Final = 0x07
_ZSTD: Final = 4

BatchItem = tuple[str | bytes, int, "memoryview | RefusedBatch | None"]
"""(topic name, or id from version 13 on; partition; records, or why an earlier step refused them)."""


class RefusedBatch:
    """Takes the place of records that were refused before their append. It is false, as missing records are, so the
    hot path needs no further test."""

    __slots__ = ("error",)

    def __init__(self, error: ApiError) -> None:
        self.error = error

    def __bool__(self) -> bool:
        return False


def without_zstd(items: Sequence[BatchItem]) -> list[BatchItem]:
    """The items with zstd batches refused: for versions of Produce that do not know zstd (KIP-110)."""
    return [(name, index, _unless_zstd(records)) for name, index, records in items]


def _unless_zstd(records: memoryview | RefusedBatch | None) -> memoryview | RefusedBatch | None:
    if isinstance(records, memoryview) and len(records) > _CODEC_POS and records[_CODEC_POS] & _CODEC_MASK == _ZSTD:
        return RefusedBatch(
            ApiError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "this version of Produce does not support zstd")
        )
    return records


def job_error(result: object, what: str) -> ApiError:
    """The error for a failed job. A job that needed too much time or memory will do so again: INVALID_RECORD, on which
    producers do not retry."""
    hopeless = isinstance(result, Failure) and result.kind in (Kind.TIMEOUT, Kind.FULL)
    return ApiError(ErrorCode.INVALID_RECORD if hopeless else ErrorCode.CORRUPT_MESSAGE, f"{what}: {result}")


class BatchPreprocessing:
    """Prepares the batches of one request, one after the other."""

    def __init__(
        self,
        world: World,
        topics: Topics,
        items: Sequence[BatchItem],
        run: Callable[[Sequence[BatchItem]], None],
        owner: object = None,
    ) -> None:
        """`run` receives the items; refused ones carry their error. `owner` as in `seams.Workers`."""
        self._world = world
        self._owner = owner
        self._topics = topics
        self._items: list[BatchItem] = list(items)
        self._run = run
        self._here = 0
        """Batches that were inspected in this turn."""

    def prepare_from(self, at: int) -> None:
        """Prepare from item `at` on; run the request when all are done."""
        items = self._items
        self._here = 0
        for position in range(at, len(items)):
            name, index, records = items[position]
            partition = find_writable(self._topics, name, index)
            if partition is None or not isinstance(records, memoryview) or not _needs_preparation(partition, records):
                continue
            try:
                if self._start_preparation(position, partition, records):
                    return
            except ApiError as error:
                items[position] = (name, index, RefusedBatch(error.as_value()))
        self._run(items)

    def _start_preparation(self, position: int, partition: Partition, records: memoryview) -> bool:
        """Check a batch. Returns whether a worker continues with it. Raises ApiError when the batch is refused."""
        now_ms = self._world.clock.now().wall_ms
        header = validate_produced(records, 0, len(records), now_ms, *partition.batch_limits)
        rules = RecordRules(partition.needs_keys, now_ms, *partition.batch_limits[1:], partition.record_max)
        recoding = _recoding_for(partition, records)
        if recoding is None and is_small(header) and self._here < IN_TURN:
            self._here += 1
            refusal = inspect_batch(records, rules, INLINE_EXPANDED)
            if refusal is None:
                return False
            # CORRUPT_MESSAGE may only mean that the batch expands beyond a turn's limit; a worker has a higher one.
            if refusal.code != ErrorCode.CORRUPT_MESSAGE:
                raise RefusedRecords(refusal)
        arguments = (bytes(records), rules, recoding)
        self._world.workers.run_job(PREPARE_JOB, arguments, lambda result: self._on_done(position, result), self._owner)
        return True

    def _on_done(self, position: int, result: object) -> None:
        name, index, _ = self._items[position]
        if isinstance(result, bytes):
            self._items[position] = (name, index, memoryview(bytearray(result)))
        elif isinstance(result, Refusal):
            self._items[position] = (name, index, RefusedBatch(RefusedRecords(result)))
        elif result is not None:
            self._items[position] = (name, index, RefusedBatch(job_error(result, "the batch cannot be inspected")))
        self.prepare_from(position + 1)


def _needs_preparation(partition: Partition, records: memoryview) -> bool:
    if not partition.is_leader:
        return False
    # A record of an uncompressed batch is no larger than the batch, which max.message.bytes limits.
    compressed = len(records) > _CODEC_POS and records[_CODEC_POS] & _CODEC_MASK
    limited = bool(compressed) and partition.record_max < LIMIT_MAX
    return limited or partition.needs_keys or _recoding_for(partition, records) is not None


def _recoding_for(partition: Partition, records: memoryview) -> Recoding | None:
    """The codec to which this batch must be recompressed before it is appended; None when it can stay as it is."""
    codec, level = partition.codec_and_level
    if codec < 0 or len(records) <= _CODEC_POS or records[_CODEC_POS] & _CODEC_MASK == codec:
        return None
    return Recoding(codec, level)
