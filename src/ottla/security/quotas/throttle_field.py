"""Sets the throttle time in a response that is encoded already.

Zone: pure. Responses are encoded without it, because few are throttled. In most of them it is the first field, which is
overwritten. Produce and ApiVersions have it after an array: their response is decoded and encoded again, unless it is
large; then it keeps the throttle time 0, and the client notices the delay only.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Any, Final

from ottla.seams import Part, Region
from ottla.wire.apis import API_TABLE
from ottla.wire.codec import decode, encode
from ottla.wire.header import response_header

AGAIN_MAX: Final = 64 * 1024
"""Most bytes of a response that is encoded again."""
_FIELD: Final = "throttle_time_ms"
_pack: Final = Struct(">i").pack


def with_throttle_time(api_key: int, version: int, parts: Sequence[Part], throttle_ms: int) -> Sequence[Part]:
    """The response with this throttle time, in milliseconds; unchanged if it has no such field."""
    api = API_TABLE.get(api_key)
    # The refusal of an unknown version has the form of another one.
    if api is None or not api.min_version <= version <= api.max_version:
        return parts
    names = [field.name for field in api.response.FIELDS if field.exists_in(version)]
    if _FIELD not in names:
        return parts
    at = len(response_header(api_key, version, 0))
    if names[0] == _FIELD:
        return _overwrite(parts, at, throttle_ms)
    return _encode_again(api_key, version, parts, at, throttle_ms)


def _overwrite(parts: Sequence[Part], at: int, throttle_ms: int) -> Sequence[Part]:
    begin, end = b"", at + 4
    for number, part in enumerate(parts):
        if isinstance(part, Region):
            break
        need = end - len(begin)
        begin += bytes(memoryview(part)[:need])
        if len(begin) == end:
            rest = memoryview(part)[need:]
            return [begin[:at] + _pack(throttle_ms), *([rest] if rest else ()), *parts[number + 1 :]]
    return parts


def _encode_again(api_key: int, version: int, parts: Sequence[Part], at: int, throttle_ms: int) -> Sequence[Part]:
    octets = [part for part in parts if not isinstance(part, Region)]
    if len(octets) != len(parts) or sum(map(len, octets)) > AGAIN_MAX:
        return parts
    content = b"".join(octets)
    response: Any
    response, _ = decode(API_TABLE[api_key].response, version, memoryview(content), at)
    response.throttle_time_ms = throttle_ms
    return [content[:at], *encode(response, version)]
