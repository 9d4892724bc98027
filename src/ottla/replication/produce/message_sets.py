"""Converts message sets of old clients in a Produce request to record batches.

Zone: deterministic. A step of `slow_produce` in versions 0 to 2; `record.message_set_conversion` converts. Small ones
are converted within the turn. Larger ones are jobs of workers, one at a time per request.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ottla.errors import ApiError, ErrorCode
from ottla.record.batch import MAGIC_V2, unpack_header
from ottla.record.errors import ExpandsTooFar
from ottla.record.message_set_conversion import TIMESTAMP_MAX, TopicRules, convert_message_set, is_message_set
from ottla.replication.partition.partition import Partition
from ottla.replication.partition_registry import Topics, find_writable
from ottla.replication.produce.produce_items import (
    NO_MESSAGES,
    BatchItem,
    RefusedBatch,
    job_error,
    refuse_item,
    replace_records,
)
from ottla.replication.produce.script import Script, run_in_worker
from ottla.seams import World

CONVERT_JOB: Final = "ottla.record.message_set_conversion:convert_job"
AT_ONCE: Final = 32 * 1024
"""Most bytes of message sets, counted uncompressed, that are converted within the turn of their request."""


def has_message_set(items: Sequence[BatchItem]) -> bool:
    """Whether the request contains messages of format v0 or v1. Requests of these versions may carry v2 batches."""
    return any(isinstance(records, memoryview) and is_message_set(records) for _, _, records in items)


def convert_message_sets(
    world: World, topics: Topics, items: list[BatchItem], owner: object, in_turn_max: int
) -> Script[None]:
    """Replace the message sets by batches, or by the errors of those that cannot be converted.

    `in_turn_max`: most bytes that are converted within the turn; `owner`: as in `seams.Workers`."""
    # 1. All of them are small.
    converted = converted_at_once(topics, items, world.clock.now().wall_ms, in_turn_max)
    if converted is not None:
        items[:] = converted
        return
    # 2. Workers convert them, one after the other.
    for at in range(len(items)):
        name, index, records = items[at]
        partition = find_writable(topics, name, index)
        if partition is None or not isinstance(records, memoryview) or not is_message_set(records):
            continue
        if not records:
            items[at] = (name, index, NO_MESSAGES)
            continue
        rules = _topic_rules(partition, world.clock.now().wall_ms)
        result = yield from run_in_worker(world.workers, CONVERT_JOB, (bytes(records), tuple(rules)), owner)
        if not isinstance(result, bytes):
            refuse_item(items, at, _conversion_error(result))
            continue
        batch = replace_records(items, at, result)
        partition = find_writable(topics, name, index)  # it may have been deleted meanwhile
        if partition is not None:
            _count_converted(partition, batch)


def converted_at_once(
    topics: Topics, items: Sequence[BatchItem], now_ms: int, room: int = AT_ONCE
) -> list[BatchItem] | None:
    """The request's items with message sets converted to batches; None when that takes too long for one turn."""
    ready: list[BatchItem] = []
    for item in items:
        name, index, records = item
        if not isinstance(records, memoryview) or not is_message_set(records):
            ready.append(item)
            continue
        room -= len(records)  # the compressed size first, which is cheap to check; the expanded size below
        if room < 0:
            return None
        try:
            batch = _convert_records(find_writable(topics, name, index), records, now_ms, room)
        except ExpandsTooFar:
            return None
        except ApiError as error:
            batch = RefusedBatch(error.as_value())
        room -= len(batch) if isinstance(batch, memoryview) else 0
        ready.append((name, index, batch))
    return ready


def _convert_records(
    partition: Partition | None, records: memoryview, now_ms: int, expanded_max: int
) -> memoryview | RefusedBatch | None:
    if partition is None:
        return None
    if not records:
        return NO_MESSAGES
    return _count_converted(
        partition, memoryview(convert_message_set(records, _topic_rules(partition, now_ms), expanded_max))
    )


def _count_converted(partition: Partition, batch: memoryview) -> memoryview:
    """The batch, with its records counted as converted. A log of an older format counts them at its own conversion."""
    if partition.log.magic == MAGIC_V2:
        partition.produce_conversions += unpack_header(batch, 0)[12]
    return batch


def _topic_rules(partition: Partition, now_ms: int) -> TopicRules:
    """The rules of this partition's topic for a message set."""
    max_bytes, before_max_ms, after_max_ms = partition.batch_limits
    latest = min(now_ms + after_max_ms, TIMESTAMP_MAX)
    earliest = max(0, now_ms - before_max_ms)
    return TopicRules(*partition.codec_and_level, max_bytes, earliest, latest, partition.needs_keys)


def _conversion_error(result: object) -> ApiError:
    """The error for the result of a job that is not a batch."""
    if isinstance(result, tuple):
        code, text = result
        return ApiError(ErrorCode(code), text)
    return job_error(result, "the message set cannot be converted")
