"""TLS for the clients' sockets.

Zone: real. A TlsSocket is used like a socket of the `socket` module: with a timeout by `connection`, non-blocking by
the producer.
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
"""The most bytes to encrypt at once."""
_VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}


class TlsSocket(ssl.SSLSocket):
    """An encrypted socket with the features that `ssl.SSLSocket` lacks: sendmsg, and BlockingIOError."""

    _unsent: bytes = b""
    """Bytes of a send that would have blocked: TLS requires the same bytes in the next attempt."""

    def sendmsg(self, buffers: Iterable[Any], *_: Any) -> int:  # type: ignore[override]  # no ancillary data in TLS
        """Send the first bytes of the buffers; returns how many. Raises BlockingIOError, TimeoutError, OSError."""
        data = self._unsent or _first_bytes(buffers)
        try:
            sent = self.send(data)
        except (ssl.SSLWantWriteError, ssl.SSLWantReadError):
            self._unsent = data
            raise BlockingIOError from None
        self._unsent = b""
        return sent

    def recv(self, buflen: int = 1024, flags: int = 0) -> bytes:
        """As `socket.recv`. Raises BlockingIOError if no bytes are there yet."""
        try:
            return super().recv(buflen, flags)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise BlockingIOError from None

    def idle_ended(self) -> bool:
        """Whether the broker has closed an idle connection, or sent unrequested bytes.

        A readable socket is not enough: the broker's TLS sends session tickets after the handshake.
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


def secure_socket(sock: socket.socket, address: Address, config: SecurityConfig) -> TlsSocket:
    """Shake hands on a connected socket, within the socket's timeout.

    Raises AuthenticationError (a certificate is refused), ConfigError (a file), UnreachableError (no TLS there),
    and closes the plain socket.
    """
    try:
        wrapped = tls_context(config).wrap_socket(sock, server_hostname=address.host)
    except (OSError, ValueError) as error:
        sock.close()
        raise _handshake_error(address, error) from error
    except BaseException:
        sock.close()
        raise
    assert isinstance(wrapped, TlsSocket)
    return wrapped


def _handshake_error(address: Address, error: Exception) -> ClientError:
    # From the most exact cause to the least: certificate, closed handshake, no TLS, other TLS errors, the network.
    if isinstance(error, ssl.SSLCertVerificationError):
        return AuthenticationError(
            f"the certificate of {address} is not accepted: {error.verify_message}",
            "Set ssl.truststore.location to the certificate of its issuer; if the host name is wrong,"
            " advertise the name that is in the certificate",
        )
    if isinstance(error, ssl.SSLEOFError):
        return UnreachableError(
            f"{address} ended the TLS handshake",
            "Check that it is a TLS port, and whether it requires a client certificate",
        )
    if isinstance(error, ssl.SSLError) and error.reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE"):
        return AuthenticationError(f"{address} does not speak TLS", "Use its TLS port, or security.protocol=PLAINTEXT")
    if isinstance(error, ssl.SSLError) and error.reason:
        return AuthenticationError(f"no TLS session with {address}: {error.reason}", "Compare both ends' settings")
    return UnreachableError(f"no TLS session with {address}: {error}", "Check that it is a TLS port")


def tls_refusal(address: Address, error: OSError) -> AuthenticationError | None:
    """The TLS refusal that ended a connection, or None: with TLS 1.3 it may come after the handshake."""
    if not isinstance(error, ssl.SSLError) or "ALERT" not in (error.reason or ""):
        return None
    return AuthenticationError(
        f"{address} refuses this client's certificate, or requires one: {error.reason}",
        "Set ssl.keystore.location to a key and a certificate that the broker trusts",
    )


@lru_cache(maxsize=64)
def tls_context(config: SecurityConfig) -> ssl.SSLContext:
    """The settings as a context for Python's TLS. Reads the files. Raises ConfigError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.sslsocket_class = TlsSocket
    chosen = [_VERSIONS[name] for name in config.tls_versions]
    context.minimum_version, context.maximum_version = min(chosen), max(chosen)
    context.check_hostname = config.ssl_endpoint_identification_algorithm == "https"
    context.verify_mode = ssl.CERT_REQUIRED
    _load_trusted(context, config)
    _load_identity(context, config)
    return context


def _load_trusted(context: ssl.SSLContext, config: SecurityConfig) -> None:
    try:
        if config.ssl_truststore_certificates:
            context.load_verify_locations(cadata=config.ssl_truststore_certificates)
        if config.ssl_truststore_location:
            context.load_verify_locations(cafile=config.ssl_truststore_location)
    except (OSError, ValueError) as error:
        raise ConfigError(f"the certificates to trust cannot be read: {error}", _PEM) from error
    if not config.ssl_truststore_certificates and not config.ssl_truststore_location:
        context.load_default_certs()


def _load_identity(context: ssl.SSLContext, config: SecurityConfig) -> None:
    try:
        if config.ssl_keystore_location:
            context.load_cert_chain(config.ssl_keystore_location, password=config.ssl_key_password)
        elif config.ssl_keystore_key:
            _load_inline(context, config)
    except (OSError, ValueError) as error:
        raise ConfigError(f"our key and certificate cannot be read: {error}", _PEM) from error


def _load_inline(context: ssl.SSLContext, config: SecurityConfig) -> None:
    """Load a key that is given as text, from a private temporary file: Python's TLS reads keys only from files."""
    descriptor, path = tempfile.mkstemp(suffix=".pem")
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(f"{config.ssl_keystore_key}\n{config.ssl_keystore_certificate_chain}\n")
        context.load_cert_chain(path, password=config.ssl_key_password)
    finally:
        os.unlink(path)


_PEM = "Use PEM files (-----BEGIN …-----); convert Java's stores with keytool and openssl"
