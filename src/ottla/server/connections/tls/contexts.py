"""Contexts of TLS from the broker's settings: keys, certificates, versions and cipher suites.

Zone: real. Reads PEM files. A key never reaches a disk: Python's TLS reads keys from files only, so the text is passed
through a file in memory where the system has those.
"""

from __future__ import annotations

import contextlib
import os
import re
import ssl
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from ottla.config.broker import BrokerConfig
from ottla.config.broker_listeners import CONVERT
from ottla.seams import Failure, Kind
from ottla.security.certificate_names import alternative_names, subject_of_certificate
from ottla.server.os_errors import failure_of
from ottla.types import Endpoint

PEM_MAX: Final = 1024 * 1024
"""Largest PEM file in bytes."""
_BLOCK: Final = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----([^-]*)-----END \1-----")
_VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_VERIFY: Final = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}
_JAVA_STORES: Final = (b"\xfe\xed\xfe\xed", b"\x30\x82", b"\x30\x83", b"\x30\x80")
"""The first bytes of a JKS or PKCS12 store; the latter begin as any DER."""
_SUITE: Final = re.compile(r"TLS_(?:(ECDHE|DHE)_)?(RSA|ECDSA)_WITH_(\w+)")


@dataclass(frozen=True, repr=False, slots=True)
class TlsSettings:
    """The settings of one context. They are equal if they make the same context from the same files."""

    keystore: str | None
    """ssl.keystore.location; None: `key` and `chain` are used."""
    key: str | None
    chain: str | None
    password: str | None
    truststore: str | None
    trusted: str | None
    """ssl.truststore.certificates"""
    client_auth: str = "none"
    versions: tuple[str, ...] = ("TLSv1.2", "TLSv1.3")
    suites: tuple[str, ...] = ()
    check_host: bool = True
    """Only for outgoing connections."""

    @property
    def files(self) -> tuple[str, ...]:
        """The files that the context is made from."""
        return tuple(path for path in (self.keystore, self.truststore) if path)


def settings_at(config: BrokerConfig, endpoint: Endpoint) -> TlsSettings:
    """The settings of a listener, and of this broker's connections to the same listener of other brokers."""
    at = config.at_listener(endpoint.listener)
    return TlsSettings(
        at.ssl_keystore_location,
        at.ssl_keystore_key,
        at.ssl_keystore_certificate_chain,
        at.ssl_key_password,
        at.ssl_truststore_location,
        at.ssl_truststore_certificates,
        config.client_auth_at(endpoint),
        at.ssl_enabled_protocols,
        at.ssl_cipher_suites,
        at.ssl_endpoint_identification_algorithm == "https",
    )


@dataclass(frozen=True, repr=False, slots=True)
class LoadedContext:
    """A context, and the names in this broker's certificate."""

    context: ssl.SSLContext
    subject: str
    names: frozenset[bytes]


def load_server_context(settings: TlsSettings) -> LoadedContext:
    """The context of a listener. Raises Failure with the key of the setting that cannot be used."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE
    # Each connection shows its certificate: a resumed session could outlive a change of the trusted certificates.
    context.num_tickets = 0
    subject, names = _load_identity(context, settings)
    _choose_ciphers(context, settings)
    context.verify_mode = _VERIFY[settings.client_auth]
    if settings.client_auth != "none":
        _load_trusted(context, settings)
    return LoadedContext(context, subject, names)


def load_client_context(settings: TlsSettings) -> LoadedContext:
    """The context of connections to other brokers, which get this broker's certificate. Raises Failure."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.check_hostname = settings.check_host
    context.verify_mode = ssl.CERT_REQUIRED
    subject, names = _load_identity(context, settings)
    _choose_ciphers(context, settings)
    if settings.truststore or settings.trusted:
        _load_trusted(context, settings)
    else:
        context.load_default_certs()
    return LoadedContext(context, subject, names)


# -- keys and certificates ---------------------------------------------------------------------------------------------


def _load_identity(context: ssl.SSLContext, settings: TlsSettings) -> tuple[str, frozenset[bytes]]:
    """Load key and certificate; returns the names in the certificate. Raises Failure."""
    if settings.keystore:
        where, text = (
            f"ssl.keystore.location {settings.keystore}",
            _read_pem("ssl.keystore.location", settings.keystore),
        )
    else:
        where, text = "ssl.keystore.key", f"{settings.key}\n{settings.chain}"
    text = tidy_pem(text)
    with _named_errors(where), _private_file(text) as path:
        # Without a password OpenSSL would ask for one at the terminal.
        context.load_cert_chain(path, password=settings.password or "")
        own = next(match[0] for match in _BLOCK.finditer(text) if match[1] == "CERTIFICATE")
        der = ssl.PEM_cert_to_DER_cert(own)
        return subject_of_certificate(der), alternative_names(der)


def _load_trusted(context: ssl.SSLContext, settings: TlsSettings) -> None:
    text = settings.trusted or ""
    where = "ssl.truststore.certificates"
    if settings.truststore:
        where = f"ssl.truststore.location {settings.truststore}"
        text += "\n" + _read_pem("ssl.truststore.location", settings.truststore)
    blocks = [match[0] for match in _BLOCK.finditer(tidy_pem(text)) if match[1] == "CERTIFICATE"]
    if not blocks:
        raise Failure(Kind.NOT_DONE, f"{where} has no certificate")
    with _named_errors(where):
        context.load_verify_locations(cadata="\n".join(blocks))


