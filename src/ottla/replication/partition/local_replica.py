"""One replica of a partition on this broker in either role: its log, its checks for readers, and following.

Zone: deterministic. `partition` adds leading; `fetcher` fetches from the leader.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ottla.config.topic import TopicConfig
from ottla.errors import ApiError, ErrorCode
from ottla.record.validation import HeaderTuple
from ottla.replication.partition.partition_context import PartitionContext
from ottla.replication.partition.partition_listeners import PartitionListener, wake_all
from ottla.replication.partition.replica_errors import (
    divergence_of,
    leader_epoch_error,
    not_leader_error,
    out_of_range_error,
)
from ottla.replication.partition.replica_state import NO_LEADER, EpochEnd
from ottla.seams import Failure, Instant, Region
from ottla.storage.log import Log
from ottla.types import NO_EPOCH, TopicPartition

_CODEC_NUMBERS: Final = {"uncompressed": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
NO_LIMIT: Final = 2**63 - 1


class LocalReplica:
    """A log, its high watermark, and the listeners that wait for either to move."""

    __slots__ = (
        "_after_max_ms",
        "_append_time",
        "_before_max_ms",
        "_codec",
        "_max_bytes",
        "bytes_in",
        "bytes_out",
        "config",
        "end_watchers",
        "fetch_conversions",
        "high_watermark",
        "is_leader",
        "leader",
        "leader_epoch",
        "log",
        "messages_in",
        "node_id",
        "offline",
        "produce_conversions",
        "shared",
        "syncs",
        "tp",
        "watchers",
    )

    def __init__(self, log: Log, config: TopicConfig, node_id: int, shared: PartitionContext) -> None:
        self.tp: TopicPartition = log.tp
        self.log = log
        self.node_id = node_id
        self.shared = shared
        self.leader = NO_LEADER
        self.is_leader = False
        self.leader_epoch = NO_EPOCH
        self.offline: ErrorCode | None = None
        """Why it refuses all requests; None while it serves."""
        self.watchers: dict[PartitionListener, None] = {}
        """Woken when the high watermark, the log start or the role changes."""
        self.end_watchers: dict[PartitionListener, None] = {}
        """Woken when records are appended (for followers), and when the role changes."""
        self.bytes_in = 0
        self.bytes_out = 0
        self.messages_in = 0
        self.produce_conversions = 0
        """Produced records that were converted from or to another message format."""
        self.fetch_conversions = 0
        """Records that were converted to another message format for readers."""
        self.high_watermark = log.high_watermark
        LocalReplica.apply_config(self, config)

    @property
    def topic_id(self) -> bytes:
        """The topic's id."""
        return self.log.topic_id

    def apply_config(self, config: TopicConfig) -> None:
        """Apply a changed topic config."""
        self.config = config
        self.log.apply_config(config)
        self._append_time = config.message_timestamp_type == "LogAppendTime"
        self._codec = _CODEC_NUMBERS.get(config.compression_type, -1)  # -1: keep the producer's
        self._max_bytes = config.max_message_bytes
        self._before_max_ms, self._after_max_ms = config.timestamp_bounds
        if self._append_time:  # the producer's timestamps are replaced, so they are not checked
            self._before_max_ms = self._after_max_ms = NO_LIMIT
        self.syncs = config.flush_messages < NO_LIMIT
        """Whether acknowledgements may have to wait for the disk (flush.messages)."""

    @property
    def codec_and_level(self) -> tuple[int, int | None]:
        """The codec of compression.type, and its level; (-1, None) for the producer's own."""
        config = self.config
        levels = {1: config.compression_gzip_level, 3: config.compression_lz4_level, 4: config.compression_zstd_level}
        return self._codec, levels.get(self._codec)

    @property
    def needs_keys(self) -> bool:
        """Whether the topic is compacted: then records need keys, and batches are inspected before the append."""
        return self.config.compact

    @property
    def record_max(self) -> int:
        """Most bytes of a record in a compressed batch (max.decompressed.message.bytes); the default is no limit."""
        return self.config.max_decompressed_message_bytes

    @property
    def batch_limits(self) -> tuple[int, int, int]:
        """The limits of a batch: most bytes, and how far before and after now its timestamps may be, in ms."""
        return self._max_bytes, self._before_max_ms, self._after_max_ms

    def wake_watchers(self) -> None:
        """Wake all watchers after a change; one that is still interested registers again."""
        watchers, self.watchers = self.watchers, {}
        wake_all(watchers)

    def _wake_end_watchers(self) -> None:
        watchers, self.end_watchers = self.end_watchers, {}
        wake_all(watchers)

    def _move_high_watermark(self, mark: int) -> None:
        self.high_watermark = self.log.high_watermark = mark
        if self.watchers:
            self.wake_watchers()
        self.shared.check(self)

    # -- following -----------------------------------------------------------------------------------------------------

    def append_as_follower(self, records: memoryview, leader_epoch: int) -> int:
        """Append batches that were fetched in `leader_epoch`, unchanged; ignores an incomplete batch at the end.

        Returns the log end. Raises ApiError NOT_LEADER_OR_FOLLOWER (it does not follow in that epoch any more),
        CORRUPT_MESSAGE, KAFKA_STORAGE_ERROR; batches before the error are in the log.
        """
        if self.offline is not None or self.is_leader or leader_epoch != self.leader_epoch:
            raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{self.tp} does not follow in epoch {leader_epoch}")
        self.shared.replication_bytes_in += len(records)
        return self.log.append_replica(records, leader_epoch)

    def take_from_leader(self, high_watermark: int, log_start: int) -> None:
        """Take the leader's high watermark and log start, after its records are in the log.

        The high watermark becomes min(own LEO, the leader's), but never decreases: committed records stay so, even if a
        new leader has not learned of it yet. The log start rises, but not above the high watermark (KAFKA-9491).
        """
        log = self.log
        mark = min(high_watermark, log.end_offset)
        start = min(log_start, max(mark, self.high_watermark))
        moved = start > log.start_offset
        if moved:
            log.set_start_offset(start)
        mark = max(mark, self.high_watermark, log.start_offset)
        if moved or mark != self.high_watermark:
            self._move_high_watermark(mark)

    def truncate_to(self, offset: int) -> None:
        """Follower: delete all records from `offset` on, and epochs without records. Raises KAFKA_STORAGE_ERROR."""
        self._cut_log(self.log.truncate_to, offset)
        self.log.epochs.truncate_from_end(self.log.end_offset)

    def restart_at(self, offset: int) -> None:
        """Follower: delete all records and restart the log at `offset`, the leader's log start. Raises ApiError."""
        self._cut_log(self.log.restart_at, offset)

    def _cut_log(self, cut: Callable[[int], None], offset: int) -> None:
        assert not self.is_leader, f"{self.tp} is led here: a leader never truncates its log"
        try:
            cut(offset)
        except Failure as failure:
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, failure.message) from failure
        self.shared.on_cut(self)
        self.high_watermark = self.log.high_watermark
        self.wake_watchers()

    # -- moving --------------------------------------------------------------------------------------------------------

    def move_to(self, log: Log) -> None:
        """Replace the log by its copy in another log directory."""
        self.log = log
        log.apply_config(self.config)
        log.on_synced(self._on_synced)
        self._on_synced()

    def _on_synced(self) -> None:
        """Notify delayed operations after a flush."""
        self.shared.check(self)

    # -- reading ---------------------------------------------------------------------------------------------------

    def check_epoch(self, epoch: int) -> None:
        """Fence requests with another leader epoch (KIP-320). Raises FENCED_ or UNKNOWN_LEADER_EPOCH."""
        if epoch in (NO_EPOCH, self.leader_epoch):
            return
        raise leader_epoch_error(self.tp, self.leader_epoch, epoch)

    def _lowered_append(self, header: HeaderTuple) -> Callable[[memoryview, HeaderTuple, int, Instant], int]:
        """The append for a log with an older message format; counts the records as converted."""
        self.produce_conversions += header[12]
        return self.log.append_lowered

    def check_leader(self, epoch: int) -> None:
        """Raises ApiError unless this replica leads, in the requested leader epoch (-1: in any)."""
        if self.offline is not None:
            raise ApiError(self.offline, f"the replica of {self.tp} on broker {self.node_id} is out of service")
        if epoch != NO_EPOCH:
            self.check_epoch(epoch)
        if not self.is_leader:
            raise not_leader_error(self.tp, self.node_id, self.leader)

    def check_reader(self, epoch: int, follower_too: bool) -> None:
        """Raises ApiError unless a consumer may read here: from the leader, or also from a follower (KIP-392)."""
        if not follower_too or self.offline is not None:
            self.check_leader(epoch)
        elif epoch not in (NO_EPOCH, self.leader_epoch):
            self.check_epoch(epoch)

    @property
    def last_stable_offset(self) -> int:
        """The offset below which no transaction is open, for read_committed. Never below the log start."""
        log = self.log
        if not log.producers.ongoing and not log.producers.completed:  # the usual case, without further calls
            return self.high_watermark
        unstable = log.first_unstable_offset
        if unstable is None:
            return self.high_watermark
        return min(max(unstable, log.start_offset), self.high_watermark)

    def find_divergence(self, offset: int, last_epoch: int) -> EpochEnd | None:
        """Where a log that ends at `offset` in `last_epoch` diverges from this one (KIP-595); None if it does not.

        Raises ApiError OFFSET_OUT_OF_RANGE if this log does not reach back far enough to know.
        """
        log = self.log
        found = EpochEnd(*log.epochs.end_offset_for(last_epoch))
        if found.end_offset < 0 or offset < log.start_offset:
            raise out_of_range_error(self.tp, log.start_offset, log.end_offset, offset)
        return divergence_of(found, offset, last_epoch)

    def read(self, offset: int, max_bytes: int, limit: int, at_least_one: bool, warmed: bool = False) -> Region | None:
        """Whole batches from `offset` up to `limit`, as a region of a segment file; None when there are none yet.

        Raises ApiError OFFSET_OUT_OF_RANGE, and Cold when bytes must be read into memory first. `warmed`: that was
        done, so Cold is not raised again.
        """
        if offset == limit:
            return None
        return self.log.read(offset, max_bytes, limit, at_least_one, warmed)


def ignore_flush(_: object) -> None:
    """Ignore the result of a flush: the log keeps it (`recovery_point`, `offline`)."""
