"""The framings of Confluent's serializers.

Zone: pure.
"""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.schemas.framing import KEY_HEADER, VALUE_HEADER, Framed, read_framing, write_framing

GUID = "89791762-2336-4186-9674-299b90a802e2"
NAMES = st.one_of(st.integers(0, 2**31 - 1), st.uuids().map(str))


@given(NAMES, st.binary(min_size=1))
def test_what_is_framed_is_read(name: int | str, payload: bytes) -> None:
    assert read_framing(write_framing(name, payload), (), is_key=False) == Framed(name, payload)


@pytest.mark.parametrize("is_key", [False, True])
def test_a_header_names_the_schema_of_the_whole_value(is_key: bool) -> None:
    headers = [(KEY_HEADER if is_key else VALUE_HEADER, b"\1" + uuid.UUID(GUID).bytes)]
    assert read_framing(b"\0\0\0\0\1x", headers, is_key=is_key) == Framed(GUID, b"\0\0\0\0\1x")
    assert read_framing(b"\0\0\0\0\1x", headers, is_key=not is_key) == Framed(1, b"x")


def test_the_indexes_of_a_message_are_in_the_header_after_the_guid() -> None:
    headers = [(VALUE_HEADER, b"\1" + uuid.UUID(GUID).bytes + b"\2\4")]
    assert read_framing(b"xyz", headers, is_key=False) == Framed(GUID, b"\2\4xyz")


@pytest.mark.parametrize(
    ("data", "headers"),
    [
        (b"", ()),
        (b"\0", ()),
        (b"\0\0\0\1", ()),
        (b"\1" + bytes(15), ()),
        (b"\2" + bytes(30), ()),
        (b"text that is not framed", ()),
        (b"x", [(VALUE_HEADER, None)]),
        (b"x", [(VALUE_HEADER, b"")]),
        (b"x", [(VALUE_HEADER, b"\0\0\0\0\1too long")]),
    ],
)
def test_what_is_not_framed_has_no_schema(data: bytes, headers: list[tuple[str, bytes | None]]) -> None:
    assert read_framing(data, headers, is_key=False) is None
