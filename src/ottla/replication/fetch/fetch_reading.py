"""Reads partitions for a Fetch, and sets their rows of the response.

Zone: deterministic. Hot: called for each partition each time a request looks.
"""

from __future__ import annotations

from operator import itemgetter
from typing import Any, Final

from ottla.changes import half_changed
from ottla.errors import ApiError, ErrorCode
from ottla.replication.fetch.down_conversion import V2_VERSION, ZSTD_VERSION, old_readers_region
from ottla.replication.fetch.fetch_rights import may_read
from ottla.replication.fetch.fetch_session import FetchPartition
from ottla.replication.fetch.pending_fetch import NO_REPLICA, PendingFetch
from ottla.replication.fetch.replica_selector import ReplicaSelector, ReplicaView
from ottla.replication.leaders import Leaders, missing_partition_error
from ottla.replication.partition.partition import Partition
from ottla.replication.partition_registry import PartitionRegistry
from ottla.replication.throttle import Throttle
from ottla.seams import Clock, Failure, Region
from ottla.storage.errors import Cold
from ottla.types import NO_EPOCH

_STORAGE_VERSION: Final = 6
"""From this version on readers know KAFKA_STORAGE_ERROR."""
_TOPIC_ID_VERSION: Final = 13
NO_RECORDS: Final = b""
"""Without records the field is empty, as Kafka sends it: librdkafka reports a parse error for null."""


class FetchReader:
    """Reads for consumers and replicas."""

    def __init__(
        self,
        hosted: PartitionRegistry,
        leaders: Leaders,
        clock: Clock,
        selector: ReplicaSelector | None,
        throttle: Throttle | None,
    ) -> None:
        """`leaders` and `selector` find other brokers to read from; `throttle` limits followers."""
        self._hosted = hosted
        self._leaders = leaders
        self._now = clock.now
        self._selector = selector
        self._throttle = throttle

    def read_dirty(self, pending: PendingFetch) -> bool:
        """Read the partitions that may have news. Returns whether the response can be sent now."""
        self.read_partitions(pending, list(pending.session.dirty))
        if pending.settled or (not pending.cold and pending.bytes_read >= pending.min_bytes):
            return True
        for each, partition in pending.partial:
            each.watch_partition(partition)
        pending.partial.clear()
        return False

    def read_partitions(self, pending: PendingFetch, partitions: list[FetchPartition]) -> None:
        """Read these partitions."""
        topics: Any = self._hosted.by_id if pending.version >= _TOPIC_ID_VERSION else self._hosted.by_name
        for each in partitions:
            pending.touched[each] = None
            if pending.rights is not None and not may_read(pending.rights, topics, self._leaders, each.topic):
                fail_partition(pending, each, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
                continue
            topic = topics.get(each.topic)
            partition = None if topic is None else topic.partitions.get(each.index)
            if partition is None:
                fail_partition(pending, each, missing_partition_error(self._leaders, each.topic, each.index).code)
                continue
            self._read_one(pending, each, partition)
            if topic is not None and each.row is not None and each.row[1]:
                topic.failed_fetches += 1

    def _read_one(self, pending: PendingFetch, each: FetchPartition, partition: Partition) -> None:
        try:
            if pending.replica_id != NO_REPLICA:
                self._read_as_replica(pending, each, partition)
            elif not pending.rack or not self._redirect_consumer(pending, each, partition):
                read_as_consumer(pending, each, partition)
        except ApiError as error:
            fail_partition(pending, each, error.code)
        except Cold as reason:
            pending.cold += 1
            each.warmed = True
            partition.log.disk.warm_regions(reason.regions, lambda _: pending.on_warmed())
        except Failure:
            fail_partition(pending, each, ErrorCode.KAFKA_STORAGE_ERROR)

    def _read_as_replica(self, pending: PendingFetch, each: FetchPartition, partition: Partition) -> None:
        """Take the fetch offset as an acknowledgement, then read from it on."""
        now = self._now()
        try:
            # The acknowledgement first: if it moves the high watermark, the response of this very fetch contains the
            # new one.
            each.diverging = partition.leader_role.note_fetch(
                pending.replica_id,
                pending.replica_epoch,
                each.leader_epoch,
                each.fetch_offset,
                each.last_epoch,
                each.log_start,
                now,
                each,
            )
        except (ApiError, Failure):
            raise
        except Exception as error:
            raise half_changed("what a follower has acknowledged") from error
        if each.diverging is not None:
            answer_without_records(pending, each, partition)
            return
        # A new log start, or, for followers that serve consumers, a new high watermark: respond without records.
        start = partition.log.start_offset
        if each.sent_log_start not in (start, -1) or (
            self._selector is not None and 0 <= each.sent_high_watermark < partition.high_watermark
        ):
            pending.settled = True
        if self._throttle is None or self._throttle.is_idle or not self._throttle.applies_to(partition.tp):
            read_partition(pending, each, partition, partition.log.end_offset, None)
        else:
            self._read_throttled(pending, each, partition, self._throttle)

    def _read_throttled(
        self, pending: PendingFetch, each: FetchPartition, partition: Partition, throttle: Throttle
    ) -> None:
        """Read for a throttled replica: one out of sync gets nothing while the rate is exceeded (KIP-73)."""
        now_ns = self._now().mono_ns
        taken = 0 if each.region is None else each.region.size
        hold = pending.replica_id not in partition.isr and throttle.is_exceeded(now_ns)
        read_partition(pending, each, partition, each.fetch_offset if hold else partition.log.end_offset, None)
        if each.region is not None:
            throttle.record_bytes(each.region.size - taken, now_ns)
        elif hold:
            pending.session.dirty[each] = None  # no event ends the throttling, so its next fetch reads again

    def _redirect_consumer(self, pending: PendingFetch, each: FetchPartition, partition: Partition) -> bool:
        """Redirect a consumer to a nearer replica, if there is one. Returns whether it was."""
        partition.check_reader(each.leader_epoch, pending.reads_followers)
        assert self._selector is not None
        if not partition.is_leader:
            return False
        views = [
            ReplicaView(node, end_offset, caught_up_ns, at.rack)
            for node, end_offset, caught_up_ns in partition.leader_role.readable_at(each.fetch_offset)
            if (at := self._leaders.broker_address(node, pending.slot.peer.listener)) is not None
        ]
        preferred = self._selector(partition.node_id, views, pending.rack)
        if preferred == partition.node_id:
            return False
        answer_without_records(pending, each, partition, preferred)
        return True


def read_as_consumer(pending: PendingFetch, each: FetchPartition, partition: Partition) -> None:
    """Read for a consumer: up to the high watermark, or the last stable offset. Raises ApiError, Cold, Failure."""
    in_order = partition.offline is None and partition.is_leader  # then only the epoch is left to check
    if not in_order or each.leader_epoch not in (NO_EPOCH, partition.leader_epoch):
        partition.check_reader(each.leader_epoch, pending.reads_followers)
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
    # A request that waits reads a partition again from the same offset: the region of last time does not count twice.
    pending.bytes_read -= taken
    # 1. The response is full; the partition stays dirty, so that the next fetch reads it.
    budget = pending.max_bytes - pending.bytes_read
    if budget <= 0 and pending.bytes_read:
        return
    size = min(budget, each.max_bytes)
    offset = each.fetch_offset
    # Only the first batch of a response may exceed its limit, so that every fetch makes progress (KIP-74).
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
