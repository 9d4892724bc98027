"""Loading a shard from the partition of its internal topic: chunk by chunk, in log order.

Zone: deterministic. The loader reads and decodes records; the state machine applies them, `shard_runtime` decides when
the next step runs.
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
from ottla.record.up_conversion import convert_to_v2
from ottla.replication.partition.partition import Partition
from ottla.seams import Failure
from ottla.storage.errors import Cold

ENTRIES_PER_STEP: Final = 1000
"""One step applies this many entries, which takes some milliseconds; other requests are served between steps."""
READ_MAX: Final = 1024 * 1024
"""The most bytes of one read, also when offsets.load.buffer.size is larger: a longer read delays other requests."""
READ_NEWEST_MAX: Final = READ_MAX // 4
"""The same limit for codecs with `newest_only`, where a whole read is decoded in one step."""
EXPANDED_MAX: Final = 100 * 1024 * 1024
"""The most bytes that one compressed batch may expand to."""
_logger = logging.getLogger(__name__)
_new = tuple.__new__  # a third of the time of EntryOrigin(…), and this runs for every record

Item = tuple[object, EntryOrigin]


class Loader:
    """Reads one partition from its log start to its end."""

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
        """`buffer_size`: bytes per read. `on_warm` is called, in a later turn, when loading can continue."""
        self._partition = partition
        self._codec = codec
        self._buffer_size = min(buffer_size, READ_NEWEST_MAX if codec.newest_only else READ_MAX)
        self._items: Iterator[Item] = iter(())
        self._warmed = False
        self._passed_over = 0
        self.next = partition.log.start_offset
        """The offset at which the next read begins."""
        self.on_warm = on_warm
        self.warming = False
        """Whether the disk is bringing bytes into memory; until then a step does nothing."""

    def load_step(self, take: Callable[[object, EntryOrigin], None]) -> bool:
        """Pass the next entries to `take`. Returns False at the end of the log.

        Raises ApiError and Failure (the log cannot be read), CorruptRecord (a batch or record is malformed).
        """
        taken = 0
        for entry, origin in islice(self._items, ENTRIES_PER_STEP):
            take(entry, origin)
            taken += 1
        # Fewer entries: the last read is used up.
        return taken == ENTRIES_PER_STEP or self._read_next()

    def _read_next(self) -> bool:
        if self.warming:
            return True
        log = self._partition.log
        # Retention or DeleteRecords may have moved the log start since the last step.
        self.next = max(self.next, log.start_offset)
        try:
            # Up to the log end, as in Kafka, not to the high watermark: what a former leader appended is going to be
            # committed by this one, and until then no answer that depends on it is sent.
            region = log.read(self.next, self._buffer_size, log.end_offset, True, self._warmed)
        except Cold as reason:
            # The bytes are not in the page cache: a worker reads them, so that this turn does not wait for the disk.
            self.warming = True
            log.disk.warm_regions(reason.regions, self._on_warmed)
            return True
        self._warmed = False
        if region is None:
            if self._passed_over:
                _logger.info("%s: skipped %d records of unknown types", self._partition.tp, self._passed_over)
            return False
        content = bytearray(region.size)
        region.file.read_now(region.pos, memoryview(content))
        if content[MAGIC_POS] != MAGIC_V2:  # message sets that Kafka wrote before 0.11; they precede all v2 batches
            content = bytearray(convert_to_v2(bytes(content), EXPANDED_MAX))
        entries = self._newest_entries if self._codec.newest_only else self._all_entries
        self._items = entries(memoryview(content))
        return True

    def _on_warmed(self, _: Failure | None) -> None:
        """The worker is done. Its result is not needed: a failure shows in the next read."""
        self.warming = False
        self._warmed = True
        self.on_warm()

    def _unread_batches(self, content: memoryview) -> Iterator[tuple[int, BatchHeader]]:
        """The batches from `next` on. `next` moves past a batch when the following one is requested."""
        for pos, header in batches_of(content):
            # The log reads whole batches, so the first one may begin before `next`.
            if header.last_offset >= self.next:
                # `Log.read` does not look at checksums. State from a damaged batch would be journaled again as if it
                # were right.
                if not crc_ok(content, pos, pos + header.size):
                    raise CorruptRecord(f"the checksum of the batch at offset {header.base_offset} is wrong")
                yield pos, header
                self.next = header.last_offset + 1

    def _all_entries(self, content: memoryview) -> Iterator[Item]:
        for pos, header in self._unread_batches(content):
            records = records_of(content, pos, max_bytes=EXPANDED_MAX)
            yield from (
                _transaction_ends(records, header) if header.is_control else self._decode_records(records, header)
            )

    def _newest_entries(self, content: memoryview) -> Iterator[Item]:
        """The last entry of each key of this read, in log order. Others are not decoded: that is most of the work."""
        newest: dict[bytes | None, tuple[Record, BatchHeader]] = {}
        for pos, header in self._unread_batches(content):
            if not header.is_control:
                for record in records_of(content, pos, max_bytes=EXPANDED_MAX):
                    newest.pop(record.key, None)  # else the key would keep its old place in the order
                    newest[record.key] = record, header
        for record, header in newest.values():
            yield from self._decode_records((record,), header)

    def _decode_records(self, records: Iterable[Record], header: BatchHeader) -> Iterator[Item]:
        """The entries of records of a batch. Records of unknown types are counted and skipped."""
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


def _transaction_ends(records: Iterator[Record], header: BatchHeader) -> Iterator[Item]:
    """The transaction ends of a control batch."""
    producer_id, epoch = header.producer_id, header.producer_epoch
    for record in records:
        marker = parse_marker(record.key, record.value)
        if marker is not None:
            origin = EntryOrigin(record.offset, producer_id, epoch, record.timestamp)
            yield TransactionEnd(producer_id, epoch, marker.commit), origin
