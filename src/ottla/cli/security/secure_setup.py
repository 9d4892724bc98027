"""What `ottla up --secure` needs: certificates, an administrator, and the settings of clients, in one directory.

Zone: real. The files are made once and kept: the next start uses them again. Only their owner can read them, except for
the certificate of the authority.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
from typing import Final, NamedTuple

import click

from ottla.cli.security.secret_files import write_new_files

ADMIN: Final = "admin"
MECHANISM: Final = "SCRAM-SHA-512"
PROTOCOL: Final = "SASL_SSL"
_LOCAL: Final = ("localhost", "127.0.0.1", "::1")
_ANY: Final = ("", "0.0.0.0", "::")  # noqa: S104  recognized, not bound
_CREDENTIALS: Final = "SCRAM-SHA-"
"""A user's line begins so if it has derived keys in place of a password."""
_PASSWORD_BYTES: Final = 24
_AUTHORITY, _BROKER, _USERS = "ca.pem", "broker.pem", "users"
_JAVA, _LIBRDKAFKA = "client.properties", "librdkafka.properties"
_REGISTRY_USERS: Final = "registry-users"


class SecureSetup(NamedTuple):
    """The directory with the files."""

    directory: str

    def make_files(self, host: str, port: int) -> bool:
        """Make the files, unless they exist; returns whether they are new. `port` 0: it is not known yet.

        Raises click.UsageError when only some of them exist, and ModuleNotFoundError without the extra `tls`.
        """
        names = (_AUTHORITY, _BROKER, _USERS)
        there = [name for name in names if os.path.exists(self._path_of(name))]
        if len(there) == len(names):
            return False
        if there:
            raise click.UsageError(f"{self.directory} has {there[0]}, but not all files: remove the directory")
        password = secrets.token_urlsafe(_PASSWORD_BYTES)
        files = self._certificates(host)
        files[self._path_of(_USERS)] = f"{ADMIN}={password}\n"
        address = "" if port == 0 else f"bootstrap.servers={_bracketed('localhost' if host in _ANY else host)}:{port}\n"
        files[self._path_of(_JAVA)] = address + self._java_settings(password)
        files[self._path_of(_LIBRDKAFKA)] = address + self._librdkafka_settings(password)
        write_new_files(files, public=[self._path_of(_AUTHORITY)])
        return True

    def _path_of(self, name: str) -> str:
        return os.path.join(self.directory, name)

    def _certificates(self, host: str) -> dict[str, str | bytes]:
        """The authority's key is not kept: a certificate for other hosts means a new authority."""
        from ottla.cli.security.certificates import Authority

        hosts = list(dict.fromkeys([*_LOCAL, socket.gethostname(), *([] if host in _ANY else [host])]))
        authority = Authority("Ottla local authority")
        return {
            self._path_of(_AUTHORITY): authority.certificate,
            self._path_of(_BROKER): authority.issue_broker("broker", hosts),
        }

    def _java_settings(self, password: str) -> str:
        module = "org.apache.kafka.common.security.scram.ScramLoginModule"
        return (
            f"security.protocol={PROTOCOL}\nssl.truststore.type=PEM\n"
            f"ssl.truststore.location={self._path_of(_AUTHORITY)}\nsasl.mechanism={MECHANISM}\n"
            f'sasl.jaas.config={module} required username="{ADMIN}" password="{password}";\n'
        )

    def _librdkafka_settings(self, password: str) -> str:
        return (
            f"security.protocol={PROTOCOL}\nssl.ca.location={self._path_of(_AUTHORITY)}\n"
            f"sasl.mechanism={MECHANISM}\nsasl.username={ADMIN}\nsasl.password={password}\n"
        )

    def broker_settings(self) -> dict[str, str]:
        """The settings of a broker, without its listeners."""
        from ottla.config.broker_authorizer import AUTHORIZERS

        return {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": self._path_of(_BROKER),
            "sasl.enabled.mechanisms": MECHANISM,
            "ottla.sasl.users.file": self._path_of(_USERS),
            "authorizer.class.name": AUTHORIZERS[0],
            "super.users": f"User:{ADMIN}",
        }

    def registry_options(self) -> list[str]:
        """Options of `ottla registry`; makes its file of the users whose passwords the file `users` has as text."""
        from ottla.server.login_files import read_users

        users = read_users(self._path_of(_USERS))
        lines = [f"{name}:{word}\n" for name, word in users.items() if not word.startswith(_CREDENTIALS)]
        path = self._path_of(_REGISTRY_USERS)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        write_new_files({path: "".join(lines)})
        files = {"--command-config": _JAVA, "--tls-cert": _BROKER, "--users": _REGISTRY_USERS}
        return [word for option, name in files.items() for word in (option, self._path_of(name))]

    def explain_files(self) -> None:
        """Print where the settings of clients are, to standard error."""
        click.echo(
            f"TLS, passwords and ACLs are on; the user is {ADMIN}. Settings of clients: {self._path_of(_JAVA)} "
            f"(ottla --command-config, Kafka's tools), {self._path_of(_LIBRDKAFKA)} (kcat -F, confluent-kafka)",
            err=True,
        )


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
