"""SCRAM (RFC 5802) with SHA-256 or SHA-512, without channel binding: the accepting side.

Zone: deterministic. The exchange:

1. The client sends its name and a nonce.
2. The broker extends the nonce by its own, and adds the salt and the number of iterations.
3. The client repeats the whole nonce and proves that it knows the password.
4. The broker proves that it knows the credential.

A replay fails at 3, because the broker's nonce is another one. Of the flags of channel binding only `n` is accepted, as
in Kafka; `y` and `p=` would need mechanisms with `-PLUS`. The extension `tokenauth=true` makes the name that of a
delegation token.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from typing import Final, NamedTuple, Protocol

from ottla.security.sasl.mechanism import Identity, SaslFailure
from ottla.security.sasl.scram_credentials import CredentialTable, Lookup, ScramCredential, ScramMechanism

_NONCE: Final = re.compile(r"[\x21-\x2b\x2d-\x7e]+")
_NAME: Final = re.compile(r"(?:[^\0=,]|=2C|=3D)+")
_EXTENSION: Final = re.compile(r"[A-Za-z]+=[^\0,]+")
_ATTRIBUTES_MAX: Final = 20
"""Most attributes of a message, with the extensions."""


class TokenCredential(NamedTuple):
    """A delegation token as a credential."""

    credential: ScramCredential
    owner: str
    """The user that a login with the token becomes."""
    expires_at_ms: int


class TokenCredentials(Protocol):
    """Knows the delegation tokens."""

    def find_token(self, mechanism: ScramMechanism, token_id: str) -> TokenCredential | None:
        """The token, unless there is none of this id."""
        ...


class ScramExchange:
    """One login."""

    def __init__(
        self,
        mechanism: ScramMechanism,
        users: CredentialTable,
        nonce: str,
        tokens: TokenCredentials | None = None,
    ) -> None:
        """nonce: printable ASCII without commas, never used before; tokens: None if there are no delegation tokens."""
        self._mechanism = mechanism
        self._users = users
        self._tokens = tokens
        self._nonce = nonce
        self._first: _ClientFirst | None = None
        self._answer = ""
        """The broker's first message; empty before it was sent."""
        self._found: Lookup | None = None
        self._claimed = Identity("")
        """Who the client becomes if it can prove what it claims."""
        self.identity: Identity | None = None

    def accept_token(self, token: bytes, now_ms: int) -> bytes:
        """Handle the client's first or final message. Raises SaslFailure."""
        try:
            text = token.decode()
        except UnicodeDecodeError:
            raise SaslFailure("a SCRAM message is not UTF-8") from None
        if self.identity is not None:
            raise SaslFailure("a SCRAM message after the final one")
        return self._accept_first(text).encode() if self._found is None else self._accept_final(text, now_ms).encode()

    def _accept_first(self, text: str) -> str:
        first = self._first = _parse_client_first(text)
        if first.authorization_id not in ("", first.user):
            raise SaslFailure(
                "Authentication failed: Client requested an authorization id that is different from username",
                for_client=True,
            )
        found = self._found = self._find_credential(first)
        salt = base64.b64encode(found.credential.salt).decode()
        self._answer = f"r={first.nonce}{self._nonce},s={salt},i={found.credential.iterations}"
        return self._answer

    def _find_credential(self, first: _ClientFirst) -> Lookup:
        if not first.is_token:
            self._claimed = Identity(first.user)
            return self._users.find_credential(self._mechanism, first.user)
        token = self._tokens.find_token(self._mechanism, first.user) if self._tokens is not None else None
        if token is not None:
            self._claimed = Identity(token.owner, token.expires_at_ms, by_token=True)
        return self._users.with_decoy(self._mechanism, first.user, token.credential if token is not None else None)

    def _accept_final(self, text: str, now_ms: int) -> str:
        first, found = self._first, self._found
        assert first is not None
        assert found is not None
        final = _parse_client_final(text)
        # 1. The header that the client began with. 2. The whole nonce, so that nothing old is accepted. 3. The proof.
        if final.channel_binding != first.header.encode():
            raise SaslFailure("the channel binding differs from that of the first message")
        if final.nonce != first.nonce + self._nonce:
            raise SaslFailure("Invalid client nonce in the final client message.")
        signed = f"{first.bare},{self._answer},{final.without_proof}".encode()
        # The proof is computed for a decoy as well, so that the time does not disclose which users exist.
        if not self._matches_proof(found.credential.stored_key, final.proof, signed) or not found.is_real:
            raise SaslFailure("Invalid client credentials")
        # After the proof: only the owner of a token learns that it has expired.
        if self._claimed.expires_at_ms is not None and self._claimed.expires_at_ms <= now_ms:
            raise SaslFailure("the delegation token has expired")
        self.identity = self._claimed
        signature = hmac.digest(found.credential.server_key, signed, self._mechanism.algorithm)
        return f"v={base64.b64encode(signature).decode()}"

    def _matches_proof(self, stored_key: bytes, proof: bytes, signed: bytes) -> bool:
        signature = hmac.digest(stored_key, signed, self._mechanism.algorithm)
        if len(proof) != len(signature):
            return False
        # The proof is the client key XOR the signature, and the stored key is the hash of the client key (RFC 5802). So
        # the broker checks a key that it does not store.
        client_key = (int.from_bytes(proof) ^ int.from_bytes(signature)).to_bytes(len(proof))
        return hmac.compare_digest(hashlib.new(self._mechanism.algorithm, client_key).digest(), stored_key)


