"""Keys of the log on disk: one row per key.

Zone: pure. Rows only: names, types, defaults and checks are Kafka's.
Those that correspond to a topic key are its defaults.
"""

from __future__ import annotations

from dataclasses import dataclass

from ottla.config.broker_server import ServerConfig
from ottla.config.rows import (
    CLUSTER_WIDE,
    HIGH,
    LONG_MAX,
    LOW,
    NOT_EMPTY,
    THREADS_MAX,
    Type,
    at_least,
    between,
    key,
    one_of,
    subset_of,
)
from ottla.config.topic import MESSAGE_FORMATS


@dataclass(init=False, repr=False, eq=False, frozen=True, slots=True)
class LogConfig(ServerConfig):
    """Keys of the log on disk. Sizes in bytes; times in the unit of the key's last word."""

    log_dirs: tuple[str, ...] = key(
        "log.dirs",
        Type.LIST,
        ("/tmp/kafka-logs",),  # noqa: S108 - Kafka's default; every start of ours names a directory
        "Directories that hold the logs; partitions are spread over them.",
        NOT_EMPTY,
        importance=HIGH,
        synonyms=("log.dir",),
    )
    ottla_log_dir_reserve_bytes: int = key(
        "ottla.log.dir.reserve.bytes",
        Type.LONG,
        33_554_432,
        "Free space in a log directory that is not for clients' records: with less they are refused with "
        "KAFKA_STORAGE_ERROR, while checkpoints, offsets, the ends of transactions and deletions continue. 0: none. "
        "Not a key of Kafka.",
        at_least(0),
    )
    log_segment_bytes: int = key(
        "log.segment.bytes",
        Type.INT,
        1_073_741_824,
        "Size at which a new segment is started.",
        at_least(14),
        importance=HIGH,
        dynamic=CLUSTER_WIDE,
    )
    log_roll_ms: int | None = key(
        "log.roll.ms",
        Type.LONG,
        None,
        "Age at which a new segment is started; wins over log.roll.hours.",
        at_least(1),
        importance=HIGH,
        dynamic=CLUSTER_WIDE,
    )
    log_roll_hours: int = key(
        "log.roll.hours", Type.INT, 168, "Age in hours at which a new segment is started.", at_least(1), importance=HIGH
    )
    log_roll_jitter_ms: int | None = key(
        "log.roll.jitter.ms",
        Type.LONG,
        None,
        "Random time taken off the rolling age; wins over log.roll.jitter.hours.",
        at_least(0),
        importance=HIGH,
        dynamic=CLUSTER_WIDE,
    )
    log_roll_jitter_hours: int = key(
        "log.roll.jitter.hours", Type.INT, 0, "Random hours taken off the rolling age.", at_least(0), importance=HIGH
    )
    log_retention_ms: int | None = key(
        "log.retention.ms",
        Type.LONG,
        None,
        "Age at which a segment is dropped; wins over minutes and hours. -1 is no limit.",
        at_least(-1),
        importance=HIGH,
        dynamic=CLUSTER_WIDE,
    )
    log_retention_minutes: int | None = key(
        "log.retention.minutes",
        Type.INT,
        None,
        "Age in minutes at which a segment is dropped; wins over hours.",
        at_least(-1),
        importance=HIGH,
    )
    log_retention_hours: int = key(
        "log.retention.hours",
        Type.INT,
        168,
        "Age in hours at which a segment is dropped. -1 is no limit.",
        at_least(-1),
        importance=HIGH,
    )
    log_retention_bytes: int = key(
        "log.retention.bytes",
        Type.LONG,
        -1,
        "Size of a partition beyond which its oldest segments are dropped; -1 is no limit.",
        at_least(-1),
        importance=HIGH,
        dynamic=CLUSTER_WIDE,
    )
    log_retention_check_interval_ms: int = key(
        "log.retention.check.interval.ms",
        Type.LONG,
        300_000,
        "Interval of the check for segments that retention deletes.",
        at_least(1),
    )
    log_cleanup_policy: tuple[str, ...] = key(
        "log.cleanup.policy",
        Type.LIST,
        ("delete",),
        "Treatment of old data by default: delete, compact, both, or none (an empty value), which keeps all.",
        subset_of("compact", "delete"),
        dynamic=CLUSTER_WIDE,
    )
    log_index_size_max_bytes: int = key(
        "log.index.size.max.bytes",
        Type.INT,
        10_485_760,
        "Largest size of a segment's index.",
        at_least(4),
        dynamic=CLUSTER_WIDE,
    )
    log_index_interval_bytes: int = key(
        "log.index.interval.bytes",
        Type.INT,
        4096,
        "Bytes of log between two index entries.",
        at_least(0),
        dynamic=CLUSTER_WIDE,
    )
    log_flush_interval_messages: int = key(
        "log.flush.interval.messages",
        Type.LONG,
        LONG_MAX,
        "Records after which a log is forced to disk; 1 syncs before every acknowledgement.",
        at_least(1),
        importance=HIGH,
        dynamic=CLUSTER_WIDE,
    )
    log_flush_interval_ms: int | None = key(
        "log.flush.interval.ms",
        Type.LONG,
        None,
        "Longest time that a record stays unsynced; unset, the scheduler interval is used.",
        at_least(0),
        importance=HIGH,
        dynamic=CLUSTER_WIDE,
    )
    log_flush_scheduler_interval_ms: int = key(
        "log.flush.scheduler.interval.ms",
        Type.LONG,
        LONG_MAX,
        "How often logs are checked for a due sync.",
        importance=HIGH,
    )
    log_flush_offset_checkpoint_interval_ms: int = key(
        "log.flush.offset.checkpoint.interval.ms",
        Type.INT,
        60_000,
        "How often recovery points are written.",
        at_least(0),
        importance=HIGH,
    )
    log_flush_start_offset_checkpoint_interval_ms: int = key(
        "log.flush.start.offset.checkpoint.interval.ms",
        Type.INT,
        60_000,
        "How often log start offsets are written.",
        at_least(0),
        importance=HIGH,
    )
    log_segment_delete_delay_ms: int = key(
        "log.segment.delete.delay.ms",
        Type.LONG,
        60_000,
        "Time between renaming a dropped file to .deleted and removing it.",
        at_least(0),
        importance=HIGH,
        dynamic=CLUSTER_WIDE,
    )
    log_preallocate: bool = key(
        "log.preallocate",
        Type.BOOLEAN,
        False,
        "Whether new segment files are created at their full size.",
        dynamic=CLUSTER_WIDE,
        unused="segment files grow with their records",
    )
    log_message_timestamp_type: str = key(
        "log.message.timestamp.type",
        Type.STRING,
        "CreateTime",
        "Source of the timestamps of records by default: CreateTime or LogAppendTime.",
        one_of("CreateTime", "LogAppendTime"),
        dynamic=CLUSTER_WIDE,
    )
    log_message_timestamp_before_max_ms: int = key(
        "log.message.timestamp.before.max.ms",
        Type.LONG,
        LONG_MAX,
        "How much earlier than the broker's clock a CreateTime timestamp may be.",
        at_least(0),
        dynamic=CLUSTER_WIDE,
    )
    log_message_timestamp_after_max_ms: int = key(
        "log.message.timestamp.after.max.ms",
        Type.LONG,
        3_600_000,
        "How much later than the broker's clock a CreateTime timestamp may be.",
        at_least(0),
        dynamic=CLUSTER_WIDE,
    )
    log_message_timestamp_difference_max_ms: int = key(
        "log.message.timestamp.difference.max.ms",
        Type.LONG,
        LONG_MAX,
        "Older key that limits the timestamp on both sides.",
        at_least(0),
        dynamic=CLUSTER_WIDE,
    )
    log_message_format_version: str = key(
        "log.message.format.version",
        Type.STRING,
        "3.0-IV1",
        "Version of Kafka whose message format is written by default: v0 below 0.10, v1 below 0.11, else v2.",
        MESSAGE_FORMATS,
    )
    log_message_downconversion_enable: bool = key(
        "log.message.downconversion.enable",
        Type.BOOLEAN,
        True,
        "Whether batches may be rewritten for readers of an older message format.",
        importance=LOW,
        dynamic=CLUSTER_WIDE,
    )
    log_local_retention_ms: int = key(
        "log.local.retention.ms",
        Type.LONG,
        -2,
        "Local age when segments are tiered; without tiering it has no effect.",
        at_least(-2),
        dynamic=CLUSTER_WIDE,
        unused="there is no remote tier",
    )
    log_local_retention_bytes: int = key(
        "log.local.retention.bytes",
        Type.LONG,
        -2,
        "Local size when segments are tiered; without tiering it has no effect.",
        at_least(-2),
        dynamic=CLUSTER_WIDE,
        unused="there is no remote tier",
    )
    log_cleaner_enable: bool = key("log.cleaner.enable", Type.BOOLEAN, True, "Whether compacted topics are compacted.")
    log_cleaner_threads: int = key(
        "log.cleaner.threads", Type.INT, 1, "Compactions at one time.", between(0, THREADS_MAX), dynamic=CLUSTER_WIDE
    )
    log_cleaner_io_max_bytes_per_second: float = key(
        "log.cleaner.io.max.bytes.per.second",
        Type.DOUBLE,
        1.7976931348623157e308,
        "Bytes per second that compaction may read and write.",
        at_least(0),
        dynamic=CLUSTER_WIDE,
    )
    log_cleaner_dedupe_buffer_size: int = key(
        "log.cleaner.dedupe.buffer.size",
        Type.LONG,
        134_217_728,
        "Memory for the map of keys of a compaction.",
        dynamic=CLUSTER_WIDE,
        check=between(1_048_577, 1 << 40),
    )
    log_cleaner_io_buffer_size: int = key(
        "log.cleaner.io.buffer.size",
        Type.INT,
        524_288,
        "Accepted for compatibility: a compaction reads 256 KiB at a time, or a batch.",
        at_least(0),
        dynamic=CLUSTER_WIDE,
        unused="a compaction reads 256 KiB at a time, or a batch",
    )
    log_cleaner_io_buffer_load_factor: float = key(
        "log.cleaner.io.buffer.load.factor",
        Type.DOUBLE,
        0.9,
        "Share of the map of keys that may be filled.",
        dynamic=CLUSTER_WIDE,
        check=between(0.01, 1),
    )
    log_cleaner_backoff_ms: int = key(
        "log.cleaner.backoff.ms",
        Type.LONG,
        15_000,
        "Pause when no log has to be compacted.",
        at_least(0),
        dynamic=CLUSTER_WIDE,
    )
    log_cleaner_min_cleanable_ratio: float = key(
        "log.cleaner.min.cleanable.ratio",
        Type.DOUBLE,
        0.5,
        "Share of uncompacted bytes at which compaction starts.",
        between(0, 1),
        dynamic=CLUSTER_WIDE,
    )
    log_cleaner_delete_retention_ms: int = key(
        "log.cleaner.delete.retention.ms",
        Type.LONG,
        86_400_000,
        "How long tombstones are kept.",
        at_least(0),
        dynamic=CLUSTER_WIDE,
    )
    log_cleaner_min_compaction_lag_ms: int = key(
        "log.cleaner.min.compaction.lag.ms",
        Type.LONG,
        0,
        "Shortest time that a record stays uncompacted.",
        at_least(0),
        dynamic=CLUSTER_WIDE,
    )
    log_cleaner_max_compaction_lag_ms: int = key(
        "log.cleaner.max.compaction.lag.ms",
        Type.LONG,
        LONG_MAX,
        "Longest time that a record may stay uncompacted.",
        at_least(1),
        dynamic=CLUSTER_WIDE,
    )
    num_recovery_threads_per_data_dir: int = key(
        "num.recovery.threads.per.data.dir",
        Type.INT,
        2,
        "Accepted for compatibility: recovery of a directory reads in sequence.",
        between(1, 10_000),
        importance=HIGH,
        dynamic=CLUSTER_WIDE,
        unused="the logs of a directory are recovered one after the other",
    )
    log_dir_failure_timeout_ms: int = key(
        "log.dir.failure.timeout.ms",
        Type.LONG,
        30_000,
        "Time in which the broker has to report a failed log directory to the controller; else it stops.",
        at_least(1),
        importance=LOW,
    )
    log_initial_task_delay_ms: int = key(
        "log.initial.task.delay.ms",
        Type.LONG,
        30_000,
        "Delay after the start before the first check of retention.",
        at_least(0),
        importance=LOW,
    )
    num_replica_alter_log_dirs_threads: int | None = key(
        "num.replica.alter.log.dirs.threads",
        Type.INT,
        None,
        "Moves between log directories that run at a time; by default one per directory.",
        importance=HIGH,
        check=between(1, THREADS_MAX),
    )
    producer_id_expiration_ms: int = key(
        "producer.id.expiration.ms",
        Type.INT,
        86_400_000,
        "Idle time after which the state of an idempotent producer is removed.",
        at_least(1),
        importance=LOW,
        dynamic=CLUSTER_WIDE,
    )
    producer_id_expiration_check_interval_ms: int = key(
        "producer.id.expiration.check.interval.ms",
        Type.INT,
        600_000,
        "Interval of the check for idle producers.",
        at_least(1),
        importance=LOW,
    )
