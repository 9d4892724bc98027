"""Keys of replication, controller and metadata store: one row per key.

Zone: pure. Rows only: names, types, defaults and checks are Kafka's.
`topic` has the keys that a topic can override.
"""

from __future__ import annotations

from dataclasses import dataclass

from ottla.config.broker_log import LogConfig
from ottla.config.rows import CLUSTER_WIDE, HIGH, LONG_MAX, THREADS_MAX, Type, at_least, between, key


@dataclass(init=False, repr=False, eq=False, frozen=True, slots=True)
class ReplicationConfig(LogConfig):
    """Keys of replication, controller and metadata store. Sizes in bytes; times in the unit of the key's last word."""

    min_insync_replicas: int = key(
        "min.insync.replicas",
        Type.INT,
        1,
        "In-sync replicas without which acks=all is refused; default of the topic key of that name.",
        at_least(1),
        importance=HIGH,
        dynamic=CLUSTER_WIDE,
    )
    unclean_leader_election_enable: bool = key(
        "unclean.leader.election.enable",
        Type.BOOLEAN,
        False,
        "Whether a replica out of sync may lead when no other is left; records can be lost.",
        importance=HIGH,
        dynamic=CLUSTER_WIDE,
    )
    unclean_leader_election_interval_ms: int = key(
        "unclean.leader.election.interval.ms",
        Type.LONG,
        300_000,
        "How often partitions without a leader are checked for an unclean election.",
        at_least(1),
    )
    replica_lag_time_max_ms: int = key(
        "replica.lag.time.max.ms",
        Type.LONG,
        30_000,
        "Time without being caught up after which a follower leaves the in-sync replicas.",
        importance=HIGH,
        check=at_least(1),
    )
    replica_socket_timeout_ms: int = key(
        "replica.socket.timeout.ms",
        Type.INT,
        30_000,
        "Time-out of a follower's fetch.",
        importance=HIGH,
        check=at_least(1),
    )
    replica_socket_receive_buffer_bytes: int = key(
        "replica.socket.receive.buffer.bytes",
        Type.INT,
        65_536,
        "Receive buffer of a follower's connection.",
        importance=HIGH,
        unused="the system sizes the buffer of connections between brokers",
    )
    replica_fetch_max_bytes: int = key(
        "replica.fetch.max.bytes", Type.INT, 1_048_576, "Bytes of one partition that a follower requests.", at_least(0)
    )
    replica_fetch_wait_max_ms: int = key(
        "replica.fetch.wait.max.ms",
        Type.INT,
        500,
        "How long a leader may hold a follower's empty fetch.",
        importance=HIGH,
        check=at_least(0),
    )
    replica_fetch_backoff_ms: int = key(
        "replica.fetch.backoff.ms", Type.INT, 1000, "Delay of a follower after a failed fetch.", at_least(0)
    )
    replica_fetch_min_bytes: int = key(
        "replica.fetch.min.bytes",
        Type.INT,
        1,
        "Bytes for which a leader holds a follower's fetch.",
        importance=HIGH,
        check=at_least(0),
    )
    replica_fetch_response_max_bytes: int = key(
        "replica.fetch.response.max.bytes",
        Type.INT,
        10_485_760,
        "Bytes of a whole response that a follower requests.",
        at_least(0),
    )
    num_replica_fetchers: int = key(
        "num.replica.fetchers",
        Type.INT,
        1,
        "Fetchers per leader broker.",
        between(1, THREADS_MAX),
        importance=HIGH,
        dynamic=CLUSTER_WIDE,
    )
    replica_high_watermark_checkpoint_interval_ms: int = key(
        "replica.high.watermark.checkpoint.interval.ms",
        Type.LONG,
        5000,
        "How often high watermarks are written.",
        importance=HIGH,
        check=at_least(1),
    )
    replica_selector_class: str | None = key(
        "replica.selector.class", Type.STRING, None, "Choice of the replica a consumer reads from."
    )
    leader_replication_throttled_rate: int = key(
        "leader.replication.throttled.rate",
        Type.LONG,
        LONG_MAX,
        "Bytes per second that a leader sends to throttled replicas.",
        at_least(0),
        dynamic=CLUSTER_WIDE,
    )
    follower_replication_throttled_rate: int = key(
        "follower.replication.throttled.rate",
        Type.LONG,
        LONG_MAX,
        "Bytes per second that throttled replicas fetch.",
        at_least(0),
        dynamic=CLUSTER_WIDE,
    )
    replica_alter_log_dirs_io_max_bytes_per_second: int = key(
        "replica.alter.log.dirs.io.max.bytes.per.second",
        Type.LONG,
        LONG_MAX,
        "Bytes per second of moves between log directories.",
        at_least(0),
        dynamic=CLUSTER_WIDE,
    )
    auto_leader_rebalance_enable: bool = key(
        "auto.leader.rebalance.enable",
        Type.BOOLEAN,
        True,
        "Whether leadership returns to the preferred replica by itself.",
        importance=HIGH,
    )
    leader_imbalance_check_interval_seconds: int = key(
        "leader.imbalance.check.interval.seconds",
        Type.LONG,
        300,
        "How often leadership is compared with the preferred replicas.",
        at_least(1),
        importance=HIGH,
    )
    leader_imbalance_per_broker_percentage: int = key(
        "leader.imbalance.per.broker.percentage",
        Type.INT,
        10,
        "Share of non-preferred leaderships of a broker at which it is rebalanced.",
        importance=HIGH,
        check=at_least(0),
    )
    controller_socket_timeout_ms: int = key(
        "controller.socket.timeout.ms",
        Type.INT,
        30_000,
        "Time-out of a controller's request to a broker.",
        check=at_least(1),
    )
    zookeeper_connect: str | None = key(
        "zookeeper.connect", Type.STRING, None, "ZooKeeper ensemble as host:port,host:port/chroot.", importance=HIGH
    )
    zookeeper_session_timeout_ms: int = key(
        "zookeeper.session.timeout.ms",
        Type.INT,
        18_000,
        "Silence after which ZooKeeper ends a broker's session.",
        at_least(100),
        importance=HIGH,
    )
    zookeeper_connection_timeout_ms: int | None = key(
        "zookeeper.connection.timeout.ms",
        Type.INT,
        None,
        "Time without a connection after which the broker logs a warning, repeatedly; unset, the session time-out.",
        importance=HIGH,
    )
    zookeeper_max_in_flight_requests: int = key(
        "zookeeper.max.in.flight.requests",
        Type.INT,
        10,
        "Requests to ZooKeeper that are in flight at one time.",
        between(1, 10_000),
        importance=HIGH,
    )
    zookeeper_set_acl: bool = key(
        "zookeeper.set.acl",
        Type.BOOLEAN,
        False,
        "Whether nodes are created with access control lists.",
        importance=HIGH,
    )
    ottla_zookeeper_digest: str | None = key(
        "ottla.zookeeper.digest",
        Type.PASSWORD,
        None,
        "Credentials for ZooKeeper as user:password; not a key of Kafka, which takes them from a JAAS file.",
    )
    ottla_inter_broker_secret_file: str | None = key(
        "ottla.inter.broker.secret.file",
        Type.STRING,
        None,
        "File with a secret that all brokers share; connections that do not prove to know it count as clients.",
    )
    ottla_adopt_logs: bool = key(
        "ottla.adopt.logs",
        Type.BOOLEAN,
        False,
        "Whether an empty embedded metadata store imports the topics of the logs in the log directories.",
    )
    ottla_ignore_dynamic_configs: bool = key(
        "ottla.ignore.dynamic.configs",
        Type.BOOLEAN,
        False,
        "Whether the stored dynamic settings of brokers are ignored, so that only the static ones are used.",
    )
    reserved_broker_max_id: int = key(
        "reserved.broker.max.id",
        Type.INT,
        1000,
        "Largest number that an operator may give a broker while numbers are also generated.",
        at_least(0),
        unused="a broker's number is given or 1, none is generated",
    )
    broker_id_generation_enable: bool = key(
        "broker.id.generation.enable",
        Type.BOOLEAN,
        True,
        "Accepted for compatibility: a broker's number is given or 1.",
        unused="a broker's number is given or 1, none is generated",
    )
