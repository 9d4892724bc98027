"""Every format that brokers store or exchange: the version of release 0.1, the version of this release, and its gate.

Zone: pure. Data; `tests/formats` compares it with the source, with samples, and with the page `docs/formats.md`.
"""

from __future__ import annotations

from typing import Final, NamedTuple

SAME: Final = "none: the same in 0.1"


class StoredFormat(NamedTuple):
    """A file, a record or a node of the metadata store."""

    name: str
    names: tuple[str, ...]
    """Names of files by the constants of `storage.layout`, paths of nodes, or classes of codecs."""
    writers: tuple[str, ...]
    """Modules below `src/ottla` that write it."""
    old: str
    """The version that release 0.1 writes."""
    new: str
    gate: str = SAME
    """The setting or feature that makes this release write the old version."""
    samples: tuple[str, ...] = ()
    """Of `samples`; none: `unsampled` has the reason."""
    unsampled: str = ""


class Exchange(NamedTuple):
    """A request between brokers."""

    api: str
    sender: str
    """The module below `src/ottla` that sends it."""
    constants: tuple[str, ...]
    """`module:NAME` of the constants with the versions that it sends."""
    versions: tuple[int, ...]
    """Versions that this release sends; release 0.1 sends the newest one, except where `gate` has more."""
    accepted: tuple[int, int]
    """Versions that release 0.1 accepts."""
    gate: str = SAME


_KAFKA_FILES: Final = "Apache Kafka's; the golden files of Kafka are read by both releases"
_JSON: Final = "cluster/store/layout.py"

FILES: Final = (
    StoredFormat(
        "segment",
        ("LOG",),
        ("storage/segments/segment_files.py", "storage/cleaning/output.py", "storage/recovery/segment_splitting.py"),
        "record batch 2, or 0 and 1 by log.message.format.version",
        "record batch 2, or 0 and 1 by log.message.format.version",
        "log.message.format.version",
        ("record-batch", "transaction-marker"),
    ),
    StoredFormat(
        "offset and time index",
        ("INDEX", "TIME_INDEX"),
        ("storage/segments/segment_files.py", "storage/cleaning/output.py"),
        "unversioned",
        "unversioned",
        unsampled=_KAFKA_FILES,
    ),
    StoredFormat(
        "transaction index", ("TXN_INDEX",), ("storage/indexes/txn_index.py",), "0", "0", unsampled=_KAFKA_FILES
    ),
    StoredFormat(
        "offset checkpoints",
        ("RECOVERY_POINTS", "HIGH_WATERMARKS", "LOG_STARTS", "CLEANED_UNTIL"),
        ("storage/offset_checkpoints.py", "storage/log_dir_context.py"),
        "0",
        "0",
        samples=("offset-checkpoint",),
    ),
    StoredFormat(
        "leader epochs",
        ("LEADER_EPOCHS",),
        ("storage/indexes/leader_epoch_file.py",),
        "0",
        "0",
        samples=("leader-epoch-checkpoint",),
    ),
    StoredFormat("producers", ("SNAPSHOT",), ("storage/log_metadata.py",), "1", "1", samples=("producer-snapshot",)),
    StoredFormat(
        "topic id", ("PARTITION_METADATA",), ("storage/log_metadata.py",), "0", "0", samples=("partition.metadata",)
    ),
    StoredFormat(
        "owner of a directory", ("META_PROPERTIES",), ("storage/log_dir.py",), "1", "1", samples=("meta.properties",)
    ),
    StoredFormat(
        "clean stop", ("CLEAN_SHUTDOWN",), ("storage/log_dir.py",), "0", "0", samples=("kafka_cleanshutdown",)
    ),
    StoredFormat(
        "mark of lost records",
        ("INCOMPLETE",),
        ("storage/log_metadata.py", "storage/recovery/stored_files.py"),
        "0",
        "0",
        samples=("incomplete",),
    ),
    StoredFormat(
        "checksums of transaction indexes",
        ("TXN_SUMS",),
        ("storage/indexes/txn_index_checksums.py",),
        "0",
        "0",
        samples=("txnindex-checksums",),
    ),
    StoredFormat(
        "mark of a moving log",
        ("MOVING",),
        ("storage/future_logs.py",),
        "unversioned",
        "unversioned",
        unsampled="one line with the name of the partition",
    ),
    StoredFormat(
        "journal of the metadata store",
        (),
        ("znodes/journal.py",),
        "transactions unversioned, snapshots 2",
        "transactions unversioned, snapshots 2",
        samples=("journal-transaction", "journal-snapshot"),
    ),
)

