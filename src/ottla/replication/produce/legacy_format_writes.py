"""Down-converts batches for topics with an older message format before they are appended.

Zone: deterministic. A step of `slow_produce`. Small batches are left to `lowered_append`, which
converts within the append. A worker converts a larger batch for the offset at which the log ends then. If another
append moves the end meanwhile, the batch is converted again, up to TRIES times; then the producer has to retry.
"""

from __future__ import annotations

from typing import Final

from ottla.errors import ApiError, ErrorCode
from ottla.record.batch import HEADER_SIZE, MAGIC_POS, MAGIC_V2
from ottla.record.down_conversion import ConvertedBatch, is_quick
from ottla.replication.partition.partition import Partition
from ottla.replication.partition_registry import Topics, find_writable
from ottla.replication.produce.produce_items import IN_TURN, BatchItem, job_error, refuse_item
from ottla.replication.produce.script import Script, run_in_worker
from ottla.seams import World
from ottla.types import NO_TIMESTAMP

LOWER_JOB: Final = "ottla.record.down_conversion:lower_job"
TRIES: Final = 4


def lower_batches(world: World, topics: Topics, items: list[BatchItem], owner: object) -> Script[None]:
    """Convert the batches for logs of an older format. When this returns, the appends have to follow in the same turn.

    `owner`: as in `seams.Workers`."""
    lowering = _Lowering(world, items, owner)
    quick = 0
    # 1. A batch that is too large for the turn, or one small batch too many: a worker converts it. The others are left
    #    to their appends, which are all in one turn.
    for at in range(len(items)):
        name, index, records = items[at]
        partition = find_writable(topics, name, index)
        if partition is not None and isinstance(records, memoryview) and _is_lowered(partition, records):
            quick += 1
            if quick > IN_TURN or not is_quick(records):
                yield from lowering.convert_batch(at, partition)
    # 2. All are converted, but another request has appended to a log meanwhile: the offsets in the converted messages
    #    are wrong, so that batch is converted again.
    while (moved := lowering.moved_batch()) is not None:
        yield from lowering.convert_again(*moved)
    # 3. Everything fits: the appends follow in this very turn, so no log can move any more.
    for partition, ahead in lowering.converted.values():
        partition.log.prepared = ahead


class _Lowering:
    """The conversions of one request."""

    __slots__ = ("_items", "_owner", "_tried", "_world", "converted")

    def __init__(self, world: World, items: list[BatchItem], owner: object) -> None:
        self._world = world
        self._items = items
        self._owner = owner
        self.converted: dict[int, tuple[Partition, ConvertedBatch]] = {}
        """Item → its partition, and its batch as messages."""
        self._tried: dict[int, int] = {}
        """How often an item was converted, for items that were converted more than once."""

    def moved_batch(self) -> tuple[int, Partition] | None:
        """An item that was converted for another offset than the present end of its log."""
        for at, (partition, ahead) in self.converted.items():
            if partition.log.end_offset != ahead.base:
                return at, partition
        return None

    def convert_again(self, at: int, partition: Partition) -> Script[None]:
        """Convert an item for the present end of its log, unless that was tried too often."""
        del self.converted[at]
        tried = self._tried[at] = self._tried.get(at, 1) + 1
        if tried <= TRIES:
            yield from self.convert_batch(at, partition)
            return
        text = f"other batches were appended to {partition.tp} during {TRIES} conversions to its message format; retry"
        refuse_item(self._items, at, ApiError(ErrorCode.NOT_ENOUGH_REPLICAS, text))

    def convert_batch(self, at: int, partition: Partition) -> Script[None]:
        """Let a worker convert an item for the present end of its log."""
        base, magic = partition.log.end_offset, partition.log.magic
        append_time = partition.config.message_timestamp_type == "LogAppendTime"
        stamp = self._world.clock.now().wall_ms if append_time else NO_TIMESTAMP
        arguments = (bytes(self._records_at(at)), magic, base, stamp)
        result = yield from run_in_worker(self._world.workers, LOWER_JOB, arguments, self._owner)
        if isinstance(result, bytes):
            # The append looks for these very records. They are read again, because the frame may have been held since.
            self.converted[at] = partition, ConvertedBatch(self._records_at(at), base, magic, result, stamp)
        elif isinstance(result, tuple):
            code, text = result
            refuse_item(self._items, at, ApiError(ErrorCode(code), text))
        else:  # the worker ran out of time or memory: its append would need the same, on the event loop
            refuse_item(self._items, at, job_error(result, "the batch cannot be converted"))

    def _records_at(self, at: int) -> memoryview:
        _, _, records = self._items[at]
        assert isinstance(records, memoryview), "only records are converted"
        return records


def _is_lowered(partition: Partition, records: memoryview) -> bool:
    """Whether the log has an older message format than the batch."""
    if partition.log.magic == MAGIC_V2 or not partition.is_leader:
        return False
    return len(records) >= HEADER_SIZE and records[MAGIC_POS] == MAGIC_V2
