"""A file that has its name only when it is whole: it is written beside it, and renamed at the end.

Zone: real.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import BinaryIO, Final

_BUFFER: Final = 1 << 18


@contextmanager
def open_finished(path: str) -> Iterator[BinaryIO]:
    """A new file for a `with` block: after an error in the block there is no file, and an older one is as it was.

    The bytes are on the disk before the file has its name. A process that is killed leaves `PATH.….part`. Raises
    OSError.
    """
    target = os.path.realpath(path)
    # A pipe or a device has no whole content that could be renamed.
    if os.path.exists(target) and not os.path.isfile(target):
        with open(target, "wb", _BUFFER) as stream:
            yield stream
        return
    part = f"{target}.{secrets.token_hex(4)}.part"
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        with open(descriptor, "wb", _BUFFER) as stream:
            yield stream
            stream.flush()
            os.fsync(descriptor)
        os.replace(part, target)
    except BaseException:
        with suppress(OSError):
            os.unlink(part)
        raise
    _sync_directory(os.path.dirname(target))


def _sync_directory(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