RECORDS: Final = (
    StoredFormat(
        "committed offset",
        ("GroupCodec",),
        ("groups/records.py",),
        "3, or 1 with an expiry time",
        "3, or 1 with an expiry time; 2 below 2.1-IV1, 1 below 2.1-IV0",
        "inter.broker.protocol.version",
        ("offset",),
    ),
    StoredFormat(
        "group",
        ("GroupCodec",),
        ("groups/records.py",),
        "3",
        "3; 2 below 2.3, 1 below 2.1, 0 below 0.10.1",
        "inter.broker.protocol.version",
        ("group",),
    ),
    StoredFormat(
        "state of a transactional id",
        ("TransactionCodec",),
        ("transactions/codec.py",),
        "1",
        "1; 0 under transaction.version 0",
        "transaction.version",
        ("transaction-ongoing", "transaction-complete"),
    ),
)

NODES: Final = (
    StoredFormat(
        "registration of a broker",
        ("/brokers/ids",),
        (_JSON,),
        "5, without features",
        "5, with features",
        "none: 0.1 ignores the key `features`",
        ("znode-broker",),
    ),
    StoredFormat("assignment of a topic", ("/brokers/topics",), (_JSON,), "3", "3", samples=("znode-topic",)),
    StoredFormat(
        "state of a partition", ("/state", "/partitions", "/partitions/"), (_JSON,), "1", "1", samples=("znode-state",)
    ),
    StoredFormat(
        "settings",
        ("/config/topics", "/config/brokers", "/config/users", "/config/clients", "/config/ips"),
        (_JSON,),
        "1, topics and brokers",
        "1, also users, clients and addresses",
        "none: 0.1 does not read the others",
        ("znode-config",),
    ),
    StoredFormat(
        "notification of settings",
        ("/config/changes", "/config_change_"),
        ("cluster/config_changes.py",),
        "2",
        "2",
        samples=("znode-config-change",),
    ),
    StoredFormat("cluster id", ("/cluster/id",), (_JSON,), "1", "1", samples=("znode-cluster-id",)),
    StoredFormat("controller", ("/controller",), (_JSON,), "2", "2", samples=("znode-controller",)),
    StoredFormat(
        "controller epoch",
        ("/controller_epoch",),
        ("cluster/controller/controller_election.py",),
        "unversioned",
        "unversioned",
        unsampled="a decimal number",
    ),
    StoredFormat(
        "block of producer ids",
        ("/latest_producer_id_block",),
        (_JSON,),
        "1",
        "1",
        samples=("znode-producer-id-block",),
    ),
    StoredFormat("reassignment", ("/admin/reassign_partitions",), (_JSON,), "1", "1", samples=("znode-reassignment",)),
    StoredFormat(
        "failed directory",
        ("/log_dir_event_notification", "/log_dir_event_"),
        (_JSON,),
        "1",
        "1",
        samples=("znode-log-dir-event",),
    ),
    StoredFormat(
        "finalized features",
        ("/feature",),
        (_JSON, "cluster/features/feature_levels.py"),
        "1, empty",
        "1, empty; 2 once a level is finalized",
        "UpdateFeatures, refused while a broker of 0.1 is registered; 0.1 does not read the node",
        ("znode-feature",),
    ),
    StoredFormat(
        "ACLs",
        (
            "/kafka-acl",
            "/kafka-acl-changes",
            "/kafka-acl-extended",
            "/kafka-acl-extended-changes",
            "/kafka-acl-extended/prefixed",
            "/acl_changes_",
        ),
        ("znodes/acl_nodes.py",),
        "not written",
        "1",
        "none: 0.1 does not read the nodes",
        unsampled="0.1 has no authorizer",
    ),
    StoredFormat(
        "delegation tokens",
        ("/delegation_token", "/tokens", "/token_changes", "/token_change_"),
        ("znodes/token_nodes.py",),
        "not written",
        "3",
        "none: 0.1 does not read the nodes",
        unsampled="0.1 has no tokens",
    ),
)

