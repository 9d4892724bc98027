"""The protocol of an address that does not answer this client as configured.

Zone: real. Opens connections of its own, without certificates and passwords, each for a few seconds.
"""

from __future__ import annotations

import socket
import ssl
from dataclasses import replace
from enum import Enum
from typing import Final, NamedTuple

from ottla.client.connections.address import Address
from ottla.client.connections.broker_probes import PROBE_MS, BrokerProbe, probe_address, with_short_timeouts
from ottla.client.connections.connection import Connection
from ottla.client.errors import ClientError
from ottla.client.retry import Deadline
from ottla.client.security.settings import SecurityConfig
from ottla.client.settings import ClientConfig
from ottla.wire.apis import ApiKey
from ottla.wire.messages import SaslHandshakeRequest, SaslHandshakeResponse

_NO_MECHANISM: Final = "OTTLA-DOCTOR"
"""A mechanism that no broker has: it answers with those that it has."""
_TLS_ALERT: Final = b"\x15\x03"
"""The begin of a record with which TLS refuses what is not TLS."""


class Spoken(Enum):
    """A protocol that an address speaks."""

    PLAINTEXT = "Kafka's protocol without TLS and login"
    SASL_PLAINTEXT = "Kafka's protocol without TLS, with a login"
    TLS = "TLS"
    HTTP = "HTTP"
    UNKNOWN = "a protocol that is not known here"


class Listener(NamedTuple):
    """The protocol of an address."""

    spoken: Spoken
    mechanisms: tuple[str, ...] = ()
    """For a login (SASL)."""


def identify_listener(probe: BrokerProbe, config: ClientConfig, deadline: Deadline) -> Listener:
    """The protocol of the address of a probe that failed. Raises nothing: what does not answer is UNKNOWN.

    config: the settings of that probe. Kafka's protocol comes last, because web servers wait for the end of a line that
    it does not have, while brokers close a connection with anything else at once.
    """
    address = probe.address
    # 1. HTTP: the answer begins with its name. 2. TLS: it answers with an alert, or completes a handshake.
    # 3. Kafka: it closes the connection at once, since the request is no frame.
    begin = _answer_to_web_request(address, deadline)
    if begin == b"HTTP/":
        return Listener(Spoken.HTTP)
    if begin[:2] == _TLS_ALERT or _speaks_tls(address, deadline):
        return Listener(Spoken.TLS)
    plain = with_short_timeouts(replace(config, security=SecurityConfig()))
    if config.security.security_protocol != "PLAINTEXT":
        probe = probe_address(address, plain, deadline)
    # 1. All is answered. 2. Versions are answered, metadata is not: the listener wants a login first.
    if probe.error is None:
        return Listener(Spoken.PLAINTEXT)
    if probe.connected:
        return Listener(Spoken.SASL_PLAINTEXT, _ask_mechanisms(address, plain, deadline))
    return Listener(Spoken.UNKNOWN)


def _ask_mechanisms(address: Address, config: ClientConfig, deadline: Deadline) -> tuple[str, ...]:
    connection = Connection(address, config)
    try:
        connection.open_connection(deadline)
        version = connection.choose_version(ApiKey.SASL_HANDSHAKE)
        request = SaslHandshakeRequest(mechanism=_NO_MECHANISM)
        call = connection.send_request(request, version, SaslHandshakeResponse)
        return tuple(connection.wait_for_response(call, deadline).mechanisms)
    except ClientError:
        return ()
    finally:
        connection.close_connection()


def _speaks_tls(address: Address, deadline: Deadline) -> bool:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # only whether it is TLS; nothing is sent
    try:
        with (
            socket.create_connection((address.host, address.port), _time_left(deadline)) as sock,
            context.wrap_socket(sock, server_hostname=address.host),
        ):
            return True
    except ssl.SSLError as error:
        return "ALERT" in (error.reason or "")  # an alert is TLS as well: a certificate is missing, for instance
    except (OSError, ValueError):
        return False


def _answer_to_web_request(address: Address, deadline: Deadline) -> bytes:
    """The first bytes of the answer; empty: the connection was closed, or nothing came."""
    try:
        with socket.create_connection((address.host, address.port), _time_left(deadline)) as sock:
            sock.sendall(b"GET / HTTP/1.0\r\n\r\n")
            return sock.recv(5)
    except (OSError, ValueError):
        return b""


def _time_left(deadline: Deadline) -> float:
    return deadline.within_ms(PROBE_MS).remaining_s() or 1e-6
