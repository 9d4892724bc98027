"""The records of a Fetch for a reader of message formats v0 and v1 (versions 0 to 3).

Zone: deterministic. What happens to an answer before it leaves; the request itself is `fetch`'s, the conversion
`record.conversion`'s. Little is converted at once; what takes longer is read off the loop and converted by a worker,
one partition after the other, and the connection waits. An answer holds its bytes in memory, so it is bounded more than
others are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from ottla.errors import ApiError, ErrorCode
from ottla.record.batch import CONTROL, HEADER_SIZE, MAGIC_V2, unpack_header
from ottla.record.conversion import ForOldReader, for_old_reader
from ottla.record.errors import ExpandsTooFar
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
"""Most bytes of log that go into one answer, unless the first batch is larger."""
AT_ONCE: Final = 32 * 1024
"""So much is converted within its turn: bytes of log, and what is in them when they are unpacked."""
_SKIPPED_MAX: Final = 200
"""Control batches that are passed over within a turn."""
_V1_VERSION: Final = 2


def old_readers_region(
    version: int, each: FetchPartition, partition: Partition, region: Region, size: int, limit: int
) -> Region | None:
    """What of a partition a reader older than version 10 is given; None: nothing yet.

    Before version 4 control batches become nothing: the region begins behind them, for who asks at once again for
    nothing would never stop. Raises ApiError UNSUPPORTED_COMPRESSION_TYPE: it is a topic of zstd; UNSUPPORTED_VERSION:
    message.downconversion.enable is false; and Cold.
    """
    config = partition.config
    if config.compression_type == "zstd":
        raise ApiError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "this reader does not know zstd")
    if version >= V2_VERSION:
        return region
    if not config.message_downconversion_enable:
        raise ApiError(ErrorCode.UNSUPPORTED_VERSION, "message.downconversion.enable is false, and this reader is old")
    header = memoryview(bytearray(HEADER_SIZE))
    found: Region | None = region
    for _ in range(_SKIPPED_MAX):
        if found is None or found.file.try_read(found.pos, header) < HEADER_SIZE:
            return found
        fields = unpack_header(header, 0)
        if fields[3] != MAGIC_V2 or not fields[5] & CONTROL:
            return found
        found = partition.read(fields[0] + fields[6] + 1, size, limit, True, each.warmed)
    return found


class DownConversions:
    """The answers that are being converted, one for a connection."""

    def __init__(self, world: World, hosted: PartitionRegistry) -> None:
        self._world = world
        self._hosted = hosted
        self._running: dict[Peer, DownConversion] = {}

    def rotated(self, dirty: dict[FetchPartition, None]) -> dict[FetchPartition, None]:
        """The partitions of a request from any of them on: these versions have no order, and each may be first."""
        order = list(dirty)
        at = self._world.entropy.below("old-reader", len(order)) if order else 0
        return dict.fromkeys(order[at:] + order[:at])

    def start(self, peer: Peer, version: int, touched: Iterable[FetchPartition], done: Callable[[], object]) -> None:
        """Convert what has records; `done` is called when everything is converted."""
        found = []
        for each in touched:
            if each.region is not None:
                partition = self._hosted.find(each.topic, each.index)
                assert partition is not None, "it has been read in this turn"
                found.append((each, partition))

        def send_response() -> None:
            self._running.pop(peer, None)
            done()

        lowering = self._running[peer] = DownConversion(self._world.workers, version, found, send_response, peer)
        lowering.go_on()

    def gate(self, peer: Peer) -> Gate:
        """Whether the next request of a connection has to wait for its answer."""
        return Gate.WAIT if peer in self._running else Gate.NEXT

    def on_gone(self, peer: Peer) -> None:
        """The connection is over: go no further."""
        lowering = self._running.pop(peer, None)
        if lowering is not None:
            lowering.stopped = True


class DownConversion:
    """The conversion of one answer."""

    __slots__ = ("_done", "_left", "_magic", "_owner", "_room", "_workers", "stopped")

    def __init__(
        self,
        workers: Workers,
        version: int,
        partitions: Sequence[tuple[FetchPartition, Partition]],
        done: Callable[[], None],
        owner: object = None,
    ) -> None:
        """`partitions` have regions; `done` is called once their rows have the converted bytes instead, or errors.

        `owner`: as in `seams.Workers`.
        """
        self._workers = workers
        self._owner = owner
        self._magic = int(version >= _V1_VERSION)
        self._left = list(reversed(partitions))
        self._room = AT_ONCE
        self._done = done
        self.stopped = False
        """The reader is gone: go no further."""

    def go_on(self) -> None:
        """Convert the partitions that are left; once they all are, tell."""
        while self._left:
            each, partition = self._left[-1]
            region = each.region
            assert region is not None, "only what has records is converted"
            found = self._at_once(each, region)
            if found is None:
                self._read(each, partition, region)
                return
            self._take_converted(each, partition, *found)
        self._done()

    def _at_once(self, each: FetchPartition, region: Region) -> ForOldReader | tuple[int, str] | None:
        """What a job would answer, if the region is small enough to be converted here and now."""
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

    def _read(self, each: FetchPartition, partition: Partition, region: Region) -> None:
        region.file.read(region.pos, region.size, lambda content: self._convert(each, partition, content))

    def _convert(self, each: FetchPartition, partition: Partition, content: memoryview | Failure) -> None:
        if self.stopped:
            return
        if isinstance(content, Failure):
            self._converted(each, partition, content)
            return
        arguments = (bytes(content), self._magic, each.fetch_offset)
        self._workers.run(LOWER_JOB, arguments, lambda result: self._converted(each, partition, result), self._owner)

    def _converted(self, each: FetchPartition, partition: Partition, result: object) -> None:
        if self.stopped:
            return
        if not isinstance(result, tuple):
            hopeless = isinstance(result, Failure) and result.kind in (Kind.TIMEOUT, Kind.FULL)
            code = ErrorCode.CORRUPT_MESSAGE if hopeless else ErrorCode.KAFKA_STORAGE_ERROR
            result = int(code), f"its records cannot be converted: {result}"
        self._take_converted(each, partition, *result)
        self.go_on()

    def _take_converted(
        self, each: FetchPartition, partition: Partition, content: bytes | int, after: int | str, converted: int = 0
    ) -> None:
        """The result for the partition that is next: message set, next offset and count, or error code and text."""
        partition.fetch_conversions += converted
        if isinstance(content, int):
            _refuse(each, ErrorCode(content))
        elif not content and isinstance(after, int) and self._try_next_region(each, partition, after):
            return
        else:
            assert each.row is not None, "it has been read"
            each.row = (*each.row[:7], content)
        self._left.pop()

    def _try_next_region(self, each: FetchPartition, partition: Partition, offset: int) -> bool:
        """There was nothing for this reader in its region: whether there is another one behind it."""
        assert each.region is not None, "it has just been read"
        try:
            region = partition.read(offset, each.region.size, partition.high_watermark, True, warmed=True)
        except (ApiError, Cold, Failure):
            return False
        if region is None:
            return False
        each.region = region
        return True


def _refuse(each: FetchPartition, code: ErrorCode) -> None:
    if code is ErrorCode.KAFKA_STORAGE_ERROR:
        code = ErrorCode.NOT_LEADER_OR_FOLLOWER  # nobody who reads these formats knows it
    each.row = (each.index, code, -1, -1, -1, None, -1, b"")
