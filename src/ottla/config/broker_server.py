"""Network, identity and general keys of a broker: one row per key.

Zone: pure. Rows only: names, types, defaults and checks are Kafka's.
`broker` parses lists such as the listeners.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ottla.config.rows import (
    CLUSTER_WIDE,
    HIGH,
    INT_MAX,
    LOW,
    PARTITIONS_MAX,
    Check,
    Type,
    at_least,
    between,
    key,
    one_of,
)
from ottla.config.topic import CODECS, GZIP_LEVEL

_AT_ONCE: Final = "completed requests leave the purgatory at once"
_COUNTERS: Final = "metrics are counters; the reader computes the rates"
_SESSION: Final = "sessions with the metadata store replace heartbeats; see zookeeper.session.timeout.ms"


@dataclass(init=False, repr=False, eq=False, frozen=True, slots=True)
class ServerConfig:
    """Sizes in bytes; times in the unit of the key's last word."""

    node_id: int = key(
        "node.id",
        Type.INT,
        1,
        "Number of this broker in the cluster; unique, and kept with the data.",
        at_least(0),
        importance=HIGH,
        synonyms=("broker.id",),
    )
    broker_rack: str | None = key(
        "broker.rack",
        Type.STRING,
        None,
        "Rack or zone of this broker: replicas are spread over racks, and readers may prefer their own.",
    )
    ottla_host: str | None = key(
        "ottla.host",
        Type.STRING,
        None,
        "Machine of this broker, if its advertised address does not name it: replicas are spread over machines first.",
    )
    listeners: tuple[str, ...] = key(
        "listeners",
        Type.LIST,
        ("PLAINTEXT://:9092",),
        "Addresses to listen on, as NAME://host:port; an empty host means every interface.",
        importance=HIGH,
    )
    advertised_listeners: tuple[str, ...] | None = key(
        "advertised.listeners",
        Type.LIST,
        None,
        "Addresses that clients receive, if they differ from the listeners; the port * means the bound one.",
        importance=HIGH,
    )
    listener_security_protocol_map: tuple[str, ...] = key(
        "listener.security.protocol.map",
        Type.LIST,
        ("PLAINTEXT:PLAINTEXT", "SSL:SSL", "SASL_PLAINTEXT:SASL_PLAINTEXT", "SASL_SSL:SASL_SSL"),
        "Security protocol of each listener name.",
        importance=LOW,
    )
    inter_broker_listener_name: str | None = key(
        "inter.broker.listener.name", Type.STRING, None, "Listener for connections between brokers."
    )
    security_inter_broker_protocol: str = key(
        "security.inter.broker.protocol",
        Type.STRING,
        "PLAINTEXT",
        "Security protocol between brokers, if no listener is named for that.",
        one_of("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"),
    )
    control_plane_listener_name: str | None = key(
        "control.plane.listener.name",
        Type.STRING,
        None,
        "Listener kept for requests of the controller.",
        importance=HIGH,
        unused="the controller uses the listener between brokers",
    )
    socket_send_buffer_bytes: int = key(
        "socket.send.buffer.bytes",
        Type.INT,
        102_400,
        "Send buffer of a client socket (SO_SNDBUF); -1 leaves it to the system.",
        importance=HIGH,
        check=at_least(-1),
    )
    socket_receive_buffer_bytes: int = key(
        "socket.receive.buffer.bytes",
        Type.INT,
        102_400,
        "Receive buffer of a client socket (SO_RCVBUF); -1, or no value, leaves it to the system.",
        importance=HIGH,
        check=at_least(-1),
    )
    socket_request_max_bytes: int = key(
        "socket.request.max.bytes",
        Type.INT,
        104_857_600,
        "Largest request frame; a larger one closes the connection.",
        at_least(1),
        importance=HIGH,
    )
    socket_listen_backlog_size: int = key(
        "socket.listen.backlog.size",
        Type.INT,
        50,
        "Connections that the system queues before they are accepted.",
        at_least(1),
    )
    max_connections: int = key(
        "max.connections",
        Type.INT,
        INT_MAX,
        "Limit of connections over all listeners; ten more from this machine are accepted.",
        at_least(0),
        dynamic=CLUSTER_WIDE,
    )
    max_connections_per_ip: int = key(
        "max.connections.per.ip",
        Type.INT,
        INT_MAX,
        "Limit of connections from one address.",
        at_least(0),
        dynamic=CLUSTER_WIDE,
    )
    max_connections_per_ip_overrides: tuple[str, ...] = key(
        "max.connections.per.ip.overrides",
        Type.LIST,
        (),
        "Exceptions to max.connections.per.ip, as host:number.",
        dynamic=CLUSTER_WIDE,
    )
    max_connection_creation_rate: int = key(
        "max.connection.creation.rate",
        Type.INT,
        INT_MAX,
        "New connections per second. The listener between brokers is exempt, if there are others. At 0, one per "
        "quota.window.size.seconds is accepted.",
        at_least(0),
        dynamic=CLUSTER_WIDE,
    )
    connections_max_idle_ms: int = key(
        "connections.max.idle.ms", Type.LONG, 600_000, "Time after which an unused connection is closed."
    )
    queued_max_requests: int = key(
        "queued.max.requests",
        Type.INT,
        500,
        "Waiting requests at which no more are read.",
        at_least(1),
        importance=HIGH,
        unused="queued requests are bounded by their bytes, queued.max.request.bytes",
    )
    queued_max_request_bytes: int = key(
        "queued.max.request.bytes",
        Type.LONG,
        -1,
        "Bytes of waiting requests at which no more are read; -1 is no limit.",
        check=Check("-1 or at least 1", lambda value: value == -1 or value >= 1),
    )
    num_network_threads: int = key(
        "num.network.threads",
        Type.INT,
        3,
        "Accepted for compatibility: one loop serves all connections.",
        between(1, 10_000),
        importance=HIGH,
        dynamic=CLUSTER_WIDE,
        unused="one loop serves all connections",
    )
    num_io_threads: int = key(
        "num.io.threads",
        Type.INT,
        8,
        "Accepted for compatibility: requests run on the broker's one loop.",
        between(1, 10_000),
        importance=HIGH,
        dynamic=CLUSTER_WIDE,
        unused="one loop serves all requests",
    )
    background_threads: int = key(
        "background.threads",
        Type.INT,
        10,
        "Accepted for compatibility: idle work runs on the broker's one loop.",
        between(1, 10_000),
        importance=HIGH,
        dynamic=CLUSTER_WIDE,
        unused="idle work runs on the one loop",
    )
    request_timeout_ms: int = key(
        "request.timeout.ms",
        Type.INT,
        30_000,
        "How long a request to another broker may take.",
        importance=HIGH,
        check=at_least(1),
    )
    socket_connection_setup_timeout_ms: int = key(
        "socket.connection.setup.timeout.ms",
        Type.LONG,
        10_000,
        "First time-out of connecting to another broker.",
        check=at_least(1),
    )
    socket_connection_setup_timeout_max_ms: int = key(
        "socket.connection.setup.timeout.max.ms",
        Type.LONG,
        30_000,
        "Largest time-out of connecting to another broker after repeated failures.",
        unused="connecting to another broker has the one time-out socket.connection.setup.timeout.ms",
    )
    message_max_bytes: int = key(
        "message.max.bytes",
        Type.INT,
        1_048_588,
        "Largest record batch as it is stored; the default of max.message.bytes of topics.",
        at_least(0),
        importance=HIGH,
        dynamic=CLUSTER_WIDE,
    )
    max_decompressed_message_bytes: int = key(
        "max.decompressed.message.bytes",
        Type.INT,
        2_147_483_639,
        "Largest record of a compressed batch when it is produced, in bytes; the default is no limit.",
        between(1, 2_147_483_639),
        dynamic=CLUSTER_WIDE,
    )
    fetch_max_bytes: int = key(
        "fetch.max.bytes", Type.INT, 57_671_680, "Largest response to one Fetch in bytes.", at_least(1024)
    )
    max_incremental_fetch_session_cache_slots: int = key(
        "max.incremental.fetch.session.cache.slots",
        Type.INT,
        1000,
        "Number of incremental fetch sessions that are kept.",
        between(0, 1_000_000),
    )
    max_request_partition_size_limit: int = key(
        "max.request.partition.size.limit",
        Type.INT,
        2000,
        "Limit of partitions in one response of DescribeTopicPartitions.",
        between(1, PARTITIONS_MAX),
    )
    auto_create_topics_enable: bool = key(
        "auto.create.topics.enable",
        Type.BOOLEAN,
        True,
        "Whether a metadata request for a missing topic may create it.",
        importance=HIGH,
    )
    num_partitions: int = key(
        "num.partitions",
        Type.INT,
        1,
        "Partitions of a topic that is created without a number.",
        between(1, PARTITIONS_MAX),
    )
    default_replication_factor: int = key(
        "default.replication.factor",
        Type.INT,
        1,
        "Replicas of a topic that is created without a number.",
        between(1, 32_767),
    )
    delete_topic_enable: bool = key(
        "delete.topic.enable", Type.BOOLEAN, True, "Whether topics can be deleted.", importance=HIGH
    )
    compression_type: str = key(
        "compression.type",
        Type.STRING,
        "producer",
        "Codec of batches on disk; producer keeps what arrived. Default of the topic key of that name.",
        one_of(*CODECS),
        importance=HIGH,
        dynamic=CLUSTER_WIDE,
    )
    compression_gzip_level: int = key(
        "compression.gzip.level",
        Type.INT,
        -1,
        "Level of gzip where the broker recompresses.",
        GZIP_LEVEL,
        dynamic=CLUSTER_WIDE,
    )
    compression_lz4_level: int = key(
        "compression.lz4.level",
        Type.INT,
        9,
        "Level of lz4 where the broker recompresses.",
        between(1, 17),
        dynamic=CLUSTER_WIDE,
    )
    compression_zstd_level: int = key(
        "compression.zstd.level",
        Type.INT,
        3,
        "Level of zstd where the broker recompresses.",
        between(-131_072, 22),
        dynamic=CLUSTER_WIDE,
    )
    fetch_purgatory_purge_interval_requests: int = key(
        "fetch.purgatory.purge.interval.requests",
        Type.INT,
        1000,
        "Completed fetches that are kept in the purgatory before a purge.",
        unused=_AT_ONCE,
    )
    producer_purgatory_purge_interval_requests: int = key(
        "producer.purgatory.purge.interval.requests",
        Type.INT,
        1000,
        "Completed produces that are kept in the purgatory before a purge.",
        unused=_AT_ONCE,
    )
    delete_records_purgatory_purge_interval_requests: int = key(
        "delete.records.purgatory.purge.interval.requests",
        Type.INT,
        1,
        "Completed DeleteRecords that are kept in the purgatory before a purge.",
        unused=_AT_ONCE,
    )
    controlled_shutdown_enable: bool = key(
        "controlled.shutdown.enable", Type.BOOLEAN, True, "Whether leaderships move to other brokers before a stop."
    )
    controlled_shutdown_max_retries: int = key(
        "controlled.shutdown.max.retries", Type.INT, 3, "Retries of that move.", check=between(0, 10_000)
    )
    controlled_shutdown_retry_backoff_ms: int = key(
        "controlled.shutdown.retry.backoff.ms",
        Type.LONG,
        5000,
        "Delay between two attempts to move leaderships.",
        check=at_least(0),
    )
    broker_heartbeat_interval_ms: int = key(
        "broker.heartbeat.interval.ms", Type.INT, 2000, "Interval of the broker's heartbeats.", unused=_SESSION
    )
    broker_session_timeout_ms: int = key(
        "broker.session.timeout.ms", Type.INT, 9000, "Silence after which a broker counts as dead.", unused=_SESSION
    )
    inter_broker_protocol_version: str = key(
        "inter.broker.protocol.version",
        Type.STRING,
        "3.9-IV0",
        "The oldest version among the brokers; followers fetch, and groups are written, in a form that it understands. "
        "By default offsets are written in version 3, below 2.1 in version 1, which older readers of "
        "`__consumer_offsets` need.",
    )
    telemetry_max_bytes: int = key(
        "telemetry.max.bytes",
        Type.INT,
        1_048_576,
        "Largest metrics push of a client.",
        at_least(1),
        importance=LOW,
    )
    metric_reporters: tuple[str, ...] = key(
        "metric.reporters",
        Type.LIST,
        (),
        "Accepted for compatibility: metrics are served over HTTP.",
        importance=LOW,
        dynamic=CLUSTER_WIDE,
        unused="metrics are served over HTTP, see ottla.http.listener",
    )
    metrics_num_samples: int = key(
        "metrics.num.samples", Type.INT, 2, "Samples kept for a rate.", at_least(1), importance=LOW, unused=_COUNTERS
    )
    metrics_sample_window_ms: int = key(
        "metrics.sample.window.ms",
        Type.LONG,
        30_000,
        "Time covered by one sample of a rate.",
        at_least(1),
        importance=LOW,
        unused=_COUNTERS,
    )
    metrics_recording_level: str = key(
        "metrics.recording.level",
        Type.STRING,
        "INFO",
        "Detail of the metrics.",
        importance=LOW,
        unused="all metrics are always counted",
    )
    quota_window_num: int = key(
        "quota.window.num",
        Type.INT,
        11,
        "Samples kept for client quotas.",
        between(1, 1_000),
        importance=LOW,
    )
    quota_window_size_seconds: int = key(
        "quota.window.size.seconds",
        Type.INT,
        1,
        "Time covered by one sample of client quotas.",
        at_least(1),
        importance=LOW,
    )
    replication_quota_window_num: int = key(
        "replication.quota.window.num",
        Type.INT,
        11,
        "Samples kept for replication throttles.",
        between(1, 100_000),
        importance=LOW,
    )
    replication_quota_window_size_seconds: int = key(
        "replication.quota.window.size.seconds",
        Type.INT,
        1,
        "Time covered by one sample of replication throttles.",
        at_least(1),
        importance=LOW,
    )
    controller_quota_window_num: int = key(
        "controller.quota.window.num",
        Type.INT,
        11,
        "Samples kept for the controller mutation quota.",
        between(1, 1_000),
        importance=LOW,
    )
    controller_quota_window_size_seconds: int = key(
        "controller.quota.window.size.seconds",
        Type.INT,
        1,
        "Time covered by one sample of the controller mutation quota.",
        at_least(1),
        importance=LOW,
    )
    alter_log_dirs_replication_quota_window_num: int = key(
        "alter.log.dirs.replication.quota.window.num",
        Type.INT,
        11,
        "Samples kept for the throttle of moves between log directories.",
        between(1, 100_000),
        importance=LOW,
    )
    alter_log_dirs_replication_quota_window_size_seconds: int = key(
        "alter.log.dirs.replication.quota.window.size.seconds",
        Type.INT,
        1,
        "Time covered by one sample of that throttle.",
        at_least(1),
        importance=LOW,
    )
