"""Records of the log by offset: those due soon are cached, the others are read when they are needed.

Zone: real. Memory is bounded: the cache by count and size, reads by ranges of nearby offsets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from ottla.client.admin.admin import Admin
from ottla.client.admin.types import EARLIEST
from ottla.client.cluster import Cluster
from ottla.client.consumer.record import ConsumerRecord, Decoder
from ottla.client.errors import RefusedError, values_of
from ottla.client.fetching.fetch import fetch_range
from ottla.errors import ErrorCode
from ottla.types import TopicPartition

KEPT_RECORDS: Final = 20_000
KEPT_BYTES: Final = 32 * 2**20
_NEAR: Final = 100
"""Two wanted offsets are read together if they are less than this apart."""
CachedRecord = tuple[TopicPartition, int]


class RecordCache:
    """Returns records from the cache, or else reads them."""

    def __init__(
        self,
        cluster: Cluster,
        is_wanted: Callable[[TopicPartition, ConsumerRecord], bool] = lambda _where, _record: False,
        warm_up: int = 2**62,
    ) -> None:
        """cluster: must read committed records only, in small fetches. is_wanted: whether a record will be needed soon,
        so that it is cached when it is read with others. warm_up: as of Decoder."""
        self._cluster = cluster
        self._is_wanted = is_wanted
        self._decoder = Decoder(cluster.config.check_crcs, None, None, warm_up)
        self._kept: dict[CachedRecord, ConsumerRecord] = {}
        self._bytes = 0

    def keep_record(self, tp: TopicPartition, record: ConsumerRecord) -> None:
        """Cache a record if there is room."""
        if (tp, record.offset) in self._kept:
            return
        if len(self._kept) < KEPT_RECORDS and self._bytes < KEPT_BYTES:
            self._kept[tp, record.offset] = record
            self._bytes += _record_size(record)

    def forget_partition(self, tp: TopicPartition) -> None:
        """Drop the cached records of a partition that was revoked."""
        for place in [each for each in self._kept if each[0] == tp]:
            self._bytes -= _record_size(self._kept.pop(place))

    def take_records(self, places: Sequence[CachedRecord]) -> dict[CachedRecord, ConsumerRecord]:
        """Remove and return the records at these places; missing ones are no longer in the log. Raises ClientError."""
        found: dict[CachedRecord, ConsumerRecord] = {}
        missing: dict[TopicPartition, list[int]] = {}
        for place in places:
            record = self._kept.pop(place, None)
            if record is None:
                missing.setdefault(place[0], []).append(place[1])
            else:
                self._bytes -= _record_size(record)
                found[place] = record
        found |= self._read_missing(missing)
        return found

    def _read_missing(
        self, missing: Mapping[TopicPartition, list[int]]
    ) -> Iterator[tuple[CachedRecord, ConsumerRecord]]:
        for tp, offsets in missing.items():
            wanted = set(offsets)
            for first, end in group_offsets(offsets):
                for record in self._read_range(tp, first, end):
                    if record.offset in wanted:
                        yield (tp, record.offset), record
                    elif self._is_wanted(tp, record):
                        self.keep_record(tp, record)

    def _read_range(self, tp: TopicPartition, first: int, end: int) -> Iterator[ConsumerRecord]:
        try:
            for fetched in fetch_range(self._cluster, tp, first, end):
                yield from self._decoder.decode_records(fetched)
        except RefusedError as error:
            # Out of range because retention has deleted the first records: read from the new start. Other refusals are
            # the caller's.
            start = self._log_start(tp) if error.code is ErrorCode.OFFSET_OUT_OF_RANGE else first
            if start <= first:
                raise
            if start < end:  # retention deleted a part of the range: read the rest
                yield from self._read_range(tp, start, end)

    def _log_start(self, tp: TopicPartition) -> int:
        return values_of(Admin(self._cluster).list_offsets({tp: EARLIEST}))[tp].offset


def group_offsets(offsets: Sequence[int]) -> list[tuple[int, int]]:
    """Ranges (first, end) of offsets that are near each other."""
    found: list[tuple[int, int]] = []
    for each in sorted(offsets):
        if found and each - found[-1][1] < _NEAR:
            found[-1] = (found[-1][0], each + 1)
        else:
            found.append((each, each + 1))
    return found


def _record_size(record: ConsumerRecord) -> int:
    # 200 and 150 bytes: estimates of Python's objects for a record and for a header.
    plain = len(record.key or b"") + len(record.value or b"")
    return plain + sum(len(name) + len(value or b"") + 150 for name, value in record.headers) + 200
