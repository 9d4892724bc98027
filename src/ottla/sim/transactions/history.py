"""What happened in a run with transactions and groups. Input of its checkers.

Zone: pure. Facts only, as clients saw them. Every value is written once, so that a value tells its transaction; every
commit of an offset carries its name in its metadata, so that a position tells who committed it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from ottla.sim.cluster.history import ClusterHistory
from ottla.sim.networks.wire_client import Route
from ottla.sim.workload.catalog import log_name
from ottla.types import INTERNAL_TOPICS


class Fate(Enum):
    """How a transaction ended, for its producer."""

    OPEN = "open"
    """It may have ended either way."""
    COMMITTED = "committed"
    ABORTED = "aborted"
    """Its producer never asked for a commit, or was told that there is none."""


@dataclass(slots=True)
class Txn:
    """One transaction, as its producer knows it."""

    name: str
    client: str
    transactional_id: str
    producer_id: int
    epoch: int
    begun_ns: int
    number: int = 0
    """Of all transactions of the run."""
    values: dict[bytes, str] = field(default_factory=dict)
    """What it tried to write: value → log."""
    written: dict[bytes, int] = field(default_factory=dict)
    """What was acknowledged: value → offset, -1 when that was not told."""
    read: list[bytes] = field(default_factory=list)
    """Committed values of others that it read before it ended."""
    positions: dict[tuple[str, Route], int] = field(default_factory=dict)
    """(group, partition) → the position that was acknowledged as part of it."""
    commit_sent_ns: int = -1
    """When its producer first asked for a commit; -1: never."""
    ended_ns: int = -1
    fate: Fate = Fate.OPEN


class Copied(NamedTuple):
    """The record that a written value is the copy of."""

    pipeline: str
    source: Route
    offset: int


class SeenRecord(NamedTuple):
    """A record of a log that transactions write."""

    offset: int
    value: bytes
    producer_id: int
    epoch: int


class SeenMarker(NamedTuple):
    """The end of a transaction in a log."""

    offset: int
    producer_id: int
    epoch: int
    commit: bool
    coordinator_epoch: int = 0
    """Of the coordinator that has ended it."""


@dataclass(slots=True)
class View:
    """One partition of one Fetch answer, as a reader of its isolation level takes it."""

    reader: str
    log: str
    at_ns: int
    position: int
    end: int
    """The position to go on at."""
    records: list[SeenRecord]
    markers: list[SeenMarker]
    high_watermark: int
    last_stable: int
    committed: bool
    """Whether it was read with read_committed."""
    damage: str = ""


class Owned(NamedTuple):
    """A member was told its part of an assignment."""

    group: str
    generation: int
    member: str
    partitions: tuple[Route, ...]
    at_ns: int


class Position(NamedTuple):
    """What an OffsetFetch told."""

    group: str
    source: Route
    offset: int
    metadata: str
    asked_ns: int
    told_ns: int
    stable: bool


class Committed(NamedTuple):
    """An OffsetCommit, or a TxnOffsetCommit, that was acknowledged."""

    group: str
    source: Route
    offset: int
    metadata: str
    generation: int
    asked_ns: int
    told_ns: int


class Processed(NamedTuple):
    """A member has processed records of a partition, from the first offset up to the second."""

    group: str
    source: Route
    first: int
    end: int


@dataclass(slots=True)
class TransactionHistory(ClusterHistory):
    """Everything the checkers look at."""

    txns: list[Txn] = field(default_factory=list)
    copies: dict[bytes, Copied] = field(default_factory=dict)
    views: list[View] = field(default_factory=list)
    owned: list[Owned] = field(default_factory=list)
    positions: list[Position] = field(default_factory=list)
    commits: list[Committed] = field(default_factory=list)
    """Outside of transactions."""
    promises: list[Committed] = field(default_factory=list)
    """As part of transactions, however these ended."""
    processed: list[Processed] = field(default_factory=list)
    ids: dict[str, bytes] = field(default_factory=dict)
    """Topic ids of the topics that transactions write."""
    last_committed: dict[str, dict[int, bytes]] = field(default_factory=dict)
    """Per log of transactions: what a read_committed reader found at the end."""
    last_raw: dict[str, list[SeenRecord | SeenMarker]] = field(default_factory=dict)
    """The same with everything that lies there, in the order of offsets."""
    last_positions: dict[tuple[str, Route], int] = field(default_factory=dict)
    """Positions of groups at the end."""
    hanging: list[str] = field(default_factory=list)
    """Logs whose last stable offset stays below their high watermark after everything was healed."""
    idle: list[str] = field(default_factory=list)
    """Clients that did not come to their end after everything was healed."""

    def log(self, route: Route) -> str:
        """The name of a log that transactions write."""
        return log_name(*route, self.ids[route[0]])

    @property
    def is_whole(self) -> bool:
        """Whether nothing was lost with an excuse: what transactions promise needs all logs."""
        return not self.excused

    @property
    def ends_transactions(self) -> bool:
        """Whether each transaction comes to an end: one of which a coordinator has lost what it knew, or a group the
        marker, waits for an operator (KIP-664)."""
        return not any(log.rpartition("@")[0].rpartition("-")[0] in INTERNAL_TOPICS for log in self.excused)
