"""What ought to be in a log: lists of what was written, kept beside the log and independent of it.

Zone: deterministic. Knows nothing of segments, indexes or files; `judge` compares.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from ottla.record.batch import Record, records_of
from ottla.types import TopicPartition

_RECORDS_MAX_BYTES = 1 << 20


class Written(NamedTuple):
    """A batch as it ought to lie in the log."""

    base: int
    last: int
    epoch: int
    """Of the leader."""
    timestamp: int
    """The largest."""
    producer: int
    """Its id; -1: none."""
    producer_epoch: int
    sequence: int
    kind: str
    """`data`, `txn`, `commit` or `abort`."""
    data: bytes
    wall_ms: int = 0
    """When it was written."""

    @property
    def records(self) -> list[Record]:
        """What is in it."""
        return list(records_of(self.data, max_bytes=_RECORDS_MAX_BYTES))


@dataclass
class State:
    """A log as it was at some time. `starts`: every offset that was its start, or was told to be."""

    batches: list[Written] = field(default_factory=list)
    starts: list[int] = field(default_factory=lambda: [0])
    doomed: bool = False
    """All of it was to go, for a log that begins anew: any of its segments may be left."""
    reach: int = 0
    """Of a compacted log: from here on nothing may have been taken out, for it is not committed, or not decided."""
    lost: frozenset[int] = frozenset()
    """Offsets that may be missing because of records that were cut off later."""

    def copy(self) -> State:
        """As it is now."""
        return State(list(self.batches), list(self.starts), self.doomed, self.reach, self.lost)

    @property
    def end(self) -> int:
        """Behind all that is in it."""
        return self.batches[-1].last + 1 if self.batches else 0

    def committed(self, mark: int) -> None:
        """The high watermark: it bounds the cleaner, and so does the oldest transaction that has no end below it."""
        opened: dict[int, int] = {}
        for batch in self.batches:
            if batch.kind == "txn":
                opened.setdefault(batch.producer, batch.base)
            elif batch.kind != "data" and batch.base < mark:
                opened.pop(batch.producer, None)
        self.reach = max(self.reach, min([mark, *opened.values()]))


def outcomes(batches: Sequence[Written]) -> dict[int, str]:
    """What became of each data batch, by base offset: `plain`, `commit`, `abort`, or `open`."""
    found: dict[int, str] = {}
    opened: dict[int, list[int]] = {}
    for batch in batches:
        if batch.kind in ("commit", "abort"):
            found.update(dict.fromkeys(opened.pop(batch.producer, ()), batch.kind))
        else:
            found[batch.base] = "plain" if batch.kind == "data" else "open"
            if batch.kind == "txn":
                opened.setdefault(batch.producer, []).append(batch.base)
    return found


def superseded(state: State) -> frozenset[int]:
    """Offsets of records behind which, within reach, another one of their key counts."""
    became = outcomes(state.batches)
    newer: set[bytes | None] = set()
    found = set()
    for batch in reversed(state.batches):
        if batch.kind in ("data", "txn") and batch.base < state.reach:
            for record in reversed(batch.records):
                if record.key in newer:
                    found.add(record.offset)
                if became[batch.base] in ("plain", "commit"):
                    newer.add(record.key)
    return frozenset(found)


@dataclass
class Life:
    """A partition from its creation to its deletion."""

    topic_id: bytes
    state: State = field(default_factory=State)
    older: list[State] = field(default_factory=list)
    """What a cut took away, and no sync has made gone for good: a power loss may bring it back."""
    synced: int = 0
    """A flush that was asked for since the last cut has reported this offset."""
    appended: int = 0
    """Appends up to here have returned: the process may die, and they are there."""
    named: bool = False
    """A flush has made the directory's name durable."""
    gone: bool = False
    """It was told to go."""
    cuts: int = 0

    def cut(self, offset: int, *, whole: bool = False) -> None:
        """From `offset` on everything goes; `whole`: the log begins anew there."""
        self.older.append(self.state.copy())
        self.older[-1].lost |= superseded(self.state)
        kept = [] if whole else [batch for batch in self.state.batches if batch.last < offset]
        reach = min(self.state.reach, offset)
        lost = frozenset() if whole else self.state.lost | superseded(self.state)
        self.state = State(kept, [offset] if whole else list(self.state.starts), reach=reach, lost=lost)
        self.synced = 0 if whole else min(self.synced, offset)
        self.appended = 0 if whole else min(self.appended, offset)
        self.older[-1].doomed = whole
        self.cuts += 1

    def flushed(self, offset: int, cuts: int) -> None:
        """A flush that was asked for after so many cuts has reported `offset`."""
        self.named = True
        if cuts == self.cuts:
            self.synced = max(self.synced, offset)
            self.older.clear()

    def copy(self) -> Life:
        """As it is now."""
        return replace(self, state=self.state.copy(), older=[state.copy() for state in self.older])


class Model:
    """All partitions, each with the lives that may be found on the drive; the last one is the newest."""

    def __init__(self) -> None:
        self.lives: dict[TopicPartition, list[Life]] = {}

    def life(self, tp: TopicPartition) -> Life:
        """The newest."""
        return self.lives[tp][-1]

    def flushed(self, tp: TopicPartition, life: Life, offset: int, cuts: int) -> None:
        """A flush of that life came back: what was before it is gone for good."""
        life.flushed(offset, cuts)
        lives = self.lives[tp]
        if life in lives:
            del lives[: lives.index(life)]

    def copy(self) -> Model:
        """As it is now."""
        other = Model()
        other.lives = {tp: [life.copy() for life in lives] for tp, lives in self.lives.items()}
        return other
