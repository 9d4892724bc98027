"""The settings of the clients: Kafka's keys, types and defaults.

Zone: pure. One field per key (`bootstrap.servers` is `bootstrap_servers`), its range, and the checks between keys.
"""

from __future__ import annotations

import difflib
import operator
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from typing import Any

from ottla.client.errors import ConfigError
from ottla.client.security.settings import SECURITY_KEYS, SecurityConfig
from ottla.utf8 import encode_text

ACKS = {"0": 0, "1": 1, "-1": -1, "all": -1}
CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
ISOLATION = {"read_uncommitted": 0, "read_committed": 1}
_INT_MAX = 2**31 - 1
_LONG_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class ClientConfig:
    """All keys of this version, with Kafka's defaults; times in milliseconds, sizes in bytes.

    Source: the documentation of Kafka's producer, consumer and admin configuration.
    """

    bootstrap_servers: str = "localhost:9092"
    client_id: str = "ottla"
    client_dns_lookup: str = "use_all_dns_ips"
    security: SecurityConfig = field(default_factory=SecurityConfig)
    """`security.protocol`, and all keys that begin with `ssl.` or `sasl.`."""
    request_timeout_ms: int = 30_000
    default_api_timeout_ms: int = 60_000
    socket_connection_setup_timeout_ms: int = 10_000
    reconnect_backoff_ms: int = 50
    reconnect_backoff_max_ms: int = 1_000
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 1_000
    metadata_max_age_ms: int = 300_000
    send_buffer_bytes: int = -1
    """-1: the system tunes it. With Kafka's 128 KiB, writing large batches takes a sixth more CPU."""
    receive_buffer_bytes: int = -1
    """-1: the system tunes it. With Kafka's 64 KiB, reading takes a third more CPU."""
    receive_message_max_bytes: int = 100_000_000
    allow_auto_create_topics: bool = True
    fetch_min_bytes: int = 1
    fetch_max_bytes: int = 52_428_800
    fetch_max_wait_ms: int = 500
    max_partition_fetch_bytes: int = 1_048_576
    isolation_level: str = "read_uncommitted"
    check_crcs: bool = True
    acks: str = "all"
    compression_type: str = "none"
    batch_size: int = 16_384
    max_request_size: int = 1_048_576
    delivery_timeout_ms: int = 120_000
    enable_idempotence: bool = True

    def __post_init__(self) -> None:
        for name, (low, high) in _RANGES.items():
            value = getattr(self, name)
            if not low <= value <= high:
                raise ConfigError(f"{_kafka_key(name)}={value} is out of range", f"Use {low} to {high}")
        for name, allowed in _CHOICES.items():
            value = getattr(self, name)
            if value not in allowed:
                raise ConfigError(f"{_kafka_key(name)}={value} is not known", f"Use one of {', '.join(allowed)}")
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
            name = key.replace(".", "_")
            if key in secured:
                continue
            if name not in _TYPES or "_" in key:
                raise ConfigError(f"{key} is not a setting of this client", suggest_key(key))
            if raw is not None:
                values[name] = parse_setting(key, _TYPES[name], raw)
        # As in Kafka, acks other than all turn idempotence off, unless that is set explicitly (then it is an error).
        if ACKS.get(str(values.get("acks", "all"))) != -1:
            values.setdefault("enable_idempotence", False)
        return cls(**values)


def is_shared(key: str) -> bool:
    """Whether `ClientConfig` has this key."""
    return key in SECURITY_KEYS or (key.replace(".", "_") in _TYPES and "_" not in key)


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
    close = difflib.get_close_matches(key, [*(_kafka_key(name) for name in _TYPES), *SECURITY_KEYS, *more], n=1)
    return f"Did you mean {close[0]}?" if close else "docs/cli.md lists the settings"


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


def parse_setting(key: str, kind: str, raw: object) -> str | int | bool:
    """The value of a setting in the type of its field, from text or from that type; kind: "str", "int" or "bool".

    Also accepts numbers and booleans of other libraries, subclasses of str, and a list of strings for keys that are
    lists in Kafka. Raises ConfigError, which names the key.
    """
    if key in _LISTS and isinstance(raw, list | tuple):
        raw = ",".join(_text_value(key, each) for each in raw)
    if kind == "str":
        return _text_value(key, raw)
    text = plain_text(raw).strip()
    if kind == "bool":
        if text.lower() not in ("true", "false"):
            raise ConfigError(f"{key}={text} is not a boolean", "Use true or false")
        return text.lower() == "true"
    if kind == "int":
        try:
            return int(text)
        except ValueError:
            raise ConfigError(f"{key}={text} is not a whole number") from None
    raise AssertionError(f"{key} has a field of type {kind}")


def plain_text(raw: object) -> str:
    """A value as text; for a subclass of str its content, not its `str()` (which is the name for an enum)."""
    return str.__str__(raw) if isinstance(raw, str) else str(raw)


def _text_value(key: str, raw: object) -> str:
    if isinstance(raw, str):
        return str.__str__(raw).strip()
    if not isinstance(raw, bool):
        with suppress(TypeError):
            return str(operator.index(raw))  # type: ignore[arg-type]  # TypeError: not an integer
    more = ", or a list of strings" if key in _LISTS else ""
    raise ConfigError(f"{key}={raw!r} is {type(raw).__name__}, not text", f"Give a string{more}")


def _kafka_key(name: str) -> str:
    return name.replace("_", ".")


_TYPES: Mapping[str, str] = {each.name: str(each.type) for each in fields(ClientConfig) if each.name != "security"}
_RANGES: Mapping[str, tuple[int, int]] = {
    "request_timeout_ms": (1, _INT_MAX),
    "default_api_timeout_ms": (1, _INT_MAX),
    "socket_connection_setup_timeout_ms": (1, _INT_MAX),
    "reconnect_backoff_ms": (0, _INT_MAX),
    "reconnect_backoff_max_ms": (0, _INT_MAX),
    "retry_backoff_ms": (0, _INT_MAX),
    "retry_backoff_max_ms": (0, _INT_MAX),
    "metadata_max_age_ms": (0, _LONG_MAX),
    "send_buffer_bytes": (-1, _INT_MAX),
    "receive_buffer_bytes": (-1, _INT_MAX),
    "receive_message_max_bytes": (1_000, _INT_MAX),
    "fetch_min_bytes": (0, _INT_MAX),
    "fetch_max_bytes": (0, _INT_MAX),
    "fetch_max_wait_ms": (0, _INT_MAX),
    "max_partition_fetch_bytes": (0, _INT_MAX),
    "batch_size": (0, _INT_MAX),
    "max_request_size": (1, _INT_MAX),
    "delivery_timeout_ms": (1, _INT_MAX),
}
_LISTS = frozenset({"bootstrap.servers"})
"""Keys whose value is a list in Kafka; here the elements are joined with commas."""
_CHOICES: Mapping[str, tuple[str, ...]] = {
    "client_dns_lookup": ("use_all_dns_ips",),
    "isolation_level": tuple(ISOLATION),
    "acks": tuple(ACKS),
    "compression_type": tuple(CODECS),
}
