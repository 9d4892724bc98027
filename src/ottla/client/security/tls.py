"""TLS for the clients' sockets.

Zone: real. A socket of here is used like one of the `socket` module: with a timeout by `connection`, never blocking by
the producer's links.
"""

from __future__ import annotations

import os
import socket
import ssl
import tempfile
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Final

from ottla.client.connections.address import Address
from ottla.client.errors import AuthenticationError, ClientError, ConfigError, UnreachableError
from ottla.client.security.settings import SecurityConfig

_WRITE_MAX: Final = 65_536
"""Bytes that are encrypted at once."""
_VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}


class TlsSocket(ssl.SSLSocket):
    """Encrypted, with what `socket.socket` has and `ssl.SSLSocket` has not: sendmsg, and BlockingIOError."""

    _unsent: bytes = b""
    """What was to be sent when nothing more fitted: TLS wants the same bytes again."""

    def sendmsg(self, buffers: Iterable[Any], *_: Any) -> int:  # type: ignore[override]  # no ancillary data in TLS
        """Send as much of the first bytes of all buffers as is taken. Raises BlockingIOError, TimeoutError, OSError."""
        data = self._unsent or _first_bytes(buffers)
        try:
            sent = self.send(data)
        except (ssl.SSLWantWriteError, ssl.SSLWantReadError):
            self._unsent = data
            raise BlockingIOError from None
        self._unsent = b""
        return sent

    def recv(self, buflen: int = 1024, flags: int = 0) -> bytes:
        """As of a socket. Raises BlockingIOError when there is nothing yet."""
        try:
            return super().recv(buflen, flags)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise BlockingIOError from None

    def idle_ended(self) -> bool:
        """Whether the other end has closed an idle connection, or said what nobody asked for.

        Readable is not enough: the broker's TLS sends session tickets after the handshake.
        """
        before = self.gettimeout()
        self.settimeout(0)
        try:
            self.recv(1)
        except BlockingIOError:
            return False
        except OSError:
            return True
        finally:
            self.settimeout(before)
        return True


def _first_bytes(buffers: Iterable[Any]) -> bytes:
    found, size = [], 0
    for each in buffers:
        piece = memoryview(each)[: _WRITE_MAX - size]
        found.append(piece)
        size += piece.nbytes
        if size >= _WRITE_MAX:
            break
    return b"".join(found)


def secured(sock: socket.socket, address: Address, config: SecurityConfig) -> TlsSocket:
    """Shake hands on a connected socket, within the socket's timeout.

    Raises AuthenticationError (a certificate is refused), ConfigError (a file), UnreachableError (no TLS there).
    The plain socket is closed then.
    """
    try:
        wrapped = tls_context(config).wrap_socket(sock, server_hostname=address.host)
    except (OSError, ValueError) as error:
        sock.close()
        raise _failure(address, error) from error
    except BaseException:
        sock.close()
        raise
    assert isinstance(wrapped, TlsSocket)
    return wrapped


def _failure(address: Address, error: Exception) -> ClientError:
    if isinstance(error, ssl.SSLCertVerificationError):
        return AuthenticationError(
            f"the certificate of {address} is not accepted: {error.verify_message}",
            "Set ssl.truststore.location to the certificate of who signed it; a wrong host name:"
            " advertise the name that is in the certificate",
        )
    if isinstance(error, ssl.SSLEOFError):
        return UnreachableError(
            f"{address} ended the TLS handshake", "Is it a TLS port, and does it want a certificate of ours?"
        )
    if isinstance(error, ssl.SSLError) and error.reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE"):
        return AuthenticationError(f"{address} does not speak TLS", "Use its TLS port, or security.protocol=PLAINTEXT")
    if isinstance(error, ssl.SSLError) and error.reason:
        return AuthenticationError(f"no TLS session with {address}: {error.reason}", "Compare both ends' settings")
    return UnreachableError(f"no TLS session with {address}: {error}", "Is it a TLS port?")


def refusal(address: Address, error: OSError) -> AuthenticationError | None:
    """The refusal that broke a connection, if it was one: TLS 1.3 judges our certificate after the handshake."""
    if not isinstance(error, ssl.SSLError) or "ALERT" not in (error.reason or ""):
        return None
    return AuthenticationError(
        f"{address} refuses this client's certificate, or misses one: {error.reason}",
        "Set ssl.keystore.location to a key and a certificate that the broker trusts",
    )


@lru_cache(maxsize=64)
def tls_context(config: SecurityConfig) -> ssl.SSLContext:
    """The settings as Python's TLS takes them. Reads the files. Raises ConfigError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.sslsocket_class = TlsSocket
    chosen = [_VERSIONS[name] for name in config.tls_versions]
    context.minimum_version, context.maximum_version = min(chosen), max(chosen)
    context.check_hostname = config.ssl_endpoint_identification_algorithm == "https"
    context.verify_mode = ssl.CERT_REQUIRED
    _trust(context, config)
    _identify(context, config)
    return context


def _trust(context: ssl.SSLContext, config: SecurityConfig) -> None:
    try:
        if config.ssl_truststore_certificates:
            context.load_verify_locations(cadata=config.ssl_truststore_certificates)
        if config.ssl_truststore_location:
            context.load_verify_locations(cafile=config.ssl_truststore_location)
    except (OSError, ValueError) as error:
        raise ConfigError(f"the certificates to trust cannot be read: {error}", _PEM) from error
    if not config.ssl_truststore_certificates and not config.ssl_truststore_location:
        context.load_default_certs()


def _identify(context: ssl.SSLContext, config: SecurityConfig) -> None:
    try:
        if config.ssl_keystore_location:
            context.load_cert_chain(config.ssl_keystore_location, password=config.ssl_key_password)
        elif config.ssl_keystore_key:
            _load_inline(context, config)
    except (OSError, ValueError) as error:
        raise ConfigError(f"our key and certificate cannot be read: {error}", _PEM) from error


def _load_inline(context: ssl.SSLContext, config: SecurityConfig) -> None:
    """Python's TLS reads keys from files only: one that nobody else can read, for as long as that takes."""
    descriptor, path = tempfile.mkstemp(suffix=".pem")
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(f"{config.ssl_keystore_key}\n{config.ssl_keystore_certificate_chain}\n")
        context.load_cert_chain(path, password=config.ssl_key_password)
    finally:
        os.unlink(path)


_PEM = "They are PEM: -----BEGIN …-----; stores of Java are converted with keytool and openssl"
