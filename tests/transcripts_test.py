"""Transcripts are compared as a whole, and written when that is asked for."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.transcripts import check_transcript

OLD = "Text.\n\n> a\n  an earlier answer\n> b\n"
NEW = "Text.\n\n> a\n  a!\n> b\n  b!\n"


def play(line: str) -> list[str]:
    return [f"{line}!"]


def test_a_changed_answer_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UPDATE_TRANSCRIPTS", raising=False)
    path = tmp_path / "t.txt"
    path.write_text(NEW)
    check_transcript(path, play)
    path.write_text(OLD)
    with pytest.raises(AssertionError, match="UPDATE_TRANSCRIPTS=1"):
        check_transcript(path, play)
    assert path.read_text() == OLD


def test_a_transcript_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UPDATE_TRANSCRIPTS", "1")
    path = tmp_path / "t.txt"
    path.write_text(OLD)
    check_transcript(path, play)
    assert path.read_text() == NEW