PARENTS: Final = frozenset(
    {"/admin", "/brokers", "/brokers/seqid", "/cluster", "/config", "/config/", "/consumers"}
    | {"/admin/delete_topics", "/admin/preferred_replica_election", "/isr_change_notification"}
)
"""Nodes without content, and those that only other programs write."""

_CONTROLLER: Final = "cluster/controller/channel.py"
_ORDERS: Final = "cluster/controller/requests.py"
EXCHANGES: Final = (
    Exchange("LEADER_AND_ISR", _CONTROLLER, (f"{_ORDERS}:LEADER_AND_ISR_VERSION",), (7,), (0, 7)),
    Exchange("STOP_REPLICA", _CONTROLLER, (f"{_ORDERS}:STOP_REPLICA_VERSION",), (4,), (0, 4)),
    Exchange("UPDATE_METADATA", _CONTROLLER, (f"{_ORDERS}:UPDATE_METADATA_VERSION",), (8,), (7, 8)),
    Exchange(
        "CONTROLLED_SHUTDOWN",
        "cluster/controlled_shutdown.py",
        ("cluster/controlled_shutdown.py:_VERSION",),
        (3,),
        (0, 3),
    ),
    Exchange(
        "ALTER_PARTITION", "replication/alter_partition.py", ("replication/alter_partition.py:VERSION",), (3,), (0, 3)
    ),
    Exchange(
        "CREATE_TOPICS", "cluster/topic_requests.py", ("cluster/topic_requests.py:_CREATE_VERSION",), (5,), (0, 7)
    ),
    Exchange(
        "FETCH",
        "replication/follower/fetcher.py",
        (
            "replication/follower/fetcher_manager.py:_OLDEST_FETCH",
            "replication/follower/fetcher_manager.py:_FETCH_VERSIONS",
        ),
        (10, 11, 12, 13, 17),
        (0, 18),
        "inter.broker.protocol.version, as in 0.1",
    ),
    Exchange(
        "OFFSET_FOR_LEADER_EPOCH",
        "replication/follower/leader_requests.py",
        ("replication/follower/leader_requests.py:_EPOCHS_VERSION",),
        (4,),
        (0, 4),
    ),
    Exchange(
        "OFFSET_FOR_LEADER_EPOCH",
        "replication/tombstone_retention.py",
        ("replication/tombstone_retention.py:_VERSION",),
        (4,),
        (0, 4),
    ),
    Exchange(
        "LIST_OFFSETS",
        "replication/follower/leader_requests.py",
        ("replication/follower/leader_requests.py:_LIST_VERSION",),
        (7,),
        (0, 11),
    ),
    Exchange(
        "ADD_PARTITIONS_TO_TXN",
        "replication/produce/verifier.py",
        ("replication/produce/verifier.py:VERSION",),
        (5,),
        (0, 5),
    ),
    Exchange(
        "WRITE_TXN_MARKERS",
        "transactions/service.py",
        ("transactions/service.py:MARKERS_VERSION", "transactions/service.py:OLD_MARKERS_VERSION"),
        (1, 2),
        (0, 2),
        "transaction.version: 1 below 2; 0.1 sends 2",
    ),
)
"""ALLOCATE_PRODUCER_IDS is accepted between brokers and not sent: a block is taken from the metadata store."""
