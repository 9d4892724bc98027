"""CreateDelegationToken, RenewDelegationToken, ExpireDelegationToken and DescribeDelegationToken (KIP-48, KIP-373).

Zone: deterministic. Any broker serves them. A connection that may use tokens has logged in, and not by a token: else a
token could prolong itself without end.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Generator, Iterable, Mapping
from typing import Any, Final, Protocol

from ottla.acls import Operation, ResourceType
from ottla.errors import ApiError, ErrorCode
from ottla.requests import Context, InPieces, handles
from ottla.seams import Clock, Entropy, Peer
from ottla.security.audit_log import AuditLog
from ottla.security.sasl.mechanism import Identity
from ottla.security.tokens.token_table import TokenTable
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
from ottla.znodes.token_nodes import TokenInfo

_BYTES_MAX: Final = 32 * 1024
"""Most bytes of a request: some hundred renewers or owners."""
_PIECE: Final = 200
_USER: Final = "User"
_ANONYMOUS: Final = "User:ANONYMOUS"
_NONE: Final = -1
_Described = DescribeDelegationTokenResponse.DescribedDelegationToken
Done = Callable[[object], None]
"""Receives the new state of a token (None: it was deleted), or an ApiError."""


class TokenWriter(Protocol):
    """Changes tokens in the metadata store (`ottla.broker.assembly.tokens`)."""

    def create_token(self, info: TokenInfo, done: Done) -> None:
        """Store a new token."""
        ...

    def change_token(self, token_id: str, edit: Callable[[TokenInfo], TokenInfo | None], done: Done) -> None:
        """Replace a token by what `edit` returns; None deletes it."""
        ...


class Lifetimes(Protocol):
    """The settings about times (`ottla.config.broker.BrokerConfig`)."""

    @property
    def delegation_token_max_lifetime_ms(self) -> int:
        """With all renewals."""
        ...

    @property
    def delegation_token_expiry_time_ms(self) -> int:
        """Until the first renewal."""
        ...


class TokenHandlers:
    """Handles requests about tokens."""

    def __init__(
        self,
        table: TokenTable | None,
        writer: TokenWriter | None,
        lifetimes: Lifetimes,
        protocols: Mapping[str, str],
        identity_of: Callable[[Peer], Identity | None],
        clock: Clock,
        entropy: Entropy,
        audit: AuditLog,
    ) -> None:
        """table, writer: None without `delegation.token.secret.key`. protocols: listener → security protocol.
        identity_of: who has logged in by SASL."""
        self._table = table
        self._writer = writer
        self._lifetimes = lifetimes
        self._protocols = protocols
        self._identity_of = identity_of
        self._clock = clock
        self._entropy = entropy
        self._audit = audit

    def _check_connection(self, peer: Peer) -> None:
        """Raise ApiError if the connection may not use tokens, or if there are none."""
        identity = self._identity_of(peer)
        is_plain = self._protocols.get(peer.listener, "PLAINTEXT") == "PLAINTEXT"
        by_token = identity is not None and identity.by_token
        if is_plain or by_token or peer.principal == _ANONYMOUS:
            text = "Delegation Token requests are not allowed on PLAINTEXT/1-way SSL channels and on delegation token"
            raise ApiError(ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED, f"{text} authenticated channels.")
        if self._table is None:
            raise ApiError(ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED, "Delegation Token feature is not enabled.")

    def _now_ms(self) -> int:
        return self._clock.now().wall_ms

    # -- creating ----------------------------------------------------------------------------------------------------

    @handles(
        ApiKey.CREATE_DELEGATION_TOKEN,
        0,
        3,
        resource="User",
        operation="CreateTokens",
        undivided="the number of renewers is bounded by the size of the request",
        most_bytes=_BYTES_MAX,
    )
    def create_token(
        self, context: Context, request: CreateDelegationTokenRequest
    ) -> CreateDelegationTokenResponse | None:
        """Create a token, for the client itself or (version 3) for another user."""
        requester = context.peer.principal
        owner = requester
        try:
            self._check_connection(context.peer)
            if request.owner_principal_name:
                owner = f"{request.owner_principal_type}:{request.owner_principal_name}"
            if owner != requester:
                self._check_owner(context, owner)
            renewers = tuple(dict.fromkeys(f"{one.principal_type}:{one.principal_name}" for one in request.renewers))
            if any(one.principal_type != _USER or not one.principal_name for one in request.renewers):
                raise ApiError(ErrorCode.INVALID_PRINCIPAL_TYPE, "Supplied principalType is not supported.")
        except ApiError as error:
            return _not_created(error.code, owner, requester)
        self._store_token(context, self._new_token(owner, requester, renewers, request.max_lifetime_ms))
        return None

    @staticmethod
    def _check_owner(context: Context, owner: str) -> None:
        if not owner.startswith(f"{_USER}:"):
            raise ApiError(ErrorCode.INVALID_PRINCIPAL_TYPE, "Supplied principalType is not supported.")
        if not context.is_allowed(Operation.CREATE_TOKENS, ResourceType.USER, owner):
            raise ApiError(ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED, "Delegation Token authorization failed.")

    def _new_token(self, owner: str, requester: str, renewers: tuple[str, ...], lifetime_ms: int) -> TokenInfo:
        most_ms = self._lifetimes.delegation_token_max_lifetime_ms
        now_ms = self._now_ms()
        max_ms = now_ms + (min(lifetime_ms, most_ms) if lifetime_ms > 0 else most_ms)
        expires_ms = min(max_ms, now_ms + self._lifetimes.delegation_token_expiry_time_ms)
        random = self._entropy.random_bytes("delegation tokens", 16)
        token_id = base64.urlsafe_b64encode(random).decode().rstrip("=")
        return TokenInfo(token_id, owner, requester, renewers, now_ms, max_ms, expires_ms)

    def _store_token(self, context: Context, info: TokenInfo) -> None:
        assert self._writer is not None, "checked before"
        assert self._table is not None, "checked before"
        digest = self._table.hmac_of(info.token_id)

        def send_outcome(outcome: object) -> None:
            if isinstance(outcome, ApiError):
                context.send_reply(_not_created(outcome.code, info.owner, info.requester))
                return
            self._log_change(context, "create", info)
            context.send_reply(
                CreateDelegationTokenResponse(
                    **_principals(info),
                    issue_timestamp_ms=info.issued_ms,
                    expiry_timestamp_ms=info.expires_ms,
                    max_timestamp_ms=info.max_ms,
                    token_id=info.token_id,
                    hmac=digest,
                )
            )

        self._writer.create_token(info, context.wrap_step(send_outcome))

    def _log_change(self, context: Context, operation: str, info: TokenInfo) -> None:
        self._audit.log_change(context.peer, "token", operation=operation, token=info.token_id, owner=info.owner)

    # -- renewing and expiring ---------------------------------------------------------------------------------------

    @handles(ApiKey.RENEW_DELEGATION_TOKEN, 0, 2)
    def renew_token(self, context: Context, request: RenewDelegationTokenRequest) -> None:
        """Prolong a token, up to its longest lifetime. A negative period: the configured one."""
        period_ms = request.renew_period_ms
        if period_ms < 0:
            period_ms = self._lifetimes.delegation_token_expiry_time_ms

        def respond(error_code: int, expires_ms: int) -> None:
            context.send_reply(RenewDelegationTokenResponse(error_code=error_code, expiry_timestamp_ms=expires_ms))

        self._change_token(context, "renew", bytes(request.hmac), period_ms, respond)

    @handles(ApiKey.EXPIRE_DELEGATION_TOKEN, 0, 2)
    def expire_token(self, context: Context, request: ExpireDelegationTokenRequest) -> None:
        """Set when a token expires; a negative period deletes it."""
        period_ms = request.expiry_time_period_ms

        def respond(error_code: int, expires_ms: int) -> None:
            context.send_reply(ExpireDelegationTokenResponse(error_code=error_code, expiry_timestamp_ms=expires_ms))

        operation = "delete" if period_ms < 0 else "expire"
        self._change_token(context, operation, bytes(request.hmac), period_ms, respond)

    def _change_token(
        self, context: Context, operation: str, digest: bytes, period_ms: int, respond: Callable[[int, int], None]
    ) -> None:
        principal, now_ms = context.peer.principal, self._now_ms()

        def edit(info: TokenInfo) -> TokenInfo | None:
            if principal != info.owner and principal not in info.renewers:
                raise ApiError(ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH, "Specified Principal is not valid Owner.")
            if operation == "delete":
                return None
            if info.max_ms < now_ms or info.expires_ms < now_ms:
                raise ApiError(ErrorCode.DELEGATION_TOKEN_EXPIRED, "Delegation Token is expired.")
            return info._replace(expires_ms=min(info.max_ms, now_ms + period_ms))

        try:
            self._check_connection(context.peer)
            assert self._table is not None, "checked before"
            assert self._writer is not None, "checked before"
            found = self._table.find_by_hmac(digest)
            if found is None:
                raise ApiError(ErrorCode.DELEGATION_TOKEN_NOT_FOUND, "Delegation Token is not found on server.")
            edit(found)  # most errors cost no request to the store
        except ApiError as error:
            respond(error.code, _NONE)
            return

        def on_changed(outcome: object) -> None:
            if isinstance(outcome, ApiError):
                respond(outcome.code, _NONE)
                return
            self._log_change(context, operation, found)
            respond(ErrorCode.NONE, outcome.expires_ms if isinstance(outcome, TokenInfo) else now_ms)

        self._writer.change_token(found.token_id, edit, context.wrap_step(on_changed))

    # -- describing --------------------------------------------------------------------------------------------------

    @handles(
        ApiKey.DESCRIBE_DELEGATION_TOKEN,
        0,
        3,
        resource="DelegationToken",
        operation="Describe",
        also=(("User", "DescribeTokens"),),
        undivided="the response is built in pieces; the number of owners is bounded by the size of the request",
        most_bytes=_BYTES_MAX,
    )
    def describe_tokens(
        self, context: Context, request: DescribeDelegationTokenRequest
    ) -> DescribeDelegationTokenResponse | InPieces:
        """Return the tokens of some owners, or all that the client may see."""
        try:
            self._check_connection(context.peer)
        except ApiError as error:
            return DescribeDelegationTokenResponse(error_code=error.code)
        assert self._table is not None, "checked before"
        owners = None
        if request.owners is not None:
            owners = {f"{one.principal_type}:{one.principal_name}" for one in request.owners}
        return InPieces(("tokens",), self._describe_pieces(context, owners))

    def _describe_pieces(
        self, context: Context, owners: set[str] | None
    ) -> Generator[DescribeDelegationTokenResponse, None, None]:
        assert self._table is not None, "checked before"
        present = list(self._table.tokens.values())
        # Each piece is a turn: users may have made any number of tokens, also where few are asked for.
        for begin in range(0, max(1, len(present)), _PIECE):
            some = present[begin : begin + _PIECE]
            shown = (info for info in some if (owners is None or info.owner in owners) and _may_see(context, info))
            yield DescribeDelegationTokenResponse(tokens=self._rows_of(shown))

    def _rows_of(self, tokens: Iterable[TokenInfo]) -> list[_Described]:
        assert self._table is not None, "checked before"
        return [
            _Described(
                **_principals(info),
                issue_timestamp=info.issued_ms,
                expiry_timestamp=info.expires_ms,
                max_timestamp=info.max_ms,
                token_id=info.token_id,
                hmac=self._table.hmac_of(info.token_id),
                renewers=[_renewer(each) for each in info.renewers],
            )
            for info in tokens
        ]


def _may_see(context: Context, info: TokenInfo) -> bool:
    """Whether the client is the owner or a renewer, or may describe the token or the owner's tokens."""
    principal = context.peer.principal
    return (
        principal == info.owner
        or principal in info.renewers
        or context.is_allowed(Operation.DESCRIBE, ResourceType.DELEGATION_TOKEN, info.token_id, logs=False)
        or context.is_allowed(Operation.DESCRIBE_TOKENS, ResourceType.USER, info.owner, logs=False)
    )


def _principals(info: TokenInfo) -> dict[str, Any]:
    owner, requester = info.owner.partition(":"), info.requester.partition(":")
    return {
        "principal_type": owner[0],
        "principal_name": owner[2],
        "token_requester_principal_type": requester[0],
        "token_requester_principal_name": requester[2],
    }


def _renewer(principal: str) -> DescribeDelegationTokenResponse.DescribedDelegationTokenRenewer:
    kind, _, name = principal.partition(":")
    return DescribeDelegationTokenResponse.DescribedDelegationTokenRenewer(principal_type=kind, principal_name=name)


def _not_created(error_code: ErrorCode, owner: str, requester: str) -> CreateDelegationTokenResponse:
    info = TokenInfo("", owner, requester, (), _NONE, _NONE, _NONE)
    return CreateDelegationTokenResponse(
        error_code=error_code,
        **_principals(info),
        issue_timestamp_ms=_NONE,
        expiry_timestamp_ms=_NONE,
        max_timestamp_ms=_NONE,
    )
