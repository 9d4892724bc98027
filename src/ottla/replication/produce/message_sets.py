"""Converts message sets of old clients in a Produce request to record batches.

Zone: deterministic. The first step of a request of versions 0 to 2; `produce` handles the request itself, and
`record.message_set_conversion` converts. Small message sets are converted within the turn. Larger ones are jobs of
workers, one at a time per request, while the connection waits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from ottla.errors import ApiError, ErrorCode
from ottla.record.batch import MAGIC_V2, unpack_header
from ottla.record.errors import ExpandsTooFar
from ottla.record.message_set_conversion import TIMESTAMP_MAX, TopicRules, convert_message_set, is_message_set
from ottla.replication.partition.partition import Partition
from ottla.replication.partition_registry import HostedTopic
from ottla.replication.produce.batch_preprocessing import BatchItem, RefusedBatch, job_error
from ottla.seams import World

CONVERT_JOB: Final = "ottla.record.message_set_conversion:convert_job"
AT_ONCE: Final = 32 * 1024
"""Most bytes of message sets, counted uncompressed, that are converted within the turn of their request."""
NO_MESSAGES: Final = RefusedBatch(ApiError(ErrorCode.INVALID_RECORD, "a message set without messages"))
"""Marks an empty message set: old brokers accepted it and wrote nothing."""

Topics = Mapping[Any, HostedTopic]


def has_message_set(items: Sequence[BatchItem]) -> bool:
    """Whether the request contains messages of format v0 or v1. Requests of these versions may carry v2 batches."""
    return any(isinstance(records, memoryview) and is_message_set(records) for _, _, records in items)


def converted_at_once(topics: Topics, items: Sequence[BatchItem], now_ms: int) -> list[BatchItem] | None:
    """The request's items with message sets converted to batches; None when that takes too long for one turn."""
    ready: list[BatchItem] = []
    room = AT_ONCE
    for item in items:
        name, index, records = item
        if not isinstance(records, memoryview) or not is_message_set(records):
            ready.append(item)
            continue
        room -= len(records)  # the compressed size first, which is cheap to check; the expanded size below
        if room < 0:
            return None
        try:
            batch = _convert_records(_find_writable(topics, name, index), records, now_ms, room)
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


def _find_writable(topics: Topics, name: Any, index: int) -> Partition | None:
    topic = topics.get(name)
    return None if topic is None else topic.writable.get(index)


class MessageSetConversion:
    """Converts the message sets of one request in workers, one after the other."""

    def __init__(
        self,
        world: World,
        topics: Topics,
        items: Sequence[BatchItem],
        run: Callable[[Sequence[BatchItem]], None],
        owner: object = None,
    ) -> None:
        """`run` receives the converted items; refused ones carry their error. `owner` as in `seams.Workers`."""
        self._world = world
        self._owner = owner
        self._topics = topics
        self._items: list[BatchItem] = list(items)
        self._run = run

    def convert_from(self, at: int) -> None:
        """Convert from item `at` on; run the request when all are done."""
        for position in range(at, len(self._items)):
            name, index, records = self._items[position]
            partition = _find_writable(self._topics, name, index)
            if partition is None or not isinstance(records, memoryview) or not is_message_set(records):
                continue
            if records:
                rules = _topic_rules(partition, self._world.clock.now().wall_ms)
                self._start_conversion(position, (bytes(records), tuple(rules)))
                return
            self._items[position] = (name, index, NO_MESSAGES)
        self._run(self._items)

    def _start_conversion(self, position: int, arguments: tuple[object, ...]) -> None:
        self._world.workers.run_job(CONVERT_JOB, arguments, lambda result: self._on_done(position, result), self._owner)

    def _on_done(self, position: int, result: object) -> None:
        name, index, _ = self._items[position]
        if isinstance(result, bytes):
            batch = memoryview(bytearray(result))
            partition = _find_writable(self._topics, name, index)
            self._items[position] = (name, index, batch if partition is None else _count_converted(partition, batch))
        else:
            self._items[position] = (name, index, RefusedBatch(_conversion_error(result)))
        self.convert_from(position + 1)


def _conversion_error(result: object) -> ApiError:
    """The error for the result of a job that is not a batch."""
    if isinstance(result, tuple):
        code, text = result
        return ApiError(ErrorCode(code), text)
    return job_error(result, "the message set cannot be converted")
