"""The settings of the clients: Kafka's keys, types and defaults.

Zone: pure. One row per key (`bootstrap.servers` is the field `bootstrap_servers`), and the checks between keys.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from ottla.client.errors import ConfigError
from ottla.client.security.settings import SECURITY_KEYS, SecurityConfig
from ottla.client.setting_values import check_settings, join_words, parse_setting
from ottla.config.options import (
    BOOLEAN,
    INT_MAX,
    INTEGER,
    LIST,
    LONG_MAX,
    TEXT,
    Bounds,
    Option,
    option,
    options_of,
    suggest_name,
)
from ottla.utf8 import encode_text

ACKS = {"0": 0, "1": 1, "-1": -1, "all": -1}
CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
ISOLATION = {"read_uncommitted": 0, "read_committed": 1}
ALL_CLIENTS: Final = "all clients"
PRODUCERS: Final = "producers"
CONSUMERS: Final = "consumers"
READERS: Final = "consumers and admin clients"
_TIMEOUT: Final = Bounds(1, INT_MAX)
_BACKOFF: Final = Bounds(0, INT_MAX)
_SIZE: Final = Bounds(0, INT_MAX)


@dataclass(frozen=True, slots=True)
class ClientConfig:
    """The keys that several clients have, with Kafka's defaults; times in milliseconds, sizes in bytes.

    Source: the documentation of Kafka's producer, consumer and admin configuration.
    """

    bootstrap_servers: str = option(
        "bootstrap.servers",
        LIST,
        "localhost:9092",
        "Brokers to connect to first, as host:port. The cluster's other brokers are found through them.",
        scope=ALL_CLIENTS,
        old_names=("metadata.broker.list",),
    )
    client_id: str = option(
        "client.id",
        TEXT,
        "ottla",
        "The name of the client in the logs and metrics of brokers; at most 32,767 bytes.",
        scope=ALL_CLIENTS,
    )
    client_dns_lookup: str = option(
        "client.dns.lookup",
        TEXT,
        "use_all_dns_ips",
        "How the name of a host is resolved: its addresses are tried one after the other.",
        ("use_all_dns_ips",),
        scope=ALL_CLIENTS,
        unused="there is one value, which is what the clients do",
    )
    security: SecurityConfig = field(default_factory=SecurityConfig)
    """`security.protocol`, and all keys that begin with `ssl.` or `sasl.`."""
    request_timeout_ms: int = option(
        "request.timeout.ms",
        INTEGER,
        30_000,
        "How long a request waits for its response, before its connection is closed and it is repeated.",
        _TIMEOUT,
        scope=ALL_CLIENTS,
    )
    default_api_timeout_ms: int = option(
        "default.api.timeout.ms",
        INTEGER,
        60_000,
        "How long a call may take with all its repetitions, where it has no timeout of its own.",
        _TIMEOUT,
        scope=ALL_CLIENTS,
    )
    socket_connection_setup_timeout_ms: int = option(
        "socket.connection.setup.timeout.ms",
        INTEGER,
        10_000,
        "How long a connection may take to be established, TLS and login included.",
        _TIMEOUT,
        scope=ALL_CLIENTS,
    )
    reconnect_backoff_ms: int = option(
        "reconnect.backoff.ms",
        INTEGER,
        50,
        "The wait after the first failed connection to a broker; it doubles with each further one.",
        _BACKOFF,
        scope=ALL_CLIENTS,
    )
    reconnect_backoff_max_ms: int = option(
        "reconnect.backoff.max.ms",
        INTEGER,
        1_000,
        "The longest wait between two attempts to connect to a broker.",
        _BACKOFF,
        scope=ALL_CLIENTS,
    )
    retry_backoff_ms: int = option(
        "retry.backoff.ms",
        INTEGER,
        100,
        "The wait before a failed request is repeated for the first time; it doubles with each repetition.",
        _BACKOFF,
        scope=ALL_CLIENTS,
    )
    retry_backoff_max_ms: int = option(
        "retry.backoff.max.ms",
        INTEGER,
        1_000,
        "The longest wait between two repetitions of a request.",
        _BACKOFF,
        scope=ALL_CLIENTS,
    )
    metadata_max_age_ms: int = option(
        "metadata.max.age.ms",
        INTEGER,
        300_000,
        "How old the known leaders and partitions may be before they are requested again without a reason.",
        Bounds(0, LONG_MAX),
        scope=ALL_CLIENTS,
    )
    send_buffer_bytes: int = option(
        "send.buffer.bytes",
        INTEGER,
        -1,
        "The send buffer of a socket (SO_SNDBUF); -1: the system tunes it. With Kafka's 128 KiB, writing large batches "
        "takes a sixth more CPU.",
        Bounds(-1, INT_MAX),
        scope=ALL_CLIENTS,
    )
    receive_buffer_bytes: int = option(
        "receive.buffer.bytes",
        INTEGER,
        -1,
        "The receive buffer of a socket (SO_RCVBUF); -1: the system tunes it. With Kafka's 64 KiB, reading takes a "
        "third more CPU.",
        Bounds(-1, INT_MAX),
        scope=ALL_CLIENTS,
    )
    receive_message_max_bytes: int = option(
        "receive.message.max.bytes",
        INTEGER,
        100_000_000,
        "The largest response that is accepted (librdkafka's name); a larger one closes the connection.",
        Bounds(1_000, INT_MAX),
        scope=ALL_CLIENTS,
    )
    allow_auto_create_topics: bool = option(
        "allow.auto.create.topics",
        BOOLEAN,
        True,
        "Whether the broker may create a missing topic, where its `auto.create.topics.enable` allows that.",
        scope="producers and consumers",
    )
    fetch_min_bytes: int = option(
        "fetch.min.bytes",
        INTEGER,
        1,
        "The broker answers a fetch when it has this much, or when `fetch.max.wait.ms` are over.",
        _SIZE,
        scope=CONSUMERS,
    )
    fetch_max_bytes: int = option(
        "fetch.max.bytes",
        INTEGER,
        52_428_800,
        "The most that one fetch returns; a first batch that is larger is returned nevertheless.",
        _SIZE,
        scope=CONSUMERS,
    )
    fetch_max_wait_ms: int = option(
        "fetch.max.wait.ms",
        INTEGER,
        500,
        "How long the broker waits for `fetch.min.bytes`.",
        _SIZE,
        scope=CONSUMERS,
    )
    max_partition_fetch_bytes: int = option(
        "max.partition.fetch.bytes",
        INTEGER,
        1_048_576,
        "The most that one fetch returns of a partition; a first batch that is larger is returned nevertheless.",
        _SIZE,
        scope=CONSUMERS,
    )
    isolation_level: str = option(
        "isolation.level",
        TEXT,
        "read_uncommitted",
        "`read_committed` leaves out records of aborted transactions, and reads up to the first open one.",
        tuple(ISOLATION),
        scope=READERS,
    )
    check_crcs: bool = option(
        "check.crcs",
        BOOLEAN,
        True,
        "Whether the checksums of batches are verified.",
        scope=CONSUMERS,
    )
    acks: str = option(
        "acks",
        TEXT,
        "all",
        "The replicas that must have a batch before it counts as written: `all` (or -1) in-sync ones, `1` the leader, "
        "`0` none: no response is awaited.",
        tuple(ACKS),
        scope=PRODUCERS,
        old_names=("request.required.acks",),
    )
    compression_type: str = option(
        "compression.type",
        TEXT,
        "none",
        "The codec of batches.",
        tuple(CODECS),
        scope=PRODUCERS,
    )
    batch_size: int = option(
        "batch.size",
        INTEGER,
        16_384,
        "A batch of a partition is sent when it has this many bytes, or when `linger.ms` are over.",
        _SIZE,
        scope=PRODUCERS,
    )
    max_request_size: int = option(
        "max.request.size",
        INTEGER,
        1_048_576,
        "The largest record, and the largest request.",
        Bounds(1, INT_MAX),
        scope=PRODUCERS,
    )
    delivery_timeout_ms: int = option(
        "delivery.timeout.ms",
        INTEGER,
        120_000,
        "How long a record may take from `send` to its outcome. Not below `linger.ms` + `request.timeout.ms`; if it is "
        "not set, it is made longer for them.",
        _TIMEOUT,
        scope=PRODUCERS,
    )
    enable_idempotence: bool = option(
        "enable.idempotence",
        BOOLEAN,
        True,
        "Whether batches have sequence numbers, so that a repeated one is written once, in order. Needs `acks=all`, "
        "retries, and at most 5 requests in flight.",
        scope=PRODUCERS,
        default_text="`true`, unless `acks`, `retries` or `max.in.flight.requests.per.connection` exclude it",
    )

    def __post_init__(self) -> None:
        check_settings(CLIENT_OPTIONS, self)
        try:
            if len(encode_text(self.client_id)) > 32_767:
                raise ConfigError("client.id is longer than 32767 bytes", "Use a short name")
        except UnicodeEncodeError:
            raise ConfigError(f"client.id={self.client_id!r} has half of a surrogate pair", "Use valid text") from None
        if self.enable_idempotence and ACKS[self.acks] != -1:
            raise ConfigError(f"enable.idempotence=true contradicts acks={self.acks}", "Leave one of them unset")

    @classmethod
    def from_mapping(cls, settings: Mapping[str, Any]) -> ClientConfig:
        """The configuration for settings by Kafka's keys, values as text or in their type.

        None counts as unset. Unset keys adjust to explicit ones (`acks=1` alone turns idempotence off). Raises
        ConfigError for an unknown key (it suggests the nearest one) and for an invalid value; `split_unknown` helps
        callers that accept unknown keys.
        """
        values: dict[str, Any] = {}
        secured = {key: raw for key, raw in settings.items() if key in SECURITY_KEYS}
        if secured:
            values["security"] = SecurityConfig.from_mapping(secured)
        for key, raw in settings.items():
            if key in secured:
                continue
            if (row := CLIENT_OPTIONS.get(key)) is None:
                raise ConfigError(f"{key} is not a setting of this client", suggest_key(key))
            if raw is not None:
                values[row.attribute] = join_words(parse_setting(row, raw))
        # As in Kafka, acks other than all turn idempotence off, unless that is set explicitly (then it is an error).
        if ACKS.get(str(values.get("acks", "all"))) != -1:
            values.setdefault("enable_idempotence", False)
        return cls(**values)


CLIENT_OPTIONS: Final[Mapping[str, Option]] = options_of(ClientConfig)
"""The rows of `ClientConfig` by key; `security.settings` has those of TLS and SASL."""


def is_shared(key: str) -> bool:
    """Whether `ClientConfig` has this key."""
    return key in SECURITY_KEYS or key in CLIENT_OPTIONS


def split_unknown(settings: Mapping[str, str], more: Collection[str] = ()) -> tuple[dict[str, str], list[str]]:
    """(known settings, one warning per unknown key), for files that other clients also read.

    more: keys that this client has in addition to the shared ones.
    """
    known = {key: value for key, value in settings.items() if is_shared(key) or key in more}
    unknown = [key for key in settings if key not in known]
    return known, [f"{key} is not a setting of this client. {suggest_key(key, more)}" for key in unknown]


def suggest_key(key: str, more: Iterable[str] = ()) -> str:
    """A sentence that suggests the nearest key, of the shared ones and `more`, or the page with all keys."""
    from ottla.config.names import RETIRED_CLIENT_NAMES  # noqa: PLC0415 - only for a wrong key

    if key in RETIRED_CLIENT_NAMES:
        return f"It is a name of Apache Kafka's first clients: use {RETIRED_CLIENT_NAMES[key]}"
    return suggest_name(key, [*CLIENT_OPTIONS, *SECURITY_KEYS, *more]) or "docs/config-client.md lists the settings"


def parse_properties(text: str) -> dict[str, str]:
    """Parse the part of Java's properties format that client configurations use: `key=value`, `key: value`, # or !
    comments.

    A backslash at the end of a line continues it. Raises ConfigError for a line without a separator.
    """
    settings: dict[str, str] = {}
    for number, line in enumerate(text.replace("\\\n", "").splitlines(), 1):
        stripped = line.strip()
        if not stripped or stripped[0] in "#!":
            continue
        # The first separator counts: values may contain the other one (URLs, JAAS lines).
        at = min((i for i in (stripped.find("="), stripped.find(":")) if i > 0), default=0)
        if not at:
            raise ConfigError(f"line {number} of the properties, {stripped!r}, has no '='", "Write key=value")
        settings[stripped[:at].strip()] = stripped[at + 1 :].strip()
    return settings
