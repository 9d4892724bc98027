"""A full fetch without a session that finds records: answered within its turn, with one row per partition and no other
object.

Zone: deterministic. Hot: one iteration of a loop per partition. It serves the usual case: a consumer, partitions that
this broker leads, bytes that are in memory. For anything else it returns None before anything was changed, and `fetch`
begins again with a session for this one request, which can wait.
"""

from __future__ import annotations

from typing import Any, Final

from ottla.errors import ApiError
from ottla.replication.fetch.down_conversion import ZSTD_VERSION
from ottla.replication.fetch.fetch_reading import NO_RECORDS, aborted_in
from ottla.replication.fetch.fetch_responses import FetchResponses
from ottla.replication.fetch.fetch_session import NO_SESSION, RequestedPartition, Row
from ottla.replication.fetch.pending_fetch import NO_REPLICA
from ottla.replication.partition.partition import Partition
from ottla.replication.partition_registry import PartitionRegistry
from ottla.seams import Failure
from ottla.storage.errors import Cold
from ottla.types import NO_EPOCH
from ottla.wire.hot import FetchRequest

FEW: Final = 4
"""Up to this number of partitions a session for one request is as cheap."""
READ_COMMITTED: Final = 1
_TOPIC_ID_VERSION: Final = 13


class SessionlessFetch:
    """Reads the partitions of one request."""

    __slots__ = ("_by_id", "_committed", "_left", "_seen", "_taken", "_topics", "bytes_read")

    def __init__(self, topics: Any, max_bytes: int, *, committed: bool, by_id: bool) -> None:
        """`topics`: those of this broker, by id or by name. `committed`: read_committed, with aborted transactions."""
        self._topics = topics
        self._left = max_bytes
        self._committed = committed
        self._by_id = by_id
        self._seen: dict[Any, dict[int, Row]] = {}
        """By topic, the rows of the partitions that the request has named so far."""
        self._taken: list[tuple[Partition, int]] = []
        self.bytes_read = 0

    def read(self, asked: list[RequestedPartition]) -> FetchResponses | None:
        """The rows of these partitions; None if one is not usual, or was named before in this request."""
        found: dict[Any, dict[int, Row]] = {}
        try:
            count = self._read_rows(asked, found)
        except (ApiError, Cold, Failure):
            return None
        if count != len(asked) or not all(map(self._are_new, found, found.values())):
            return None
        named = ((name, rows.values()) for name, rows in found.items())
        return [("", name, rows) if self._by_id else (name, bytes(16), rows) for name, rows in named]

    def _are_new(self, name: Any, rows: dict[int, Row]) -> bool:
        seen = self._seen.setdefault(name, rows)
        if seen is rows:
            return True
        most = len(seen) + len(rows)
        seen.update(rows)  # only the keys matter: earlier rows are encoded already
        return len(seen) == most

    def _read_rows(self, asked: list[RequestedPartition], found: dict[Any, dict[int, Row]]) -> int:
        """Fill `found`, and return the number of rows; -1 at a partition that is not usual. Raises ApiError, Cold,
        Failure."""
        last: Any = None
        partitions: dict[int, Partition] = {}
        rows: dict[int, Row] = {}
        committed, count = self._committed, 0
        for name, index, epoch, offset, last_epoch, _, most in asked:
            if name != last:
                topic = self._topics.get(name)
                # A topic that is named again may name a partition again, of which the response has one row.
                if topic is None or name in found:
                    return -1
                last, partitions = name, topic.partitions
                count += len(rows)
                rows = found[name] = {}
            # Errors, followers, and diverging or fenced epochs need a session's row.
            partition = partitions.get(index)
            if partition is None or not partition.is_leader or partition.offline is not None or last_epoch >= 0:
                return -1
            if epoch not in (NO_EPOCH, partition.leader_epoch):
                return -1
            log, mark = partition.log, partition.high_watermark
            producers = log.producers
            stable = partition.last_stable_offset if producers.ongoing or producers.completed else mark
            limit = stable if committed else mark
            aborted: list[tuple[int, int]] | None = [] if committed else None
            left = self._left
            # Nothing to read, or no room left: a row without records.
            if offset == limit or (left <= 0 and self.bytes_read):
                rows[index] = (index, 0, mark, stable, log.start_offset, aborted, -1, NO_RECORDS)
                continue
            size = min(left, most)
            # The remembered positions reach up to the log end: with a lower limit they would include records above it.
            region = log.read_newest(offset, size) if limit == log.end_offset else None
            if region is None:
                region = log.read(offset, size, limit, not self.bytes_read)
            if region is None:
                rows[index] = (index, 0, mark, stable, log.start_offset, aborted, -1, NO_RECORDS)
                continue
            if committed:
                aborted = aborted_in(partition, region, offset, limit)
            self.bytes_read += region.size
            self._left = left - region.size
            self._taken.append((partition, region.size))
            rows[index] = (index, 0, mark, stable, log.start_offset, aborted, -1, region)
        return count + len(rows)

    def count_bytes(self) -> None:
        """Count the bytes of a response that is sent for their partitions."""
        for partition, size in self._taken:
            partition.bytes_out += size


def sessionless_fetch_for(version: int, request: FetchRequest, hosted: PartitionRegistry) -> SessionlessFetch | None:
    """A reader for a full fetch; None if the request is not a usual one.

    Readers of older versions may need conversion, or may not read topics with zstd.
    """
    if version < ZSTD_VERSION or request.replica_id > NO_REPLICA or request.session_id != NO_SESSION:
        return None
    by_id = version >= _TOPIC_ID_VERSION
    topics = hosted.by_id if by_id else hosted.by_name
    return SessionlessFetch(topics, request.max_bytes, committed=request.isolation_level == READ_COMMITTED, by_id=by_id)
