"""Texts of errors are cut when the error is created.

Zone: pure.
"""

from __future__ import annotations

import pytest

from ottla.errors import MAX_MESSAGE, ApiError, ErrorCode, cut_text


@pytest.mark.parametrize("character", ["a", "é", "漢", "𝄞", "\udcff"])
def test_a_text_is_cut_between_characters(character: str) -> None:
    for before in range(5):
        for most in range(20, 30):
            cut = cut_text("b" * before + character * 40, most)
            data = cut.encode("utf-8", "surrogatepass")
            assert most - 4 < len(data) <= most
            assert cut.endswith(character + "…")


def test_a_text_that_fits_is_not_cut() -> None:
    assert cut_text("漢" * 10, 30) == "漢" * 10
    assert cut_text("漢" * 10, 29) == "漢" * 8 + "…"
    assert cut_text("a" * 10, 9, "") == "a" * 9


def test_an_error_quotes_what_fits_an_answer() -> None:
    error = ApiError(ErrorCode.INVALID_CONFIG, f"no such key: {'x' * 65_536}")
    assert len(error.message.encode()) == MAX_MESSAGE
    assert error.message.startswith("no such key: xxx")
    assert len(str(error)) < MAX_MESSAGE + 50
