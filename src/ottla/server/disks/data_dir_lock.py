"""The lock that allows one broker per data directory.

Zone: real. The file is `.lock`, as in Kafka; it contains the id of the process that holds it.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import stat

from ottla.seams import Failure, Kind
from ottla.server.os_errors import failure_of

log = logging.getLogger(__name__)

NAME = ".lock"
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class DirectoryLock:
    """Holds a data directory until `release_lock` or the end of the process."""

    __slots__ = ("_fd", "_path")

    def __init__(self, directory: str) -> None:
        """Lock a directory. Raises Failure: CONFLICT when another broker holds it, else the error of the system."""
        self._path = f"{directory}/{NAME}"
        try:
            self._fd = _open_directory(directory, self._path)
        except OSError as error:
            raise failure_of(error, self._path) from None
        try:
            # Both kinds: Kafka takes record locks (lockf); flock also excludes a second broker in this process.
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            # The holder has written its process id into the file.
            owner = os.pread(self._fd, 20, 0).decode("ascii", "replace").strip()
            os.close(self._fd)
            raise _in_use(directory, owner) from None
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)

    def release_lock(self) -> None:
        """Unlock the directory. The file stays: after a removal two brokers could lock two different files."""
        os.ftruncate(self._fd, 0)
        os.close(self._fd)


def _in_use(directory: str, owner: str = "") -> Failure:
    who = f"process {owner}" if owner.isdigit() else "another process"
    return Failure(Kind.CONFLICT, f"{directory} is in use by {who}: stop that broker, or name another directory")


def _open_directory(directory: str, path: str) -> int:
    """Open the lock file. A link, a pipe or a similar entry of its name is renamed, never followed, written to or
    waited for. Raises OSError, and Failure CONFLICT when a broker holds the file that a link points to.
    """
    if os.path.lexists(path) and not stat.S_ISREG(os.lstat(path).st_mode):
        _check_free(directory, path)
        os.rename(path, f"{path}.{os.getpid()}.aside")
        log.warning("%s is not a regular file: renamed it to %s.%d.aside", path, path, os.getpid())
    return os.open(path, _FLAGS, 0o644)


def _check_free(directory: str, path: str) -> None:
    """Check that no broker of an earlier version runs, which followed links and locked the file behind one."""
    with contextlib.suppress(FileNotFoundError):
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise _in_use(directory) from None
        finally:
            os.close(fd)
