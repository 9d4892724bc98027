"""Delegation tokens: create, renew, expire and list them (KIP-48, KIP-373).

Zone: real. A token is a login for programs that must not get a user's password: its id is the user name of SCRAM, and
its HMAC the password. Who has the HMAC acts as the owner; it does not appear in a repr.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from ottla.client.cluster import Cluster
from ottla.client.errors import UnsupportedVersionError, UsageError, refused_error
from ottla.client.retry import Deadline
from ottla.wire.apis import ApiKey
from ottla.wire.messages import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
    ExpireDelegationTokenRequest,
    ExpireDelegationTokenResponse,
    RenewDelegationTokenRequest,
    RenewDelegationTokenResponse,
)

BROKERS_DEFAULT: Final = -1
"""As a period: that of the broker (`delegation.token.max.lifetime.ms`, `delegation.token.expiry.time.ms`)."""
_OWNER_VERSION: Final = 3


@dataclass(frozen=True, slots=True)
class DelegationToken:
    """A token. Times in ms since 1970; principals as text: `User:alice`."""

    token_id: str
    hmac: bytes = field(repr=False)
    owner: str
    requester: str
    """Who created it; empty if the broker does not report it."""
    issued_ms: int
    expires_ms: int
    max_ms: int
    """When it expires even if it is renewed."""
    renewers: tuple[str, ...] = ()

    @property
    def password(self) -> str:
        """The password for SCRAM, with the token's id as user name and `tokenauth="true"`."""
        return base64.b64encode(self.hmac).decode()


class TokenAdmin:
    """Calls about delegation tokens over a Cluster, which the caller closes. One thread per object.

    DELEGATION_TOKEN_AUTH_DISABLED: the brokers have no `delegation.token.secret.key`.
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED: the connection has no login, or itself a token.
    """

    __slots__ = ("_cluster",)

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def create_delegation_token(
        self,
        renewers: Iterable[str] = (),
        *,
        max_lifetime_ms: int = BROKERS_DEFAULT,
        owner: str | None = None,
        deadline: Deadline | None = None,
    ) -> DelegationToken:
        """A new token of the principal that this client has, or of `owner` (needs CREATE_TOKENS on that user).

        renewers: principals that may renew and expire it besides its owner. If the answer was lost, the request is
        repeated, and there is one more token, which expires. Raises RefusedError, UsageError.
        """
        # Read once: the request may be encoded again for another version, and the answer does not repeat them.
        given = tuple(renewers)
        build = _create_request([_split_principal(each) for each in given], owner, max_lifetime_ms)
        answer = self._cluster.send_request(
            ApiKey.CREATE_DELEGATION_TOKEN,
            build,
            CreateDelegationTokenResponse,
            deadline=deadline,
            refused=lambda answer: refused_error(answer.error_code, "delegation token"),
        )
        return DelegationToken(
            answer.token_id,
            bytes(answer.hmac),
            _principal(answer.principal_type, answer.principal_name),
            _principal(answer.token_requester_principal_type, answer.token_requester_principal_name),
            answer.issue_timestamp_ms,
            answer.expiry_timestamp_ms,
            answer.max_timestamp_ms,
            given,
        )

    def renew_delegation_token(
        self, hmac: bytes, *, period_ms: int = BROKERS_DEFAULT, deadline: Deadline | None = None
    ) -> int:
        """Let a token expire `period_ms` from now. Returns the new expiry (ms), at most its `max_ms`.

        Raises RefusedError: DELEGATION_TOKEN_NOT_FOUND, DELEGATION_TOKEN_EXPIRED, DELEGATION_TOKEN_OWNER_MISMATCH.
        """
        answer = self._cluster.send_request(
            ApiKey.RENEW_DELEGATION_TOKEN,
            lambda _: RenewDelegationTokenRequest(hmac=hmac, renew_period_ms=period_ms),
            RenewDelegationTokenResponse,
            deadline=deadline,
            refused=lambda answer: refused_error(answer.error_code, "delegation token"),
        )
        return answer.expiry_timestamp_ms

    def expire_delegation_token(self, hmac: bytes, *, period_ms: int = -1, deadline: Deadline | None = None) -> int:
        """Let a token expire `period_ms` from now, at once if it is negative. Returns the expiry (ms).

        Raises RefusedError, as `renew_delegation_token`.
        """
        answer = self._cluster.send_request(
            ApiKey.EXPIRE_DELEGATION_TOKEN,
            lambda _: ExpireDelegationTokenRequest(hmac=hmac, expiry_time_period_ms=period_ms),
            ExpireDelegationTokenResponse,
            deadline=deadline,
            refused=lambda answer: refused_error(answer.error_code, "delegation token"),
        )
        return answer.expiry_timestamp_ms

    def describe_delegation_tokens(
        self, owners: Iterable[str] | None = None, deadline: Deadline | None = None
    ) -> list[DelegationToken]:
        """The tokens of these owners, or all, as far as the principal may see them; sorted by id. Raises RefusedError.

        Seen are tokens that the principal owns or may renew, and those on which it has DESCRIBE, or DESCRIBE_TOKENS on
        their owner.
        """
        kind = DescribeDelegationTokenRequest.DescribeDelegationTokenOwner
        named = (
            None
            if owners is None
            else [kind(principal_type=t, principal_name=n) for t, n in map(_split_principal, owners)]
        )
        answer = self._cluster.send_request(
            ApiKey.DESCRIBE_DELEGATION_TOKEN,
            lambda _: DescribeDelegationTokenRequest(owners=named),
            DescribeDelegationTokenResponse,
            deadline=deadline,
            refused=lambda answer: refused_error(answer.error_code, "delegation tokens"),
        )
        return sorted(map(_token, answer.tokens), key=lambda token: token.token_id)


def _create_request(
    renewers: list[tuple[str, str]], owner: str | None, max_lifetime_ms: int
) -> Callable[[int], CreateDelegationTokenRequest]:
    kind, name = ("", "") if owner is None else _split_principal(owner)
    creatable = CreateDelegationTokenRequest.CreatableRenewers

    def build_request(version: int) -> CreateDelegationTokenRequest:
        # Refused here: older versions lack the field, and the token would be that of the wrong principal.
        if owner is not None and version < _OWNER_VERSION:
            raise UnsupportedVersionError(
                "this broker creates tokens only for the principal that asks", "Log in as the owner"
            )
        return CreateDelegationTokenRequest(
            owner_principal_type=kind,
            owner_principal_name=name,
            renewers=[creatable(principal_type=t, principal_name=n) for t, n in renewers],
            max_lifetime_ms=max_lifetime_ms,
        )

    return build_request


def _split_principal(principal: str) -> tuple[str, str]:
    """(type, name) of `User:alice`. Raises UsageError."""
    kind, colon, name = principal.partition(":")
    if not kind or not colon or not name:
        raise UsageError(f"{principal!r} is not a principal", "Write User:NAME")
    return kind, name


def _principal(kind: str, name: str) -> str:
    return f"{kind}:{name}" if kind else ""


def _token(found: DescribeDelegationTokenResponse.DescribedDelegationToken) -> DelegationToken:
    return DelegationToken(
        found.token_id,
        bytes(found.hmac),
        _principal(found.principal_type, found.principal_name),
        _principal(found.token_requester_principal_type, found.token_requester_principal_name),
        found.issue_timestamp,
        found.expiry_timestamp,
        found.max_timestamp,
        tuple(_principal(each.principal_type, each.principal_name) for each in found.renewers),
    )
