"""Lets `ottla log verify` read a simulated drive like a directory.

Zone: deterministic. Reads only.
"""

from __future__ import annotations

from ottla.sim.disks.drive import Directory, Drive
from ottla.sim.disks.inode import Inode


class DriveFile:
    """An open file."""

    def __init__(self, inode: Inode) -> None:
        self._inode = inode
        self.size = len(inode.data)

    def read_now(self, pos: int, into: memoryview) -> int:
        """Read; returns the number of bytes."""
        part = self._inode.data[pos : pos + len(into)]
        into[: len(part)] = part
        return len(part)

    def close(self) -> None:
        """Does nothing: there are no resources to release."""


class DriveSource:
    """The whole drive."""

    def __init__(self, drive: Drive) -> None:
        self._drive = drive

    def names(self, path: str) -> list[str]:
        """Names, sorted; directories end in `/`."""
        names = self._drive.directory_at(path).names
        return [name + "/" * isinstance(names[name], Directory) for name in sorted(names)]

    def open(self, path: str) -> DriveFile:
        """Open a file."""
        return DriveFile(self._drive.file_at(path))
