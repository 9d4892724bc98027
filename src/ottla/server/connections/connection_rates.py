"""Limits the rate of new connections: per broker, listener and address (KIP-612).

Zone: real. The limits of broker and listeners pause accepting: connections wait in the kernel's queue. That of an
address refuses its connections, which are closed after a while, so that the peer does not connect again at once.
Connections that are refused are not read, and few of them are kept; the others are closed at once.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from ottla.config.broker import BrokerConfig
from ottla.security.quotas.entity_quotas import canonical_address
from ottla.security.quotas.rates import Windows
from ottla.security.quotas.throttling import UNLIMITED, ConnectionLimits, ConnectionRates

REFUSED_MAX: Final = 256
"""Most refused connections that are kept until they are closed."""
_KEY: Final = "max.connection.creation.rate"
_LISTENER_PREFIX: Final = "listener.name."
AddressLimit = Callable[[str], "float | None"]
"""Returns how many connections per second an address may create; None: not limited."""


class CreationLimits(NamedTuple):
    """The limits of the configuration, in connections per second."""

    broker: int = UNLIMITED
    listeners: Mapping[str, int] = MappingProxyType({})
    """Listener → `listener.name.<name>.max.connection.creation.rate`."""
    protected: str = ""
    """The listener to which the limit of the broker does not apply: the one between brokers, if there are others."""

    @classmethod
    def from_config(cls, config: BrokerConfig) -> CreationLimits:
        """The limits of a configuration."""
        protected = config.inter_broker_listener if len(config.endpoints) > 1 else ""
        return cls(config.max_connection_creation_rate, _listener_rates(config.given), protected)


def _listener_rates(given: Mapping[str, str]) -> dict[str, int]:
    found = {}
    for name, text in given.items():
        if name.startswith(_LISTENER_PREFIX) and name.endswith(f".{_KEY}"):
            listener = name[len(_LISTENER_PREFIX) : -len(_KEY) - 1]
            found[listener.upper()] = int(text)
    return found


class CreationRates:
    """The creation of connections, at all listeners of a broker."""

    def __init__(self, loop: asyncio.AbstractEventLoop, windows: Windows, limits: CreationLimits) -> None:
        self.limits = limits
        self._loop = loop
        self._rates = ConnectionRates(windows)
        self._find_limit: AddressLimit | None = None
        self._refused: dict[socket.socket, None] = {}

    @classmethod
    def from_config(cls, loop: asyncio.AbstractEventLoop, config: BrokerConfig) -> CreationRates:
        """The rates of a broker with this configuration."""
        windows = Windows(config.quota_window_num, config.quota_window_size_seconds * 1000)
        return cls(loop, windows, CreationLimits.from_config(config))

    def set_limits(self, limits: CreationLimits) -> None:
        """Apply other limits from now on."""
        self.limits = limits

    def set_address_limit(self, find_limit: AddressLimit) -> None:
        """Set the function that finds the quota of an address."""
        self._find_limit = find_limit

    def admit_socket(self, sock: socket.socket, listener: str, address: str, pause: Callable[[float], None]) -> bool:
        """Count a new connection. False: it is refused, and closed here.

        pause: stops accepting for this number of seconds.
        """
        limits, address = self.limits, canonical_address(address)
        mine = ConnectionLimits(
            None if listener == limits.protected else limits.broker,
            limits.listeners.get(listener.upper(), UNLIMITED),
            None if self._find_limit is None else self._find_limit(address),
        )
        if mine in _FREE:
            return True
        admission = self._rates.admit_connection(listener, address, mine, int(self._loop.time() * 1000))
        if admission.pause_ms:
            pause(admission.pause_ms / 1000)
        if admission.refuse_ms:
            self._close_later(sock, admission.refuse_ms / 1000)
        return not admission.refuse_ms

    def _close_later(self, sock: socket.socket, delay_s: float) -> None:
        if len(self._refused) >= REFUSED_MAX:
            sock.close()
            return
        self._refused[sock] = None
        self._loop.call_later(delay_s, self._close_refused, sock)

    def _close_refused(self, sock: socket.socket) -> None:
        if sock in self._refused:
            del self._refused[sock]
            sock.close()

    def close_all(self) -> None:
        """Close the refused connections: the broker stops."""
        for sock in list(self._refused):
            self._close_refused(sock)


_FREE: Final = (ConnectionLimits(), ConnectionLimits(broker=None))
"""Connections that need not be counted."""
