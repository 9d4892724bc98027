"""Reads one partition for a Fetch, and sets its row of the response.

Zone: deterministic. Hot: called for each partition each time a request looks.
"""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING, Final

from ottla.errors import ErrorCode
from ottla.replication.fetch.down_conversion import V2_VERSION, ZSTD_VERSION, old_readers_region
from ottla.replication.fetch.fetch_session import FetchPartition
from ottla.replication.partition.partition import Partition
from ottla.seams import Region
from ottla.types import NO_EPOCH

if TYPE_CHECKING:
    from ottla.replication.fetch.fetch import PendingFetch

FOLLOWER_VERSION: Final = 11
"""From this version on consumers may read from a follower."""
_STORAGE_VERSION: Final = 6
"""From this version on readers know KAFKA_STORAGE_ERROR."""
NO_REPLICA: Final = -1
NO_RECORDS: Final = b""
"""Without records the field is empty, as Kafka sends it: librdkafka reports a parse error for null."""


def read_as_consumer(pending: PendingFetch, each: FetchPartition, partition: Partition) -> None:
    """Read for a consumer: up to the high watermark, or the last stable offset. Raises ApiError, Cold, Failure."""
    in_order = partition.offline is None and partition.is_leader  # then only the epoch is left to check
    if not in_order or each.leader_epoch not in (NO_EPOCH, partition.leader_epoch):
        partition.check_reader(each.leader_epoch, pending.version >= FOLLOWER_VERSION)
    if each.last_epoch >= 0:
        each.diverging = partition.find_divergence(each.fetch_offset, each.last_epoch)
        if each.diverging is not None:
            answer_without_records(pending, each, partition)
            return
    limit = partition.last_stable_offset if pending.committed else partition.high_watermark
    read_partition(pending, each, partition, limit, [] if pending.committed else None)


def read_partition(
    pending: PendingFetch, each: FetchPartition, partition: Partition, limit: int, aborted: list[tuple[int, int]] | None
) -> None:
    """Read bytes below `limit` that still fit into the response; watch the partition if there are none."""
    mark = partition.high_watermark
    stable = partition.last_stable_offset
    log = partition.log
    taken = 0 if each.region is None else each.region.size
    each.region = None
    each.row = (each.index, 0, mark, stable, log.start_offset, aborted, -1, NO_RECORDS)
    pending.bytes_read -= taken
    # 1. The response is full; the partition stays dirty, so that the next fetch reads it.
    budget = pending.max_bytes - pending.bytes_read
    if budget <= 0 and pending.bytes_read:
        return
    size = min(budget, each.max_bytes)
    offset = each.fetch_offset
    region = None if offset == limit else log.read(offset, size, limit, pending.bytes_read == 0, each.warmed)
    if region is not None and pending.version < ZSTD_VERSION:
        region = old_readers_region(pending.version, each, partition, region, size, limit)
    each.warmed = False
    # 2. Nothing to read: wait for a change. An offset below the limit without a whole batch stays dirty, unless old
    #    readers have just skipped control batches there.
    if region is None:
        if each.fetch_offset >= limit or pending.version < V2_VERSION:
            del pending.session.dirty[each]
            each.watch_partition(partition)
        return
    # 3. A region.
    if pending.committed:
        aborted = aborted_in(partition, region, each.fetch_offset, limit)
    pending.bytes_read += region.size
    if pending.replica_id == NO_REPLICA:
        partition.bytes_out += region.size - taken
    else:
        partition.shared.replication_bytes_out += region.size - taken
    if region.file is log.segments.slots[-1].file:
        pending.partial.append((each, partition))
    else:
        pending.settled = True  # a sealed segment does not grow, so waiting brings nothing: the next fetch continues
    each.region = region
    each.row = (each.index, 0, mark, stable, log.start_offset, aborted, -1, region)
    if pending.bytes_read < pending.min_bytes:  # read again when records are appended, until there are enough bytes
        each.watch_partition(partition)


def aborted_in(partition: Partition, region: Region, offset: int, limit: int) -> list[tuple[int, int]]:
    """(producer id, first offset) of the aborted transactions in a region, in the order of their first offsets."""
    log = partition.log
    found = log.segments.aborted_in(region, offset, limit, log.end_offset)
    aborted = [(one.producer_id, one.first_offset) for one in found] if found else []
    if aborted:
        aborted.sort(key=itemgetter(1))
    return aborted


def answer_without_records(
    pending: PendingFetch, each: FetchPartition, partition: Partition, preferred: int = -1
) -> None:
    """Answer without records: the diverging epoch, or the replica to read from instead."""
    each.region = None
    marks = (partition.high_watermark, partition.last_stable_offset, partition.log.start_offset)
    each.row = (each.index, 0, *marks, [] if pending.committed else None, preferred, NO_RECORDS)
    pending.settled = True


def fail_partition(pending: PendingFetch, each: FetchPartition, code: ErrorCode) -> None:
    """Answer an error for this partition."""
    if code is ErrorCode.KAFKA_STORAGE_ERROR and pending.version < _STORAGE_VERSION:
        code = ErrorCode.NOT_LEADER_OR_FOLLOWER
    each.row = (each.index, code, -1, -1, -1, None, -1, NO_RECORDS)
    each.region = each.diverging = None
    pending.settled = True
