"""Text from clients: kept byte for byte, and readable."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.utf8 import decode_text, encode_text, readable_text


@given(st.binary(max_size=50))
def test_any_bytes_come_back(raw: bytes) -> None:
    text = decode_text(raw)
    assert encode_text(text) == raw
    assert readable_text(text) == raw.decode(errors="replace")


@given(st.text(max_size=50))
def test_text_stays_what_it_is(text: str) -> None:
    assert decode_text(encode_text(text)) == readable_text(text) == text


def test_half_of_a_surrogate_pair_is_not_a_byte() -> None:
    with pytest.raises(UnicodeEncodeError):
        encode_text("\ud800")
    readable_text("\ud800x\udcff").encode()
