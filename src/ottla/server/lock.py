"""One broker per data directory.

Zone: real. The file is `.lock`, as Kafka's; it holds the number of the process that has it.
"""

from __future__ import annotations

import fcntl
import os

from ottla.seams import Failure, Kind
from ottla.server.os_errors import failure_of

NAME = ".lock"


class DirectoryLock:
    """Holds a data directory until `release` or the end of the process."""

    __slots__ = ("_fd", "_path")

    def __init__(self, directory: str) -> None:
        """Lock a directory. Raises Failure CONFLICT when another broker has it, else what the system says."""
        self._path = f"{directory}/{NAME}"
        try:
            self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise failure_of(error, self._path) from None
        try:
            # Both kinds: record locks are what Kafka takes, and flock also keeps out a second broker of this process.
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            owner = os.pread(self._fd, 20, 0).decode("ascii", "replace").strip()
            os.close(self._fd)
            who = f"process {owner}" if owner.isdigit() else "another process"
            text = f"{directory} is in use by {who}: stop that broker, or name another directory"
            raise Failure(Kind.CONFLICT, text) from None
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """Let the directory go. The file stays: removing it would let two brokers lock two different files."""
        os.ftruncate(self._fd, 0)
        os.close(self._fd)
