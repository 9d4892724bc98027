"""Listening sockets: accept connections within the limits of the configuration.

Zone: real. Handles the limits per broker and per address, and the errors of accepting; an accepted socket is passed to
`ottla.server.connections.connection`.
"""

from __future__ import annotations

import errno
import ipaddress
import logging
import resource
import socket
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Final, NamedTuple

from ottla.seams import Failure, Kind
from ottla.security.quotas.rates import Windows
from ottla.server.connections.connection import Connection
from ottla.server.connections.connection_manager import ConnectionManager
from ottla.server.connections.connection_rates import CreationLimits, CreationRates
from ottla.types import Endpoint

log = logging.getLogger(__name__)

BATCH: Final = 64
"""Connections accepted in a row, before the existing ones get their turn."""
PAUSE_S: Final = 0.1
"""Pause when the system cannot create another socket."""
SPARE: Final = 48
"""Descriptors that connections may not use: checkpoints, snapshots and parked files need some."""
TELL_S: Final = 60
"""Between two log lines about missing descriptors."""
UNLIMITED: Final = 2**31 - 1

_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


OpenConnection = Callable[[socket.socket, str, str], object]
"""Opens the connection of an accepted socket; the arguments are the socket, the listener and the peer's address."""


class ConnectionLimits(NamedTuple):
    """The number of connections, and their socket options."""

    total: int = UNLIMITED
    """max.connections"""
    per_address: int = UNLIMITED
    """max.connections.per.ip"""
    exceptions: Mapping[str, int] = MappingProxyType({})
    """max.connections.per.ip.overrides: address → number"""
    send_buffer: int = -1
    """socket.send.buffer.bytes; -1: the kernel tunes it"""
    receive_buffer: int = -1
    """socket.receive.buffer.bytes"""
    backlog: int = 50
    """socket.listen.backlog.size"""
    protected: str = ""
    """The listener to which max.connections does not apply: the one between brokers, if clients have another one."""
    loopback_reserve: int = 10
    """Connections from this machine that are accepted beyond max.connections and max.connections.per.ip: the operator
    has to be able to connect and change a limit that is too low or used up."""


class Quotas:
    """Counts the connections of all listeners."""

    __slots__ = ("_beyond", "_by_address", "_total", "limits", "rates")

    def __init__(
        self, traffic: ConnectionManager, limits: ConnectionLimits, rates: CreationRates | None = None
    ) -> None:
        """rates: the limits of the creation of connections; None: there are none."""
        self.limits = limits
        self.rates = rates or CreationRates(traffic.loop, Windows(), CreationLimits())
        traffic.on_closed = lambda connection: self.give_back(connection.host)
        self._total = 0
        self._by_address: dict[str, int] = {}
        self._beyond = 0
        """Open connections from this machine that were accepted beyond the limits."""

    def admit_connection(self, listener: str, address: str) -> str | None:
        """Count a connection; returns None, or the limit for which it has to be refused."""
        reached = self._reached_limit(listener, address)
        if reached is not None:
            if self._beyond >= self.limits.loopback_reserve or not is_loopback(address):
                return reached
            self._beyond += 1
        self._by_address[address] = self._by_address.get(address, 0) + 1
        self._total += 1
        return None

    def _reached_limit(self, listener: str, address: str) -> str | None:
        limits = self.limits
        if self._total >= limits.total and listener != limits.protected:
            return f"max.connections={limits.total}"
        allowed = limits.exceptions.get(address, limits.per_address)
        if self._by_address.get(address, 0) >= allowed:
            return f"max.connections.per.ip={allowed}"
        return None

    def give_back(self, address: str) -> None:
        """Count a connection less: it is closed."""
        self._total -= 1
        count = self._by_address[address] - 1
        if count:
            self._by_address[address] = count
        else:
            del self._by_address[address]
        # It is not recorded which connection was accepted beyond the limits: any that ends at this machine frees the
        # reserve.
        if self._beyond and is_loopback(address):
            self._beyond -= 1

    def set_limits(self, limits: ConnectionLimits) -> None:
        """Apply other limits from now on; open connections stay."""
        self.limits = limits


def is_loopback(address: str) -> bool:
    """Whether an address is this machine's loopback, also as an IPv4 address mapped to IPv6."""
    found = ipaddress.ip_address(address.partition("%")[0])
    mapped = getattr(found, "ipv4_mapped", None)
    return (mapped or found).is_loopback


