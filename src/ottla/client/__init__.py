"""Ordinary Kafka clients; never used by the broker.

Zone: real. The names exported here are stable for other packages and users; the modules that define them may move.

    with Producer({"bootstrap.servers": "localhost:9092"}) as producer:
        producer.send("orders", b"value", key=b"key")
    with Consumer({"bootstrap.servers": "localhost:9092", "group.id": "billing"}) as consumer:
        consumer.subscribe(["orders"])
        for record in consumer: ...
    with Cluster(ClientConfig(bootstrap_servers="localhost:9092")) as cluster:
        Admin(cluster).create_topics([NewTopic("orders", 3)])

Each object belongs to one thread; a child process creates its own objects after a fork.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ottla.lazy_imports import names_on_demand

if TYPE_CHECKING:
    from ottla.client.admin.admin import Admin
    from ottla.client.admin.partitions import ElectionType, Reassignment
    from ottla.client.admin.types import (
        EARLIEST,
        LATEST,
        MAX_TIMESTAMP,
        ClusterDescription,
        ConfigChange,
        ConfigEntry,
        ConfigOp,
        ConfigSource,
        LogDir,
        LogDirReplica,
        NewTopic,
        OffsetFound,
        Replica,
        Resource,
        ResourceType,
        TopicCreated,
    )
    from ottla.client.cluster import ANY_NODE, CONTROLLER, Cluster
    from ottla.client.consumer import Consumer, ConsumerConfig, ConsumerRecord, GroupMetadata, OffsetAndMetadata
    from ottla.client.errors import (
        AuthenticationError,
        BufferExhaustedError,
        ClientError,
        CommitFailedError,
        ConfigError,
        ConnectionLostError,
        CorruptBatchError,
        DeadlineError,
        DeserializationError,
        LogTruncatedError,
        MalformedReplyError,
        ProducerFencedError,
        RefusedError,
        RequestTimeoutError,
        TransactionFailedError,
        UnreachableError,
        UnsupportedVersionError,
        UsageError,
        WakeupError,
        WrongTypeError,
        first_error,
        values_of,
    )
    from ottla.client.fetching.batches import Fetched, visible_batches
    from ottla.client.fetching.fetch import Fetcher, fetch_range
    from ottla.client.metadata import ClusterView, NodeView, PartitionView, TopicView
    from ottla.client.partitioner import murmur2, partition_of_key
    from ottla.client.produce import Appended, Identity, Sender, new_identity
    from ottla.client.producer import (
        PartitionRows,
        PartlyAcceptedError,
        Producer,
        ProducerConfig,
        RecordMetadata,
        SendFuture,
        TableFuture,
        TableMetadata,
    )
    from ottla.client.records import records_in
    from ottla.client.retry import Deadline
    from ottla.client.security.settings import SecurityConfig, Token
    from ottla.client.settings import ClientConfig, parse_properties, split_unknown
    from ottla.record.batch import Record
    from ottla.types import TopicPartition

_HOMES: Final = {
    "ottla.client.admin.admin": "Admin",
    "ottla.client.admin.partitions": "ElectionType Reassignment",
    "ottla.client.admin.types": (
        "ClusterDescription ConfigChange ConfigEntry ConfigOp ConfigSource EARLIEST LATEST LogDir "
        "LogDirReplica MAX_TIMESTAMP NewTopic OffsetFound Replica Resource ResourceType TopicCreated"
    ),
    "ottla.client.fetching.batches": "Fetched visible_batches",
    "ottla.client.cluster": "ANY_NODE CONTROLLER Cluster",
    "ottla.client.consumer": "Consumer ConsumerConfig ConsumerRecord GroupMetadata OffsetAndMetadata",
    "ottla.client.errors": (
        "AuthenticationError BufferExhaustedError ClientError CommitFailedError ConfigError ConnectionLostError "
        "CorruptBatchError DeadlineError DeserializationError LogTruncatedError MalformedReplyError "
        "ProducerFencedError RefusedError RequestTimeoutError TransactionFailedError UnreachableError "
        "UnsupportedVersionError UsageError WakeupError WrongTypeError "
        "first_error values_of"
    ),
    "ottla.client.fetching.fetch": "Fetcher fetch_range",
    "ottla.client.metadata": "ClusterView NodeView PartitionView TopicView",
    "ottla.client.partitioner": "murmur2 partition_of_key",
    "ottla.client.produce": "Appended Identity Sender new_identity",
    "ottla.client.producer": (
        "PartitionRows PartlyAcceptedError Producer ProducerConfig RecordMetadata SendFuture TableFuture TableMetadata"
    ),
    "ottla.client.records": "records_in",
    "ottla.client.retry": "Deadline",
    "ottla.client.security.settings": "SecurityConfig Token",
    "ottla.client.settings": "ClientConfig parse_properties split_unknown",
    "ottla.record.batch": "Record",
    "ottla.types": "TopicPartition",
}
"""Maps modules to the names they define. Names are imported on first use, so a reader does not load the admin code."""

__all__ = [
    "ANY_NODE",
    "CONTROLLER",
    "EARLIEST",
    "LATEST",
    "MAX_TIMESTAMP",
    "Admin",
    "Appended",
    "AuthenticationError",
    "BufferExhaustedError",
    "ClientConfig",
    "ClientError",
    "Cluster",
    "ClusterDescription",
    "ClusterView",
    "CommitFailedError",
    "ConfigChange",
    "ConfigEntry",
    "ConfigError",
    "ConfigOp",
    "ConfigSource",
    "ConnectionLostError",
    "Consumer",
    "ConsumerConfig",
    "ConsumerRecord",
    "CorruptBatchError",
    "Deadline",
    "DeadlineError",
    "DeserializationError",
    "ElectionType",
    "Fetched",
    "Fetcher",
    "GroupMetadata",
    "Identity",
    "LogDir",
    "LogDirReplica",
    "LogTruncatedError",
    "MalformedReplyError",
    "NewTopic",
    "NodeView",
    "OffsetAndMetadata",
    "OffsetFound",
    "PartitionRows",
    "PartitionView",
    "PartlyAcceptedError",
    "Producer",
    "ProducerConfig",
    "ProducerFencedError",
    "Reassignment",
    "Record",
    "RecordMetadata",
    "RefusedError",
    "Replica",
    "RequestTimeoutError",
    "Resource",
    "ResourceType",
    "SecurityConfig",
    "SendFuture",
    "Sender",
    "TableFuture",
    "TableMetadata",
    "Token",
    "TopicCreated",
    "TopicPartition",
    "TopicView",
    "TransactionFailedError",
    "UnreachableError",
    "UnsupportedVersionError",
    "UsageError",
    "WakeupError",
    "WrongTypeError",
    "fetch_range",
    "first_error",
    "murmur2",
    "new_identity",
    "parse_properties",
    "partition_of_key",
    "records_in",
    "split_unknown",
    "values_of",
    "visible_batches",
]

__getattr__, __dir__ = names_on_demand(globals(), _HOMES)
