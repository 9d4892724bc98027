"""Certificates, and an Apache Kafka broker with a listener for every kind of security."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import trustme
from cryptography.hazmat.primitives import serialization
from testbench.apache_kafka.broker import KafkaNode
from testbench.ports import free_port

MODULES = "org.apache.kafka.common.security"
SCRAM = f"{MODULES}.scram.ScramLoginModule required;"
UNSECURED = f'{MODULES}.oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="alice";'
LISTENERS = ("SSL", "MUTUAL", "SASL_PLAINTEXT", "SASL_SSL")
SESSION_MS = 2_000


@dataclass(frozen=True)
class Certificates:
    """Files of a small certificate authority."""

    directory: Path
    authority: trustme.CA

    @property
    def trust(self) -> str:
        """The certificate of the authority."""
        return str(self.directory / "ca.pem")

    @property
    def server(self) -> str:
        """Key and chain of the broker: for localhost and 127.0.0.1."""
        return str(self.directory / "server.pem")

    @property
    def client(self) -> str:
        """Key and chain of a client."""
        return str(self.directory / "client.pem")


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    directory = tmp_path_factory.mktemp("certificates")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(directory / "ca.pem")
    _write(authority.issue_cert("localhost", "127.0.0.1"), directory / "server.pem")
    _write(authority.issue_cert("client@example.org"), directory / "client.pem")
    return Certificates(directory, authority)


def _write(made: trustme.LeafCert, path: Path) -> None:
    """Writes a key in the format PKCS 8, the only one that Java reads."""
    key = serialization.load_pem_private_key(made.private_key_pem.bytes(), None).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path.write_bytes(key + b"".join(cert.bytes() for cert in made.cert_chain_pems))


@dataclass(frozen=True)
class Secured:
    """The broker's ports by listener, and the settings for clients."""

    ports: dict[str, int]
    trust: str

    def settings(self, listener: str, **more: str) -> dict[str, str]:
        protocol = "SSL" if listener == "MUTUAL" else listener
        return {
            "bootstrap.servers": f"127.0.0.1:{self.ports[listener]}",
            "security.protocol": protocol,
            **({"ssl.truststore.location": self.trust} if protocol.endswith("SSL") else {}),
            **{key.replace("_", "."): value for key, value in more.items()},
        }


@pytest.fixture(scope="session")
def secured(tmp_path_factory: pytest.TempPathFactory, certificates: Certificates) -> Iterator[Secured]:
    node = KafkaNode(tmp_path_factory.mktemp("secured"))
    ports = {"PLAINTEXT": node.port, **{name: free_port() for name in LISTENERS}}
    shown = ",".join(f"{name}://127.0.0.1:{port}" for name, port in ports.items())
    plain = f'{MODULES}.plain.PlainLoginModule required user_alice="alice, her \\\\"secret\\\\"";'
    node.settings = {
        "listeners": f"{shown},CONTROLLER://127.0.0.1:{node.controller_port}",
        "advertised.listeners": f"{shown},CONTROLLER://127.0.0.1:{node.controller_port}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SSL:SSL,MUTUAL:SSL,"
        "SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": certificates.server,
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": certificates.trust,
        "listener.name.mutual.ssl.client.auth": "required",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
        "listener.name.sasl_ssl.connections.max.reauth.ms": str(SESSION_MS),
    }
    for listener in ("sasl_plaintext", "sasl_ssl"):
        node.settings |= {
            f"listener.name.{listener}.plain.sasl.jaas.config": plain,
            f"listener.name.{listener}.scram-sha-256.sasl.jaas.config": SCRAM,
            f"listener.name.{listener}.scram-sha-512.sasl.jaas.config": SCRAM,
            f"listener.name.{listener}.oauthbearer.sasl.jaas.config": UNSECURED,
        }
    for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
        node.format_options += ["--add-scram", f"{mechanism}=[name=bob,password=bob-secret]"]
    with node:
        yield Secured(ports, certificates.trust)
