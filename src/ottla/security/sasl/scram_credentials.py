"""Credentials for SCRAM: what the store keeps in place of a password, as Kafka does.

Zone: deterministic. A credential is text among the settings of its user, in `/config/users/<user>`, under the name of
its mechanism; a user may have both. A credential is not enough to log in with, and the broker never sees the password:
the tools send a salted one.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections import Counter
from collections.abc import Mapping
from enum import IntEnum
from typing import Final, NamedTuple

from ottla.errors import ErrorCode

ITERATIONS_MIN: Final = 4096
ITERATIONS_MAX: Final = 16384
_FIELDS: Final = ("salt", "stored_key", "server_key", "iterations")
_ALPHABET: Final = "0123456789abcdefghijklmnopqrstuvwxyz"
_SALT: Final = 26
"""Characters of the salts that Kafka's tools make, of `_ALPHABET`."""


class ScramMechanism(IntEnum):
    """The mechanisms, with their numbers in the protocol."""

    SCRAM_SHA_256 = 1
    SCRAM_SHA_512 = 2

    @property
    def title(self) -> str:
        """The name in SASL: SCRAM-SHA-256."""
        return self.name.replace("_", "-")

    @property
    def algorithm(self) -> str:
        """The hash, as `hashlib` names it."""
        return "sha256" if self is ScramMechanism.SCRAM_SHA_256 else "sha512"

    @property
    def digest_size(self) -> int:
        """Bytes of a digest."""
        return hashlib.new(self.algorithm).digest_size


MECHANISMS: Final = {mechanism.title: mechanism for mechanism in ScramMechanism}


class ScramCredential(NamedTuple):
    """The keys of one user for one mechanism."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int


def credential_from_salted(
    mechanism: ScramMechanism, salt: bytes, salted_password: bytes, iterations: int
) -> ScramCredential:
    """The credential of a salted password, which AlterUserScramCredentials contains."""
    client_key = hmac.digest(salted_password, b"Client Key", mechanism.algorithm)
    return ScramCredential(
        salt,
        hashlib.new(mechanism.algorithm, client_key).digest(),
        hmac.digest(salted_password, b"Server Key", mechanism.algorithm),
        iterations,
    )


def credential_from_password(
    mechanism: ScramMechanism, salt: bytes, password: str, iterations: int = ITERATIONS_MIN
) -> ScramCredential:
    """The credential of a password. Takes milliseconds: only for tokens, tools and the first users of a cluster."""
    salted = hashlib.pbkdf2_hmac(mechanism.algorithm, password.encode(), salt, iterations)
    return credential_from_salted(mechanism, salt, salted, iterations)


def salt_from_random(random: bytes) -> bytes:
    """A salt like those of Kafka's tools, from at least 17 random bytes."""
    # 26 digits of base 36 are 134.4 bits, so 17 bytes are enough.
    number, text = int.from_bytes(random, "big"), ""
    for _ in range(_SALT):
        number, digit = divmod(number, len(_ALPHABET))
        text += _ALPHABET[digit]
    return text.encode()


def encode_credential(credential: ScramCredential) -> str:
    """The text of a credential in the store."""
    salt, stored_key, server_key = (base64.b64encode(each).decode() for each in credential[:3])
    return f"salt={salt},stored_key={stored_key},server_key={server_key},iterations={credential.iterations}"


def decode_credential(mechanism: ScramMechanism, text: str) -> ScramCredential:
    """Inverse of `encode_credential`; the fields may have any order. Raises ValueError, without the text."""
    fields = dict(part.partition("=")[::2] for part in text.split(","))
    if set(fields) != set(_FIELDS):
        raise ValueError(f"a credential for {mechanism.title} does not have the fields {', '.join(_FIELDS)}")
    try:
        salt, stored_key, server_key = (base64.b64decode(fields[name], validate=True) for name in _FIELDS[:3])
    except (binascii.Error, ValueError):
        raise ValueError(f"a credential for {mechanism.title} is not base64") from None
    digits = fields["iterations"]
    if not (digits.isascii() and digits.isdigit() and 0 < len(digits) < 10):
        raise ValueError(f"a credential for {mechanism.title} has no number of iterations")
    if not salt or len(stored_key) != mechanism.digest_size or len(server_key) != mechanism.digest_size:
        raise ValueError(f"a credential for {mechanism.title} has keys of another size")
    return ScramCredential(salt, stored_key, server_key, int(digits))


def fault_of_alteration(user: str, mechanism: int, iterations: int | None) -> tuple[ErrorCode, str] | None:
    """Why AlterUserScramCredentials cannot do this, with Kafka's texts; iterations None: a deletion."""
    if not user:
        return ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty"
    if mechanism not in ScramMechanism.__members__.values():
        return ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism"
    if iterations is not None and iterations < ITERATIONS_MIN:
        return ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too few iterations"
    if iterations is not None and iterations > ITERATIONS_MAX:
        return ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too many iterations"
    return None


class Lookup(NamedTuple):
    """The credential to continue a login with."""

    credential: ScramCredential
    is_real: bool
    """False: there is no such user. The login continues with a decoy, and fails at its end."""


class CredentialTable:
    """The credentials of all users, and decoys for others.

    A login of an unknown user gets the answers that a real one would get: a salt, which is the same each time because
    it is derived from the name, and the number of iterations that most users have. The decoy is computed for known
    users as well, so that the time does not differ.
    """

    def __init__(self, decoy_key: bytes) -> None:
        """decoy_key: random bytes that only this cluster knows, and that do not change with a restart."""
        self._decoy_key = decoy_key
        self._users: dict[tuple[ScramMechanism, str], ScramCredential] = {}
        self._iterations: dict[ScramMechanism, Counter[int]] = {mechanism: Counter() for mechanism in ScramMechanism}

    def replace_user(self, user: str, credentials: Mapping[ScramMechanism, ScramCredential]) -> None:
        """Make these the only credentials of a user."""
        for mechanism in ScramMechanism:
            old, new = self._users.pop((mechanism, user), None), credentials.get(mechanism)
            if old is not None:
                self._iterations[mechanism][old.iterations] -= 1
            if new is not None:
                self._users[mechanism, user] = new
                self._iterations[mechanism][new.iterations] += 1

    def credential_of(self, mechanism: ScramMechanism, user: str) -> ScramCredential | None:
        """The credential of a user, for DescribeUserScramCredentials."""
        return self._users.get((mechanism, user))

    def find_credential(self, mechanism: ScramMechanism, user: str) -> Lookup:
        """The credential of a user, or a decoy."""
        return self.with_decoy(mechanism, user, self._users.get((mechanism, user)))

    def with_decoy(self, mechanism: ScramMechanism, user: str, credential: ScramCredential | None) -> Lookup:
        """The given credential, or a decoy if it is None or has too few iterations."""
        decoy = self._decoy_of(mechanism, user)
        if credential is None or credential.iterations < ITERATIONS_MIN:
            return Lookup(decoy, is_real=False)
        return Lookup(credential, is_real=True)

    def _decoy_of(self, mechanism: ScramMechanism, user: str) -> ScramCredential:
        name = f"{mechanism.title}\0{user}".encode(errors="replace")
        salt = hmac.digest(self._decoy_key, b"salt\0" + name, "sha256")
        keys = [hmac.digest(self._decoy_key, label + name, mechanism.algorithm) for label in (b"stored\0", b"server\0")]
        common = self._iterations[mechanism].most_common(1)
        usual = common[0][0] if common and common[0][1] else ITERATIONS_MIN
        return ScramCredential(salt_from_random(salt), keys[0], keys[1], max(usual, ITERATIONS_MIN))
