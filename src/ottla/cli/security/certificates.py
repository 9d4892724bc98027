"""A certificate authority for a cluster on one's own machine, and the certificates that it signs.

Zone: real. Needs the package `cryptography`. Keys are P-256, in PKCS 8, the only format that Java reads; a file for a
broker or a client has its key and its certificate, as Kafka's PEM stores (KIP-651). Writes no file.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

import click
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

DAYS: Final = 825
"""How long certificates are valid by default; some systems refuse longer ones."""
_EARLIER: Final = timedelta(hours=1)
"""Certificates are valid from an hour ago, for machines whose clocks are late."""
_NAME_MAX: Final = 64


class Authority:
    """A new authority. Its key exists only here and in `key`; who has it can make certificates for every name."""

    def __init__(self, name: str, days: int = DAYS) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._begin = datetime.now(UTC) - _EARLIER
        self.end = self._begin + _EARLIER + timedelta(days=days)
        """When the authority and its certificates expire."""
        self._name = _subject(name)
        own = x509.SubjectKeyIdentifier.from_public_key(self._key.public_key())
        builder = self._start_certificate(self._name, self._key)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        builder = builder.add_extension(_key_usage(signs_certificates=True), critical=True)
        self._certificate = builder.add_extension(own, critical=False).sign(self._key, hashes.SHA256())

    @property
    def certificate(self) -> bytes:
        """What everyone trusts, as PEM."""
        return self._certificate.public_bytes(Encoding.PEM)

    @property
    def key(self) -> bytes:
        """The private key, as PEM."""
        return _key_pem(self._key)

    def issue_broker(self, name: str, hosts: Sequence[str]) -> bytes:
        """Key and certificate of a broker, which clients reach by any of the hosts. Raises click.UsageError."""
        if not hosts:
            raise click.UsageError("a broker needs a host name")
        # Brokers are also clients of each other.
        usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        names = x509.SubjectAlternativeName([_host_name(host) for host in hosts])
        return self._issue(name, usages, names)

    def issue_client(self, name: str) -> bytes:
        """Key and certificate of a client; its principal is `User:CN=name`. Raises click.UsageError."""
        return self._issue(name, [ExtendedKeyUsageOID.CLIENT_AUTH], None)

    def _issue(
        self, name: str, usages: list[x509.ObjectIdentifier], hosts: x509.SubjectAlternativeName | None
    ) -> bytes:
        key = ec.generate_private_key(ec.SECP256R1())
        signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        builder = self._start_certificate(_subject(name), key)
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        builder = builder.add_extension(_key_usage(signs_certificates=False), critical=True)
        builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        builder = builder.add_extension(signer, critical=False)
        if hosts is not None:
            builder = builder.add_extension(hosts, critical=False)
        return _key_pem(key) + builder.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM)

    def _start_certificate(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(self._begin)
            .not_valid_after(self.end)
        )


def _subject(name: str) -> x509.Name:
    if not 0 < len(name) <= _NAME_MAX or not name.isprintable():
        raise click.UsageError(f"{name!r} is not the name of a certificate: use 1 to {_NAME_MAX} printable characters")
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _host_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    try:
        ascii_name = host.encode("idna").decode()
    except UnicodeError:
        ascii_name = ""
    if not ascii_name or any(letter in ascii_name for letter in ":/@ "):
        raise click.UsageError(f"{host!r} is neither a host name nor an address") from None
    return x509.DNSName(ascii_name)


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
