"""Marks a log that lost durable records: it must not lead while an in-sync replica has them all.

Zone: pure. The mark is the file `incomplete` in the log's directory. It stays until the replica has left the in-sync
replicas, or leads as the only one left; so a broker that dies in between reports the loss after its next start.
"""

from __future__ import annotations

from enum import IntEnum


class IncompleteLog(IntEnum):
    """What the log lost; the larger value is the worse one."""

    END = 1
    """The newest records: the log is a prefix of what it was, and continues from there."""
    WITHIN = 2
    """Other records: a segment is missing or damaged. The whole log is fetched again."""


def format_loss(lack: IncompleteLog) -> bytes:
    """The content of the file."""
    return f"version: 0\nlacks: {lack.name.lower()}\n".encode()


def parse_loss(data: bytes) -> IncompleteLog:
    """The loss in the file; the worst one when it cannot be read."""
    return IncompleteLog.END if data == format_loss(IncompleteLog.END) else IncompleteLog.WITHIN
