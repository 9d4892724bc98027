"""Down-converts batches for topics with an older message format before they are appended.

Zone: deterministic. A step of a Produce request before it runs. Small batches are left to `lowered_append`, which
converts within the append. A worker converts a larger batch for the offset at which the log ends then. If another
append moves the end meanwhile, the batch is converted again, up to TRIES times; then the producer has to retry.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from ottla.errors import ApiError, ErrorCode
from ottla.record.batch import HEADER_SIZE, MAGIC_POS, MAGIC_V2
from ottla.record.down_conversion import ConvertedBatch, is_quick
from ottla.replication.partition.partition import Partition
from ottla.replication.partition_registry import Topics, find_writable
from ottla.replication.produce.batch_preprocessing import IN_TURN, BatchItem, RefusedBatch, job_error
from ottla.seams import World
from ottla.types import NO_TIMESTAMP

LOWER_JOB: Final = "ottla.record.down_conversion:lower_job"
TRIES: Final = 4


class LegacyFormatWrites:
    """Converts the batches of one request, one after the other."""

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
        self._converted: dict[int, tuple[Partition, ConvertedBatch]] = {}
        self._quick = 0
        """Batches that are left to their appends. All appends of a request are in one turn, so these are limited."""
        self._tried: dict[int, int] = {}
        """How often an item was converted, for items that were converted more than once."""

    def convert_from(self, at: int) -> None:
        """Convert from item `at` on. Runs the request once all are converted for the present ends of their logs."""
        # 1. A batch that is too large for the turn, or one small batch too many: a worker converts it, and calls back.
        for position in range(at, len(self._items)):
            name, index, records = self._items[position]
            partition = find_writable(self._topics, name, index)
            if partition is not None and isinstance(records, memoryview) and _is_lowered(partition, records):
                self._quick += 1
                if self._quick > IN_TURN or not is_quick(records):
                    self._start_conversion(position, partition, records)
                    return
        # 2. All are converted, but another request has appended to a log meanwhile: the offsets in the converted
        #    messages are wrong, so that batch is converted again.
        for position, (partition, ahead) in list(self._converted.items()):
            if partition.log.end_offset != ahead.base:
                self._retry_conversion(position, partition, ahead.view)
                return
        # 3. Everything fits: the appends follow in this very turn, so no log can move any more.
        for partition, ahead in self._converted.values():
            partition.log.prepared = ahead
        self._run(self._items)

    def _retry_conversion(self, position: int, partition: Partition, records: memoryview) -> None:
        del self._converted[position]
        tried = self._tried[position] = self._tried.get(position, 1) + 1
        if tried <= TRIES:
            self._start_conversion(position, partition, records)
            return
        text = f"other batches were appended to {partition.tp} during {TRIES} conversions to its message format; retry"
        self._refuse_item(position, ApiError(ErrorCode.NOT_ENOUGH_REPLICAS, text))
        self.convert_from(len(self._items))

    def _start_conversion(self, position: int, partition: Partition, records: memoryview) -> None:
        base, magic = partition.log.end_offset, partition.log.magic
        append_time = partition.config.message_timestamp_type == "LogAppendTime"
        stamp = self._world.clock.now().wall_ms if append_time else NO_TIMESTAMP

        def done(result: object) -> None:
            self._on_done(position, partition, ConvertedBatch(records, base, magic, b"", stamp), result)

        self._world.workers.run_job(LOWER_JOB, (bytes(records), magic, base, stamp), done, self._owner)

    def _on_done(self, position: int, partition: Partition, ahead: ConvertedBatch, result: object) -> None:
        if isinstance(result, bytes):
            self._converted[position] = partition, ahead._replace(content=result)
        elif isinstance(result, tuple):
            code, text = result
            self._refuse_item(position, ApiError(ErrorCode(code), text))
        else:  # the worker ran out of time or memory: its append would need the same, on the event loop
            self._refuse_item(position, job_error(result, "the batch cannot be converted"))
        self.convert_from(len(self._items) if position in self._tried else position + 1)

    def _refuse_item(self, position: int, error: ApiError) -> None:
        name, index, _ = self._items[position]
        self._items[position] = (name, index, RefusedBatch(error))


def _is_lowered(partition: Partition, records: memoryview) -> bool:
    """Whether the log has an older message format than the batch."""
    if partition.log.magic == MAGIC_V2 or not partition.is_leader:
        return False
    return len(records) >= HEADER_SIZE and records[MAGIC_POS] == MAGIC_V2
