"""The history of a run: what its clients saw, and the deaths that excuse a loss. Input of the checkers.

Zone: pure. Facts only; `checkers.py` judges them. A log is named `<topic>-<partition>@<topic id>`, so a topic that was
created again under an old name is another log.

A power loss takes records that were not yet synced, and other records may get their offsets. So every observation has
the life of the broker that made it. The *era* of an offset is the number of losses before that life that may have
taken it: within one era an offset has one value.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple

NEVER: Final = 1 << 62


class Outcome(Enum):
    """The result of a write, as its producer knows it."""

    INFO = "info"
    """No answer: the batch may be in the log."""
    OK = "ok"
    FAIL = "fail"
    """Refused for good: the batch is not in the log."""


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
    """Of the first record; -1: unknown (a duplicate whose offset the broker does not remember)."""
    life: int = 0
    """The life of the broker that acknowledged; in a cluster, its number."""
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
    """The requested offset."""
    records: list[tuple[int, bytes]]
    """Offset and value, from the position on."""
    high_watermark: int
    log_start: int
    connection: int
    damage: str = ""
    """The defect of the bytes; empty: none."""
    after_reset: bool = False
    """The first read after the reader took a new position."""
    epoch: int = -1
    """The leader epoch in the request."""
    epochs: list[tuple[int, int]] = field(default_factory=list)
    """Leader epochs of the batches, with the offset from which each holds."""


class Reset(NamedTuple):
    """A reader got OFFSET_OUT_OF_RANGE, and asks for the ends of the log."""

    reader: str
    log: str
    life: int
    at_ns: int
    position: int


class Ends(NamedTuple):
    """An answer to ListOffsets."""

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
    """The records of a compacted log in one answer: all that are left between two positions."""

    log: str
    at_ns: int
    position: int
    following: int
    """The position of the next request."""
    offsets: frozenset[int]


@dataclass(slots=True)
class Loss:
    """A death after which records may be missing."""

    life: int
    """The life that ended with it, or the last one before it."""
    at_ns: int
    floors: dict[str, int]
    """Per log: offsets below are durable. Logs that are not listed have lost nothing that a client saw."""


@dataclass(slots=True)
class History:
    """Input of the checkers."""

    writes: list[Write] = field(default_factory=list)
    reads: list[Read] = field(default_factory=list)
    resets: list[Reset] = field(default_factory=list)
    ends: list[Ends] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)
    losses: list[Loss] = field(default_factory=list)
    deleted: dict[str, int] = field(default_factory=dict)
    """Per log: the greatest offset in a DeleteRecords request."""
    dropped: dict[str, int] = field(default_factory=dict)
    """Logs of topics in a DeleteTopics request, with the time of the request."""
    rewritten: dict[str, int] = field(default_factory=dict)
    """Logs that the nemesis truncated, with the time; only their bytes are judged."""
    flushed: dict[str, None] = field(default_factory=dict)
    """Logs with flush.messages=1: the broker acknowledges only what is durable."""
    compacted: dict[str, int] = field(default_factory=dict)
    """Logs of compacted topics, with their delete.retention.ms. Checkers of offsets skip them."""
    passages: list[Passage] = field(default_factory=list)
    shown: dict[tuple[str, int], dict[bytes, bytes | None]] = field(default_factory=dict)
    """By compacted log and broker: the last value of every key (None: deleted) that a reader got at the end."""
    kept: dict[tuple[str, int], int] = field(default_factory=dict)
    """By compacted log and broker: the number of records that a reader got at the end."""
    jumps: list[int] = field(default_factory=list)
    """When the wall clock of a broker jumped."""
    final: dict[str, dict[int, bytes]] = field(default_factory=dict)
    """Per log: the records that a reader got at the end, when everything was healed."""
    final_life: int = 0
    final_start: dict[str, int] = field(default_factory=dict)
    stuck: list[str] = field(default_factory=list)
    """Work that was not finished when the time of the liveness phase was over."""
    crashes: list[str] = field(default_factory=list)
    """Tracebacks of exceptions that left a turn of the broker."""
    broken_protocol: list[str] = field(default_factory=list)
    """Answers that a client could not accept."""

    def loss_era(self, log: str, offset: int, life: int) -> int:
        """How many losses before that life may have taken the record at the offset."""
        return sum(1 for loss in self.losses if loss.life < life and offset >= loss.floors.get(log, NEVER))

    def may_be_lost(self, log: str, offset: int, life: int) -> bool:
        """Whether a record that was seen at that offset in that life may be missing at the end."""
        # 1. clients deleted it, 2. its topic, or 3. the nemesis cut its file; else 4. a loss of power took it.
        if offset < self.deleted.get(log, 0) or log in self.dropped or log in self.rewritten:
            return True
        return self.may_be_taken(log, offset, life)

    def may_be_taken(self, log: str, offset: int, life: int) -> bool:
        """Whether a loss may have taken the record that was seen at that offset in that life."""
        return any(loss.life >= life and offset >= loss.floors.get(log, NEVER) for loss in self.losses)

    def may_be_missing(self, log: str, offset: int) -> bool:
        """Whether a durable record may be missing, because a client deleted it."""
        return offset < self.deleted.get(log, 0)

    def is_promised(self, write: Write) -> bool:
        """Whether it was acknowledged with its offset."""
        return write.outcome is Outcome.OK and write.offset >= 0

    def is_judged(self, log: str) -> bool:
        """Whether offsets of that log have a meaning throughout the run."""
        return log not in self.rewritten


def pack_record(key: bytes, value: bytes | None) -> bytes:
    """A record of a compacted topic as one text, so that producers and checkers handle it like a value."""
    return key + b"=" + (value or b"")


def unpack_record(text: bytes) -> tuple[bytes, bytes | None]:
    """(key, value) of a packed record; None: a tombstone."""
    key, _, value = text.partition(b"=")
    return key, value or None
