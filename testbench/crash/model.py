"""A model of a log: lists of the written batches, independent of the log itself.

Zone: deterministic. It has no segments, indexes or files; `judge` compares it with the log.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from ottla.record.batch import Record, records_of
from ottla.types import TopicPartition

_RECORDS_MAX_BYTES = 1 << 20


class Written(NamedTuple):
    """A batch as it must be in the log."""

    base: int
    last: int
    epoch: int
    """Leader epoch."""
    timestamp: int
    """Largest timestamp."""
    producer: int
    """Producer id; -1: none."""
    producer_epoch: int
    sequence: int
    kind: str
    """`data`, `txn`, `commit` or `abort`."""
    data: bytes
    wall_ms: int = 0
    """When it was written."""

    @property
    def records(self) -> list[Record]:
        """Its records."""
        return list(records_of(self.data, max_bytes=_RECORDS_MAX_BYTES))


@dataclass
class State:
    """A state of a log. `starts`: every offset that was its start, or was requested to be."""

    batches: list[Written] = field(default_factory=list)
    starts: list[int] = field(default_factory=lambda: [0])
    doomed: bool = False
    """The whole log was to be removed, to start again elsewhere: any of its segments may be left."""
    reach: int = 0
    """Compaction must not remove records from here on: they are not committed, or their transaction is open."""
    lost: frozenset[int] = frozenset()
    """Offsets that may be missing because of newer records that were truncated later."""

    def copy(self) -> State:
        """A copy of the present state."""
        return State(list(self.batches), list(self.starts), self.doomed, self.reach, self.lost)

    @property
    def end(self) -> int:
        """The offset after the last batch."""
        return self.batches[-1].last + 1 if self.batches else 0

    def committed(self, mark: int) -> None:
        """Set the high watermark. It limits the cleaner, like the oldest open transaction."""
        opened: dict[int, int] = {}
        for batch in self.batches:
            if batch.kind == "txn":
                opened.setdefault(batch.producer, batch.base)
            elif batch.kind != "data" and batch.base < mark:
                opened.pop(batch.producer, None)
        self.reach = max(self.reach, min([mark, *opened.values()]))


def outcomes(batches: Sequence[Written]) -> dict[int, str]:
    """The result of each data batch, by base offset: `plain`, `commit`, `abort`, or `open`."""
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
    """Offsets of records with a later valid record of their key within reach."""
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
    """States before truncations that no sync has made durable: a power loss may restore them."""
    synced: int = 0
    """A flush that was requested after the last truncation has reported this offset."""
    appended: int = 0
    """Appends up to here have returned: a kill of the process does not lose them."""
    named: bool = False
    """Whether a flush has made the name of the directory durable."""
    gone: bool = False
    """Whether its deletion was requested."""
    cuts: int = 0

    def cut(self, offset: int, *, whole: bool = False) -> None:
        """Truncate to `offset`; `whole`: remove all, and start the log there."""
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
        """A flush that was requested after `cuts` truncations has reported `offset`."""
        self.named = True
        if cuts == self.cuts:
            self.synced = max(self.synced, offset)
            self.older.clear()

    def copy(self) -> Life:
        """A copy of the present state."""
        return replace(self, state=self.state.copy(), older=[state.copy() for state in self.older])


class Model:
    """All partitions, each with the lives that may be on the drive; the last one is the newest."""

    def __init__(self) -> None:
        self.lives: dict[TopicPartition, list[Life]] = {}

    def life(self, tp: TopicPartition) -> Life:
        """The newest life of a partition."""
        return self.lives[tp][-1]

    def flushed(self, tp: TopicPartition, life: Life, offset: int, cuts: int) -> None:
        """A flush of that life is complete: earlier lives are durably deleted."""
        life.flushed(offset, cuts)
        lives = self.lives[tp]
        if life in lives:
            del lives[: lives.index(life)]

    def copy(self) -> Model:
        """A copy of the present state."""
        other = Model()
        other.lives = {tp: [life.copy() for life in lives] for tp, lives in self.lives.items()}
        return other
