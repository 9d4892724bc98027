"""Translation of an OSError to a Failure of the broker.

Zone: real. One table from errno to the kinds of `ottla.seams.Failure`.
"""

from __future__ import annotations

import errno
import os

from ottla.seams import Failure, Kind

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_NOT_DONE = frozenset(
    {
        errno.ENOENT,
        errno.EEXIST,
        errno.ENOTDIR,
        errno.EISDIR,
        errno.ENOTEMPTY,
        errno.ENAMETOOLONG,
        errno.EMFILE,
        errno.ENFILE,
        errno.ENOMEM,
    }
)


def failure_of(error: OSError, path: str | None = None) -> Failure:
    """The Failure of a system call. FULL: no space; NOT_DONE: names or resources; every other errno is IO (the
    device)."""
    name = error.filename if path is None else path
    reason = os.strerror(error.errno) if error.errno else str(error)
    text = f"{reason}: {name}" if name else reason
    if error.errno in _FULL:
        return Failure(Kind.FULL, text)
    return Failure(Kind.NOT_DONE if error.errno in _NOT_DONE else Kind.IO, text)
