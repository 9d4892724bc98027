"""The file that reports to other programs that requests are answered, and at which address.

Zone: real.
"""

from __future__ import annotations

import contextlib
import os

from ottla.seams import Failure, Kind


class ReadyFile:
    """Contains the address while requests are answered. Without a path every method does nothing."""

    def __init__(self, path: str | None) -> None:
        self._path = path

    def prepare_file(self) -> None:
        """Remove the file of an earlier process, and check that a new one can be written. Raises Failure."""
        if self._path is None:
            return
        try:
            self.remove_file()
            # "x" refuses a name that exists: a link in a directory that others can write to is not followed.
            with open(self._temporary_path, "x", encoding="ascii"):
                pass
            os.unlink(self._temporary_path)
        except OSError as error:
            raise Failure(Kind.NOT_DONE, f"cannot write the ready file {self._path}: {error.strerror}") from None

    def write_address(self, bootstrap: str) -> None:
        """Write the address atomically: a program that waits for the file never reads half of it."""
        if self._path is not None:
            with open(self._temporary_path, "w", encoding="ascii") as file:
                file.write(f"{bootstrap}\n")
            # No fsync: after a crash of the machine the process is gone as well, and its next start removes the file.
            os.replace(self._temporary_path, self._path)

    def remove_file(self) -> None:
        """Remove the file: requests are not answered any more."""
        if self._path is not None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path)

    @property
    def _temporary_path(self) -> str:
        return f"{self._path}.{os.getpid()}.tmp"
