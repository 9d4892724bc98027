"""CreateDelegationToken (key 38), RenewDelegationToken (39), ExpireDelegationToken (40), DescribeDelegationToken (41).

Zone: pure. Declarations only: what bytes there are in which version.
"""

from __future__ import annotations

from ottla.wire.schema import Message, Struct, array, int16, int32, int64, nullable_string, octets, string


class CreateDelegationTokenRequest(Message, api_key=38, versions="0-3", flexible="2+"):
    """A token for the caller, or from v3 for another owner (KIP-48, KIP-373)."""

    class CreatableRenewers(Struct):
        principal_type: str = string("0+")
        principal_name: str = string("0+")

    owner_principal_type: str | None = nullable_string("3+", "3+", "")
    owner_principal_name: str | None = nullable_string("3+", "3+", "")
    renewers: list[CreatableRenewers] = array("0+", most=1_000)
    max_lifetime_ms: int = int64("0+")


class CreateDelegationTokenResponse(Message, api_key=38, versions="0-3", flexible="2+"):
    """The token with its HMAC and times in ms since 1970."""

    error_code: int = int16("0+")
    principal_type: str = string("0+")
    principal_name: str = string("0+")
    token_requester_principal_type: str = string("3+")
    token_requester_principal_name: str = string("3+")
    issue_timestamp_ms: int = int64("0+")
    expiry_timestamp_ms: int = int64("0+")
    max_timestamp_ms: int = int64("0+")
    token_id: str = string("0+")
    hmac: bytes = octets("0+")
    throttle_time_ms: int = int32("0+")


class RenewDelegationTokenRequest(Message, api_key=39, versions="0-2", flexible="2+"):
    """A token's HMAC and the period to add, in ms."""

    hmac: bytes = octets("0+")
    renew_period_ms: int = int64("0+")


class RenewDelegationTokenResponse(Message, api_key=39, versions="0-2", flexible="2+"):
    """The new expiry."""

    error_code: int = int16("0+")
    expiry_timestamp_ms: int = int64("0+")
    throttle_time_ms: int = int32("0+")


class ExpireDelegationTokenRequest(Message, api_key=40, versions="0-2", flexible="2+"):
    """A token's HMAC and the period it has left, in ms; negative ends it now."""

    hmac: bytes = octets("0+")
    expiry_time_period_ms: int = int64("0+")


class ExpireDelegationTokenResponse(Message, api_key=40, versions="0-2", flexible="2+"):
    """The new expiry."""

    error_code: int = int16("0+")
    expiry_timestamp_ms: int = int64("0+")
    throttle_time_ms: int = int32("0+")


class DescribeDelegationTokenRequest(Message, api_key=41, versions="0-3", flexible="2+"):
    """Owners whose tokens are wanted; null means all the caller may see."""

    class DescribeDelegationTokenOwner(Struct):
        principal_type: str = string("0+")
        principal_name: str = string("0+")

    owners: list[DescribeDelegationTokenOwner] | None = array("0+", nullable="0+", most=10_000)


class DescribeDelegationTokenResponse(Message, api_key=41, versions="0-3", flexible="2+"):
    """The tokens."""

    class DescribedDelegationTokenRenewer(Struct):
        principal_type: str = string("0+")
        principal_name: str = string("0+")

    class DescribedDelegationToken(Struct):
        principal_type: str = string("0+")
        principal_name: str = string("0+")
        token_requester_principal_type: str = string("3+")
        token_requester_principal_name: str = string("3+")
        issue_timestamp: int = int64("0+")
        expiry_timestamp: int = int64("0+")
        max_timestamp: int = int64("0+")
        token_id: str = string("0+")
        hmac: bytes = octets("0+")
        renewers: list[DescribeDelegationTokenResponse.DescribedDelegationTokenRenewer] = array("0+")

    error_code: int = int16("0+")
    tokens: list[DescribedDelegationToken] = array("0+")
    throttle_time_ms: int = int32("0+")
