"""The commands of the transaction state machine, and their results.

Zone: pure. Values only. Every ticket gets the result or an ApiError, exactly once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from ottla.coordinator.shard import Completion, Refusal
from ottla.errors import ErrorCode
from ottla.transactions.state import ProducerIdentity, Transaction
from ottla.types import NO_PRODUCER_ID, TopicPartition


class TransactionCommand(Protocol):
    """A command about one transactional id, or all."""

    @property
    def ticket(self) -> Refusal:
        """The callback that gets the result or an error."""
        ...


class InitProducerId(NamedTuple):
    """A producer starts (KIP-98), or continues after an error (`expected`, KIP-360)."""

    transactional_id: str
    timeout_ms: int
    expected: ProducerIdentity | None
    """The identity that the producer had so far."""
    ticket: Completion[ProducerIdentity]
    fresh_id: int = NO_PRODUCER_ID
    """An unused producer id; it is taken if one is needed."""


class AddPartitions(NamedTuple):
    """Partitions join a transaction, or begin one. `version`: the transaction version of the producer."""

    transactional_id: str
    identity: ProducerIdentity
    partitions: Sequence[TopicPartition]
    version: int
    ticket: Completion[None]


class VerifyPartitions(NamedTuple):
    """The leader of partitions asks whether they belong to the producer's transaction (KIP-890)."""

    transactional_id: str
    identity: ProducerIdentity
    partitions: Sequence[TopicPartition]
    ticket: Completion[Mapping[TopicPartition, ErrorCode]]


class EndTransaction(NamedTuple):
    """A producer commits or aborts. The result is its identity for the next transaction."""

    transactional_id: str
    identity: ProducerIdentity
    commit: bool
    version: int
    ticket: Completion[ProducerIdentity]
    fresh_id: int = NO_PRODUCER_ID
    """An unused producer id; it is taken if one is needed."""


class MarkersWritten(NamedTuple):
    """Partitions have the marker of the transaction of `identity`. After an error the command must be repeated."""

    transactional_id: str
    identity: ProducerIdentity
    partitions: Sequence[TopicPartition]
    ticket: Completion[None]


class ResumeMarkers(NamedTuple):
    """Send the markers of a transaction again: its decision was not committed in time, so they were not sent."""

    transactional_id: str
    ticket: Completion[None]


class DescribeTransaction(NamedTuple):
    """An administrator describes one transaction."""

    transactional_id: str
    ticket: Completion[Transaction]


class ListTransactions(NamedTuple):
    """An administrator lists all transactions."""

    ticket: Completion[Mapping[str, Transaction]]


class Markers(NamedTuple):
    """The markers that a decided transaction still needs."""

    transactional_id: str
    identity: ProducerIdentity
    commit: bool
    coordinator_epoch: int
    version: int
    partitions: Sequence[TopicPartition]
