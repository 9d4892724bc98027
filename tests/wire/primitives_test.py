"""Varints and tag sections."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.wire.errors import ImpossibleLength, MalformedMessage
from ottla.wire.primitives import UVARINT, read_string_length, read_uvarint, skip_tags, uvarint, write_tags

NUMBERS = st.integers(0, 2**31 - 1) | st.sampled_from([0, 127, 128, 16383, 16384, 2097151, 2097152, 2**28, 2**31 - 1])


def by_the_book(value: int) -> bytes:
    """Seven bits at a time, lowest first, the high bit on all but the last."""
    out = b""
    while value >= 128:
        out += bytes((value % 128 + 128,))
        value //= 128
    return out + bytes((value,))


@given(NUMBERS, st.binary(max_size=3))
def test_uvarint_round_trip(value: int, rest: bytes) -> None:
    data = uvarint(value)
    assert data == by_the_book(value)
    assert read_uvarint(memoryview(b"x" + data + rest), 1) == (value, 1 + len(data))


@pytest.mark.parametrize("value", [-1, -13, -127, -128, -129, -(2**31)])
def test_a_length_that_there_is_not_is_refused(value: int) -> None:
    with pytest.raises(ImpossibleLength):
        uvarint(value)


def test_one_byte_varints() -> None:
    assert list(UVARINT) == [by_the_book(n) for n in range(128)]


@pytest.mark.parametrize("data", [b"\x80\x80\x80\x80\x08", b"\xff\xff\xff\xff\x7f", b"\x80\x80\x80\x80\x80\x00"])
def test_more_than_an_int32(data: bytes) -> None:
    with pytest.raises(MalformedMessage):
        read_uvarint(data, 0)


def test_overlong_is_read_as_kafka_reads_it() -> None:
    assert read_uvarint(b"\x81\x80\x00", 0) == (1, 3)


@pytest.mark.parametrize("data", [b"", b"\x80", b"\xff\xff\xff\xff"])
def test_cut_inside(data: bytes) -> None:
    with pytest.raises(IndexError):
        read_uvarint(data, 0)


def test_string_length_limit() -> None:
    assert read_string_length(uvarint(32768), 0)[0] == 32768
    with pytest.raises(MalformedMessage):
        read_string_length(uvarint(32769), 0)


@given(st.dictionaries(st.integers(0, 2**31 - 1), st.binary(max_size=200), max_size=6))
def test_tag_sections_are_passed_over(tags: dict[int, bytes]) -> None:
    data = write_tags(sorted(tags.items()))
    assert skip_tags(data + b"rest", 0, len(data) + 4) == len(data)
    for cut in range(1, len(data)):
        with pytest.raises((MalformedMessage, IndexError)):
            skip_tags(data[:cut], 0, cut)
