"""Message sets of old clients in a Produce request, on their way to the batches that are appended.

Zone: deterministic. What happens to a request of versions 0 to 2 before anything else; the request itself is
`produce`'s, the conversion `record.produced`'s. Little is converted at once; what takes longer is a job of workers, one
at a time for a request, whose connection waits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from ottla.errors import ApiError, ErrorCode
from ottla.record.batch import MAGIC_V2, unpack_header
from ottla.record.errors import ExpandsTooFar
from ottla.record.message_set_conversion import TIMESTAMP_MAX, TopicRules, converted, is_message_set
from ottla.replication.partition.partition import Partition
from ottla.replication.partition_registry import HostedTopic
from ottla.replication.produce.batch_preprocessing import BatchItem, RefusedBatch, job_error
from ottla.seams import World

CONVERT_JOB: Final = "ottla.record.message_set_conversion:convert_job"
AT_ONCE: Final = 32 * 1024
"""Most bytes of message sets, also of what is in wrappers, that a request may bring to be converted within its turn."""
NO_MESSAGES: Final = RefusedBatch(ApiError(ErrorCode.INVALID_RECORD, "a message set without messages"))
"""An empty message set: old brokers took it, and wrote nothing."""

Topics = Mapping[Any, HostedTopic]


def has_message_set(items: Sequence[BatchItem]) -> bool:
    """Whether anything in the request is of format v0 or v1. A request of these versions need not have any."""
    return any(isinstance(records, memoryview) and is_message_set(records) for _, _, records in items)


def converted_at_once(topics: Topics, items: Sequence[BatchItem], now_ms: int) -> list[BatchItem] | None:
    """The request's items with batches for message sets; None when that takes too long for one turn."""
    ready: list[BatchItem] = []
    room = AT_ONCE
    for item in items:
        name, index, records = item
        if not isinstance(records, memoryview) or not is_message_set(records):
            ready.append(item)
            continue
        room -= len(records)
        if room < 0:
            return None
        try:
            batch = _converted(_find_topics(topics, name, index), records, now_ms, room)
        except ExpandsTooFar:
            return None
        except ApiError as error:
            batch = RefusedBatch(error.as_value())
        room -= len(batch) if isinstance(batch, memoryview) else 0
        ready.append((name, index, batch))
    return ready


def _converted(
    partition: Partition | None, records: memoryview, now_ms: int, expanded_max: int
) -> memoryview | RefusedBatch | None:
    if partition is None:
        return None
    if not records:
        return NO_MESSAGES
    return _counted(partition, memoryview(converted(records, _rules(partition, now_ms), expanded_max)))


def _counted(partition: Partition, batch: memoryview) -> memoryview:
    """The batch, its records counted; a log of an older format counts them when it makes messages of them again."""
    if partition.log.magic == MAGIC_V2:
        partition.produce_conversions += unpack_header(batch, 0)[12]
    return batch


def _rules(partition: Partition, now_ms: int) -> TopicRules:
    """What a message set has to keep to in this partition's topic."""
    max_bytes, before_max_ms, after_max_ms = partition.limits
    latest = min(now_ms + after_max_ms, TIMESTAMP_MAX)
    earliest = max(0, now_ms - before_max_ms)
    return TopicRules(*partition.codec_and_level, max_bytes, earliest, latest, partition.needs_keys)


def _find_topics(topics: Topics, name: Any, index: int) -> Partition | None:
    topic = topics.get(name)
    return None if topic is None else topic.writable.get(index)


class MessageSetConversion:
    """The message sets of one request, one after the other."""

    def __init__(
        self,
        world: World,
        topics: Topics,
        items: Sequence[BatchItem],
        run: Callable[[Sequence[BatchItem]], None],
        owner: object = None,
    ) -> None:
        """`run` gets what has become of the items; `owner` as in `seams.Workers`."""
        self._world = world
        self._owner = owner
        self._topics = topics
        self._items: list[BatchItem] = list(items)
        self._run = run

    def go_on(self, at: int) -> None:
        """From item `at`; when all are done, run the request."""
        for position in range(at, len(self._items)):
            name, index, records = self._items[position]
            partition = _find_topics(self._topics, name, index)
            if partition is None or not isinstance(records, memoryview) or not is_message_set(records):
                continue
            if records:
                rules = _rules(partition, self._world.clock.now().wall_ms)
                self._start(position, (bytes(records), tuple(rules)))
                return
            self._items[position] = (name, index, NO_MESSAGES)
        self._run(self._items)

    def _start(self, position: int, arguments: tuple[object, ...]) -> None:
        self._world.workers.run(CONVERT_JOB, arguments, lambda result: self._on_done(position, result), self._owner)

    def _on_done(self, position: int, result: object) -> None:
        name, index, _ = self._items[position]
        if isinstance(result, bytes):
            batch = memoryview(bytearray(result))
            partition = _find_topics(self._topics, name, index)
            self._items[position] = (name, index, batch if partition is None else _counted(partition, batch))
        else:
            self._items[position] = (name, index, RefusedBatch(_error(result)))
        self.go_on(position + 1)


def _error(result: object) -> ApiError:
    """What a job says instead of a batch."""
    if isinstance(result, tuple):
        code, text = result
        return ApiError(ErrorCode(code), text)
    return job_error(result, "the message set cannot be converted")
