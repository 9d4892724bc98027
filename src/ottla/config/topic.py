"""Configuration of a topic: one row per key, with Kafka's names and defaults.

Zone: pure. `TopicConfig()` has the defaults of a broker without configuration. `BrokerConfig.topic_defaults` derives
defaults from the broker's keys; `ottla.cluster.configs` finds the source of a topic's values.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from ottla.config.names import nearest_key_hint
from ottla.config.rows import (
    HIGH,
    LONG_MAX,
    LOW,
    Check,
    ConfigError,
    Row,
    Type,
    at_least,
    between,
    key,
    one_of,
    parse_value,
    rows_of,
    subset_of,
)

CODECS: Final = ("uncompressed", "gzip", "snappy", "lz4", "zstd", "producer")
GZIP_LEVEL: Final = Check("-1 or between 1 and 9", lambda value: value == -1 or 1 <= value <= 9)
_VERSION: Final = re.compile(r"([0-9]+)\.([0-9]+)(\.[0-9]+)*(-IV[0-9]+)?")
MESSAGE_FORMATS: Final = Check(
    "a Kafka version such as 0.10.0, 2.8 or 3.0-IV1", lambda value: _VERSION.fullmatch(value) is not None
)


def _are_throttled_replicas(value: tuple[str, ...]) -> bool:
    return value == ("*",) or all(
        partition.isdecimal() and broker.isdecimal()
        for partition, _, broker in (entry.partition(":") for entry in value)
    )


THROTTLED: Final = Check("* or a list of partition:broker", _are_throttled_replicas)


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """Settings of one topic, every key resolved. Sizes in bytes, times in milliseconds."""

    cleanup_policy: tuple[str, ...] = key(
        "cleanup.policy",
        Type.LIST,
        ("delete",),
        "Treatment of old data: delete removes segments by age and size, compact keeps each key's last value, "
        "an empty value keeps all (KIP-1161).",
        subset_of("compact", "delete"),
        synonyms=("log.cleanup.policy",),
    )
    compression_type: str = key(
        "compression.type",
        Type.STRING,
        "producer",
        "Codec of the batches on disk; producer keeps the codec of the producer.",
        one_of(*CODECS),
        synonyms=("compression.type",),
    )
    compression_gzip_level: int = key(
        "compression.gzip.level",
        Type.INT,
        -1,
        "Level when the broker recompresses with gzip; -1 is the codec's own default.",
        GZIP_LEVEL,
        synonyms=("compression.gzip.level",),
    )
    compression_lz4_level: int = key(
        "compression.lz4.level",
        Type.INT,
        9,
        "Level when the broker recompresses with lz4.",
        between(1, 17),
        synonyms=("compression.lz4.level",),
    )
    compression_zstd_level: int = key(
        "compression.zstd.level",
        Type.INT,
        3,
        "Level when the broker recompresses with zstd.",
        between(-131072, 22),
        synonyms=("compression.zstd.level",),
    )
    delete_retention_ms: int = key(
        "delete.retention.ms",
        Type.LONG,
        86_400_000,
        "How long a compacted topic keeps tombstones, so that a reader from the start sees every deletion.",
        at_least(0),
        synonyms=("log.cleaner.delete.retention.ms",),
    )
    file_delete_delay_ms: int = key(
        "file.delete.delay.ms",
        Type.LONG,
        60_000,
        "Time between renaming a dropped segment to .deleted and removing it from the disk.",
        at_least(0),
        synonyms=("log.segment.delete.delay.ms",),
    )
    flush_messages: int = key(
        "flush.messages",
        Type.LONG,
        LONG_MAX,
        "Records after which the log is forced to disk; 1 syncs every append before it is acknowledged.",
        at_least(1),
        synonyms=("log.flush.interval.messages",),
    )
    flush_ms: int = key(
        "flush.ms",
        Type.LONG,
        LONG_MAX,
        "Longest time that a record stays unsynced.",
        at_least(0),
        synonyms=("log.flush.interval.ms", "log.flush.scheduler.interval.ms"),
    )
    follower_replication_throttled_replicas: tuple[str, ...] = key(
        "follower.replication.throttled.replicas",
        Type.LIST,
        (),
        "Replicas (partition:broker, or *) whose fetching is throttled while they catch up.",
        THROTTLED,
    )
    index_interval_bytes: int = key(
        "index.interval.bytes",
        Type.INT,
        4096,
        "Bytes of log between two entries of the offset index.",
        at_least(0),
        synonyms=("log.index.interval.bytes",),
    )
    leader_replication_throttled_replicas: tuple[str, ...] = key(
        "leader.replication.throttled.replicas",
        Type.LIST,
        (),
        "Replicas (partition:broker, or *) to which the leader sends with the throttled rate.",
        THROTTLED,
    )
    local_retention_bytes: int = key(
        "local.retention.bytes",
        Type.LONG,
        -2,
        "Size kept locally when segments are tiered; -2 follows retention.bytes. Without tiering it has no effect.",
        at_least(-2),
        synonyms=("log.local.retention.bytes",),
        unused="there is no remote tier",
    )
    local_retention_ms: int = key(
        "local.retention.ms",
        Type.LONG,
        -2,
        "Age kept locally when segments are tiered; -2 follows retention.ms. Without tiering it has no effect.",
        at_least(-2),
        synonyms=("log.local.retention.ms",),
        unused="there is no remote tier",
    )
    max_compaction_lag_ms: int = key(
        "max.compaction.lag.ms",
        Type.LONG,
        LONG_MAX,
        "Longest time that a record may stay uncompacted.",
        at_least(1),
        synonyms=("log.cleaner.max.compaction.lag.ms",),
    )
    max_message_bytes: int = key(
        "max.message.bytes",
        Type.INT,
        1_048_588,
        "Largest record batch, as it is stored (after compression).",
        at_least(0),
        synonyms=("message.max.bytes",),
    )
    max_decompressed_message_bytes: int = key(
        "max.decompressed.message.bytes",
        Type.INT,
        2_147_483_639,
        "Largest record of a compressed batch when it is produced, in bytes; the default is no limit.",
        between(1, 2_147_483_639),
        synonyms=("max.decompressed.message.bytes",),
    )
    message_downconversion_enable: bool = key(
        "message.downconversion.enable",
        Type.BOOLEAN,
        True,
        "Whether batches may be rewritten for readers that only know an older message format.",
        importance=LOW,
        synonyms=("log.message.downconversion.enable",),
    )
    message_format_version: str = key(
        "message.format.version",
        Type.STRING,
        "3.0-IV1",
        "Version of Kafka whose message format is written: v0 below 0.10, v1 below 0.11, else v2 (record batches).",
        MESSAGE_FORMATS,
        synonyms=("log.message.format.version",),
    )
    message_timestamp_after_max_ms: int = key(
        "message.timestamp.after.max.ms",
        Type.LONG,
        3_600_000,
        "How much later than the broker's clock a CreateTime timestamp may be.",
        at_least(0),
        synonyms=("log.message.timestamp.after.max.ms",),
    )
    message_timestamp_before_max_ms: int = key(
        "message.timestamp.before.max.ms",
        Type.LONG,
        LONG_MAX,
        "How much earlier than the broker's clock a CreateTime timestamp may be.",
        at_least(0),
        synonyms=("log.message.timestamp.before.max.ms",),
    )
    message_timestamp_difference_max_ms: int = key(
        "message.timestamp.difference.max.ms",
        Type.LONG,
        LONG_MAX,
        "Older key that limits the timestamp on both sides; the before and after keys win if changed.",
        at_least(0),
        synonyms=("log.message.timestamp.difference.max.ms",),
    )
    message_timestamp_type: str = key(
        "message.timestamp.type",
        Type.STRING,
        "CreateTime",
        "Source of a record's timestamp: the producer (CreateTime), or the leader at the append (LogAppendTime).",
        one_of("CreateTime", "LogAppendTime"),
        synonyms=("log.message.timestamp.type",),
    )
    min_cleanable_dirty_ratio: float = key(
        "min.cleanable.dirty.ratio",
        Type.DOUBLE,
        0.5,
        "Share of uncompacted bytes at which compaction starts.",
        between(0, 1),
        synonyms=("log.cleaner.min.cleanable.ratio",),
    )
    min_compaction_lag_ms: int = key(
        "min.compaction.lag.ms",
        Type.LONG,
        0,
        "Shortest time that a record stays uncompacted.",
        at_least(0),
        synonyms=("log.cleaner.min.compaction.lag.ms",),
    )
    min_insync_replicas: int = key(
        "min.insync.replicas",
        Type.INT,
        1,
        "In-sync replicas (at most all of the topic's) without which acks=all is refused, and the high watermark does "
        "not advance.",
        at_least(1),
        synonyms=("min.insync.replicas",),
    )
    preallocate: bool = key(
        "preallocate",
        Type.BOOLEAN,
        False,
        "Whether a new segment file is created at its full size.",
        synonyms=("log.preallocate",),
        unused="segment files grow with their records",
    )
    remote_storage_enable: bool = key(
        "remote.storage.enable",
        Type.BOOLEAN,
        False,
        "Tiering of old segments; refused: there is no remote tier.",
        Check("false: there is no remote tier", lambda value: value is False),
        unused="there is no remote tier",
    )
    retention_bytes: int = key(
        "retention.bytes",
        Type.LONG,
        -1,
        "Size of a partition beyond which its oldest segments are deleted; -1 is no limit.",
        at_least(-1),
        synonyms=("log.retention.bytes",),
    )
    retention_ms: int = key(
        "retention.ms",
        Type.LONG,
        604_800_000,
        "Age (by the largest timestamp in it) at which a segment is deleted; -1 is no limit.",
        at_least(-1),
        synonyms=("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
    )
    segment_bytes: int = key(
        "segment.bytes",
        Type.INT,
        1_073_741_824,
        "Size at which a new segment is started.",
        at_least(14),
        synonyms=("log.segment.bytes",),
    )
    segment_index_bytes: int = key(
        "segment.index.bytes",
        Type.INT,
        10_485_760,
        "Largest size of a segment's offset index and of its time index.",
        at_least(4),
        synonyms=("log.index.size.max.bytes",),
    )
    segment_jitter_ms: int = key(
        "segment.jitter.ms",
        Type.LONG,
        0,
        "Random time taken off segment.ms, so that many partitions do not roll at once.",
        at_least(0),
        synonyms=("log.roll.jitter.ms", "log.roll.jitter.hours"),
    )
    segment_ms: int = key(
        "segment.ms",
        Type.LONG,
        604_800_000,
        "Time after which a new segment is started even if the old one is not full.",
        at_least(1),
        synonyms=("log.roll.ms", "log.roll.hours"),
    )
    unclean_leader_election_enable: bool = key(
        "unclean.leader.election.enable",
        Type.BOOLEAN,
        False,
        "Whether a replica that is not in sync may lead when no other is left; acknowledged records can be lost.",
        importance=HIGH,
        synonyms=("unclean.leader.election.enable",),
    )

    @property
    def compact(self) -> bool:
        """Whether the cleaner works on the topic."""
        return "compact" in self.cleanup_policy

    @property
    def delete(self) -> bool:
        """Whether retention by age and size works on the topic."""
        return "delete" in self.cleanup_policy

    @property
    def message_magic(self) -> int:
        """The message format that is written, 0 to 2, by `message.format.version`."""
        found = _VERSION.fullmatch(self.message_format_version)
        assert found is not None, "the row's check has seen it"
        version = int(found[1]), int(found[2])
        return 0 if version < (0, 10) else 1 if version < (0, 11) else 2

    @property
    def timestamp_bounds(self) -> tuple[int, int]:
        """How far before and after now a CreateTime stamp may be, in ms; the older key replaces defaults (KIP-937)."""
        default, difference = TopicConfig(), self.message_timestamp_difference_max_ms
        before, after = self.message_timestamp_before_max_ms, self.message_timestamp_after_max_ms
        if difference == default.message_timestamp_difference_max_ms:
            return before, after
        return (
            difference if before == default.message_timestamp_before_max_ms else before,
            difference if after == default.message_timestamp_after_max_ms else after,
        )

    @property
    def roll_ms(self) -> int:
        """The age at which a segment is closed. Records that must be compacted by a time have to be closed by then."""
        return min(self.segment_ms, self.max_compaction_lag_ms) if self.compact else self.segment_ms

    def with_overrides(self, overrides: Mapping[str, str]) -> TopicConfig:
        """This configuration with the topic's own settings. Raises ConfigError (unknown key, invalid value)."""
        values: dict[str, Any] = {}
        for name in overrides:
            if name not in TOPIC_ROWS:
                raise ConfigError(name, "is not a configuration of a topic" + nearest_key_hint(name, TOPIC_ROWS))
            values[TOPIC_ROWS[name].attribute] = parse_value(TOPIC_ROWS[name], overrides[name])
        config = replace(self, **values)
        config.check_together()
        return config

    def check_together(self) -> None:
        """Raise ConfigError if two settings contradict each other."""
        if self.min_compaction_lag_ms > self.max_compaction_lag_ms:
            raise ConfigError(
                "min.compaction.lag.ms",
                f"{self.min_compaction_lag_ms} is not allowed; "
                f"it must be at most max.compaction.lag.ms={self.max_compaction_lag_ms}",
            )


TOPIC_ROWS: Final[Mapping[str, Row]] = {row.name: row for row in rows_of(TopicConfig)}
"""Topic keys by name."""
