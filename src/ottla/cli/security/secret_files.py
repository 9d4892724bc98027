"""Files with secrets: only their owner may read them, and none is overwritten.

Zone: real. Prints nothing.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress

import click


def write_new_files(files: Mapping[str, str | bytes], public: Collection[str] = ()) -> None:
    """Write files by their paths; either all of them or none. Their mode is 0600, that of `public` ones 0644.

    Directories that do not exist are made with the mode 0700. Raises click.UsageError if a file exists.
    """
    there = [path for path in files if os.path.lexists(path)]
    if there:
        raise click.UsageError(f"{there[0]} exists, and is not overwritten: name another place, or remove it")
    made: list[str] = []
    try:
        for path, content in files.items():
            os.makedirs(os.path.dirname(path) or ".", mode=0o700, exist_ok=True)
            # O_EXCL: a file or a link that was made since the check is not followed.
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644 if path in public else 0o600)
            made.append(path)
            with open(handle, "wb") as file:
                file.write(content.encode() if isinstance(content, str) else content)
    except BaseException:
        _remove_files(made)
        raise


@contextmanager
def new_files(files: Mapping[str, str | bytes]) -> Iterator[None]:
    """As `write_new_files`; if the block raises, the files are removed."""
    write_new_files(files)
    try:
        yield
    except BaseException:
        _remove_files(files)
        raise


def _remove_files(paths: Iterable[str]) -> None:
    for path in paths:
        with suppress(OSError):
            os.unlink(path)


def is_private(path: str) -> bool:
    """Whether only its owner may read the file."""
    return not os.stat(path).st_mode & (stat.S_IRWXG | stat.S_IRWXO)
