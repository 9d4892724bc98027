"""Output streams that cannot steer a terminal.

Zone: real. Names, ids, messages and records from a cluster are untrusted: an escape sequence in them could rename the
window, move the cursor, or hide text. `protect_streams` therefore replaces stdout and stderr, if they are terminals, by
streams that show such characters as escapes. It does so below the text layer, so that no command can forget it. Only
`draw_status` writes control sequences, for progress lines, and `write_styled`, for colours.

Output to a pipe or a file is not changed: programs get the bytes.
"""

from __future__ import annotations

import codecs
import io
import os
import sys
import unicodedata
from collections.abc import Iterable
from enum import Enum
from typing import TYPE_CHECKING, Final, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_ALLOWED: Final = "\n\t"
_UNSEEN: Final = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Unicode categories: controls (C0, DEL, C1), format characters (bidirectional overrides, zero-width characters, tags),
surrogates, line and paragraph separators."""


class Style(Enum):
    """How a terminal shows a piece of text: the numbers of its control sequence (ECMA-48, SGR)."""

    PLAIN = ""
    STRONG = "1"
    GOOD = "32"
    WARNING = "33"
    BAD = "31"


def visible_text(text: str) -> str:
    r"""`text` with control and format characters as escapes, newlines and tabs excepted.

    `\x1b` for those below U+0020, JSON's `\u202e` for others, so that a JSON document stays one.
    """
    if text.isprintable():
        return text
    return "".join([each if each.isprintable() or each in _ALLOWED else _escape_character(each) for each in text])


def _escape_character(character: str) -> str:
    if unicodedata.category(character) not in _UNSEEN:
        return character  # spaces other than U+0020, private use and what a newer Unicode may have assigned
    if character < " ":
        return f"\\x{ord(character):02x}"
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))


class _TerminalBuffer(io.BufferedIOBase):
    """Bytes to a terminal: writes bytes that are not UTF-8, and invisible characters, as escapes."""

    def __init__(self, stream: TextIO) -> None:
        """stream: the terminal's own, which stays open. Characters that its encoding lacks are written as escapes."""
        super().__init__()
        self._stream = stream
        self._below = stream.buffer
        self._encoding = stream.encoding or "utf-8"
        self._decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")

    def write(self, data: ReadableBuffer, /) -> int:
        """Write UTF-8; a character may be divided between two calls."""
        self.write_raw(visible_text(self._decoder.decode(data)))
        return memoryview(data).nbytes

    def write_raw(self, text: str) -> None:
        """Write `text` as it is, control sequences included."""
        self._below.write(text.encode(self._encoding, "backslashreplace"))

    def flush(self) -> None:
        """Flush the terminal's stream."""
        self._below.flush()

    @property
    def name(self) -> str:
        """The name of the terminal's stream."""
        return self._stream.name

    def writable(self) -> bool:
        """Always."""
        return True

    def fileno(self) -> int:
        """The terminal's descriptor."""
        return self._below.fileno()

    def isatty(self) -> bool:
        """Always: only terminals are protected."""
        return True


def protect_streams() -> None:
    """Replace stdout and stderr where they are terminals. Calling it twice is harmless."""
    sys.stdout = protected_stream(sys.stdout)
    sys.stderr = protected_stream(sys.stderr)


def protected_stream(stream: TextIO) -> TextIO:
    """A stream that writes to the same place and shows control characters; `stream` itself if it is not a terminal."""
    buffer = getattr(stream, "buffer", None)
    if buffer is None or isinstance(buffer, _TerminalBuffer) or not stream.isatty():
        return stream
    stream.flush()
    # A lone surrogate, which UTF-8 cannot encode, is shown as an escape instead of raising.
    return io.TextIOWrapper(_TerminalBuffer(stream), "utf-8", "backslashreplace", line_buffering=True)


def draw_status(text: str, stream: TextIO | None = None, *, end: str = "") -> None:
    """Draw `text`, made visible, over the line on which the cursor of a terminal is. stream: stderr by default."""
    stream = sys.stderr if stream is None else stream
    stream.flush()
    line = f"\r\x1b[K{visible_text(text)}{end}"
    buffer = getattr(stream, "buffer", None)
    if isinstance(buffer, _TerminalBuffer):
        buffer.write_raw(line)
    else:
        stream.write(line)
        stream.flush()


def shows_styles(stream: TextIO) -> bool:
    """Whether text may be coloured there: in a protected terminal, without NO_COLOR (no-color.org) or TERM=dumb."""
    is_terminal = isinstance(getattr(stream, "buffer", None), _TerminalBuffer)
    return is_terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def write_styled(pieces: Iterable[tuple[str, Style]], stream: TextIO | None = None) -> None:
    """Write a line of pieces, each made visible; coloured where `shows_styles`. stream: stdout by default."""
    stream = sys.stdout if stream is None else stream
    buffer = getattr(stream, "buffer", None)
    if not shows_styles(stream) or not isinstance(buffer, _TerminalBuffer):
        stream.write("".join(text for text, _ in pieces) + "\n")
        stream.flush()  # so that lines of both streams keep their order
        return
    stream.flush()
    shown = (
        visible_text(text) if style is Style.PLAIN else f"\x1b[{style.value}m{visible_text(text)}\x1b[0m"
        for text, style in pieces
    )
    buffer.write_raw("".join(shown) + "\n")
    buffer.flush()
