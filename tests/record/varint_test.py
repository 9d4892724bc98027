"""Zigzag varints: every number there and back, and the limits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.record.errors import CorruptRecord
from ottla.record.varint import encode_varint, read_varint, read_varlong


@given(st.integers(-(2**31), 2**31 - 1), st.binary(max_size=3))
def test_32_bits(value: int, before: bytes) -> None:
    data = encode_varint(value)
    assert len(data) <= 5
    assert read_varint(before + data + b"\x80", len(before)) == (value, len(before) + len(data))


@given(st.integers(-(2**63), 2**63 - 1))
def test_64_bits(value: int) -> None:
    data = encode_varint(value)
    assert len(data) <= 10
    assert read_varlong(data, 0) == (value, len(data))


def test_examples() -> None:
    """Protocol Buffers' table of zigzag numbers."""
    numbers = {0: 0, -1: 1, 1: 2, -2: 3, 2147483647: 4294967294, -2147483648: 4294967295}
    for value, raw in numbers.items():
        assert sum((byte & 127) << 7 * i for i, byte in enumerate(encode_varint(value))) == raw
    assert encode_varint(150) == b"\xac\x02"


@pytest.mark.parametrize("read", [read_varint, read_varlong])
def test_the_end_of_the_data_is_an_index_error(read) -> None:
    for data in (b"", b"\x80", b"\xff\xff"):
        with pytest.raises(IndexError):
            read(data, 0)


def test_too_long_is_corrupt() -> None:
    with pytest.raises(CorruptRecord, match="more than 5 bytes"):
        read_varint(b"\x80" * 6, 0)
    with pytest.raises(CorruptRecord, match="more than 32 bits"):
        read_varint(b"\xff\xff\xff\xff\x10", 0)
    with pytest.raises(CorruptRecord, match="more than 10 bytes"):
        read_varlong(b"\x80" * 11, 0)
    with pytest.raises(CorruptRecord, match="more than 64 bits"):
        read_varlong(b"\xff" * 9 + b"\x02", 0)
