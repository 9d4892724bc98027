"""Batches that their topic wants in another codec (compression.type), on their way through a worker.

Zone: deterministic. What happens to a Produce request before it runs; the request itself is `produce`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from ottla.errors import ApiError, ErrorCode
from ottla.record.validation import validate_produced
from ottla.replication.hosted import HostedTopic
from ottla.replication.partition import Partition
from ottla.seams import World

RECOMPRESS_JOB: Final = "ottla.record.validation:recompress_job"
_CODEC_POS: Final = 22
_CODEC_MASK: Final = 0x07

Item = tuple[str | bytes, int, "memoryview | Refused | None"]
"""(topic name, or id from version 13 on; partition; records, or why they were refused on the way)."""


class Refused:
    """Records that were refused before their turn. False, as no records are: so the hot way needs no test for it."""

    __slots__ = ("error",)

    def __init__(self, error: ApiError) -> None:
        self.error = error

    def __bool__(self) -> bool:
        return False


class Recompression:
    """The batches of one request, recompressed one after the other."""

    def __init__(
        self,
        world: World,
        topics: Mapping[Any, HostedTopic],
        items: Sequence[Item],
        run: Callable[[Sequence[Item]], None],
    ) -> None:
        self._world = world
        self._topics = topics
        self._items: list[Item] = list(items)
        self._run = run

    def go_on(self, at: int) -> None:
        """From item `at`; when all are done, run the request."""
        items = self._items
        for position in range(at, len(items)):
            name, index, records = items[position]
            partition = _find(self._topics, name, index)
            if partition is None or not isinstance(records, memoryview) or wanted_codec(partition, records) < 0:
                continue
            try:
                validate_produced(records, 0, len(records), self._world.clock.now().wall_ms, *partition.limits)
            except ApiError as error:
                items[position] = (name, index, Refused(error))
                continue
            self._start(position, partition, records)
            return
        self._run(items)

    def _start(self, position: int, partition: Partition, records: memoryview) -> None:
        codec, level = partition.codec_and_level
        arguments = (bytes(records), codec, level)
        self._world.workers.run(RECOMPRESS_JOB, arguments, lambda result: self._done(position, result))

    def _done(self, position: int, result: object) -> None:
        name, index, _ = self._items[position]
        if isinstance(result, bytes | bytearray):
            self._items[position] = (name, index, memoryview(bytearray(result)))
        else:
            error = ApiError(ErrorCode.CORRUPT_MESSAGE, f"the batch cannot be recompressed: {result}")
            self._items[position] = (name, index, Refused(error))
        self.go_on(position + 1)


def _find(topics: Mapping[Any, HostedTopic], name: Any, index: int) -> Partition | None:
    topic = topics.get(name)
    return None if topic is None else topic.partitions.get(index)


def wanted_codec(partition: Partition, records: memoryview) -> int:
    """The codec this batch must be brought to before it is appended; -1 when it is fine as it is."""
    codec = partition.codec_and_level[0]
    if codec < 0 or len(records) <= _CODEC_POS or records[_CODEC_POS] & _CODEC_MASK == codec:
        return -1
    return codec
