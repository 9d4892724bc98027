"""The committed positions of the mover's group, and their metadata.

Zone: pure. `ottla.retry|<generation>|<runs>`: the generation of the scheduler's state that belongs to the position, and
which records after it were forwarded (`window`).
"""

from __future__ import annotations

from typing import Final, NamedTuple

from ottla.client.positions import OffsetAndMetadata
from ottla.retry.errors import ForeignPositionError
from ottla.retry.window import Window, unpack_runs
from ottla.types import TopicPartition

_PREFIX: Final = "ottla.retry"


class CommittedPosition(NamedTuple):
    """A parsed committed position."""

    low: int
    generation: str
    handed: list[tuple[int, int]]
    text: str
    """The text of the runs."""

    def with_generation(self, generation: str) -> OffsetAndMetadata:
        """The same position for another state of the scheduler."""
        return OffsetAndMetadata(self.low, metadata=f"{_PREFIX}|{generation}|{self.text}")


def parse_position(tp: TopicPartition, committed: OffsetAndMetadata) -> CommittedPosition:
    """Parse a committed position. Raises ForeignPositionError."""
    if not committed.metadata:  # as tools that reset offsets commit it
        return CommittedPosition(committed.offset, "", [], "")
    words = committed.metadata.split("|")
    if len(words) != 3 or words[0] != _PREFIX:
        raise ForeignPositionError(tp, committed.metadata)
    try:
        return CommittedPosition(committed.offset, words[1], unpack_runs(words[2], committed.offset), words[2])
    except ValueError as error:
        raise ForeignPositionError(tp, committed.metadata) from error


def position_of(window: Window, generation: str) -> OffsetAndMetadata:
    """The position to commit for a window."""
    low, runs = window.commit_position()
    return OffsetAndMetadata(low, metadata=f"{_PREFIX}|{generation}|{runs}")
