"""Kafka's nodes of delegation tokens (KIP-48): paths, JSON and notifications, as Apache Kafka 3.9 has them.

Zone: pure. A token's node has everything but its HMAC, which each broker computes from the id with
`delegation.token.secret.key`. After a change the writer creates a sequential notification with the token's id.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from ottla.znodes.entity_nodes import decode_name, encode_name

_ROOT: Final = "/delegation_token"
TOKENS: Final = f"{_ROOT}/tokens"
TOKEN_CHANGES: Final = f"{_ROOT}/token_changes"
TOKEN_CHANGE: Final = f"{TOKEN_CHANGES}/token_change_"
"""The store appends the sequence number."""
PERSISTENT_TOKEN_PATHS: Final = (_ROOT, TOKENS, TOKEN_CHANGES)
_VERSION: Final = 3
_WITH_REQUESTER: Final = 3
_TIME_MAX: Final = 2**63 - 1


class TokenInfo(NamedTuple):
    """A token without its HMAC. Principals are texts, `User:ann`; times are in ms since 1970."""

    token_id: str
    owner: str
    requester: str
    renewers: tuple[str, ...]
    issued_ms: int
    max_ms: int
    """After this time it cannot be renewed."""
    expires_ms: int


def token_path(token_id: str) -> str:
    """Path of a token's node."""
    return f"{TOKENS}/{token_id}"


def encode_token(info: TokenInfo) -> bytes:
    """The content of a token's node."""
    content = {
        "version": _VERSION,
        "owner": encode_name(info.owner),
        "tokenRequester": encode_name(info.requester),
        "renewers": [encode_name(each) for each in info.renewers],
        "issueTimestamp": info.issued_ms,
        "maxTimestamp": info.max_ms,
        "expiryTimestamp": info.expires_ms,
        "tokenId": info.token_id,
    }
    return json.dumps(content, separators=(",", ":")).encode()


def decode_token(token_id: str, data: bytes) -> TokenInfo:
    """Inverse of `encode_token`, of every version that Kafka has written. Raises ValueError."""
    try:
        content = json.loads(data)
    except RecursionError:
        raise ValueError("the node is nested too deeply") from None
    if not isinstance(content, dict) or content.get("version") not in range(1, _VERSION + 1):
        raise ValueError(f"the node has no version from 1 to {_VERSION}")
    if content.get("tokenId") != token_id:
        raise ValueError("the node is that of another token")
    owner = _principal_in(content.get("owner"))
    # Before version 3 (KIP-373) the requester of a token was always its owner.
    requester = _principal_in(content.get("tokenRequester")) if content["version"] >= _WITH_REQUESTER else owner
    renewers = content.get("renewers")
    if not isinstance(renewers, list):
        raise ValueError("the node has no list of renewers")
    times = (_time_in(content, f"{kind}Timestamp") for kind in ("issue", "max", "expiry"))
    return TokenInfo(token_id, owner, requester, tuple(map(_principal_in, renewers)), *times)


def _principal_in(value: object) -> str:
    principal = decode_name(value) if isinstance(value, str) else None
    if principal is None or not all(principal.partition(":")):
        raise ValueError("the node has a principal that is not TYPE:NAME")
    return principal


def _time_in(content: Mapping[str, Any], name: str) -> int:
    value = content.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _TIME_MAX:
        raise ValueError(f"{name} is not a time")
    return value
