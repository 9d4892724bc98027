"""What a log lacks of what was durable in it: it must not lead while a replica in sync has all of it.

Zone: pure. What is found stands in the file `incomplete` in the log's directory until the replica is out of the in-sync
replicas, or leads as the only one left; so a broker that dies in between still says so.
"""

from __future__ import annotations

from enum import IntEnum


class IncompleteLog(IntEnum):
    """The worse one is the larger."""

    END = 1
    """The newest records: the log is a beginning of what it was, and goes on from there."""
    WITHIN = 2
    """Others: a segment is gone or damaged. All of it is fetched again."""


def format_lack(lack: IncompleteLog) -> bytes:
    """The file."""
    return f"version: 0\nlacks: {lack.name.lower()}\n".encode()


def parse_lack(data: bytes) -> IncompleteLog:
    """What the file says; the worst when it cannot be read."""
    return IncompleteLog.END if data == format_lack(IncompleteLog.END) else IncompleteLog.WITHIN
