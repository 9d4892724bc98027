"""Batches for topics that are written in an older message format, made messages of it ahead of their append.

Zone: deterministic. What happens to a Produce request before it runs; `Log.append_lowered` converts what nobody has
converted before, which is right for small batches. A larger one is a job of workers, for the offset at which the log
ends then. If another batch has come in between, it is converted for the new end, a few times; then its producer has to
try again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from ottla.errors import ApiError, ErrorCode
from ottla.record.batch import HEADER_SIZE, MAGIC_POS, MAGIC_V2
from ottla.record.down_conversion import is_quick
from ottla.replication.partition.partition import Partition
from ottla.replication.partition_registry import Topics, writable
from ottla.replication.produce.batch_preprocessing import IN_TURN, BatchItem, RefusedBatch, job_error
from ottla.seams import World
from ottla.storage.log_files import ConvertedBatch
from ottla.types import NO_TIMESTAMP

LOWER_JOB: Final = "ottla.record.down_conversion:lower_job"
TRIES: Final = 4


class LegacyFormatWrites:
    """The batches of one request, one after the other."""

    def __init__(
        self,
        world: World,
        topics: Topics,
        items: Sequence[BatchItem],
        run: Callable[[Sequence[BatchItem]], None],
        owner: object = None,
    ) -> None:
        """`run` gets the items, in which refused ones have their error; `owner` as in `seams.Workers`."""
        self._world = world
        self._owner = owner
        self._topics = topics
        self._items: list[BatchItem] = list(items)
        self._run = run
        self._converted: dict[int, tuple[Partition, ConvertedBatch]] = {}
        self._quick = 0
        """Batches of the request that are left to their appends, all of which come in one turn."""
        self._tried: dict[int, int] = {}
        """How often an item was converted, of those that were converted again."""

    def go_on(self, at: int) -> None:
        """From item `at`; when all are done, and the logs end where they ended then, run the request."""
        for position in range(at, len(self._items)):
            name, index, records = self._items[position]
            partition = writable(self._topics, name, index)
            if partition is not None and isinstance(records, memoryview) and _is_lowered(partition, records):
                self._quick += 1
                if self._quick > IN_TURN or not is_quick(records):
                    self._start(position, partition, records)
                    return
        for position, (partition, ahead) in list(self._converted.items()):
            if partition.log.end_offset != ahead.base:
                self._retry_conversion(position, partition, ahead.view)
                return
        for partition, ahead in self._converted.values():
            partition.log.ahead = ahead
        self._run(self._items)

    def _retry_conversion(self, position: int, partition: Partition, records: memoryview) -> None:
        del self._converted[position]
        tried = self._tried[position] = self._tried.get(position, 1) + 1
        if tried <= TRIES:
            self._start(position, partition, records)
            return
        text = f"others wrote to {partition.tp} {TRIES} times while the batch was converted to its message format"
        self._refuse(position, ApiError(ErrorCode.NOT_ENOUGH_REPLICAS, text))
        self.go_on(len(self._items))

    def _start(self, position: int, partition: Partition, records: memoryview) -> None:
        base, magic = partition.log.end_offset, partition.log.magic
        append_time = partition.config.message_timestamp_type == "LogAppendTime"
        stamp = self._world.clock.now().wall_ms if append_time else NO_TIMESTAMP

        def done(result: object) -> None:
            self._on_done(position, partition, ConvertedBatch(records, base, magic, b"", stamp), result)

        self._world.workers.run(LOWER_JOB, (bytes(records), magic, base, stamp), done, self._owner)

    def _on_done(self, position: int, partition: Partition, ahead: ConvertedBatch, result: object) -> None:
        if isinstance(result, bytes):
            self._converted[position] = partition, ahead._replace(content=result)
        elif isinstance(result, tuple):
            code, text = result
            self._refuse(position, ApiError(ErrorCode(code), text))
        else:  # its append would convert it in the loop, which is more than a worker may do
            self._refuse(position, job_error(result, "the batch cannot be converted"))
        self.go_on(len(self._items) if position in self._tried else position + 1)

    def _refuse(self, position: int, error: ApiError) -> None:
        name, index, _ = self._items[position]
        self._items[position] = (name, index, RefusedBatch(error))


def _is_lowered(partition: Partition, records: memoryview) -> bool:
    """Whether the log writes an older format than the batch has."""
    if partition.log.magic == MAGIC_V2 or not partition.is_leader:
        return False
    return len(records) >= HEADER_SIZE and records[MAGIC_POS] == MAGIC_V2
