"""Reports of a supervisor: lines on standard output, `status.json` in the data directory, a `pid` file per process.

Zone: real. This module writes them; `ottla.server.supervisor.supervisor` decides what and when.

A line is text for people or one JSON object, `{"event": …}`; later versions may add fields but remove none.
`status.json` is the present state, replaced as a whole.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Mapping
from typing import Any, Final, TextIO

STATUS: Final = "status.json"
PID: Final = "pid"
DIGEST: Final = "store.digest"
"""Credentials for the metadata store, for people: `addauth digest "$(cat store.digest)"` in ZooKeeper's shell."""


class StatusReport:
    """The events and the state of one supervisor."""

    def __init__(self, data: str, style: str = "text", stream: TextIO | None = None) -> None:
        """style: "text" or "json"."""
        self._data = data
        self._style = style
        self._stream = sys.stdout if stream is None else stream

    def report_event(self, event: str, text: str, **fields: Any) -> None:
        """Print one line; a reader that has closed the pipe is ignored."""
        line = json.dumps({"event": event, **fields}) if self._style == "json" else text
        with contextlib.suppress(BrokenPipeError):
            print(line, file=self._stream, flush=True)

    def write_status(self, status: Mapping[str, Any]) -> None:
        """Replace `status.json`. A failure is ignored: a full disk must not end the brokers."""
        with contextlib.suppress(OSError):
            _replace_file(f"{self._data}/{STATUS}", json.dumps(status, indent=2) + "\n")


def write_pid(directory: str, pid: int) -> None:
    """Write the id of the process that works in a directory. Raises OSError."""
    _replace_file(f"{directory}/{PID}", f"{pid}\n")


def remove_pid(directory: str) -> None:
    """Remove the `pid` file: no process works in the directory any more."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(f"{directory}/{PID}")


def write_digest(data: str, digest: str) -> None:
    """Write the store's credentials to a file that only this user can read. Raises OSError."""
    descriptor = os.open(f"{data}/{DIGEST}.tmp", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(descriptor, "w", encoding="utf-8") as file:
        os.fchmod(descriptor, 0o600)
        file.write(f"{digest}\n")
    os.replace(f"{data}/{DIGEST}.tmp", f"{data}/{DIGEST}")


def remove_digest(data: str) -> None:
    """Remove the store's credentials: the store is closed."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(f"{data}/{DIGEST}")


def read_status(data: str) -> dict[str, Any] | None:
    """The state in `status.json`; None when the file is missing or damaged. Raises OSError."""
    try:
        with open(f"{data}/{STATUS}", encoding="utf-8") as file:
            found = json.load(file)
    except (FileNotFoundError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _replace_file(path: str, text: str) -> None:
    """Write a file atomically: a reader never gets half of it."""
    with open(f"{path}.tmp", "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(f"{path}.tmp", path)
