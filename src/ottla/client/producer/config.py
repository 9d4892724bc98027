"""The producer's settings: Kafka's keys and defaults, and the rules between them.

Zone: pure. Has the keys that only the producer has; the shared ones are in `ottla.client.settings`. Explicit settings
that conflict are a ConfigError, unset ones adjust to explicit ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from ottla.client.errors import ConfigError
from ottla.client.schemas.contexts import RecordSerializer
from ottla.client.setting_values import check_settings, parse_setting
from ottla.client.settings import ACKS, CLIENT_OPTIONS, CODECS, ClientConfig, is_shared, suggest_key
from ottla.config.options import BOOLEAN, INT_MAX, INTEGER, LONG_MAX, TEXT, Bounds, Option, option, options_of
from ottla.record.compression import Codec

Serializer = Callable[[Any], bytes | None] | RecordSerializer
"""Converts an application's object to bytes, or one that takes a context; not called for None, which stays None (a
tombstone)."""

_IN_FLIGHT_IDEMPOTENT: Final = 5
"""The number of batches that a broker remembers per producer and partition (KIP-98)."""
_RENAMED: Final = {old: row.name for row in CLIENT_OPTIONS.values() for old in row.old_names}


@dataclass(frozen=True, slots=True)
class ProducerConfig:
    """The producer's own keys, with Kafka's defaults; times in milliseconds, sizes in bytes.

    Source: the documentation of Kafka's producer configuration (4.x).
    """

    client: ClientConfig = field(default_factory=ClientConfig)
    """The shared keys; also `acks`, `batch.size`, `compression.type`, `max.request.size`, `delivery.timeout.ms`."""
    buffer_memory: int = option(
        "buffer.memory",
        INTEGER,
        33_554_432,
        "The bytes of records that may wait to be sent; when they are used up, `send` waits.",
        Bounds(1, LONG_MAX),
    )
    max_block_ms: int = option(
        "max.block.ms",
        INTEGER,
        60_000,
        "How long `send` may wait for metadata and for memory, and how long a call of a transaction may take.",
        Bounds(0, LONG_MAX),
    )
    linger_ms: int = option(
        "linger.ms",
        INTEGER,
        5,
        "How long a batch waits for more records before it is sent, if it is not full.",
        Bounds(0, INT_MAX),
    )
    retries: int = option(
        "retries",
        INTEGER,
        INT_MAX,
        "How often a batch is sent again after an error that may pass; `delivery.timeout.ms` ends it earlier.",
        Bounds(0, INT_MAX),
    )
    max_in_flight_requests_per_connection: int = option(
        "max.in.flight.requests.per.connection",
        INTEGER,
        5,
        "The most requests that wait for a broker's response; with idempotence at most 5.",
        Bounds(1, INT_MAX),
    )
    partitioner_class: str = option(
        "partitioner.class",
        TEXT,
        "",
        "How the partition of a record is chosen: empty (murmur2 of the key; records without a key fill a batch of one "
        "partition, KIP-794), or `round_robin`. A function is the argument `partitioner` of `Producer`.",
    )
    partitioner_ignore_keys: bool = option(
        "partitioner.ignore.keys", BOOLEAN, False, "Whether records with a key are spread as those without one."
    )
    partitioner_adaptive_partitioning_enable: bool = option(
        "partitioner.adaptive.partitioning.enable",
        BOOLEAN,
        True,
        "Whether records without a key prefer partitions whose brokers are fast.",
    )
    compression_gzip_level: int = option(
        "compression.gzip.level", INTEGER, -1, "The level of gzip; -1 is zlib's default.", Bounds(-1, 9)
    )
    compression_lz4_level: int = option("compression.lz4.level", INTEGER, 9, "The level of lz4.", Bounds(1, 17))
    compression_zstd_level: int = option(
        "compression.zstd.level", INTEGER, 3, "The level of zstd; below 0 it is faster.", Bounds(-131_072, 22)
    )
    transactional_id: str = option(
        "transactional.id",
        TEXT,
        "",
        "The name of a transactional producer, kept over restarts: a new instance fences the one before. Empty: no "
        "transactions.",
    )
    transaction_timeout_ms: int = option(
        "transaction.timeout.ms",
        INTEGER,
        60_000,
        "The coordinator aborts a transaction that is open for longer.",
        Bounds(1, INT_MAX),
    )
    metadata_max_idle_ms: int = option(
        "metadata.max.idle.ms",
        INTEGER,
        300_000,
        "The metadata of a topic is forgotten when no record was sent to it for this long.",
        Bounds(5_000, LONG_MAX),
    )

    def __post_init__(self) -> None:
        check_settings(PRODUCER_OPTIONS, self)
        least = self.linger_ms + self.client.request_timeout_ms
        if self.client.delivery_timeout_ms < least:
            raise ConfigError(
                f"delivery.timeout.ms={self.client.delivery_timeout_ms} is less than linger.ms + request.timeout.ms",
                f"Use at least {least}, or lower the others",
            )
        if self.idempotent:
            self._check_idempotence()
        elif self.transactional_id:
            raise ConfigError(
                "transactional.id needs idempotence, which is off", "Set enable.idempotence=true, acks=all"
            )

    def _check_idempotence(self) -> None:
        if self.retries == 0:
            raise ConfigError("enable.idempotence=true contradicts retries=0", "Leave one of them unset")
        if self.max_in_flight_requests_per_connection > _IN_FLIGHT_IDEMPOTENT:
            raise ConfigError(
                "enable.idempotence=true contradicts max.in.flight.requests.per.connection="
                f"{self.max_in_flight_requests_per_connection}",
                f"Use at most {_IN_FLIGHT_IDEMPOTENT}, or leave one of them unset",
            )

    @property
    def idempotent(self) -> bool:
        """Whether batches carry sequence numbers."""
        return self.client.enable_idempotence

    @property
    def acks(self) -> int:
        """0, 1 or -1 (all in-sync replicas)."""
        return ACKS[self.client.acks]

    @property
    def codec(self) -> int:
        """The number of the codec."""
        return CODECS[self.client.compression_type]

    @property
    def level(self) -> int | None:
        """The compression level of the codec, None for a codec without levels."""
        levels: Mapping[int, int] = {
            Codec.GZIP: self.compression_gzip_level,
            Codec.LZ4: self.compression_lz4_level,
            Codec.ZSTD: self.compression_zstd_level,
        }
        return levels.get(self.codec)

    @classmethod
    def from_mapping(cls, settings: Mapping[str, Any]) -> ProducerConfig:
        """The configuration for settings by Kafka's keys, values as text or in their type; None counts as unset.

        Unset keys adjust to explicit ones: `acks=1`, `retries=0` or more than five in flight turn idempotence off;
        a long `linger.ms` or `request.timeout.ms` makes `delivery.timeout.ms` longer. Raises ConfigError for an
        unknown key (it suggests the nearest one), for an invalid value, and for explicit settings that conflict.
        """
        given = {_RENAMED.get(key, key): value for key, value in settings.items() if value is not None}
        own = {key: value for key, value in given.items() if key in PRODUCER_OPTIONS}
        shared = {key: value for key, value in given.items() if key not in PRODUCER_OPTIONS}
        for key in shared:
            if not is_shared(key):
                raise ConfigError(f"{key} is not a setting of the producer", suggest_key(key, PRODUCER_OPTIONS))
        rows = PRODUCER_OPTIONS
        values: dict[str, Any] = {rows[key].attribute: parse_setting(rows[key], raw) for key, raw in own.items()}
        if values.get("transactional_id") == "":
            raise ConfigError("transactional.id is empty", "Leave it out for a producer without transactions")
        if _is_unset(given, "enable.idempotence") and _excludes_idempotence(values):
            shared["enable.idempotence"] = False
        client = ClientConfig.from_mapping(_with_delivery_timeout(shared, values))
        return cls(client=client, **values)


PRODUCER_OPTIONS: Final[Mapping[str, Option]] = options_of(ProducerConfig)
"""The rows of `ProducerConfig` by key."""
PRODUCER_KEYS: Final = frozenset(PRODUCER_OPTIONS) | frozenset(_RENAMED)
"""The keys of a producer that are not shared by all clients."""


def renamed_warnings(settings: Mapping[str, object]) -> list[str]:
    """A warning for each key that is an old name."""
    return [f"{key} is an old name of {_RENAMED[key]}" for key in settings if key in _RENAMED]


def _is_unset(given: Mapping[str, object], key: str) -> bool:
    return key not in given


def _excludes_idempotence(values: Mapping[str, Any]) -> bool:
    in_flight = values.get("max_in_flight_requests_per_connection", 1)
    return bool(values.get("retries", 1) == 0 or in_flight > _IN_FLIGHT_IDEMPOTENT)


def _with_delivery_timeout(shared: dict[str, str | int | bool], own: Mapping[str, Any]) -> dict[str, str | int | bool]:
    """`shared`, with a `delivery.timeout.ms` that is long enough if it was unset."""
    if "delivery.timeout.ms" in shared:
        return shared
    known = ClientConfig.from_mapping({key: value for key, value in shared.items() if key == "request.timeout.ms"})
    least = min(INT_MAX, known.request_timeout_ms + own.get("linger_ms", 5))
    return {**shared, "delivery.timeout.ms": max(known.delivery_timeout_ms, least)}
