"""The progress line: only in a terminal, only for long work."""

from __future__ import annotations

import io

import click
import pytest

from ottla.cli.views.progress import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def drawn(monkeypatch: pytest.MonkeyPatch, after_s: float, stream: io.StringIO, *, shown: bool = True) -> str:
    """What one Progress writes that hears of 1,234 records."""
    monkeypatch.setattr("sys.stderr", stream)
    with click.Context(click.Command("x")), Progress("written", shown=shown, first_after_s=after_s) as line:
        line.add_progress(1_234, 5_000_000)
    return stream.getvalue()


def test_nothing_is_drawn_for_what_is_quick(monkeypatch) -> None:
    assert drawn(monkeypatch, 1e9, Terminal()) == ""


def test_a_long_job_draws_and_leaves_its_last_line(monkeypatch) -> None:
    text = drawn(monkeypatch, 0, Terminal())
    assert "1,234 records written, 5.0 MB" in text
    assert text.endswith("s\n")


def test_nothing_is_drawn_into_a_file_or_over_the_data(monkeypatch) -> None:
    assert drawn(monkeypatch, 0, io.StringIO()) == ""
    assert drawn(monkeypatch, 0, Terminal(), shown=False) == ""
