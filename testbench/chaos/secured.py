"""What brokers and clients of a secured cluster need: certificates, users, passwords, ACLs, and the settings of both.

Zone: real. One listener with TLS, SCRAM and ACLs serves clients and brokers, and ZooKeeper asks for a digest. Brokers
are the super user of a file, clients a user that ZooKeeper has, with the ACLs of a producer and of a consumer.
"""

from __future__ import annotations

import secrets
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from testbench.ottla_node import OTTLA

BROKER_USER, CLIENT_USER = "admin", "chaos"
REAUTHENTICATION_MS: Final = 10_000
"""Connections of brokers and of Java have to log in again within this time (connections.max.reauth.ms)."""
_ONCE: Final = "SCRAM-SHA-256"
"""The mechanism of librdkafka, whose connections log in once. When a connection is lost while librdkafka (2.16) logs in
again, it fails the batches in flight for good, as if the password were wrong, and gives the later ones other sequence
numbers: records are twice in the log, which no broker can prevent."""
WAIT_S: Final = 120
_MODULE: Final = "org.apache.kafka.common.security.scram.ScramLoginModule required"


class SecurityFiles:
    """The files of a secured cluster, in a directory of their own."""

    def __init__(self, directory: Path, addresses: Sequence[str]) -> None:
        """`addresses`: of the brokers' hosts, which their certificate names."""
        directory.mkdir()
        self.directory = directory
        hosts = [word for address in addresses for word in ("--host", address)]
        self._ottla("tls", "make", str(directory / "certificates"), *hosts)
        self._passwords = {name: secrets.token_hex(24) for name in (BROKER_USER, CLIENT_USER)}
        self._write("users", f"{BROKER_USER}={self._passwords[BROKER_USER]}")
        digest = self._passwords["store"] = secrets.token_hex(24)
        self._write("store", f"digest=ottla:{digest}")
        self._write("password", self._passwords[CLIENT_USER])
        for user in (BROKER_USER, CLIENT_USER):
            self._write(f"{user}.librdkafka", _lines(self.librdkafka(user)))
            self._write(f"{user}.java", _lines(self._java(user)))

    def broker_settings(self, address: str) -> dict[str, str]:
        """The settings of the broker at `host:port`."""
        certificates = self.directory / "certificates"
        login = f'{_MODULE} username="{BROKER_USER}" password="${{file:{self.directory}/users:{BROKER_USER}}}";'
        return {
            "listeners": f"SASL_SSL://{address}",
            "advertised.listeners": f"SASL_SSL://{address}",
            "security.inter.broker.protocol": "SASL_SSL",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(certificates / "broker.pem"),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(certificates / "ca.pem"),
            "sasl.enabled.mechanisms": f"SCRAM-SHA-512,{_ONCE}",
            f"listener.name.sasl_ssl.{_ONCE.lower()}.connections.max.reauth.ms": "0",
            "sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-512",
            "listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config": login,
            "connections.max.reauth.ms": str(REAUTHENTICATION_MS),
            "ottla.sasl.users.file": str(self.directory / "users"),
            "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
            "super.users": f"User:{BROKER_USER}",
            "config.providers": "file",
            "ottla.zookeeper.digest": f"${{file:{self.directory}/store:digest}}",
            "zookeeper.set.acl": "true",
        }

    def librdkafka(self, user: str) -> dict[str, str]:
        """librdkafka's settings of a user."""
        return {
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(self.directory / "certificates" / "ca.pem"),
            "sasl.mechanism": _ONCE,
            "sasl.username": user,
            "sasl.password": self._passwords[user],
        }

    def _java(self, user: str) -> dict[str, str]:
        return {
            "security.protocol": "SASL_SSL",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.directory / "certificates" / "ca.pem"),
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.jaas.config": f'{_MODULE} username="{user}" password="{self._passwords[user]}";',
        }

    def login_file(self, client: str) -> Path:
        """The file with the settings of the clients' user for `librdkafka` or `java`."""
        return self.directory / f"{CLIENT_USER}.{client}"

    def create_client_user(self, bootstrap: str, topic: str, group: str) -> None:
        """Create the clients' user, and give it the ACLs that it needs. Called on the clients' host."""
        admin = ("-b", bootstrap, "--command-config", str(self.directory / f"{BROKER_USER}.java"))
        self._ottla("user", "create", CLIENT_USER, "--password-file", str(self.directory / "password"), *admin)
        self._ottla("acl", "add", "--allow", CLIENT_USER, "--producer", "--topic", topic, *admin)
        self._ottla("acl", "add", "--allow", CLIENT_USER, "--consumer", "--topic", topic, "--group", group, *admin)

    def contains_password(self, text: str) -> bool:
        """Whether a text contains a password."""
        return any(password in text for password in self._passwords.values())

    def _ottla(self, *words: str) -> None:
        done = subprocess.run([*OTTLA, *words], capture_output=True, check=False, timeout=WAIT_S)
        assert done.returncode == 0, done.stderr.decode()

    def _write(self, name: str, text: str) -> None:
        path = self.directory / name
        path.touch(0o600)
        path.write_text(text + "\n")


def _lines(settings: dict[str, str]) -> str:
    return "\n".join(f"{key}={value}" for key, value in settings.items())
