"""Files of an ordinary directory, to be checked.

Zone: real. Reads only; a simulated drive has a source of its own.
"""

from __future__ import annotations

import os


class OrdinaryFile:
    """A file of the operating system."""

    def __init__(self, path: str) -> None:
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.size = os.fstat(self._descriptor).st_size

    def read_now(self, pos: int, into: memoryview) -> int:
        """Read until `into` is full, or the file is over."""
        done = 0
        while done < len(into) and (got := os.preadv(self._descriptor, [into[done:]], pos + done)):
            done += got
        return done

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


class OrdinaryDirectory:
    """A directory of the operating system."""

    def __init__(self, root: str) -> None:
        self.root = root

    def names(self, path: str) -> list[str]:
        """Names, sorted; directories end in `/`. Raises OSError."""
        with os.scandir(os.path.join(self.root, path)) as found:
            return sorted(entry.name + "/" * entry.is_dir() for entry in found)

    def open(self, path: str) -> OrdinaryFile:
        """Open a file. Raises OSError."""
        return OrdinaryFile(os.path.join(self.root, path))
