"""Reading an internal topic's partition back into a shard: a chunk at a time, in log order.

Zone: deterministic. Finds the records and gives them on; what they mean is the machine's, when to go on the runner's.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Final

from ottla.coordinator.shard import Codec, EntryOrigin, TransactionEnd
from ottla.record.batch import MAGIC_POS, MAGIC_V2, BatchHeader, Record, batches_of, crc_ok, records_of
from ottla.record.control import parse_marker
from ottla.record.errors import CorruptRecord
from ottla.record.up_conversion import modernized
from ottla.replication.partition.partition import Partition
from ottla.seams import Failure
from ottla.storage.errors import Cold

ENTRIES_PER_STEP: Final = 1000
"""Some milliseconds: other requests come in between."""
READ_MAX: Final = 1024 * 1024
"""Bytes of one read, whatever offsets.load.buffer.size allows: more would only hold up the others."""
READ_NEWEST_MAX: Final = READ_MAX // 4
"""The same where only the newest entry of each key is taken: all of a read is one step then."""
EXPANDED_MAX: Final = 100 * 1024 * 1024
"""Most bytes that one compressed batch may expand to."""
_logger = logging.getLogger(__name__)
_new = tuple.__new__  # a third of the time of Origin(…), and this runs for every record

Item = tuple[object, EntryOrigin]


class Loader:
    """Walks one partition from its log start to its end."""

    __slots__ = (
        "_buffer_size",
        "_codec",
        "_items",
        "_partition",
        "_passed_over",
        "_warmed",
        "next",
        "on_warm",
        "warming",
    )

    def __init__(self, partition: Partition, codec: Codec, buffer_size: int, on_warm: Callable[[], None]) -> None:
        """`buffer_size`: bytes per read. `on_warm` is called, in a later turn, when a step may go on."""
        self._partition = partition
        self._codec = codec
        self._buffer_size = min(buffer_size, READ_NEWEST_MAX if codec.newest_only else READ_MAX)
        self._items: Iterator[Item] = iter(())
        self._warmed = False
        self._passed_over = 0
        self.next = partition.log.start_offset
        """The offset to go on with."""
        self.on_warm = on_warm
        self.warming = False
        """Whether bytes are being brought into memory; no step meanwhile."""

    def step(self, take: Callable[[object, EntryOrigin], None]) -> bool:
        """Give the next entries to `take`; False: there are no more.

        Raises ApiError and Failure (the log cannot be read), CorruptRecord (what is read makes no sense).
        """
        taken = 0
        for entry, origin in islice(self._items, ENTRIES_PER_STEP):
            take(entry, origin)
            taken += 1
        return taken == ENTRIES_PER_STEP or self._read_on()

    def _read_on(self) -> bool:
        if self.warming:
            return True
        log = self._partition.log
        self.next = max(self.next, log.start_offset)
        try:
            region = log.read(self.next, self._buffer_size, log.end_offset, True, self._warmed)
        except Cold as reason:
            self.warming = True
            log.disk.warm(reason.regions, self._on_warmed)
            return True
        self._warmed = False
        if region is None:
            if self._passed_over:
                _logger.info("%s: %d records of unknown kinds passed over", self._partition.tp, self._passed_over)
            return False
        content = bytearray(region.size)
        region.file.read_now(region.pos, memoryview(content))
        if content[MAGIC_POS] != MAGIC_V2:  # what Kafka wrote before 0.11 comes first, if there is any
            content = bytearray(modernized(bytes(content), EXPANDED_MAX))
        entries = self._newest if self._codec.newest_only else self._entries
        self._items = entries(memoryview(content))
        return True

    def _on_warmed(self, _: Failure | None) -> None:
        """Whether it worked shows when it is read."""
        self.warming = False
        self._warmed = True
        self.on_warm()

    def _batches(self, content: memoryview) -> Iterator[tuple[int, BatchHeader]]:
        """Those that were not read yet; each is, once the next one is asked for."""
        for pos, header in batches_of(content):
            if header.last_offset >= self.next:
                if not crc_ok(content, pos, pos + header.size):
                    raise CorruptRecord(f"the checksum of the batch at offset {header.base_offset} is wrong")
                yield pos, header
                self.next = header.last_offset + 1

    def _entries(self, content: memoryview) -> Iterator[Item]:
        for pos, header in self._batches(content):
            records = records_of(content, pos, max_bytes=EXPANDED_MAX)
            yield from _ends(records, header) if header.is_control else self._decoded(records, header)

    def _newest(self, content: memoryview) -> Iterator[Item]:
        """The last entry of each key, in log order: decoding is most of the work."""
        newest: dict[bytes | None, tuple[Record, BatchHeader]] = {}
        for pos, header in self._batches(content):
            if not header.is_control:
                for record in records_of(content, pos, max_bytes=EXPANDED_MAX):
                    newest.pop(record.key, None)
                    newest[record.key] = record, header
        for record, header in newest.values():
            yield from self._decoded((record,), header)

    def _decoded(self, records: Iterable[Record], header: BatchHeader) -> Iterator[Item]:
        """What records of a batch say."""
        decode, producer_id, epoch = self._codec.decode, header.producer_id, header.producer_epoch
        for offset, timestamp, key, value, _ in records:
            try:
                entry = decode(key, value)
            except CorruptRecord as error:
                raise CorruptRecord(f"the record at offset {offset}: {error.message}") from error
            if entry is None:
                self._passed_over += 1
            else:
                yield entry, _new(EntryOrigin, (offset, producer_id, epoch, timestamp))


def _ends(records: Iterator[Record], header: BatchHeader) -> Iterator[Item]:
    """What a control batch says."""
    producer_id, epoch = header.producer_id, header.producer_epoch
    for record in records:
        marker = parse_marker(record.key, record.value)
        if marker is not None:
            origin = EntryOrigin(record.offset, producer_id, epoch, record.timestamp)
            yield TransactionEnd(producer_id, epoch, marker.commit), origin
