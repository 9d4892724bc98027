"""The source of the files that are checked.

Zone: pure. A protocol, and reading a whole small file through it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from ottla.storage.segments.scan import Readable

_SMALL_MAX: Final = 1 << 28


class Source(Protocol):
    """A directory. Paths are relative to it."""

    def names(self, path: str) -> Sequence[str]:
        """Names in a directory, sorted; directories end in `/`. Raises OSError."""
        ...

    def open(self, path: str) -> Readable:
        """Open a file for reading. Raises OSError."""
        ...


def content_of(source: Source, path: str) -> bytes:
    """A whole small file. Raises OSError."""
    file = source.open(path)
    try:
        content = bytearray(min(file.size, _SMALL_MAX))
        got = file.read_now(0, memoryview(content)) if content else 0
        return bytes(content[:got])
    finally:
        file.close()
