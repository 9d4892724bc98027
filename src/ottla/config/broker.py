"""Configuration of a broker: all rows, their parsing, and values that follow from several keys.

Zone: pure. The rows are in `broker_server`, `broker_log`, `broker_cluster`, `broker_coordinators`,
`broker_authorizer`, `broker_sasl`, `broker_listeners`. `sources` reads text from files, the environment and flags.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final

from ottla.config.broker_listeners import CONVERT, ListenerConfig, ListenerKey, is_per_listener, parse_listener_key
from ottla.config.names import OLD_BROKER_NAMES, is_harmless, unknown_key_warning, unsupported_reason
from ottla.config.rows import (
    INT_MAX,
    ConfigError,
    Row,
    Value,
    parse_value,
    quote_value,
    render_value,
    resolve_ms,
    rows_of,
)
from ottla.config.sasl_listeners import PLAIN, SaslListener, credential_of_broker, is_listener_key, sasl_listeners
from ottla.config.topic import TOPIC_ROWS, TopicConfig
from ottla.types import Endpoint

PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
TLS_PROTOCOLS: Final = ("SSL", "SASL_SSL")
CLEANER_BUFFER_MIN: Final = 1 << 20
"""Minimum size in bytes of the map of keys of a compaction thread, as in Kafka."""
_ADDRESS: Final = re.compile(r"[0-9A-Za-z._%-]+|[0-9A-Fa-f:.%]+")
_RETENTION: Final = ("log.retention.ms", "log.retention.minutes", "log.retention.hours")
_ROLL: Final = ("log.roll.ms", "log.roll.hours")
_JITTER: Final = ("log.roll.jitter.ms", "log.roll.jitter.hours")
_FLUSH: Final = ("log.flush.interval.ms", "log.flush.scheduler.interval.ms")


@dataclass(repr=False, frozen=True)
class BrokerConfig(ListenerConfig):
    """Settings of one broker. `BrokerConfig()` is valid: every key at its default.

    `given` has the text of the keys that were set, by their current names, so that the source of a value is known.
    """

    given: Mapping[str, str] = field(default_factory=dict, hash=False)
    of_listeners: Mapping[str, str] = field(default_factory=dict, hash=False)
    """The text of keys of single listeners, with their prefix `listener.name.`."""

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> tuple[BrokerConfig, list[str]]:
        """Parse texts by key. Returns the configuration, and a warning for each key that needs one.

        Raises ConfigError with the key if a value is invalid, alone or together with others.
        """
        warnings: list[str] = []
        of_listeners = {name.lower(): properties[name] for name in properties if is_listener_key(name.lower())}
        given = _recognize_keys(properties, warnings)
        if "sasl.jaas.config" in given:
            warnings.append("sasl.jaas.config has no effect without the prefix listener.name.LISTENER.MECHANISM.")
        warnings += [f"{name} has no effect: {row.unused}" for name in given if (row := find_row(name)) and row.unused]
        config = replace(cls(), given=given, of_listeners=of_listeners, **_parse_values(given))
        _check_together(config)
        return config, warnings

    def value_of(self, row: Row) -> Value:
        """The value of a row of BROKER_ROWS."""
        found: Value = getattr(self, row.attribute)
        return found

    def at_listener(self, listener: str, mechanism: str = "") -> BrokerConfig:
        """The settings as they are in force at one listener, or for one SASL mechanism of it.

        `listener.name.<listener>.<mechanism>.<key>` overrides `listener.name.<listener>.<key>`, and that `<key>`.
        """
        own: dict[str, str] = {}
        for wanted in dict.fromkeys(("", mechanism.lower())):
            for name, text in self.given.items():
                if (key := parse_listener_key(name)) and key[:2] == (listener, wanted):
                    own[key.key] = text
        return replace(self, given={**self.given, **own}, **_parse_values(own)) if own else self

    def client_auth_at(self, endpoint: Endpoint) -> str:
        """`ssl.client.auth` of a listener. As in Kafka, SASL_SSL listeners use only a value of their own (KIP-684)."""
        if endpoint.protocol == "SASL_SSL" and not self.is_given_at(endpoint.listener, "ssl.client.auth"):
            return "none"
        return self.at_listener(endpoint.listener).ssl_client_auth

    def is_given_at(self, listener: str, key: str) -> bool:
        """Whether a listener has a value of its own for a key."""
        return any(parse_listener_key(name) == ListenerKey(listener, "", key) for name in self.given)

    @cached_property
    def topic_defaults(self) -> TopicConfig:
        """The settings of a topic that has none of its own on this broker."""
        values: dict[str, Any] = {}
        for row in TOPIC_ROWS.values():
            value = self._topic_default(row)
            if value is not None:
                values[row.attribute] = value
        return TopicConfig(**values)

    def _topic_default(self, row: Row) -> Value:
        if row.synonyms in (_RETENTION, _ROLL, _JITTER, _FLUSH):
            return resolve_ms({name: self.value_of(BROKER_ROWS[name]) for name in row.synonyms}, row.synonyms)  # type: ignore[misc]
        return self.value_of(BROKER_ROWS[row.synonyms[0]]) if row.synonyms else None

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """The endpoints of `listeners`. An empty host means every interface; port 0 means a free port."""
        return parse_listeners("listeners", self.listeners, self.listener_security_protocol_map)

    @property
    def advertised_endpoints(self) -> tuple[Endpoint, ...] | None:
        """The endpoints that clients receive, None if not configured. Port -1 (written `*`) means the bound port."""
        if self.advertised_listeners is None:
            return None
        return parse_listeners("advertised.listeners", self.advertised_listeners, self.listener_security_protocol_map)

    @property
    def sasl_listeners(self) -> dict[str, SaslListener]:
        """The settings of the listeners with SASL, by name. Raises ConfigError."""
        return sasl_listeners(self, self.endpoints, self.of_listeners)

    @property
    def first_frame_limits(self) -> dict[str, int]:
        """The largest frame of a connection that has not begun to log in, by listeners with SASL."""
        return {name: listener.first_frame_max for name, listener in self.sasl_listeners.items()}

    @property
    def inter_broker_credential(self) -> tuple[str, str, str] | None:
        """Mechanism, user and password for other brokers; None: the listener between brokers has no SASL.

        Raises ConfigError.
        """
        listener = self.sasl_listeners.get(self.inter_broker_listener)
        return None if listener is None else credential_of_broker(self, listener)

    @property
    def connections_by_address(self) -> dict[str, int]:
        """max.connections.per.ip.overrides: address → number."""
        return dict(map(_parse_connection_override, self.max_connections_per_ip_overrides))

    @property
    def inter_broker_listener(self) -> str:
        """The name of the listener between brokers: the configured one, else the first with the configured protocol."""
        if self.inter_broker_listener_name is not None:
            return self.inter_broker_listener_name.upper()
        for endpoint in self.endpoints:
            if endpoint.protocol == self.security_inter_broker_protocol:
                return endpoint.listener
        return self.endpoints[0].listener


BROKER_ROWS: Final[Mapping[str, Row]] = {row.name: row for row in rows_of(BrokerConfig)}
"""Broker keys by name."""


def find_row(name: str) -> Row | None:
    """The row of a key of the broker, or of one listener (`listener.name.<listener>.<key>`); None: there is none."""
    found = BROKER_ROWS.get(name)
    if found is None and (key := parse_listener_key(name)):
        base = BROKER_ROWS.get(key.key)
        found = base._replace(name=name) if base and is_per_listener(base) else None
    return found


_ALIASES: Final = {"broker.id": "node.id", "log.dir": "log.dirs"}
_CURRENT_NAMES: Final = frozenset(BROKER_ROWS) | frozenset(_ALIASES)


def _recognize_keys(properties: Mapping[str, str], warnings: list[str]) -> dict[str, str]:
    """The keys that have a row, under their current names. Adds a warning about each of the others."""
    given: dict[str, str] = {}
    for name in sorted(properties):
        text = properties[name]
        # 1. An old name, unless the current one is also set. 2. A key. 3. An alias. 4. A key of one listener.
        # 5. Unknown, unsupported or ignored.
        if name in OLD_BROKER_NAMES:
            current = OLD_BROKER_NAMES[name]
            warnings.append(f"{name} is an old name of {current}")
            if current not in properties:
                given[current] = text
        elif name in BROKER_ROWS:
            given[name] = text
        elif name in _ALIASES:
            _take_alias(name, properties, given)
        elif find_row(name) is not None:
            given[name] = text
        elif is_listener_key(name.lower()):
            pass  # they are in `of_listeners`
        else:
            warnings.extend(_warning_about(name))
    return given


def _take_alias(name: str, properties: Mapping[str, str], given: dict[str, str]) -> None:
    """Use an alias of a key.

    1. broker.id=-1 requests a generated number and is ignored.
    2. Without the current key the alias has its meaning.
    3. If both are set the current key wins; two different broker numbers raise ConfigError.
    """
    current = _ALIASES[name]
    text = properties[name].strip()
    if name == "broker.id" and text == "-1":
        return
    if current not in properties:
        given[current] = text
    elif name == "broker.id" and properties[current].strip() != text:
        raise ConfigError("broker.id", f"is {text}, but node.id is {properties[current].strip()}; give one of them")


def _warning_about(name: str) -> list[str]:
    if is_harmless(name):
        return []
    reason = unsupported_reason(name)
    return [f"{name}: {reason}"] if reason is not None else [unknown_key_warning(name, sorted(_CURRENT_NAMES))]


def _parse_values(given: Mapping[str, str]) -> dict[str, Any]:
    """The values by field. An empty text means absent if the key may be absent. Keys of one listener are only checked:
    `BrokerConfig.at_listener` has their values."""
    values: dict[str, Any] = {}
    for name, text in given.items():
        row = find_row(name)
        assert row is not None, "only keys with a row are given"
        value = None if row.default is None and not text.strip() else parse_value(row, text)
        if name in BROKER_ROWS:
            values[row.attribute] = value
    return values


def _check_together(config: BrokerConfig) -> None:
    listeners = config.endpoints
    advertised = config.advertised_endpoints
    names = [endpoint.listener for endpoint in listeners]
    for endpoint in advertised or ():
        if endpoint.listener not in names:
            raise ConfigError("advertised.listeners", f"{endpoint.listener} is not one of the listeners")
        if endpoint.host == "0.0.0.0":  # noqa: S104 - refused here
            raise ConfigError("advertised.listeners", "clients cannot connect to 0.0.0.0; name a host")
    _check_inter_broker(config)
    for endpoint in listeners:
        if endpoint.protocol in TLS_PROTOCOLS:
            _check_tls(config, endpoint)
    if len(set(config.log_dirs)) != len(config.log_dirs):
        raise ConfigError("log.dirs", "names a directory twice")
    if "" in config.log_dirs:
        raise ConfigError("log.dirs", "has an empty entry")
    if config.zookeeper_connect is not None:
        parse_zookeeper(config.zookeeper_connect)
    if config.zookeeper_set_acl and config.ottla_zookeeper_digest is None:
        raise ConfigError("zookeeper.set.acl", "needs an owner of the nodes: set ottla.zookeeper.digest")
    _check_pages(config)
    if config.ottla_zookeeper_digest is not None and ":" not in config.ottla_zookeeper_digest:
        raise ConfigError("ottla.zookeeper.digest", "is not user:password")
    _check_sasl(config)
    _check_limits(config)


def _check_pages(config: BrokerConfig) -> None:
    """Check who may read the pages for monitoring. Raises ConfigError."""
    if config.ottla_http_basic_auth is not None and ":" not in config.ottla_http_basic_auth:
        raise ConfigError("ottla.http.basic.auth", "is not user:password")
    if config.ottla_http_ssl_client_auth == "none":
        return
    for key, value in (
        ("ottla.http.ssl.keystore.location", config.ottla_http_ssl_keystore_location),
        ("ottla.http.ssl.truststore.location", config.ottla_http_ssl_truststore_location),
    ):
        if not value:  # without either no certificate would be requested, and everyone could read the pages
            raise ConfigError("ottla.http.ssl.client.auth", f"needs {key}")


def _check_sasl(config: BrokerConfig) -> None:
    """Check the listeners with SASL, and by what this broker logs in to others."""
    for name, listener in config.sasl_listeners.items():
        if PLAIN in listener.mechanisms and not listener.users and config.ottla_sasl_users_file is None:
            raise ConfigError(
                "sasl.enabled.mechanisms",
                f"listener {name} has PLAIN without users; set listener.name.{name.lower()}.plain.sasl.jaas.config",
            )
    if "sasl.mechanism.inter.broker.protocol" in config.given:
        _ = config.inter_broker_credential


def _check_inter_broker(config: BrokerConfig) -> None:
    endpoints = config.endpoints
    if config.inter_broker_listener not in [endpoint.listener for endpoint in endpoints]:
        raise ConfigError("inter.broker.listener.name", f"{config.inter_broker_listener} is not one of the listeners")
    if "security.inter.broker.protocol" in config.given:
        if config.inter_broker_listener_name is not None:
            raise ConfigError("security.inter.broker.protocol", "only it or inter.broker.listener.name may be set")
        if config.security_inter_broker_protocol not in [endpoint.protocol for endpoint in endpoints]:
            raise ConfigError(
                "security.inter.broker.protocol", f"no listener speaks {config.security_inter_broker_protocol}"
            )


def _check_tls(config: BrokerConfig, endpoint: Endpoint) -> None:
    """Check that a listener with TLS has a key and a certificate, and the authorities of its clients. Raises
    ConfigError."""
    name, at = endpoint.listener, config.at_listener(endpoint.listener)
    for key, found in (("ssl.keystore.type", at.ssl_keystore_type), ("ssl.truststore.type", at.ssl_truststore_type)):
        if found != "PEM":
            raise ConfigError(key, f"{found[:20]} is not supported at listener {name}; use PEM: {CONVERT}")
    if bool(at.ssl_keystore_key) != bool(at.ssl_keystore_certificate_chain):
        raise ConfigError(
            "ssl.keystore.key", f"and ssl.keystore.certificate.chain belong together; listener {name} has one of them"
        )
    if bool(at.ssl_keystore_key) == bool(at.ssl_keystore_location):
        raise ConfigError(
            "ssl.keystore.location",
            f"listener {name} uses {endpoint.protocol}: set a PEM file with its private key and certificate here, or "
            "their text in ssl.keystore.key and ssl.keystore.certificate.chain",
        )
    trusted = at.ssl_truststore_location or at.ssl_truststore_certificates
    if config.client_auth_at(endpoint) != "none" and not trusted:
        key = "ssl.client.auth"
        raise ConfigError(
            f"listener.name.{name.lower()}.{key}" if config.is_given_at(name, key) else key,
            f"listener {name} needs the authorities that issue its clients' certificates: set ssl.truststore.location",
        )


def _check_limits(config: BrokerConfig) -> None:
    """Check the conditions between keys, some of which may change while the broker runs."""
    if config.group_min_session_timeout_ms > config.group_max_session_timeout_ms:
        raise ConfigError("group.min.session.timeout.ms", "must not be above group.max.session.timeout.ms")
    if not config.connections_by_address and config.max_connections_per_ip == 0:
        raise ConfigError(
            "max.connections.per.ip",
            "0 is not allowed; it must be at least 1 while max.connections.per.ip.overrides is empty",
        )
    # As in Kafka: the buffer is divided among the threads, and a thread needs room for at least some keys.
    share = config.log_cleaner_dedupe_buffer_size // max(1, config.log_cleaner_threads)
    if share <= CLEANER_BUFFER_MIN:
        raise ConfigError(
            "log.cleaner.threads" if "log.cleaner.threads" in config.given else "log.cleaner.dedupe.buffer.size",
            f"leaves each of log.cleaner.threads={config.log_cleaner_threads} threads {share} bytes of "
            f"log.cleaner.dedupe.buffer.size={config.log_cleaner_dedupe_buffer_size}; "
            f"each must have more than {CLEANER_BUFFER_MIN}",
        )
    config.topic_defaults.check_together()


def _parse_connection_override(entry: str) -> tuple[str, int]:
    """Parse `address:number`. Raises ConfigError."""
    address, _, number = entry.rpartition(":")
    address = address.strip().strip("[]")
    fits = number.strip().isascii() and number.strip().isdigit() and len(number) <= 10 and int(number) <= INT_MAX
    if not fits or not _ADDRESS.fullmatch(address):
        raise ConfigError(
            "max.connections.per.ip.overrides",
            f"{quote_value(BROKER_ROWS['max.connections.per.ip.overrides'], entry)} is not allowed; "
            f"it must be address:number, with a number between 0 and {INT_MAX}",
        )
    return address, int(number)


def parse_listeners(key: str, entries: tuple[str, ...], protocol_map: tuple[str, ...]) -> tuple[Endpoint, ...]:
    """Parse `NAME://host:port` entries, and find their protocols. Raises ConfigError with `key`."""
    protocols = _parse_protocol_map(protocol_map)
    found = tuple(_parse_endpoint(key, entry, protocols) for entry in entries)
    if not found:
        raise ConfigError(key, "must name at least one listener")
    if len({endpoint.listener for endpoint in found}) != len(found):
        raise ConfigError(key, "names a listener twice")
    ports = [endpoint.port for endpoint in found if endpoint.port > 0]
    if key == "listeners" and len(set(ports)) != len(ports):
        raise ConfigError(key, "uses a port twice")
    return found


def parse_zookeeper(text: str) -> tuple[tuple[str, ...], str]:
    """Parse `host:port,host:port/chroot`. Returns the servers, each with a port, and the chroot, which may be empty.

    Raises ConfigError.
    """
    servers, slash, path = text.strip().partition("/")
    chroot = f"/{path}".rstrip("/") if slash else ""
    if any(part in ("", ".", "..") for part in chroot[1:].split("/")) and chroot:
        raise ConfigError("zookeeper.connect", f"{chroot!r} is not a path")
    return tuple(_parse_server(entry.strip()) for entry in servers.split(",")), chroot


def _parse_server(entry: str) -> str:
    """`host:port`, with ZooKeeper's default port if there is none. IPv6 addresses are in brackets."""
    has_port = re.search(r"(?:^[^:]+|\]):[^:]*$", entry) is not None
    host, _, port = entry.rpartition(":") if has_port else (entry, "", "2181")
    if not host or re.search(r"[\s/@]", host) or (":" in host and not (host.startswith("[") and host.endswith("]"))):
        raise ConfigError("zookeeper.connect", f"{entry!r} is not host:port")
    return f"{host}:{_parse_port('zookeeper.connect', entry, port)}"


