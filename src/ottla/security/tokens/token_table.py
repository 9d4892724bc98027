"""The delegation tokens of the cluster: by id for logins, by HMAC for requests, by expiry for their removal.

Zone: deterministic. The HMAC of an id under the brokers' secret key is what a client gets, and is its password for
SCRAM, as base64. Who knows the key can make any token.
"""

from __future__ import annotations

import base64
import hmac
from collections import OrderedDict
from heapq import heappop, heappush
from typing import Final

from ottla.seams import Entropy
from ottla.security.sasl.scram import TokenCredential
from ottla.security.sasl.scram_credentials import ScramCredential, ScramMechanism, credential_from_password
from ottla.znodes.token_nodes import TokenInfo

CREDENTIALS_MAX: Final = 1_000
"""Most credentials that are kept; each takes milliseconds to compute."""
_SALT: Final = 16
_OLD_MAX: Final = 100
"""Old entries of the heap that are kept in any case."""


class TokenTable:
    """All tokens. Implements `ottla.security.sasl.scram.TokenCredentials`."""

    def __init__(self, secret_key: str, entropy: Entropy) -> None:
        """secret_key: `delegation.token.secret.key`."""
        self._key = secret_key.encode(errors="surrogateescape")
        self._entropy = entropy
        self.tokens: dict[str, TokenInfo] = {}
        """By id."""
        self._ids: dict[bytes, str] = {}
        """HMAC → id."""
        self._expiries: list[tuple[int, str]] = []
        """A heap of (time, id); an entry whose time is not that of the token is an old one."""
        self._credentials: OrderedDict[tuple[str, ScramMechanism], ScramCredential] = OrderedDict()

    def hmac_of(self, token_id: str) -> bytes:
        """The HMAC of a token."""
        # SHA-512, as in Kafka: tokens that its brokers have issued keep their HMAC.
        return hmac.digest(self._key, token_id.encode(), "sha512")

    def replace_token(self, info: TokenInfo) -> None:
        """Add a token, or replace what is known of it."""
        self.tokens[info.token_id] = info
        self._ids[self.hmac_of(info.token_id)] = info.token_id
        heappush(self._expiries, (info.expires_ms, info.token_id))
        if len(self._expiries) > 2 * len(self.tokens) + _OLD_MAX:
            # A sorted list is a heap.
            self._expiries = sorted((each.expires_ms, each.token_id) for each in self.tokens.values())

    def remove_token(self, token_id: str) -> None:
        """Forget a token; no error if it is not known."""
        if self.tokens.pop(token_id, None) is not None:
            del self._ids[self.hmac_of(token_id)]
            for mechanism in ScramMechanism:
                self._credentials.pop((token_id, mechanism), None)

    def find_by_hmac(self, digest: bytes) -> TokenInfo | None:
        """The token with this HMAC."""
        found = self._ids.get(digest)
        return None if found is None else self.tokens[found]

    def find_token(self, mechanism: ScramMechanism, token_id: str) -> TokenCredential | None:
        """The token as a credential, unless there is none of this id."""
        info = self.tokens.get(token_id)
        if info is None:
            return None
        return TokenCredential(self._credential_of(token_id, mechanism), info.owner.partition(":")[2], info.expires_ms)

    def _credential_of(self, token_id: str, mechanism: ScramMechanism) -> ScramCredential:
        known = self._credentials.get((token_id, mechanism))
        if known is None:
            password = base64.b64encode(self.hmac_of(token_id)).decode()
            salt = self._entropy.random_bytes("salts of tokens", _SALT)
            known = self._credentials[token_id, mechanism] = credential_from_password(mechanism, salt, password)
            if len(self._credentials) > CREDENTIALS_MAX:
                self._credentials.popitem(last=False)
        return known

    def take_expired(self, now_ms: int, most: int) -> list[TokenInfo]:
        """At most `most` tokens that have expired; what is not removed then is not returned again."""
        found: list[TokenInfo] = []
        while self._expiries and self._expiries[0][0] < now_ms and len(found) < most:
            expires_ms, token_id = heappop(self._expiries)
            info = self.tokens.get(token_id)
            if info is not None and info.expires_ms == expires_ms:
                found.append(info)
        return found