class _ClientFirst(NamedTuple):
    header: str
    """Channel binding flag and authorization id, with their commas: what the final message has to repeat."""
    authorization_id: str
    bare: str
    user: str
    nonce: str
    is_token: bool


def _parse_client_first(text: str) -> _ClientFirst:
    """Parse `n,[a=name],n=name,r=nonce[,extensions]`. Raises SaslFailure."""
    flag, _, rest = text.partition(",")
    if flag != "n":
        raise SaslFailure("a SCRAM message asks for channel binding, which is not supported")
    authorization, comma, bare = rest.partition(",")
    attributes = bare.split(",", _ATTRIBUTES_MAX)
    # A mandatory extension (m=) is refused because it would be the first attribute, in place of the name.
    if not comma or len(attributes) < 2 or not attributes[0].startswith("n=") or not attributes[1].startswith("r="):
        raise SaslFailure("Invalid SCRAM client first message format")
    if authorization and not authorization.startswith("a="):
        raise SaslFailure("Invalid SCRAM client first message format")
    extensions = attributes[2:]
    nonce = attributes[1][2:]
    if not _NONCE.fullmatch(nonce) or not all(map(_EXTENSION.fullmatch, extensions)):
        raise SaslFailure("Invalid SCRAM client first message format")
    return _ClientFirst(
        f"{flag},{authorization},",
        _decode_name(authorization[2:]) if authorization else "",
        bare,
        _decode_name(attributes[0][2:]),
        nonce,
        any(each.lower() == "tokenauth=true" for each in extensions),
    )


def _decode_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise SaslFailure("Invalid SCRAM client first message format")
    # The comma first: with the other order `=3D2C`, which is the text `=2C`, would become a comma.
    return name.replace("=2C", ",").replace("=3D", "=")


class _ClientFinal(NamedTuple):
    channel_binding: bytes
    nonce: str
    proof: bytes
    without_proof: str


def _parse_client_final(text: str) -> _ClientFinal:
    """Parse `c=base64,r=nonce[,extensions],p=base64`. Raises SaslFailure."""
    without_proof, comma, proof = text.rpartition(",p=")
    attributes = without_proof.split(",", _ATTRIBUTES_MAX)
    if not comma or len(attributes) < 2 or not attributes[0].startswith("c=") or not attributes[1].startswith("r="):
        raise SaslFailure("Invalid SCRAM client final message format")
    if not all(map(_EXTENSION.fullmatch, attributes[2:])):
        raise SaslFailure("Invalid SCRAM client final message format")
    try:
        channel_binding = base64.b64decode(attributes[0][2:].encode(), validate=True)
        decoded = base64.b64decode(proof.encode(), validate=True)
    except (binascii.Error, ValueError):
        raise SaslFailure("Invalid SCRAM client final message format") from None
    return _ClientFinal(channel_binding, attributes[1][2:], decoded, without_proof)
