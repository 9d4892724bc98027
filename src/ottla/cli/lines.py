"""Lines of standard input as they come in.

Zone: real. Bytes in, lines out, and the moments in between when the writer of the pipe pauses.
"""

from __future__ import annotations

import select
from collections.abc import Callable, Iterator
from typing import BinaryIO

from ottla.client.errors import UsageError

_CHUNK = 1 << 16


def lines_of(stream: BinaryIO, limit: int, on_pause: Callable[[], None]) -> Iterator[bytes]:
    """Each line without its newline; a last line without one counts, too.

    on_pause: called when no more input is there yet, so that what was read can be sent meanwhile.
    Raises UsageError for a line longer than `limit` bytes, before it fills the memory.
    """
    parts: list[bytes] = []
    size = 0
    number = 1
    while chunk := _read(stream):
        *whole, rest = chunk.split(b"\n")
        for line in whole:
            yield b"".join([*parts, line])
            parts.clear()
            size = 0
            number += 1
        parts.append(rest)
        size += len(rest)
        if size > limit:
            raise UsageError(f"line {number} is longer than {limit} bytes", "Raise it with -X max.request.size=…")
        if _pauses(stream):
            on_pause()
    if size:
        yield b"".join(parts)


def _read(stream: BinaryIO) -> bytes:
    """What is there, at least one byte; empty at the end."""
    read1 = getattr(stream, "read1", stream.read)
    chunk: bytes = read1(_CHUNK)
    return chunk


def _pauses(stream: BinaryIO) -> bool:
    """Whether a read would block now. Files never pause, and neither does what has no descriptor."""
    try:
        return not select.select([stream], [], [], 0)[0]
    except (OSError, ValueError):
        return False
