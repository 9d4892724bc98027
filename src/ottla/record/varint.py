"""Zigzag variable-length integers, as records hold them (Protocol Buffers' encoding).

Zone: pure. 32-bit numbers take at most 5 bytes, 64-bit ones at most 10; longer or larger ones are CorruptRecord.
"""

from __future__ import annotations

from typing import Final

from ottla.record.errors import CorruptRecord


def read_varint(data: bytes, pos: int) -> tuple[int, int]:
    """(value, position after it) of a 32-bit number.

    Raises IndexError at the end of `data`, CorruptRecord beyond 32 bits.
    """
    first = data[pos]
    if first < 0x80:
        return (first >> 1) ^ -(first & 1), pos + 1
    return _read_long_form(data, pos, 32)


def read_varlong(data: bytes, pos: int) -> tuple[int, int]:
    """(value, position after it) of a 64-bit number; errors as in `read_varint`."""
    first = data[pos]
    if first < 0x80:
        return (first >> 1) ^ -(first & 1), pos + 1
    return _read_long_form(data, pos, 64)


def _read_long_form(data: bytes, pos: int, bits: int) -> tuple[int, int]:
    raw = shift = 0
    while True:
        byte = data[pos]
        pos += 1
        raw |= (byte & 0x7F) << shift
        if raw >> bits:
            raise CorruptRecord(f"a varint of more than {bits} bits")
        if byte < 0x80:
            return (raw >> 1) ^ -(raw & 1), pos
        shift += 7
        if shift >= bits:
            raise CorruptRecord(f"a varint of more than {(bits + 6) // 7} bytes")


def _encode_raw(raw: int) -> bytes:
    out = bytearray()
    while raw >= 0x80:
        out.append(raw & 0x7F | 0x80)
        raw >>= 7
    out.append(raw)
    return bytes(out)


_SHORT: Final = tuple(_encode_raw(raw) for raw in range(1024))
"""Encodings of -512 … 511: most deltas and lengths."""

LENGTHS: Final = _SHORT[::2]
"""Encodings of 0 … 511, for code that cannot afford a call."""
LENGTHS_END: Final = len(LENGTHS)


def encode_varint(value: int) -> bytes:
    """The encoding of a number of -2⁶³ … 2⁶³-1; the caller checks whether it fits 32 bits."""
    raw = (value << 1) ^ (value >> 63)
    return _SHORT[raw] if raw < 1024 else _encode_raw(raw)
