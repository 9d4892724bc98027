"""What happened in a run, as its clients saw it, and the deaths that excuse a loss. Input of the checkers.

Zone: pure. Facts only; judging them is `checkers.py`'s. A log is named `<topic>-<partition>@<topic id>`, so that a
topic made anew under an old name is another log.

A power loss takes what was not yet synced, and its place may be taken by other records. So every observation carries
the life of the broker that made it, and the *era* of an offset counts the losses before that life which may have
taken it: within one era an offset has one value.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple

NEVER: Final = 1 << 62


class Outcome(Enum):
    """How a write ended, for its producer."""

    INFO = "info"
    """No answer: it may have happened."""
    OK = "ok"
    FAIL = "fail"
    """Refused for good: it has not happened."""


@dataclass(slots=True)
class Write:
    """One batch that a producer tried to write, with all its retries."""

    producer: str
    log: str
    values: list[bytes]
    acks: int
    producer_id: int = -1
    epoch: int = -1
    sequence: int = -1
    invoked_ns: int = 0
    completed_ns: int = 0
    outcome: Outcome = Outcome.INFO
    offset: int = -1
    """Of the first record; -1: not told (a duplicate older than the broker remembers)."""
    life: int = 0
    """The life of the broker that acknowledged; in a cluster its number."""
    sends: int = 0
    """How often it was sent before it was acknowledged."""

    @property
    def idempotent(self) -> bool:
        """Whether the broker must keep it once and in order."""
        return self.producer_id >= 0


@dataclass(slots=True)
class Read:
    """One partition of one Fetch response without an error."""

    reader: str
    log: str
    life: int
    at_ns: int
    position: int
    """The offset that was asked for."""
    records: list[tuple[int, bytes]]
    """Offset and value, from the position on."""
    high_watermark: int
    log_start: int
    connection: int
    damage: str = ""
    """What is wrong with the bytes, if anything."""
    after_reset: bool = False
    """The first read after the reader took a new position."""
    epoch: int = -1
    """The leader epoch that the reader asked in."""
    epochs: list[tuple[int, int]] = field(default_factory=list)
    """Leader epochs of the batches, with the offset from which each holds."""


class Reset(NamedTuple):
    """A reader was told that its position is out of range, and asked for the ends."""

    reader: str
    log: str
    life: int
    at_ns: int
    position: int


class Ends(NamedTuple):
    """What ListOffsets said."""

    log: str
    life: int
    at_ns: int
    earliest: int
    latest: int


class Refusal(NamedTuple):
    """A producer's oldest unacknowledged batch was refused as out of order."""

    producer: str
    log: str
    life: int
    at_ns: int
    code: str
    since_life: int
    """The life that acknowledged the batch before it."""


class Passage(NamedTuple):
    """What a reader of a compacted log was given in one answer: all that is left between two positions."""

    log: str
    at_ns: int
    position: int
    following: int
    """Where it goes on."""
    offsets: frozenset[int]


@dataclass(slots=True)
class Loss:
    """A death after which records may be missing."""

    life: int
    """The life it ended (or the last one before it)."""
    at_ns: int
    floors: dict[str, int]
    """Per log: offsets below are durable. A log that is not named has lost nothing it ever told anybody."""


@dataclass(slots=True)
class History:
    """Everything the checkers look at."""

    writes: list[Write] = field(default_factory=list)
    reads: list[Read] = field(default_factory=list)
    resets: list[Reset] = field(default_factory=list)
    ends: list[Ends] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)
    losses: list[Loss] = field(default_factory=list)
    deleted: dict[str, int] = field(default_factory=dict)
    """Per log: the greatest offset that DeleteRecords was asked to delete up to."""
    dropped: dict[str, int] = field(default_factory=dict)
    """Logs whose topic was asked to be deleted, with the time of asking."""
    rewritten: dict[str, int] = field(default_factory=dict)
    """Logs that the nemesis truncated, with the time; only their bytes are judged."""
    flushed: dict[str, None] = field(default_factory=dict)
    """Logs with flush.messages=1: the broker acknowledges only what is durable."""
    compacted: dict[str, int] = field(default_factory=dict)
    """Logs of compacted topics, with the ms for which tombstones stay. Of their offsets nothing else is judged."""
    passages: list[Passage] = field(default_factory=list)
    shown: dict[tuple[str, int], dict[bytes, bytes | None]] = field(default_factory=dict)
    """By compacted log and broker: at the end the last value of every key (None: deleted) that a reader was given."""
    kept: dict[tuple[str, int], int] = field(default_factory=dict)
    """How many records these were read from."""
    jumps: list[int] = field(default_factory=list)
    """When the wall clock of a broker jumped."""
    final: dict[str, dict[int, bytes]] = field(default_factory=dict)
    """Per log: what a reader found at the end, when everything was healed."""
    final_life: int = 0
    final_start: dict[str, int] = field(default_factory=dict)
    stuck: list[str] = field(default_factory=list)
    """What had not converged when the liveness phase ran out of time."""
    crashes: list[str] = field(default_factory=list)
    """Tracebacks of exceptions that left a turn of the broker."""
    broken_protocol: list[str] = field(default_factory=list)
    """Answers that a client could not take."""

    def era(self, log: str, offset: int, life: int) -> int:
        """How many losses before that life may have taken what stood at the offset."""
        return sum(1 for loss in self.losses if loss.life < life and offset >= loss.floors.get(log, NEVER))

    def may_be_lost(self, log: str, offset: int, life: int) -> bool:
        """Whether a record seen at that offset in that life may be missing at the end."""
        if offset < self.deleted.get(log, 0) or log in self.dropped or log in self.rewritten:
            return True
        return self.may_be_taken(log, offset, life)

    def may_be_taken(self, log: str, offset: int, life: int) -> bool:
        """Whether a loss may have taken what was seen at that offset in that life."""
        return any(loss.life >= life and offset >= loss.floors.get(log, NEVER) for loss in self.losses)

    def may_be_missing(self, log: str, offset: int) -> bool:
        """Whether a record may be missing even if it was durable: somebody deleted it."""
        return offset < self.deleted.get(log, 0)

    def promised(self, write: Write) -> bool:
        """Whether it was acknowledged for good, at an offset that was told."""
        return write.outcome is Outcome.OK and write.offset >= 0

    def judged(self, log: str) -> bool:
        """Whether offsets of that log have a meaning throughout the run."""
        return log not in self.rewritten


def packed(key: bytes, value: bytes | None) -> bytes:
    """A record of a compacted topic as one text, as it travels through what producers keep."""
    return key + b"=" + (value or b"")


def unpacked(text: bytes) -> tuple[bytes, bytes | None]:
    """(key, value) of such a text; None: a deletion."""
    key, _, value = text.partition(b"=")
    return key, value or None
