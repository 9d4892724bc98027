"""The history of a run with transactions and groups. Input of its checkers.

Zone: pure. Facts only, as clients saw them. Every value is written once, so a value identifies its transaction. Every
commit of an offset has its name in the metadata, so a position identifies its commit.
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
    """The result of a transaction, as its producer knows it."""

    OPEN = "open"
    """It may have been committed or aborted."""
    COMMITTED = "committed"
    ABORTED = "aborted"
    """Its producer never requested a commit, or got an error that rules a commit out."""


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
    """Its number among all transactions of the run."""
    values: dict[bytes, str] = field(default_factory=dict)
    """Values that it tried to write: value → log."""
    written: dict[bytes, int] = field(default_factory=dict)
    """Acknowledged values: value → offset, -1 if the offset is unknown."""
    read: list[bytes] = field(default_factory=list)
    """Committed values of others that it read before it ended."""
    positions: dict[tuple[str, Route], int] = field(default_factory=dict)
    """(group, partition) → the position that was acknowledged as part of it."""
    commit_sent_ns: int = -1
    """When its producer first requested a commit; -1: never."""
    ended_ns: int = -1
    fate: Fate = Fate.OPEN


class Copied(NamedTuple):
    """The source record of a written copy."""

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
    """Epoch of the coordinator that ended the transaction."""


@dataclass(slots=True)
class View:
    """One partition of one Fetch answer, filtered for the isolation level of its reader."""

    reader: str
    log: str
    at_ns: int
    position: int
    end: int
    """The next position of the reader."""
    records: list[SeenRecord]
    markers: list[SeenMarker]
    high_watermark: int
    last_stable: int
    committed: bool
    """Whether the isolation level is read_committed."""
    damage: str = ""


class Owned(NamedTuple):
    """A member got its part of an assignment."""

    group: str
    generation: int
    member: str
    partitions: tuple[Route, ...]
    at_ns: int


class Position(NamedTuple):
    """A position in an answer to OffsetFetch."""

    group: str
    source: Route
    offset: int
    metadata: str
    asked_ns: int
    answered_ns: int
    stable: bool


class Committed(NamedTuple):
    """An OffsetCommit, or a TxnOffsetCommit, that was acknowledged."""

    group: str
    source: Route
    offset: int
    metadata: str
    generation: int
    asked_ns: int
    answered_ns: int


class Processed(NamedTuple):
    """A member has processed records of a partition, from the first offset up to the second."""

    group: str
    source: Route
    first: int
    end: int


@dataclass(slots=True)
class TransactionHistory(ClusterHistory):
    """Input of the checkers."""

    txns: list[Txn] = field(default_factory=list)
    copies: dict[bytes, Copied] = field(default_factory=dict)
    views: list[View] = field(default_factory=list)
    owned: list[Owned] = field(default_factory=list)
    positions: list[Position] = field(default_factory=list)
    commits: list[Committed] = field(default_factory=list)
    """Acknowledged OffsetCommits, outside of transactions."""
    promises: list[Committed] = field(default_factory=list)
    """Acknowledged TxnOffsetCommits, whether the transaction committed or not."""
    processed: list[Processed] = field(default_factory=list)
    ids: dict[str, bytes] = field(default_factory=dict)
    """Topic ids of the topics that transactions write."""
    last_committed: dict[str, dict[int, bytes]] = field(default_factory=dict)
    """Per log of transactions: the values that a read_committed reader got at the end."""
    last_raw: dict[str, list[SeenRecord | SeenMarker]] = field(default_factory=dict)
    """Per log of transactions: all records and markers at the end, in the order of offsets."""
    last_positions: dict[tuple[str, Route], int] = field(default_factory=dict)
    """Positions of groups at the end."""
    hanging: list[str] = field(default_factory=list)
    """Logs whose last stable offset stays below their high watermark after everything was healed."""
    idle: list[str] = field(default_factory=list)
    """Clients that did not finish after everything was healed."""

    def log_of_route(self, route: Route) -> str:
        """The name of a log that transactions write."""
        return log_name(*route, self.ids[route[0]])

    @property
    def is_whole(self) -> bool:
        """Whether no log lost data with an excuse: the guarantees of transactions need all logs."""
        return not self.excused

    @property
    def ends_transactions(self) -> bool:
        """Whether every transaction ends without an operator.

        If an internal topic lost data, a coordinator may have lost a transaction, or a group its marker; then only an
        operator can end the transaction (KIP-664).
        """
        return self.lossy_topics.isdisjoint(INTERNAL_TOPICS)
