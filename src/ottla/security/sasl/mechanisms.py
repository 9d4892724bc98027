"""The mechanisms of one listener: creates an exchange for each login.

Zone: deterministic.
"""

from __future__ import annotations

import base64
from typing import Final

from ottla.config.sasl_listeners import OAUTHBEARER, PLAIN, SCRAM, SaslListener
from ottla.seams import Entropy, TokenSignatures
from ottla.security.broker_login import BrokerLogin
from ottla.security.broker_proof import MECHANISM
from ottla.security.sasl.mechanism import SaslExchange
from ottla.security.sasl.oauthbearer import BearerTokens, OauthBearerExchange
from ottla.security.sasl.plain import PlainExchange, StaticPasswords
from ottla.security.sasl.scram import ScramExchange, TokenCredentials
from ottla.security.sasl.scram_credentials import MECHANISMS
from ottla.security.sasl.token_claims import CheckedTokens, ClaimRules, UnsecuredTokens
from ottla.security.sasl.users import SaslUsers

_NONCE: Final = 24


class Mechanisms:
    """Creates the exchanges of one listener."""

    def __init__(
        self,
        listener: SaslListener,
        users: SaslUsers,
        entropy: Entropy,
        signatures: TokenSignatures | None = None,
        brokers: BrokerLogin | None = None,
        tokens: TokenCredentials | None = None,
    ) -> None:
        """signatures: checks those of bearer tokens. brokers: None if brokers share no secret.

        Users of PLAIN are those of the listener's login module, then those of the file.
        """
        self._passwords = _EitherPasswords(StaticPasswords(listener.users), users.passwords)
        self._users = users
        self._entropy = entropy
        self._brokers = brokers
        self._tokens = tokens
        self._bearer = _bearer_tokens(listener, signatures)

    def start_exchange(self, mechanism: str) -> SaslExchange:
        """Begin a login with an enabled mechanism."""
        if mechanism == PLAIN:
            return PlainExchange(self._passwords)
        if mechanism in SCRAM:
            nonce = base64.b64encode(self._entropy.random_bytes("SCRAM nonces", _NONCE)).decode()
            return ScramExchange(MECHANISMS[mechanism], self._users.table, nonce, self._tokens)
        if mechanism == OAUTHBEARER and self._bearer is not None:
            return OauthBearerExchange(self._bearer)
        assert mechanism == MECHANISM, "a mechanism that is not enabled"
        assert self._brokers is not None, "a mechanism that is not enabled"
        return self._brokers.new_exchange()


class _EitherPasswords:
    """Passwords of two sources. Both are compared, so that the time does not depend on which has the user."""

    def __init__(self, first: StaticPasswords, second: StaticPasswords) -> None:
        self._first, self._second = first, second

    def matches_password(self, user: str, password: str) -> bool:
        """Whether this is the password of the user; a user of the first source is not looked for in the second."""
        first, second = (each.matches_password(user, password) for each in (self._first, self._second))
        return first or (second and not self._first.has_user(user))


def _bearer_tokens(listener: SaslListener, signatures: TokenSignatures | None) -> BearerTokens | None:
    settings = listener.bearer
    if settings is None:
        return None
    rules = ClaimRules(
        audiences=settings.audiences,
        issuer=settings.issuer,
        subject_claim=settings.subject_claim,
        scope_claim=settings.scope_claim,
        required_scopes=settings.required_scopes,
        clock_skew_s=settings.clock_skew_s,
        requires_issue_time=not settings.is_unsecured,
    )
    if settings.is_unsecured:
        return CheckedTokens(UnsecuredTokens(), rules)
    assert signatures is not None, "signed tokens without keys"
    return CheckedTokens(signatures, rules)
