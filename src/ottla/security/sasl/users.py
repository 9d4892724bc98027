"""The users that can log in with a password: from a file of this broker, and from the metadata store.

Zone: deterministic. A user of the file has this broker's credential only: what the store has for that name is not used.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import Final

from ottla.security.sasl.plain import StaticPasswords
from ottla.security.sasl.scram_credentials import (
    MECHANISMS,
    CredentialTable,
    ScramCredential,
    ScramMechanism,
    credential_from_password,
    decode_credential,
)

_logger = logging.getLogger(__name__)
_CREDENTIALS: Final = re.compile(r"SCRAM-SHA-(?:256|512)=\[[^\]]*\](?:,SCRAM-SHA-(?:256|512)=\[[^\]]*\])*")
_CREDENTIAL: Final = re.compile(r"(SCRAM-SHA-(?:256|512))=\[([^\]]*)\]")
USERS_MAX: Final = 1000
"""Each password takes milliseconds at the start."""

Credentials = Mapping[ScramMechanism, ScramCredential]


class FileUsers:
    """The users of `ottla.sasl.users.file`: their passwords, or only their credentials for SCRAM."""

    def __init__(self, lines: Mapping[str, str], salt: bytes) -> None:
        """lines: user → password, or user → `SCRAM-SHA-256=[salt=…,stored_key=…,server_key=…,iterations=…]`, perhaps
        with one of the other mechanism after a comma. salt: random bytes. Raises ValueError, without the text.
        """
        if len(lines) > USERS_MAX:
            raise ValueError(f"more than {USERS_MAX} users; put them into the metadata store")
        self.credentials: dict[str, Credentials] = {}
        passwords: dict[str, str] = {}
        for user, text in lines.items():
            if not user or not text:
                raise ValueError("a user has no name or no password")
            if _CREDENTIALS.fullmatch(text):
                found = _CREDENTIAL.findall(text)
                self.credentials[user] = {
                    MECHANISMS[name]: decode_credential(MECHANISMS[name], inside) for name, inside in found
                }
            else:
                passwords[user] = text
                self.credentials[user] = {
                    mechanism: credential_from_password(mechanism, salt + user.encode(errors="replace"), text)
                    for mechanism in ScramMechanism
                }
        self.passwords = StaticPasswords(passwords)


class SaslUsers:
    """All users."""

    def __init__(self, decoy_key: bytes, file: FileUsers) -> None:
        """decoy_key: see `CredentialTable`."""
        self._file = file
        self._stored: dict[str, Credentials] = {}
        self.table = CredentialTable(decoy_key)
        for user, credentials in file.credentials.items():
            self.table.replace_user(user, credentials)

    @property
    def passwords(self) -> StaticPasswords:
        """The passwords of the file, for PLAIN."""
        return self._file.passwords

    @property
    def stored(self) -> Mapping[str, Credentials]:
        """The credentials in the metadata store by user, for DescribeUserScramCredentials."""
        return self._stored

    def on_user_config(self, user: str, config: Mapping[str, str]) -> None:
        """Apply the settings of a user in the metadata store; without credentials the user cannot log in any more.

        A credential that cannot be read does not let its user in: it is ignored, with a line in the log.
        """
        credentials: dict[ScramMechanism, ScramCredential] = {}
        for name, mechanism in MECHANISMS.items():
            if name in config:
                try:
                    credentials[mechanism] = decode_credential(mechanism, config[name])
                except ValueError as error:
                    _logger.error("user %.100r cannot log in with %s: %s; create it again", user, name, error)
        if credentials:
            self._stored[user] = credentials
        else:
            self._stored.pop(user, None)
        if user not in self._file.credentials:
            self.table.replace_user(user, credentials)
