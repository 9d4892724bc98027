"""Keys of the coordinators of groups and transactions: one row per key.

Zone: pure. Rows only: names, types, defaults and checks are Kafka's.
"""

from __future__ import annotations

from dataclasses import dataclass

from ottla.config.broker_cluster import ReplicationConfig
from ottla.config.rows import (
    CLUSTER_WIDE,
    HIGH,
    INT_MAX,
    LOW,
    PARTITIONS_MAX,
    Type,
    at_least,
    between,
    key,
    one_of,
    subset_of,
)


@dataclass(init=False, repr=False, eq=False, frozen=True, slots=True)
class CoordinatorConfig(ReplicationConfig):
    """Keys of the coordinators of groups and transactions. Sizes in bytes; times in the unit of the key's last word."""

    offsets_topic_replication_factor: int = key(
        "offsets.topic.replication.factor",
        Type.SHORT,
        3,
        "Replicas of __consumer_offsets.",
        between(1, 32_767),
        importance=HIGH,
    )
    offsets_topic_num_partitions: int = key(
        "offsets.topic.num.partitions",
        Type.INT,
        50,
        "Partitions of __consumer_offsets; fixed once the topic exists.",
        between(1, PARTITIONS_MAX),
        importance=HIGH,
    )
    offsets_topic_segment_bytes: int = key(
        "offsets.topic.segment.bytes",
        Type.INT,
        104_857_600,
        "Segment size of __consumer_offsets.",
        at_least(1),
        importance=HIGH,
    )
    offsets_topic_compression_codec: int = key(
        "offsets.topic.compression.codec",
        Type.INT,
        0,
        "Codec of batches in __consumer_offsets, by number.",
        between(0, 4),
        importance=HIGH,
    )
    offsets_load_buffer_size: int = key(
        "offsets.load.buffer.size",
        Type.INT,
        5_242_880,
        "Bytes per read while offsets are loaded.",
        at_least(1),
        importance=HIGH,
    )
    offsets_commit_timeout_ms: int = key(
        "offsets.commit.timeout.ms",
        Type.INT,
        5000,
        "How long a commit may wait for replication.",
        at_least(1),
        importance=HIGH,
    )
    offsets_commit_required_acks: int = key(
        "offsets.commit.required.acks",
        Type.SHORT,
        -1,
        "Acknowledgements that a commit needs; -1 is all in-sync replicas.",
        importance=HIGH,
        unused="a commit waits for all in-sync replicas",
    )
    offset_metadata_max_bytes: int = key(
        "offset.metadata.max.bytes",
        Type.INT,
        4096,
        "Largest metadata text of a committed offset.",
        importance=HIGH,
        check=at_least(0),
    )
    offsets_retention_minutes: int = key(
        "offsets.retention.minutes",
        Type.INT,
        10_080,
        "How long offsets of an empty group are kept.",
        at_least(1),
        importance=HIGH,
    )
    offsets_retention_check_interval_ms: int = key(
        "offsets.retention.check.interval.ms",
        Type.LONG,
        600_000,
        "Interval of the check for expired offsets.",
        at_least(1),
        importance=HIGH,
    )
    group_min_session_timeout_ms: int = key(
        "group.min.session.timeout.ms",
        Type.INT,
        6000,
        "Smallest session time-out that a member may request.",
        check=at_least(1),
    )
    group_max_session_timeout_ms: int = key(
        "group.max.session.timeout.ms",
        Type.INT,
        1_800_000,
        "Largest session time-out that a member may request.",
        check=at_least(1),
    )
    group_initial_rebalance_delay_ms: int = key(
        "group.initial.rebalance.delay.ms",
        Type.INT,
        3000,
        "Wait for more members before a new group's first rebalance.",
        check=at_least(0),
    )
    group_max_size: int = key("group.max.size", Type.INT, INT_MAX, "Largest number of members of a group.", at_least(1))
    group_coordinator_rebalance_protocols: tuple[str, ...] = key(
        "group.coordinator.rebalance.protocols",
        Type.LIST,
        ("classic", "consumer", "streams"),
        "Group protocols that are served.",
        subset_of("consumer", "classic", "share", "streams"),
        unused="classic groups are served, others are not",
    )
    group_coordinator_threads: int = key(
        "group.coordinator.threads",
        Type.INT,
        4,
        "Accepted for compatibility: coordinators run on the broker's one loop.",
        between(1, 10_000),
        importance=HIGH,
        unused="coordinators run on the one loop",
    )
    group_coordinator_append_linger_ms: int = key(
        "group.coordinator.append.linger.ms",
        Type.INT,
        -1,
        "Time in which a coordinator collects records before an append; -1 chooses automatically.",
        at_least(-1),
        unused="a coordinator appends at the end of a turn",
    )
    group_consumer_session_timeout_ms: int = key(
        "group.consumer.session.timeout.ms",
        Type.INT,
        45_000,
        "Session time-out of members of the consumer protocol.",
        at_least(1),
        unused="groups of the consumer protocol are not served",
    )
    group_consumer_min_session_timeout_ms: int = key(
        "group.consumer.min.session.timeout.ms",
        Type.INT,
        45_000,
        "Smallest session time-out of the consumer protocol.",
        at_least(1),
        unused="groups of the consumer protocol are not served",
    )
    group_consumer_max_session_timeout_ms: int = key(
        "group.consumer.max.session.timeout.ms",
        Type.INT,
        60_000,
        "Largest session time-out of the consumer protocol.",
        at_least(1),
        unused="groups of the consumer protocol are not served",
    )
    group_consumer_heartbeat_interval_ms: int = key(
        "group.consumer.heartbeat.interval.ms",
        Type.INT,
        5000,
        "Heartbeat interval of the consumer protocol.",
        at_least(1),
        unused="groups of the consumer protocol are not served",
    )
    group_consumer_min_heartbeat_interval_ms: int = key(
        "group.consumer.min.heartbeat.interval.ms",
        Type.INT,
        5000,
        "Smallest heartbeat interval of the consumer protocol.",
        at_least(1),
        unused="groups of the consumer protocol are not served",
    )
    group_consumer_max_heartbeat_interval_ms: int = key(
        "group.consumer.max.heartbeat.interval.ms",
        Type.INT,
        15_000,
        "Largest heartbeat interval of the consumer protocol.",
        at_least(1),
        unused="groups of the consumer protocol are not served",
    )
    group_consumer_max_size: int = key(
        "group.consumer.max.size",
        Type.INT,
        INT_MAX,
        "Largest number of members of a group of the consumer protocol.",
        at_least(1),
        unused="groups of the consumer protocol are not served",
    )
    group_consumer_assignors: tuple[str, ...] = key(
        "group.consumer.assignors",
        Type.LIST,
        ("uniform", "range"),
        "Server-side assignors, the first is the default.",
        unused="groups of the consumer protocol are not served",
    )
    group_consumer_migration_policy: str = key(
        "group.consumer.migration.policy",
        Type.STRING,
        "bidirectional",
        "Directions in which groups may change between the classic and the consumer protocol.",
        one_of("disabled", "downgrade", "upgrade", "bidirectional"),
        unused="groups of the consumer protocol are not served",
    )
    transaction_state_log_replication_factor: int = key(
        "transaction.state.log.replication.factor",
        Type.SHORT,
        3,
        "Replicas of __transaction_state.",
        between(1, 32_767),
        importance=HIGH,
    )
    transaction_state_log_num_partitions: int = key(
        "transaction.state.log.num.partitions",
        Type.INT,
        50,
        "Partitions of __transaction_state; fixed once the topic exists.",
        between(1, PARTITIONS_MAX),
        importance=HIGH,
    )
    transaction_state_log_min_isr: int = key(
        "transaction.state.log.min.isr",
        Type.INT,
        2,
        "min.insync.replicas of __transaction_state.",
        at_least(1),
        importance=HIGH,
    )
    transaction_state_log_segment_bytes: int = key(
        "transaction.state.log.segment.bytes",
        Type.INT,
        104_857_600,
        "Segment size of __transaction_state.",
        at_least(1),
        importance=HIGH,
    )
    transaction_state_log_load_buffer_size: int = key(
        "transaction.state.log.load.buffer.size",
        Type.INT,
        5_242_880,
        "Bytes per read while transactions are loaded.",
        at_least(1),
        importance=HIGH,
    )
    transaction_max_timeout_ms: int = key(
        "transaction.max.timeout.ms",
        Type.INT,
        900_000,
        "Largest time-out that a transactional producer may request.",
        at_least(1),
        importance=HIGH,
    )
    transactional_id_expiration_ms: int = key(
        "transactional.id.expiration.ms",
        Type.INT,
        604_800_000,
        "Idle time after which a transactional id is forgotten.",
        at_least(1),
        importance=HIGH,
    )
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int = key(
        "transaction.abort.timed.out.transaction.cleanup.interval.ms",
        Type.INT,
        10_000,
        "Interval of the check for transactions that have timed out.",
        at_least(1),
        importance=LOW,
    )
    transaction_remove_expired_transaction_cleanup_interval_ms: int = key(
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        Type.INT,
        3_600_000,
        "Interval of the check for expired transactional ids.",
        at_least(1),
        importance=LOW,
    )
    transaction_partition_verification_enable: bool = key(
        "transaction.partition.verification.enable",
        Type.BOOLEAN,
        True,
        "Whether the broker verifies a transaction with its coordinator before it appends the first batch.",
        importance=LOW,
        dynamic=CLUSTER_WIDE,
    )
    transaction_two_phase_commit_enable: bool = key(
        "transaction.two.phase.commit.enable",
        Type.BOOLEAN,
        False,
        "Whether producers may prepare transactions that never time out.",
        importance=LOW,
        unused="prepared transactions that never time out are not served",
    )
    add_partitions_to_txn_retry_backoff_ms: int = key(
        "add.partitions.to.txn.retry.backoff.ms",
        Type.INT,
        20,
        "First delay before the broker repeats a refused verification.",
        at_least(1),
        importance=HIGH,
    )
    add_partitions_to_txn_retry_backoff_max_ms: int = key(
        "add.partitions.to.txn.retry.backoff.max.ms",
        Type.INT,
        100,
        "Longest delay before the broker repeats a refused verification.",
        at_least(0),
        importance=HIGH,
    )
