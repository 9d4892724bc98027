"""Down-converts the records of a Fetch for readers of message formats v0 and v1 (versions 0 to 3).

Zone: deterministic. The last step before a response is sent; `fetch` handles the request, `record.conversion` converts.
Small regions are converted within the turn. Larger ones are read off the loop and converted by a worker, one partition
after the other, while the connection waits. The converted response is held in memory, so it has a lower size limit than
others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from ottla.errors import ApiError, ErrorCode
from ottla.record.batch import CONTROL, HEADER_SIZE, MAGIC_V2, unpack_header
from ottla.record.conversion import ForOldReader, for_old_reader
from ottla.record.errors import ExpandsTooFar
from ottla.record.header_fields import ATTRIBUTES, BASE_OFFSET, LAST_OFFSET_DELTA, MAGIC
from ottla.replication.fetch.fetch_session import FetchPartition
from ottla.replication.partition.partition import Partition
from ottla.replication.partition_registry import PartitionRegistry
from ottla.seams import Failure, Gate, Kind, Peer, Region, Workers, World
from ottla.storage.errors import Cold

V2_VERSION: Final = 4
"""The first version of Fetch that carries record batches of format v2."""
ZSTD_VERSION: Final = 10
"""The first version whose readers know zstd."""
LOWER_JOB: Final = "ottla.record.conversion:for_old_reader_job"
ANSWER_MAX: Final = 2 * 1024 * 1024
"""Most bytes of log in one response, unless the first batch is larger."""
AT_ONCE: Final = 32 * 1024
"""Most bytes that are converted within a turn: of the log, and of the converted messages."""
_SKIPPED_MAX: Final = 200
"""Most control batches that are skipped within a turn."""
_V1_VERSION: Final = 2


def old_readers_region(
    version: int, each: FetchPartition, partition: Partition, region: Region, size: int, limit: int
) -> Region | None:
    """The region of a partition for a reader older than version 10; None: nothing yet.

    Before version 4 the region begins after leading control batches. They convert to no message at all, and a reader
    that receives none would fetch the same offset for ever. Raises ApiError UNSUPPORTED_COMPRESSION_TYPE: the topic
    uses zstd; UNSUPPORTED_VERSION: message.downconversion.enable is false; and Cold.
    """
    config = partition.config
    if config.compression_type == "zstd":
        text = "the topic uses zstd, which this version of Fetch does not support"
        raise ApiError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, text)
    if version >= V2_VERSION:
        return region
    if not config.message_downconversion_enable:
        text = "message.downconversion.enable is false; use Fetch version 4 or later"
        raise ApiError(ErrorCode.UNSUPPORTED_VERSION, text)
    header = memoryview(bytearray(HEADER_SIZE))
    found: Region | None = region
    for _ in range(_SKIPPED_MAX):
        if found is None or found.file.try_read(found.pos, header) < HEADER_SIZE:
            return found
        fields = unpack_header(header, 0)
        if fields[MAGIC] != MAGIC_V2 or not fields[ATTRIBUTES] & CONTROL:
            return found
        found = partition.read(fields[BASE_OFFSET] + fields[LAST_OFFSET_DELTA] + 1, size, limit, True, each.warmed)
    return found


class DownConversions:
    """The responses that are being converted, at most one per connection."""

    def __init__(self, world: World, hosted: PartitionRegistry) -> None:
        self._world = world
        self._hosted = hosted
        self._running: dict[Peer, DownConversion] = {}

    def rotate_partitions(self, dirty: dict[FetchPartition, None]) -> dict[FetchPartition, None]:
        """The partitions of a request, beginning with a random one.

        Without a session no response moves them to the end, and the size limit would starve the last of them.
        """
        order = list(dirty)
        at = self._world.entropy.random_below("old-reader", len(order)) if order else 0
        return dict.fromkeys(order[at:] + order[:at])

    def start_conversion(
        self, peer: Peer, version: int, touched: Iterable[FetchPartition], done: Callable[[], object]
    ) -> None:
        """Convert the partitions that have records; calls `done` when all are converted."""
        found = []
        for each in touched:
            if each.region is not None:
                partition = self._hosted.find_partition(each.topic, each.index)
                assert partition is not None, "it has been read in this turn"
                found.append((each, partition))

        def send_response() -> None:
            self._running.pop(peer, None)
            done()

        lowering = self._running[peer] = DownConversion(self._world.workers, version, found, send_response, peer)
        lowering.convert_remaining()

    def gate_of(self, peer: Peer) -> Gate:
        """Whether the next request of a connection has to wait for a conversion."""
        return Gate.WAIT if peer in self._running else Gate.NEXT

    def on_gone(self, peer: Peer) -> None:
        """Stop the conversion of a connection that has ended."""
        lowering = self._running.pop(peer, None)
        if lowering is not None:
            lowering.stopped = True


class DownConversion:
    """The conversion of one response."""

    __slots__ = ("_done", "_left", "_magic", "_owner", "_room", "_workers", "stopped")

    def __init__(
        self,
        workers: Workers,
        version: int,
        partitions: Sequence[tuple[FetchPartition, Partition]],
        done: Callable[[], None],
        owner: object = None,
    ) -> None:
        """`partitions` have regions. Calls `done` once their rows have converted bytes or errors instead.

        `owner`: as in `seams.Workers`.
        """
        self._workers = workers
        self._owner = owner
        self._magic = int(version >= _V1_VERSION)
        self._left = list(reversed(partitions))
        self._room = AT_ONCE
        self._done = done
        self.stopped = False
        """Whether the connection has ended, so that results are ignored."""

    def convert_remaining(self) -> None:
        """Convert the partitions that are left, and call `done` after the last one."""
        while self._left:
            each, partition = self._left[-1]
            region = each.region
            assert region is not None, "only what has records is converted"
            found = self._convert_at_once(each, region)
            if found is None:
                self._read_region(each, partition, region)
                return
            self._take_converted(each, partition, *found)
        self._done()

    def _convert_at_once(self, each: FetchPartition, region: Region) -> ForOldReader | tuple[int, str] | None:
        """The result of a conversion within this turn; None if the region is too large for it, or not in memory."""
        if region.size > self._room:
            return None
        content = memoryview(bytearray(region.size))
        if region.file.try_read(region.pos, content) < region.size:
            return None
        try:
            found = for_old_reader(content, self._magic, each.fetch_offset, self._room)
        except ExpandsTooFar:
            return None
        except ApiError as error:
            return int(error.code), error.message
        self._room -= max(region.size, len(found.content))
        return found

    def _read_region(self, each: FetchPartition, partition: Partition, region: Region) -> None:
        region.file.read(region.pos, region.size, lambda content: self._convert_content(each, partition, content))

    def _convert_content(self, each: FetchPartition, partition: Partition, content: memoryview | Failure) -> None:
        if self.stopped:
            return
        if isinstance(content, Failure):
            self._on_converted(each, partition, content)
            return
        arguments = (bytes(content), self._magic, each.fetch_offset)
        self._workers.run_job(
            LOWER_JOB, arguments, lambda result: self._on_converted(each, partition, result), self._owner
        )

    def _on_converted(self, each: FetchPartition, partition: Partition, result: object) -> None:
        if self.stopped:
            return
        if not isinstance(result, tuple):
            # A job that ran out of time or memory would do so again, so it gets an error that clients do not retry for
            # ever.
            hopeless = isinstance(result, Failure) and result.kind in (Kind.TIMEOUT, Kind.FULL)
            code = ErrorCode.CORRUPT_MESSAGE if hopeless else ErrorCode.KAFKA_STORAGE_ERROR
            result = int(code), f"records cannot be down-converted: {result}"
        self._take_converted(each, partition, *result)
        self.convert_remaining()

    def _take_converted(
        self, each: FetchPartition, partition: Partition, content: bytes | int, after: int | str, converted: int = 0
    ) -> None:
        """Set the row of the next partition from a result: message set, next offset and count, or error code and text.

        An empty message set would stop the reader (see `old_readers_region`), so the region after it is tried first.
        """
        partition.fetch_conversions += converted
        if isinstance(content, int):
            _refuse_partition(each, ErrorCode(content))
        elif not content and isinstance(after, int) and self._try_next_region(each, partition, after):
            return
        else:
            assert each.row is not None, "it has been read"
            each.row = (*each.row[:7], content)
        self._left.pop()

    def _try_next_region(self, each: FetchPartition, partition: Partition, offset: int) -> bool:
        """Whether there is a region after one that contains nothing for this reader; it is converted next."""
        assert each.region is not None, "it has just been read"
        try:
            region = partition.read(offset, each.region.size, partition.high_watermark, True, warmed=True)
        except (ApiError, Cold, Failure):
            return False
        if region is None:
            return False
        each.region = region
        return True


def _refuse_partition(each: FetchPartition, code: ErrorCode) -> None:
    if code is ErrorCode.KAFKA_STORAGE_ERROR:
        code = ErrorCode.NOT_LEADER_OR_FOLLOWER  # readers of these formats do not know it
    each.row = (each.index, code, -1, -1, -1, None, -1, b"")