def _read_pem(key: str, path: str) -> str:
    """The text of a PEM file. Raises Failure, for a store of Java with the commands that convert it."""
    try:
        with open(path, "rb", opener=_open_now) as file:
            content = file.read(PEM_MAX + 1)
    except OSError as error:
        raise Failure(failure_of(error).kind, f"{key} {path}: {error.strerror}") from None
    if len(content) > PEM_MAX:
        raise Failure(Kind.NOT_DONE, f"{key} {path} has more than {PEM_MAX} bytes")
    if content.startswith(_JAVA_STORES):
        raise Failure(Kind.NOT_DONE, f"{key} {path} is not a PEM file; {CONVERT}")
    return content.decode("ascii", "replace")


def _open_now(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # a pipe of that name must not block the broker


def tidy_pem(text: str) -> str:
    """The blocks of a PEM text with lines of 64 characters: in a properties file a text often is one line (KIP-651)."""
    return "".join(map(_tidy_block, _BLOCK.finditer(text)))


def _tidy_block(match: re.Match[str]) -> str:
    if ":" in match[2]:  # a key with headers, which are lines
        return f"{match[0]}\n"
    content = "".join(match[2].split())
    lines = "\n".join(content[at : at + 64] for at in range(0, len(content), 64))
    return f"-----BEGIN {match[1]}-----\n{lines}\n-----END {match[1]}-----\n"


@contextlib.contextmanager
def _private_file(text: str) -> Iterator[str]:
    """A path under which only this process can read the text, for a moment."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("ottla-tls", os.MFD_CLOEXEC)
        with os.fdopen(descriptor, "w", encoding="ascii", errors="replace") as file:
            file.write(text)
            file.flush()
            yield f"/proc/self/fd/{descriptor}"
        return
    descriptor, path = tempfile.mkstemp(suffix=".pem")
    try:
        with os.fdopen(descriptor, "w", encoding="ascii", errors="replace") as file:
            file.write(text)
        yield path
    finally:
        os.unlink(path)


@contextlib.contextmanager
def _named_errors(where: str) -> Iterator[None]:
    """Translate OpenSSL's errors to a Failure that names the setting; its texts contain no secrets."""
    try:
        yield
    except ssl.SSLError as error:
        reasons = {
            "KEY_VALUES_MISMATCH": "the private key does not belong to the first certificate",
            "BAD_PASSWORD_READ": "the private key is encrypted: set ssl.key.password",
            "BAD_DECRYPT": "ssl.key.password is not the password of the private key",
            "NO_START_LINE": "it lacks a certificate or a private key in PEM",
        }
        reason = error.reason or "it lacks a certificate or a private key in PEM, or ssl.key.password is wrong"
        raise Failure(Kind.NOT_DONE, f"{where}: {reasons.get(reason, reason)}") from None
    except StopIteration:
        raise Failure(Kind.NOT_DONE, f"{where}: it has no certificate") from None
    except (OSError, ValueError) as error:
        raise Failure(Kind.NOT_DONE, f"{where}: {error}") from None


# -- versions and cipher suites ----------------------------------------------------------------------------------------


def _choose_ciphers(context: ssl.SSLContext, settings: TlsSettings) -> None:
    """Restrict versions and cipher suites.

    1. Without a list of suites: OpenSSL's choice.
    2. A list with suites of TLS 1.3 only, or of TLS 1.2 only, excludes the other version, as in Java.
    3. TLS 1.3 always offers all of its suites, because Python cannot restrict them.
    """
    versions = set(settings.versions)
    if settings.suites:
        older = [openssl_name(name) for name in settings.suites if not _is_tls13(name)]
        versions &= {"TLSv1.2"} if older else set()
        versions |= {"TLSv1.3"} & set(settings.versions) if any(map(_is_tls13, settings.suites)) else set()
        if not versions:
            raise Failure(Kind.NOT_DONE, "ssl.cipher.suites has no suite of a version in ssl.enabled.protocols")
        if older:
            _set_ciphers(context, older)
    chosen = [_VERSIONS[version] for version in versions]
    context.minimum_version, context.maximum_version = min(chosen), max(chosen)


def _set_ciphers(context: ssl.SSLContext, names: Sequence[str]) -> None:
    known = {cipher["name"] for cipher in _all_ciphers()}
    for name in names:
        if name not in known:
            raise Failure(Kind.NOT_DONE, f"ssl.cipher.suites: {name[:80]} is not a cipher suite of OpenSSL")
    context.set_ciphers(":".join(names))


def _all_ciphers() -> Iterable[dict[str, str]]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_ciphers("ALL:!aNULL:!eNULL")
    return context.get_ciphers()  # type: ignore[return-value]


def _is_tls13(name: str) -> bool:
    return name.startswith("TLS_") and "_WITH_" not in name


def openssl_name(name: str) -> str:
    """OpenSSL's name of a suite of TLS 1.2: TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256 is ECDHE-RSA-AES128-GCM-SHA256."""
    match = _SUITE.fullmatch(name)
    if match is None:
        return name
    exchange, signature, cipher = match.groups()
    cipher = cipher.replace("CHACHA20_POLY1305_SHA256", "CHACHA20_POLY1305").replace("_CBC", "")
    cipher = re.sub(r"^AES_(\d+)", r"AES\1", cipher).replace("_", "-")
    return "-".join(word for word in (exchange, signature if exchange else "", cipher) if word)
