"""Inspects or recompresses batches before they are appended: for compacted topics, for topics that limit the size of
records in compressed batches, and for topics with a codec of their own (compression.type).

Zone: deterministic. A step of `slow_produce`; `record.inspection` has the checks. Small batches are
inspected within the turn, others in a worker, one after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
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
from ottla.record.validation import HeaderTuple, validate_produced
from ottla.replication.partition.partition import Partition
from ottla.replication.partition_registry import Topics, find_writable
from ottla.replication.produce.produce_items import (
    CODEC_MASK,
    CODEC_POS,
    IN_TURN,
    BatchItem,
    job_error,
    refuse_item,
    replace_records,
)
from ottla.replication.produce.script import Script, run_in_worker
from ottla.seams import World

PREPARE_JOB: Final = "ottla.record.inspection:prepare_batch"


def wants_preparation(topics: Topics, items: Sequence[BatchItem]) -> bool:
    """Whether the request has batches for a topic that may need a step before their append."""
    return any((topic := topics.get(name)) is not None and topic.prepared for name, _, _ in items)


def inspect_batches(world: World, topics: Topics, items: list[BatchItem], owner: object) -> Script[None]:
    """Inspect the batches, and recompress them where the topic has a codec of its own. `owner` as in `seams.Workers`.

    Refused batches are replaced by their errors."""
    in_turn = 0
    for at in range(len(items)):
        name, index, records = items[at]
        partition = find_writable(topics, name, index)
        if partition is None or not isinstance(records, memoryview) or not _needs_preparation(partition, records):
            continue
        try:
            header, rules, recoding = _check_batch(partition, records, world.clock.now().wall_ms)
            # 1. A small batch is inspected now, unless the turn has inspected enough, or the batch expands too far.
            if recoding is None and is_small(header) and in_turn < IN_TURN:
                in_turn += 1
                if _is_accepted(records, rules):
                    continue
        except ApiError as error:
            refuse_item(items, at, error.as_value())
            continue
        # 2. A worker inspects or recompresses all others.
        arguments = (bytes(records), rules, recoding)
        _take_result(items, at, (yield from run_in_worker(world.workers, PREPARE_JOB, arguments, owner)))
        # The result came in another turn, which may inspect small batches of its own.
        in_turn = 0


def _check_batch(
    partition: Partition, records: memoryview, now_ms: int
) -> tuple[HeaderTuple, RecordRules, Recoding | None]:
    """The header of a batch, the rules for its records, and its codec. Raises ApiError when the header is refused."""
    header = validate_produced(records, 0, len(records), now_ms, *partition.batch_limits)
    rules = RecordRules(partition.needs_keys, now_ms, *partition.batch_limits[1:], partition.record_max)
    return header, rules, _recoding_for(partition, records)


def _is_accepted(records: memoryview, rules: RecordRules) -> bool:
    """Whether all records keep the rules; False: a worker has to inspect the batch. Raises RefusedRecords."""
    refusal = inspect_batch(records, rules, INLINE_EXPANDED)
    if refusal is None:
        return True
    # CORRUPT_MESSAGE may only mean that the batch expands beyond a turn's limit; a worker has a higher one.
    if refusal.code != ErrorCode.CORRUPT_MESSAGE:
        raise RefusedRecords(refusal)
    return False


def _take_result(items: list[BatchItem], at: int, result: object) -> None:
    """Take the result of a worker: a recompressed batch, a refusal, None (the batch stays), or a Failure."""
    if isinstance(result, bytes):
        replace_records(items, at, result)
    elif isinstance(result, Refusal):
        refuse_item(items, at, RefusedRecords(result))
    elif result is not None:
        refuse_item(items, at, job_error(result, "the batch cannot be inspected"))


def _needs_preparation(partition: Partition, records: memoryview) -> bool:
    if not partition.is_leader:
        return False
    # A record of an uncompressed batch is no larger than the batch, which max.message.bytes limits.
    compressed = len(records) > CODEC_POS and records[CODEC_POS] & CODEC_MASK
    limited = bool(compressed) and partition.record_max < LIMIT_MAX
    return limited or partition.needs_keys or _recoding_for(partition, records) is not None


def _recoding_for(partition: Partition, records: memoryview) -> Recoding | None:
    """The codec to which this batch must be recompressed before it is appended; None when it can stay as it is."""
    codec, level = partition.codec_and_level
    if codec < 0 or len(records) <= CODEC_POS or records[CODEC_POS] & CODEC_MASK == codec:
        return None
    return Recoding(codec, level)
