"""Corrects the header checksum of LZ4 frames of message format v0.

Zone: pure. Every client of format v0 computed the checksum with the frame's magic number included, contrary to the
specification of the frame format. Decoders refuse such frames, so the byte is corrected before decoding, and set to
the wrong value again for clients of that format.
"""

from __future__ import annotations

from typing import Final

_MAGIC: Final = b"\x04\x22\x4d\x18"
_CONTENT_SIZE: Final = 0x08
_DICTIONARY: Final = 0x01
_PRIME2: Final = 2246822519
_PRIME3: Final = 3266489917
_PRIME4: Final = 668265263
_PRIME5: Final = 374761393
_PRIME1: Final = 2654435761
_MASK: Final = 0xFFFFFFFF


def with_right_checksum(frame: bytes) -> bytes:
    """The frame with the header checksum of the specification; bytes that are not an LZ4 frame are returned as is."""
    return _with_checksum(frame, 4)


def with_wrong_checksum(frame: bytes) -> bytes:
    """The frame with the header checksum of format v0."""
    return _with_checksum(frame, 0)


def _with_checksum(frame: bytes, start: int) -> bytes:
    """The frame with a checksum of its header from `start` on."""
    if frame[:4] != _MAGIC or len(frame) < 7:
        return frame
    # The frame begins with: magic number, 4 bytes | flags | block size | content size, 8 bytes, if its flag is set |
    # dictionary id, 4 bytes, if its flag is set | checksum, 1 byte.
    end = 6 + (8 if frame[4] & _CONTENT_SIZE else 0) + (4 if frame[4] & _DICTIONARY else 0)
    checksum = xxh32(frame[start:end]) >> 8 & 0xFF
    return frame[:end] + bytes([checksum]) + frame[end + 1 :]


def xxh32(data: bytes) -> int:
    """XXH32 with seed 0, of fewer than 16 bytes (the descriptor of a frame has 2 to 14)."""
    assert len(data) < 16
    value = _PRIME5 + len(data)
    whole = len(data) & ~3
    for pos in range(0, whole, 4):
        value += int.from_bytes(data[pos : pos + 4], "little") * _PRIME3
        value = _rotate_left(value, 17) * _PRIME4
    for byte in data[whole:]:
        value = _rotate_left(value + byte * _PRIME5, 11) * _PRIME1
    value &= _MASK
    value = (value ^ value >> 15) * _PRIME2 & _MASK
    value = (value ^ value >> 13) * _PRIME3 & _MASK
    return value ^ value >> 16


def _rotate_left(value: int, bits: int) -> int:
    value &= _MASK
    return (value << bits | value >> 32 - bits) & _MASK
