"""The producer's settings: Kafka's keys and defaults, and the rules between them.

Zone: pure. Has the keys that only the producer has; the shared ones are in `ottla.client.settings`. Explicit settings
that conflict are a ConfigError, unset ones adjust to explicit ones.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final

from ottla.client.errors import ConfigError
from ottla.client.settings import ACKS, CODECS, ClientConfig, parse_setting, split_unknown
from ottla.record.compression import Codec

Serializer = Callable[[Any], bytes | None]
"""Converts an application's object to bytes; not called for None, which stays None (a tombstone)."""

_INT_MAX: Final = 2**31 - 1
_IN_FLIGHT_IDEMPOTENT: Final = 5
"""The number of batches that a broker remembers per producer and partition (KIP-98)."""
_RENAMED: Final = {"metadata.broker.list": "bootstrap.servers", "request.required.acks": "acks"}


@dataclass(frozen=True, slots=True)
class ProducerConfig:
    """The producer's own keys, with Kafka's defaults; times in milliseconds, sizes in bytes.

    Source: the documentation of Kafka's producer configuration (4.x).
    """

    client: ClientConfig = field(default_factory=ClientConfig)
    """The shared keys; also `acks`, `batch.size`, `compression.type`, `max.request.size`, `delivery.timeout.ms`."""
    buffer_memory: int = 33_554_432
    max_block_ms: int = 60_000
    linger_ms: int = 5
    retries: int = _INT_MAX
    max_in_flight_requests_per_connection: int = 5
    partitioner_class: str = ""
    """"" (KIP-794), or the name of a partitioner: see `partitioning`."""
    partitioner_ignore_keys: bool = False
    partitioner_adaptive_partitioning_enable: bool = True
    compression_gzip_level: int = -1
    compression_lz4_level: int = 9
    compression_zstd_level: int = 3
    transactional_id: str = ""
    """"": no transactions."""
    transaction_timeout_ms: int = 60_000
    metadata_max_idle_ms: int = 300_000

    def __post_init__(self) -> None:
        for name, (low, high) in _RANGES.items():
            if not low <= getattr(self, name) <= high:
                raise ConfigError(f"{_kafka_key(name)}={getattr(self, name)} is out of range", f"Use {low} to {high}")
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
        own = {key.replace(".", "_"): value for key, value in given.items() if key in _KEYS}
        shared = {key: value for key, value in given.items() if key not in _KEYS}
        _refuse_unknown(shared)
        values: dict[str, Any] = {
            name: parse_setting(_kafka_key(name), str(_TYPES[name]), raw) for name, raw in own.items()
        }
        if values.get("transactional_id") == "":
            raise ConfigError("transactional.id is empty", "Leave it out for a producer without transactions")
        if _is_unset(given, "enable.idempotence") and _excludes_idempotence(values):
            shared["enable.idempotence"] = False
        client = ClientConfig.from_mapping(_with_delivery_timeout(shared, values))
        return cls(client=client, **values)


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
    least = min(_INT_MAX, known.request_timeout_ms + own.get("linger_ms", 5))
    return {**shared, "delivery.timeout.ms": max(known.delivery_timeout_ms, least)}


def _refuse_unknown(shared: Mapping[str, object]) -> None:
    known, _ = split_unknown(dict.fromkeys(shared, ""))
    for key in shared:
        if key not in known:
            close = difflib.get_close_matches(key, [*_KEYS, *_shared_keys()], n=1)
            raise ConfigError(f"{key} is not a setting of the producer", f"Did you mean {close[0]}?" if close else "")


def _kafka_key(name: str) -> str:
    return name.replace("_", ".")


def _shared_keys() -> list[str]:
    return [_kafka_key(row.name) for row in fields(ClientConfig)]


_TYPES: Final = {row.name: row.type for row in fields(ProducerConfig) if row.name != "client"}
_KEYS: Final = frozenset(_kafka_key(name) for name in _TYPES)
PRODUCER_KEYS: Final = _KEYS | frozenset(_RENAMED)
"""The keys of a producer that are not shared by all clients."""
_RANGES: Final = {
    "buffer_memory": (1, 2**63 - 1),
    "max_block_ms": (0, 2**63 - 1),
    "linger_ms": (0, _INT_MAX),
    "retries": (0, _INT_MAX),
    "max_in_flight_requests_per_connection": (1, _INT_MAX),
    "compression_gzip_level": (-1, 9),
    "compression_lz4_level": (1, 17),
    "compression_zstd_level": (-131_072, 22),
    "transaction_timeout_ms": (1, _INT_MAX),
    "metadata_max_idle_ms": (5_000, 2**63 - 1),
}
