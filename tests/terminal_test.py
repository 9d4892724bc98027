"""Output to a terminal: data of a cluster cannot control it; output to anything else is unchanged."""

from __future__ import annotations

import io
import json
import os
import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TextIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.terminal import Style, draw_status, protected_stream, visible_text, write_styled

SOURCES = Path(__file__).parent.parent / "src"


class Screen:
    """A pseudo-terminal: `stream` writes to it, `read` returns the bytes that arrived."""

    def __init__(self, encoding: str = "utf-8") -> None:
        self.master, slave = os.openpty()
        self._terminal = open(slave, "w", encoding=encoding)  # noqa: SIM115
        self.stream = protected_stream(self._terminal)

    def read(self) -> bytes:
        self.stream.flush()
        return os.read(self.master, 65536).replace(b"\r\n", b"\n")  # the terminal itself returns the carriage

    def close(self) -> None:
        self.stream.close()
        self._terminal.close()
        os.close(self.master)


@pytest.fixture
def screen() -> Iterator[Screen]:
    with closing(Screen()) as made:
        yield made


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("tea, thé, 茶 🍵\n\tyes", "tea, thé, 茶 🍵\n\tyes"),
        ("\x1b]0;owned\x07\x1b[2J", r"\x1b]0;owned\x07\x1b[2J"),
        ("a\rb\x08\x00", r"a\x0db\x08\x00"),
        ("\x7f\x9b31m", r"\u007f\u009b31m"),
        ("\u202eabc\u2066\ufeff\u200b", r"\u202eabc\u2066\ufeff\u200b"),
        ("\u2028\u2029", r"\u2028\u2029"),
        ("\U000e0041", r"\udb40\udc41"),
        ("\ud800", r"\ud800"),
        ("a\u00a0b\u3000c", "a\u00a0b\u3000c"),
    ],
)
def test_characters_that_steer_a_terminal_are_shown_as_escapes(text: str, shown: str) -> None:
    assert visible_text(text) == shown


@given(st.text())
def test_a_json_document_stays_the_same_document(text: str) -> None:
    document = json.dumps(text, ensure_ascii=False)
    assert json.loads(visible_text(document)) == text


def test_text_and_bytes_to_a_terminal_pass_the_same_gate(screen: Screen) -> None:
    screen.stream.write("one \x1b[2J\n")
    assert screen.read() == b"one \\x1b[2J\n"
    screen.stream.buffer.write(b"two \x1b[2J\n")
    assert screen.read() == b"two \\x1b[2J\n"


def test_bytes_that_are_not_utf8_are_shown_as_escapes(screen: Screen) -> None:
    screen.stream.buffer.write(b"\x9b31m \xff")
    assert screen.read() == b"\\x9b31m \\xff"


def test_a_character_may_be_split_between_two_writes(screen: Screen) -> None:
    for byte in "é\u202e\n".encode():
        screen.stream.buffer.write(bytes([byte]))
    assert screen.read() == "é\\u202e\n".encode()


def test_a_terminal_that_lacks_a_character_gets_an_escape() -> None:
    with closing(Screen("latin-1")) as screen:
        screen.stream.write("é茶\n")
        assert screen.read() == b"\xe9\\u8336\n"


def test_only_the_progress_line_moves_the_cursor(screen: Screen) -> None:
    draw_status("42 of \x1b[2J", screen.stream, end="\n")
    assert screen.read() == b"\r\x1b[K42 of \\x1b[2J\n"


PIECES = [("a \x1b[2J", Style.PLAIN), ("ok ", Style.GOOD), ("\x1b[0m!", Style.BAD)]


def test_pieces_have_colours_and_their_text_cannot_have_any(screen: Screen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    write_styled(PIECES, screen.stream)
    assert screen.read() == b"a \\x1b[2J\x1b[32mok \x1b[0m\x1b[31m\\x1b[0m!\x1b[0m\n"


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_users_can_switch_colours_off(screen: Screen, monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    write_styled(PIECES, screen.stream)
    assert screen.read() == b"a \\x1b[2Jok \\x1b[0m!\n"


def test_a_pipe_gets_plain_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    below = io.BytesIO()
    stream = io.TextIOWrapper(below)
    write_styled(PIECES, stream)
    stream.flush()
    assert below.getvalue() == b"a \x1b[2Jok \x1b[0m!\n"


def test_output_that_is_not_a_terminal_is_unchanged() -> None:
    stream: TextIO = io.TextIOWrapper(io.BytesIO())
    assert protected_stream(stream) is stream


def test_a_protected_stream_is_not_wrapped_again(screen: Screen) -> None:
    assert protected_stream(screen.stream) is screen.stream


def test_no_other_module_writes_control_sequences() -> None:
    escape = re.compile(r"\\x1b|\\033|\\u001b|\\e\[", re.IGNORECASE)
    guilty = [
        path.relative_to(SOURCES).as_posix()
        for path in sorted(SOURCES.rglob("*.py"))
        if escape.search(path.read_text())
    ]
    assert guilty == ["ottla/terminal.py"]
