"""What happened in a run with compacted topics: what was written under each key, and what each replica shows of it.

Zone: pure. Facts only. A record travels as one text through what producers keep: `key=value`, or `key=` for a deletion.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ottla.sim.cluster.history import ClusterHistory


@dataclass(slots=True)
class CompactionHistory(ClusterHistory):
    """Everything the checkers of such a run look at."""

    compacted: dict[str, None] = field(default_factory=dict)
    """Logs of compacted topics. Of their offsets nothing else is judged."""
    shown: dict[tuple[str, int], dict[bytes, bytes | None]] = field(default_factory=dict)
    """By log and broker: the last value of every key (None: deleted) that the broker gave a reader at the end."""
    kept: dict[tuple[str, int], int] = field(default_factory=dict)
    """How many records these were read from."""


def packed(key: bytes, value: bytes | None) -> bytes:
    """A record as one text."""
    return key + b"=" + (value or b"")


def unpacked(text: bytes) -> tuple[bytes, bytes | None]:
    """(key, value) of such a text; None: a deletion."""
    key, _, value = text.partition(b"=")
    return key, value or None
