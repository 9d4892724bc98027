"""Addresses of brokers. Their origin decides the text of the error when they do not work.

Zone: pure. Parses addresses and words errors; does not resolve names.
"""

from __future__ import annotations

from typing import NamedTuple

from ottla.client.errors import ConfigError
from ottla.client.security.settings import PROTOCOLS


class Address(NamedTuple):
    """Host and port of a broker."""

    host: str
    port: int
    advertised: bool = False
    """True: a broker advertised it (`advertised.listeners`). False: the user set it (`bootstrap.servers`)."""

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def does_not_resolve(self) -> tuple[str, str]:
        """(cause, next step) for a host name without an address."""
        if self.advertised:
            return (
                f"advertised.listeners points at {self}, which does not resolve from here",
                "Let the broker advertise a name or address that this machine knows",
            )
        return f"{self.host} does not resolve", "Check the host name in bootstrap.servers"

    def does_not_connect(self, causes: list[str]) -> tuple[str, str]:
        """(cause, next step) if none of its addresses accepted; `causes` has one text per address tried."""
        tried = "; ".join(causes) or "the name has no addresses"
        if self.advertised:
            return (
                f"advertised.listeners points at {self}, which cannot be reached from here ({tried})",
                "Let the broker advertise an address that this machine can reach, or wait for the broker to return",
            )
        return f"cannot connect to {self} ({tried})", "Is a broker running there, and is it the right port?"


def parse_addresses(text: str) -> list[Address]:
    """The addresses of a `bootstrap.servers` value: `host:port` separated by commas, IPv6 hosts in brackets.

    A listener prefix (`PLAINTEXT://`) is ignored, because `security.protocol` decides; the default port is 9092.
    Raises ConfigError.
    """
    addresses = [_parse_address(item.strip()) for item in text.split(",") if item.strip()]
    if not addresses:
        raise ConfigError("bootstrap.servers is empty", "Name at least one broker, as host:port")
    return list(dict.fromkeys(addresses))


def _parse_address(item: str) -> Address:
    scheme, separator, rest = item.rpartition("://")
    if separator and scheme.upper() not in PROTOCOLS:
        raise ConfigError(f"{item}: {scheme} is not a protocol of brokers", f"Use host:port, or {', '.join(PROTOCOLS)}")
    host, colon, port = rest.rpartition(":")
    # No port: there is no colon, or all colons belong to an IPv6 address, with brackets or without.
    if not colon or (":" in host and not host.endswith("]")) or rest.endswith("]"):
        host, port = rest, "9092"
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65_536:
        raise ConfigError(f"{item!r} is not an address", "Write host:port, with a port from 1 to 65535")
    return Address(host, int(port))