def _parse_protocol_map(entries: tuple[str, ...]) -> dict[str, str]:
    """Protocols by listener name: the entries of the map, and the names of the protocols themselves."""
    found = {protocol: protocol for protocol in PROTOCOLS}
    for entry in entries:
        name, colon, protocol = (part.strip() for part in entry.partition(":"))
        if not colon or protocol.upper() not in PROTOCOLS:
            raise ConfigError("listener.security.protocol.map", f"{entry!r} is not NAME:one of {', '.join(PROTOCOLS)}")
        found[name.upper()] = protocol.upper()
    return found


def _parse_endpoint(key: str, entry: str, protocols: Mapping[str, str]) -> Endpoint:
    name, separator, address = entry.partition("://")
    host, colon, port = address.rpartition(":")
    name = name.strip().upper()
    if not separator or not colon or not name:
        raise ConfigError(key, f"{entry!r} is not NAME://host:port")
    if name not in protocols:
        raise ConfigError(key, f"{name} has no security protocol; add it to listener.security.protocol.map")
    if protocols[name] not in PROTOCOLS:
        raise ConfigError(key, f"{name} uses {protocols[name]}; supported is {', '.join(PROTOCOLS)}")
    return Endpoint(name, host.strip("[]"), _parse_port(key, entry, port), protocols[name])


def _parse_port(key: str, entry: str, text: str) -> int:
    if text == "*" and key == "advertised.listeners":
        return -1
    if not (text.isascii() and text.isdigit() and len(text) <= 5 and int(text) <= 65535):
        raise ConfigError(key, f"{entry!r} has no port between 0 and 65535")
    return int(text)


def shown_settings(config: BrokerConfig) -> dict[str, str | None]:
    """Every key with its value as text, without passwords."""
    return {
        name: None if row.sensitive else render_value(config.value_of(row)) for name, row in sorted(BROKER_ROWS.items())
    }
