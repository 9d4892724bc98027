"""What a replica is in either role: its log, the controller's state, its limits, and its checks for readers.

Zone: deterministic. `leader_role` and `follower_role` change it, `partition` gives it one of the two roles.
"""

from __future__ import annotations

from typing import Final

from ottla.config.topic import TopicConfig
from ottla.errors import ApiError, ErrorCode
from ottla.replication.partition.partition_context import PartitionContext
from ottla.replication.partition.partition_listeners import PartitionListener, wake_all
from ottla.replication.partition.replica_errors import (
    divergence_of,
    leader_epoch_error,
    not_leader_error,
    out_of_range_error,
)
from ottla.replication.partition.replica_state import NO_LEADER, EpochEnd
from ottla.seams import Region
from ottla.storage.log import Log
from ottla.types import NO_EPOCH, TopicPartition

_CODEC_NUMBERS: Final = {"uncompressed": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
NO_LIMIT: Final = 2**63 - 1


class LocalReplica:
    """A log, its high watermark, and the listeners that wait for either to move."""

    __slots__ = (
        "_codec",
        "adding",
        "after_max_ms",
        "append_time",
        "before_max_ms",
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
        "max_bytes",
        "messages_in",
        "node_id",
        "offline",
        "partition_epoch",
        "produce_conversions",
        "removing",
        "replicas",
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
        self.partition_epoch = NO_EPOCH
        self.replicas: tuple[int, ...] = ()
        """The assigned replicas (AR), the preferred leader first."""
        self.adding: tuple[int, ...] = ()
        self.removing: tuple[int, ...] = ()
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
        # Not the method of `Partition`, which uses the roles: they do not exist yet.
        LocalReplica.apply_config(self, config)

    @property
    def topic_id(self) -> bytes:
        """The topic's id."""
        return self.log.metadata.topic_id

    def apply_config(self, config: TopicConfig) -> None:
        """Apply a changed topic config."""
        self.config = config
        self.log.apply_config(config)
        self.append_time = config.message_timestamp_type == "LogAppendTime"
        self._codec = _CODEC_NUMBERS.get(config.compression_type, -1)  # -1: keep the producer's
        self.max_bytes = config.max_message_bytes
        self.before_max_ms, self.after_max_ms = config.timestamp_bounds
        if self.append_time:  # the producer's timestamps are replaced, so they are not checked
            self.before_max_ms = self.after_max_ms = NO_LIMIT
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
        return self.max_bytes, self.before_max_ms, self.after_max_ms

    def wake_watchers(self) -> None:
        """Wake all watchers after a change; one that is still interested registers again."""
        # Swapped first: a watcher that registers again while it is woken waits for the next change, not in this loop.
        watchers, self.watchers = self.watchers, {}
        wake_all(watchers)

    def wake_end_watchers(self) -> None:
        """Wake the followers' fetches that wait for records."""
        watchers, self.end_watchers = self.end_watchers, {}
        wake_all(watchers)

    def move_high_watermark(self, mark: int) -> None:
        """Set the high watermark, and wake everything that waits for it."""
        self.high_watermark = self.log.high_watermark = mark
        if self.watchers:
            self.wake_watchers()
        self.shared.check(self)

    # -- reading ---------------------------------------------------------------------------------------------------

    def check_epoch(self, epoch: int) -> None:
        """Fence requests with another leader epoch (KIP-320). Raises FENCED_ or UNKNOWN_LEADER_EPOCH."""
        if epoch in (NO_EPOCH, self.leader_epoch):
            return
        raise leader_epoch_error(self.tp, self.leader_epoch, epoch)

    def check_leader(self, epoch: int) -> None:
        """Raises ApiError unless this replica leads, in the requested leader epoch (-1: in any)."""
        if self.offline is not None:
            raise ApiError(self.offline, f"the replica of {self.tp} on broker {self.node_id} is out of service")
        # The epoch before the leadership, as in Kafka: a request with a newer epoch than this broker's comes from a
        # client that knows of an election here. UNKNOWN_LEADER_EPOCH lets it retry here; NOT_LEADER_OR_FOLLOWER would
        # send it away.
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
        # A completed transaction holds the last stable offset back until its marker is below the high watermark: a new
        # leader may lack an uncommitted marker.
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

    def copy_state(self) -> LocalReplica:
        """A replica with the same state, which does not know what waits for this one."""
        copied = object.__new__(LocalReplica)
        for name in LocalReplica.__slots__:
            setattr(copied, name, getattr(self, name))
        copied.watchers, copied.end_watchers = {}, {}
        return copied
