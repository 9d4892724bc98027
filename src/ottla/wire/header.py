"""The headers in front of every request and response.

Zone: pure. Layouts, all big-endian, after the frame's length prefix:

    request v0   api_key int16, api_version int16, correlation_id int32           (ControlledShutdown v0 alone)
    request v1   … client_id nullable string with an int16 length
    request v2   … tagged fields                                                  (flexible versions)
    response v0  correlation_id int32
    response v1  … tagged fields                                                  (flexible versions)

ApiVersions has response header v0 in every version, because the client does not know the broker's versions yet
(KIP-511).
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from ottla.utf8 import decode_text, encode_text
from ottla.wire.apis import API_TABLE, ApiKey
from ottla.wire.errors import MalformedMessage, fail
from ottla.wire.primitives import Buffer, skip_tags

UNKNOWN_BODY: Final = -1
"""`body_pos` of a request with an unknown API or version, whose header version is also unknown."""


class RequestHeader(NamedTuple):
    """The header of a request; the body starts at `body_pos`."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    body_pos: int


_unpack_fixed = struct.Struct(">hhi").unpack_from
_unpack_common = struct.Struct(">hhih").unpack_from
_pack_fixed = struct.Struct(">hhi").pack
_pack_common = struct.Struct(">hhih").pack
_pack_correlation = struct.Struct(">i").pack
_new = tuple.__new__  # takes a third of the time of RequestHeader(…); called for every request

_SHAPES: Final = {
    (api.key.value, version): version >= api.flexible_from
    for api in API_TABLE.values()
    for version in range(api.min_version, api.max_version + 1)
    if (api.key, version) != (ApiKey.CONTROLLED_SHUTDOWN, 0)
}
"""For every known (API, version) with a client id: whether tagged fields follow the client id."""


def decode_request_header(view: Buffer) -> RequestHeader:
    """Decode the header of a whole request frame.

    For an unknown API or version only the first three fields (`client_id` None, `body_pos` UNKNOWN_BODY).
    Raises MalformedMessage when even those are truncated, or when the client id or the tagged fields are malformed.
    """
    end = len(view)
    if end < 10:
        return _short_header(view)
    key, version, correlation, length = _unpack_common(view)
    flexible = _SHAPES.get((key, version))
    if flexible is None:
        return _short_header(view)
    if length < 0:
        if length != -1:
            fail("client_id", length)
        pos, client = 10, None
    else:
        pos = 10 + length
        if pos > end:
            fail("client_id", length)
        try:
            client = bytes(view[10:pos]).decode()
        except UnicodeDecodeError:
            client = decode_text(bytes(view[10:pos]))
    if flexible:
        pos = pos + 1 if pos < end and not view[pos] else _pass_tags(view, pos)
    return _new(RequestHeader, (key, version, correlation, client, pos))


def _short_header(view: Buffer) -> RequestHeader:
    """Decode a header without a client id, or with one at an unknown position."""
    if len(view) < 8:
        raise MalformedMessage(f"request header: {len(view)} of 8 bytes")
    key, version, correlation = _unpack_fixed(view)
    if (key, version) in _SHAPES:
        raise MalformedMessage("request header: cut short")
    known = (key, version) == (ApiKey.CONTROLLED_SHUTDOWN, 0)
    return RequestHeader(key, version, correlation, None, 8 if known else UNKNOWN_BODY)


def _pass_tags(view: Buffer, pos: int) -> int:
    try:
        return skip_tags(view, pos, len(view)) if view[pos] else pos + 1
    except IndexError as error:
        raise MalformedMessage("request header: cut short") from error


def encode_request_header(api_key: int, api_version: int, correlation_id: int, client_id: str | None) -> bytes:
    """Encode the header of a request. Raises KeyError for an API or version that is not declared."""
    if (api_key, api_version) == (ApiKey.CONTROLLED_SHUTDOWN, 0):
        return _pack_fixed(api_key, api_version, correlation_id)
    tags = b"\0" if _SHAPES[api_key, api_version] else b""
    if client_id is None:
        return _pack_common(api_key, api_version, correlation_id, -1) + tags
    name = encode_text(client_id)
    return _pack_common(api_key, api_version, correlation_id, len(name)) + name + tags


def response_header(api_key: int, api_version: int, correlation_id: int) -> bytes:
    """Encode the header of a response: 4 bytes, or 5 in a flexible version of any API but ApiVersions."""
    if _SHAPES.get((api_key, api_version)) and api_key != ApiKey.API_VERSIONS:
        return _pack_correlation(correlation_id) + b"\0"
    return _pack_correlation(correlation_id)


def response_body_pos(api_key: int, api_version: int, view: Buffer) -> int:
    """Where the body of a response frame starts. Raises MalformedMessage when the header is truncated or malformed."""
    if len(view) < 4:
        raise MalformedMessage(f"response header: {len(view)} of 4 bytes")
    if _SHAPES.get((api_key, api_version)) and api_key != ApiKey.API_VERSIONS:
        return _pass_tags(view, 4)
    return 4


def response_correlation_id(view: Buffer) -> int:
    """The correlation id of a response frame. Raises MalformedMessage when there is none."""
    if len(view) < 4:
        raise MalformedMessage(f"response header: {len(view)} of 4 bytes")
    correlation: int = struct.unpack_from(">i", view)[0]
    return correlation
