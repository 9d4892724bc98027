"""Brokers with a plain listener, one with TLS, and (Ottla) one with TLS and logins, with the same cipher suite."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Protocol

from testbench.apache_kafka.broker import KAFKAS_HEAP, KafkaNode
from testbench.ports import HOST, free_port

from bench.peers import COMMON, Peer, Process

SUITE = "TLS_AES_256_GCM_SHA384"
USER, PASSWORD = "bench", "the-password-of-the-bench"
OTTLA = str(Path(sys.executable).parent / "ottla")


class SecurePeer(Peer, Protocol):
    """A running broker with TLS."""

    tls_port: int


class Certificates:
    """The files of `ottla tls make`: one authority, P-256 keys, TLS 1.3 with one cipher suite."""

    def __init__(self, directory: Path) -> None:
        subprocess.run([OTTLA, "tls", "make", str(directory)], check=True, stdout=subprocess.DEVNULL)
        self.authority = directory / "ca.pem"
        self.settings = {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(directory / "broker.pem"),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.authority),
            "ssl.enabled.protocols": "TLSv1.3",
            "ssl.cipher.suites": SUITE,
        }


class SecureOttla(Process):
    """`ottla up` with three listeners; the one with logins has the user USER."""

    def __init__(self, directory: Path, certificates: Certificates) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        port, self.tls_port, self.login_port = free_port(), free_port(), free_port()
        users = directory / "users"
        users.touch(0o600)
        users.write_text(f"{USER}={PASSWORD}\n")
        addresses = (("PLAINTEXT", port), ("SSL", self.tls_port), ("SASL_SSL", self.login_port))
        settings = {
            **COMMON,
            **certificates.settings,
            "listeners": ",".join(f"{name}://{HOST}:{number}" for name, number in addresses),
            "sasl.enabled.mechanisms": "SCRAM-SHA-512",
            "ottla.sasl.users.file": str(users),
        }
        command = [OTTLA, "up", "--data", str(directory / "data"), "--port", str(port)]
        for key, value in settings.items():
            command += ["--set", f"{key}={value}"]
        super().__init__("ottla", command, port, directory / "log")


class SecureKafka:
    """Apache Kafka 4.4.0 with the options of its own scripts, and a listener with TLS."""

    name = "kafka"

    def __init__(self, directory: Path, certificates: Certificates) -> None:
        self._node = node = KafkaNode(directory, settings={**COMMON, **certificates.settings}, heap=KAFKAS_HEAP)
        self.port, self.tls_port = node.port, free_port()
        node.settings |= {
            "listeners": f"PLAINTEXT://{HOST}:{node.port},SSL://{HOST}:{self.tls_port},"
            f"CONTROLLER://{HOST}:{node.controller_port}",
            "advertised.listeners": f"PLAINTEXT://{HOST}:{node.port},SSL://{HOST}:{self.tls_port}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SSL:SSL,CONTROLLER:PLAINTEXT",
        }
        node.start()

    @property
    def pid(self) -> int:
        """Process id."""
        return self._node.pid

    def stop(self) -> None:
        """End it and wait."""
        self._node.stop()