class Listener:
    """One bound socket; accepts between `start_accepting` and `stop_accepting`."""

    __slots__ = ("_accepting", "_endpoint", "_open_connection", "_quotas", "_sock", "_started", "_tell_at", "_traffic")

    def __init__(
        self,
        traffic: ConnectionManager,
        quotas: Quotas,
        endpoint: Endpoint,
        bound: socket.socket | None = None,
        open_connection: OpenConnection | None = None,
    ) -> None:
        """Bind, unless `bound` is given: a socket that other processes may share, whose port stays open when this
        process ends. Raises Failure NOT_DONE with the address when it cannot be bound.

        open_connection: called with an accepted socket, this listener's name and the peer's address; None: the
        connection is a plain one.
        """
        self._traffic = traffic
        self._quotas = quotas
        self._endpoint = endpoint
        self._open_connection = open_connection or partial(Connection, traffic)
        self._sock = bound_socket(endpoint, quotas.limits) if bound is None else bound
        self._sock.setblocking(False)
        self._started = self._accepting = False
        self._tell_at = 0.0

    @property
    def endpoint(self) -> Endpoint:
        """The address with the port that is bound."""
        return self._endpoint._replace(port=self._sock.getsockname()[1])

    def start_accepting(self) -> None:
        """Accept connections from now on."""
        # Not before: a client that connects earlier is refused at once, and tries another broker instead of waiting.
        self._sock.listen(self._quotas.limits.backlog)
        self._started = True
        self.resume_accepting()

    def stop_accepting(self) -> None:
        """Stop accepting; open connections stay."""
        self._started = False
        self._pause_accepting()
        self._sock.close()

    def resume_accepting(self) -> None:
        """Accept again after a pause."""
        if self._started and not self._accepting:
            self._accepting = True
            self._traffic.loop.add_reader(self._sock, self._on_readable)

    def _pause_accepting(self) -> None:
        if self._accepting:
            self._accepting = False
            self._traffic.loop.remove_reader(self._sock)

    def _on_readable(self) -> None:
        for _ in range(BATCH):
            if not self._accepting:  # the last connection has reached max.connection.creation.rate
                return
            try:
                sock, address = self._sock.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                self._on_accept_error(error)
                return
            # The kernel gives the lowest free descriptor, so a high number means that few are left.
            if sock.fileno() >= resource.getrlimit(resource.RLIMIT_NOFILE)[0] - SPARE:
                sock.close()
                self._rest_for_resources("too many open files")
                return
            self._accept_connection(sock, str(address[0]))

    def _on_accept_error(self, error: OSError) -> None:
        """Handle an error of accept: pause if descriptors or memory are used up; else the peer has gone."""
        if error.errno in _EXHAUSTED:
            self._rest_for_resources(error.strerror or str(error))
        else:
            log.debug("a connection was closed before it was accepted: %s", error)

    def _rest_for_resources(self, why: str) -> None:
        now = self._traffic.loop.time()
        if now >= self._tell_at:
            self._tell_at = now + TELL_S
            log.error("cannot accept connections: %s; raise `ulimit -n` or lower max.connections", why)
        # Without the pause the socket stays readable, and the loop would spin on an `accept` that fails.
        self.pause_for(PAUSE_S)

    def pause_for(self, delay_s: float) -> None:
        """Accept no connection for this time."""
        self._pause_accepting()
        self._traffic.loop.call_later(delay_s, self.resume_accepting)

    def _accept_connection(self, sock: socket.socket, address: str) -> None:
        if not self._quotas.rates.admit_socket(sock, self._endpoint.listener, address, self.pause_for):
            self._traffic.log_bad_peer("%s: connection refused: its connection_creation_rate is reached", address)
            return
        reached = self._quotas.admit_connection(self._endpoint.listener, address)
        if reached is not None:
            sock.close()
            self._traffic.log_bad_peer("%s: connection refused: %s is reached", address, reached)
            return
        try:
            _prepare_socket(sock, self._quotas.limits)
        except OSError:  # the peer has reset the connection since it was accepted
            sock.close()
            # It was counted above, and no connection exists that would give it back at its end.
            self._quotas.give_back(address)
            return
        self._open_connection(sock, self._endpoint.listener, address)


def _prepare_socket(sock: socket.socket, limits: ConnectionLimits) -> None:
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if limits.send_buffer >= 0:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, limits.send_buffer)


def bound_socket(endpoint: Endpoint, limits: ConnectionLimits) -> socket.socket:
    """A socket bound to an address. Raises Failure NOT_DONE with the address when it cannot be bound."""
    family = socket.AF_INET6 if ":" in endpoint.host else socket.AF_INET
    host = endpoint.host
    if not host and socket.has_dualstack_ipv6():
        family = socket.AF_INET6
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # An IPv6 socket of every interface also serves IPv4; one of a given address must not.
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0 if not host else 1)
        if limits.receive_buffer >= 0:
            # Accepted sockets inherit it; set on them later it would not change the window that was already offered.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, limits.receive_buffer)
        sock.bind((host, endpoint.port))
    except OSError as error:
        sock.close()
        where = f"{endpoint.listener}://{host}:{endpoint.port}"
        raise Failure(Kind.NOT_DONE, f"cannot listen on {where}: {error.strerror or error}") from None
    return sock


def reachable_host(host: str) -> str:
    """The host that clients receive when no advertised listener is configured: this machine's name, if it resolves."""
    if host not in ("", "0.0.0.0", "::"):  # noqa: S104 - recognized, not bound
        return host
    name = socket.gethostname()
    try:
        socket.getaddrinfo(name, None)
    except OSError:
        return "localhost"
    return name
