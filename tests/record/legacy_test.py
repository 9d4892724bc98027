"""Message formats v0 and v1: damage has a named error. `golden_test` and `oracle_test` check valid messages."""

from __future__ import annotations

import gzip
import struct
import zlib
from contextlib import suppress

import lz4.frame
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.record import legacy
from ottla.record.errors import CorruptRecord
from ottla.record.lz4_header import with_right_checksum


def message(
    magic: int, value: bytes | None, *, offset: int = 0, codec: int = 0, timestamp: int = 5, append_time: bool = False
) -> bytes:
    body = struct.pack(">bb", magic, codec | (8 if append_time else 0)) + (
        struct.pack(">q", timestamp) if magic else b""
    )
    body += struct.pack(">i", -1)
    body += struct.pack(">i", -1) if value is None else struct.pack(">i", len(value)) + value
    return struct.pack(">qiI", offset, len(body) + 4, zlib.crc32(body)) + body


def test_offsets_of_a_wrapper() -> None:
    """v1: inner offsets count from 0, the wrapper has the last one; v0: inner offsets are the real ones."""
    inner = b"".join(message(1, b"v", offset=i) for i in range(3))
    wrapper = legacy.message_at(message(1, gzip.compress(inner), offset=42, codec=1), 0)
    assert [m.offset for m in legacy.messages_in(wrapper, 1000)] == [40, 41, 42]
    inner = b"".join(message(0, b"v", offset=40 + i) for i in range(3))
    wrapper = legacy.message_at(message(0, gzip.compress(inner), offset=42, codec=1), 0)
    assert [m.offset for m in legacy.messages_in(wrapper, 1000)] == [40, 41, 42]


def test_append_time_of_a_wrapper_is_that_of_its_messages() -> None:
    inner = message(1, b"v", timestamp=5)
    wrapper = legacy.message_at(message(1, gzip.compress(inner), codec=1, timestamp=99, append_time=True), 0)
    assert [m.timestamp for m in legacy.messages_in(wrapper, 1000)] == [99]


def test_an_empty_wrapper_has_no_messages() -> None:
    wrapper = legacy.message_at(message(1, gzip.compress(b""), codec=1), 0)
    assert list(legacy.messages_in(wrapper, 1000)) == []


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (message(0, b"v")[:25], "at least 26 bytes"),
        (message(0, b"v")[:-1], "where 26 bytes are left"),
        (message(1, None)[:16] + b"\x02" + message(1, None)[17:], "magic 2"),
        (struct.pack(">qiIbb", 0, 13, 0, 0, 0) + bytes(20), "size 13"),
        (struct.pack(">qiIbb", 0, 15, 0, 1, 0) + bytes(20), "size 15"),
        (struct.pack(">qiIbbii", 0, 14, 0, 0, 0, -2, -1), "a field of -2 bytes"),
        (struct.pack(">qiIbbii", 0, 14, 0, 0, 0, 100, -1), "a field of 100 bytes"),
        (struct.pack(">qiIbbii", 0, 14, 0, 0, 0, 2, -1), "length field is cut short"),
        (struct.pack(">qiIbbii", 0, 16, 0, 0, 0, -1, -1) + b"ab", "end 2 bytes before"),
    ],
)
def test_invalid_messages_are_refused(data: bytes, why: str) -> None:
    with pytest.raises(CorruptRecord, match=why):
        legacy.message_at(data, 0)


def _gzip(data: bytes) -> bytes:
    """The same bytes at any time, because they are part of test names."""
    return gzip.compress(data, mtime=0)


@pytest.mark.parametrize(
    ("value", "codec", "why"),
    [
        (_gzip(message(1, _gzip(message(1, b"v")), codec=1)), 1, "holds a wrapper"),
        (_gzip(message(0, b"v")), 1, "of another format"),
        (_gzip(message(1, b"v")[:-1]), 1, "bytes are left"),
        (_gzip(message(1, bytes(5000))), 1, "more than 1000 bytes"),
        (None, 1, "gzip"),
        (b"", 5, "no codec 5"),
    ],
)
def test_invalid_wrappers_are_refused(value: bytes | None, codec: int, why: str) -> None:
    wrapper = legacy.message_at(message(1, value, codec=codec), 0)
    with pytest.raises(CorruptRecord, match=why):
        list(legacy.messages_in(wrapper, 1000))


@given(st.binary(max_size=100), st.integers(0, 1))
def test_any_bytes_are_messages_or_corrupt(junk: bytes, magic: int) -> None:
    with suppress(CorruptRecord):
        legacy.message_at(junk, 0)
    with suppress(CorruptRecord):
        for codec in range(8):
            list(legacy.messages_in(legacy.message_at(message(magic, junk, codec=codec), 0), 1000))


@given(st.binary(max_size=200), st.booleans(), st.integers(0, 255))
def test_a_wrong_lz4_header_checksum_is_corrected(data: bytes, with_size: bool, wrong: int) -> None:
    right = lz4.frame.compress(data, store_size=with_size)
    at = 14 if with_size and data else 6
    damaged = right[:at] + bytes([wrong]) + right[at + 1 :]
    assert with_right_checksum(damaged) == right
    assert with_right_checksum(data) == data or data[:4] == right[:4]
